"""Classes that differ only in numbers become one class with constructor parameters.

The rule: two scopes share a class if their text is equal up to numbers and they have the same role, that is, the same
recorded class name or the same path up to digits (`layer1.0` and `layer3.1`). A number that is the same in all of them
stays a literal; numbers that always go together are one parameter. A parameter is positional if most uses differ, else
it defaults to the commonest value. Past `MOST` parameters a class would be harder to read than several: no merging
then.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from dataclasses import dataclass

from onnxgen.names import Namer

MOST = 6
NUMBER = "\0"

# what torch calls the positional arguments of its layers
POSITIONAL = {
    "nn.Conv": ("in_channels", "out_channels", "kernel_size"),
    "nn.ConvTranspose": ("in_channels", "out_channels", "kernel_size"),
    "nn.Linear": ("in_features", "out_features"),
    "nn.BatchNorm": ("channels",),
    "nn.InstanceNorm": ("channels",),
    "nn.GroupNorm": ("groups", "channels"),
    "nn.LayerNorm": ("features",),
    "nn.RMSNorm": ("features",),
    "nn.Embedding": ("rows", "features"),
    "nn.LSTM": ("input_size", "hidden_size"),
    "nn.GRU": ("input_size", "hidden_size"),
    "nn.RNN": ("input_size", "hidden_size"),
    "nn.Dropout": ("dropout",),
    "nn.PReLU": ("channels",),
}


@dataclass(frozen=True)
class Parameter:
    """A constructor's parameter: its name, type, and default as text (None: it must be given)."""

    name: str
    annotation: str
    default: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.annotation}" + ("" if self.default is None else f" = {self.default}")


@dataclass
class Merged:
    """One class for several: its lines, its parameters, and for each of the several the arguments that make it."""

    init: list[str]
    forward: list[str]
    parameters: list[Parameter]
    arguments: list[list[str]]


@dataclass
class Body:
    """The lines of one class, cut at their numbers.

    Attributes:
        skeleton: the lines with `NUMBER` for each number.
        numbers: (line, the number's text), in order; lines of `init` come before those of `forward`.
    """

    skeleton: tuple[str, ...]
    numbers: list[tuple[int, str]]


def cut(init: list[str], forward: list[str]) -> Body:
    """Cut a class's lines at their numbers (not at those in names, text or comments)."""
    skeleton, numbers = [], []
    for i, line in enumerate([*init, *forward]):
        made, end = [], 0
        for token in _tokens(line):
            if token.type == tokenize.NUMBER:
                made += [line[end : token.start[1]], NUMBER]
                end = token.end[1]
                numbers.append((i, token.string))
        skeleton.append("".join([*made, line[end:]]))
    return Body((*skeleton[: len(init)], "--", *skeleton[len(init) :]), numbers)


def _tokens(line: str) -> list[tokenize.TokenInfo]:
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            shift = len(line) - len(line.lstrip())
            start, end = (token.start[0], token.start[1] + shift), (token.end[0], token.end[1] + shift)
            found.append(token._replace(start=start, end=end))
    except tokenize.TokenError:  # the head of a compound statement
        pass
    return found


def merge(inits: list[list[str]], forwards: list[list[str]], children: dict[str, tuple[str, ...]]) -> Merged | None:
    """One class for several whose skeletons are equal; None if it would have too many parameters.

    `children`: the names of the positional parameters of the classes that they use.
    """
    bodies = [cut(i, f) for i, f in zip(inits, forwards)]
    columns = list(zip(*([text for _, text in body.numbers] for body in bodies)))
    varying = [t for t, column in enumerate(columns) if len(set(column)) > 1]
    in_init = {columns[t] for t in varying if bodies[0].numbers[t][0] < len(inits[0])}
    names: dict[tuple[str, ...], str] = {}
    namer = Namer()
    for t in varying:
        if columns[t] not in names:
            line = bodies[0].numbers[t][0]
            nth = sum(1 for i, _ in bodies[0].numbers[:t] if i == line)
            wanted = _name(inits[0][line], nth, children) if line < len(inits[0]) else "size"
            if sum(columns[u] == columns[t] for u, (i, _) in enumerate(bodies[0].numbers) if i == line) > 1:
                wanted = wanted.removeprefix("in_")  # as many in as out
            names[columns[t]] = namer.take(wanted)
    if len(names) > MOST:
        return None
    lines = _filled(bodies[0], columns, names, len(inits[0]))
    init, forward = lines[: len(inits[0])], lines[len(inits[0]) :]
    used_later = [
        n for c, n in names.items() if any(columns[t] == c for t in varying if bodies[0].numbers[t][0] >= len(init))
    ]
    init = [f"self.{name} = {name}" for name in used_later] + init
    parameters = _parameters(names, in_init)
    arguments = [[_argument(p, names, i) for p in parameters] for i in range(len(bodies))]
    return Merged(init, forward, parameters, [[a for a in given if a] for given in arguments])


def _filled(body: Body, columns: list[tuple[str, ...]], names: dict[tuple[str, ...], str], inits: int) -> list[str]:
    """The lines with names for the numbers that vary; `forward` reads them from `self`."""
    lines = [*body.skeleton[:inits], *body.skeleton[inits + 1 :]]
    at = 0
    for i, line in enumerate(lines):
        parts = line.split(NUMBER)
        made = parts[0]
        for part in parts[1:]:
            name = names.get(columns[at])
            text = columns[at][0] if name is None else name if i < inits else f"self.{name}"
            made += text + part
            at += 1
        lines[i] = made
    return lines


def _parameters(names: dict[tuple[str, ...], str], in_init: set[tuple[str, ...]]) -> list[Parameter]:
    required, optional = [], []
    for column, name in names.items():
        annotation = "int" if all(re.fullmatch(r"\d+", text) for text in column) else "float"
        common, count = Counter(column).most_common(1)[0]
        if count * 2 > len(column) and len(column) > 2:
            optional.append(Parameter(name, annotation, common))
        else:
            required.append(Parameter(name, annotation))
    return [*required, *optional]


def _argument(parameter: Parameter, names: dict[tuple[str, ...], str], instance: int) -> str:
    value = next(column[instance] for column, name in names.items() if name == parameter.name)
    if parameter.default is None:
        return value
    return "" if value == parameter.default else f"{parameter.name}={value}"


def _name(line: str, nth: int, children: dict[str, tuple[str, ...]]) -> str:
    """What the nth number of an `__init__` line is called where it stands: its keyword, or its place in the call."""
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return "size"
    numbers = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    numbers.sort(key=lambda n: (n.lineno, n.col_offset))
    if nth >= len(numbers):
        return "size"
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        for keyword in call.keywords:
            if keyword.arg and numbers[nth] in ast.walk(keyword.value):
                return keyword.arg
        for i, argument in enumerate(call.args):
            if argument is numbers[nth]:
                function = ast.unparse(call.func)
                layer = re.sub(r"\dd$", "", function)
                known = POSITIONAL.get(layer) or children.get(function) or ()
                return known[i] if i < len(known) else "size"
    return "size"
