"""Edits of a generated module's text: those that keep the function, and those that change it.

An edit takes a `Source` and random numbers, and returns what it made, or None where it doesn't apply.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Replaced = tuple[ast.AST, str]
COMMON = {n for owner in (Tensor, torch, nn, F, nn.Module, str, dict) for n in dir(owner)}
GENERATED = ("from_pretrained", "state_dict")


@dataclass
class Edited:
    """An edited text.

    Attributes:
        text: all of it.
        lines: those that were touched.
        attributes: what was touched in `__init__`: the lines that call it are right, too.
        hidden: whether it may take other inputs than drawn ones to see the change.
    """

    text: str
    lines: set[int] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    hidden: bool = False


class Source:
    """A text, with its tree."""

    def __init__(self, text: str) -> None:
        self.text, self.tree = text, ast.parse(text)
        self.rows = text.splitlines(keepends=True)

    def of(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ""

    def classes(self) -> list[ast.ClassDef]:
        return [n for n in self.tree.body if isinstance(n, ast.ClassDef)]

    def methods(self, initial: bool) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
        for owner in self.classes():
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and (node.name == "__init__") == initial:
                    yield owner, node

    def forward(self, owner: ast.ClassDef) -> ast.FunctionDef | None:
        return next((f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name == "forward"), None)

    def found(self, kind: type, initial: bool = False) -> list[Any]:
        return [n for _, method in self.methods(initial) for n in ast.walk(method) if isinstance(n, kind)]

    def statements(self) -> list[tuple[list[ast.stmt], int]]:
        """The simple statements of methods, each as its block and its number there."""
        blocks = [
            n.body for _, m in self.methods(False) for n in ast.walk(m) if isinstance(n, (ast.FunctionDef, ast.For))
        ]
        return [(b, i) for b in blocks for i, s in enumerate(b) if isinstance(s, (ast.Assign, ast.Return))]

    def replaced(self, *changes: Replaced, attributes: set[str] | None = None, hidden: bool = False) -> Edited:
        """Return the text with nodes replaced, each by another text."""
        data = [row.encode() for row in self.rows]
        starts = [0]
        for row in data:
            starts.append(starts[-1] + len(row))
        whole = b"".join(data)
        spans = []
        for node, new in changes:
            first: Any = node
            spans.append(
                (
                    starts[first.lineno - 1] + first.col_offset,
                    starts[first.end_lineno - 1] + first.end_col_offset,
                    new.encode(),
                )
            )
        lines: set[int] = set()
        shift = 0
        for start, end, new in sorted(spans):
            line = whole[:start].count(b"\n") + 1 + shift
            lines |= set(range(line, line + new.count(b"\n") + 1))
            shift += new.count(b"\n") - whole[start:end].count(b"\n")
        for start, end, new in sorted(spans, reverse=True):
            whole = whole[:start] + new + whole[end:]
        return Edited(whole.decode(), lines, attributes or set(), hidden)


Edit = Callable[[Source, random.Random], Edited | None]
KEEP: dict[str, Edit] = {}
CHANGE: dict[str, Edit] = {}


def keeps(function: Edit) -> Edit:
    KEEP[function.__name__] = function
    return function


def changes(function: Edit) -> Edit:
    CHANGE[function.__name__] = function
    return function


def drawn(rng: random.Random, items: Any) -> Any:
    items = list(items)
    return rng.choice(items) if items else None


def called(node: ast.AST, *names: str) -> bool:
    """Whether a node calls one of these: `F.relu`, or `.view` for a method of any value."""
    if not isinstance(node, ast.Call):
        return False
    text = ast.unparse(node.func)
    return any(text.endswith(n) if n.startswith(".") else text == n for n in names)


def is_tensor_like(node: ast.AST) -> bool:
    """Whether an expression is no plain number, as far as the text says."""
    return (
        not isinstance(node, ast.Constant)
        and ".shape" not in ast.unparse(node)
        and not (
            isinstance(node, ast.Name)
            and (node.id.isupper() or node.id in ("dim", "height", "width", "length", "size"))
        )
    )


def made(owner: ast.ClassDef) -> dict[str, ast.Assign]:
    """The attributes that a class's `__init__` sets, each with its statement."""
    init = next((f for f in owner.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    found = {}
    for node in init.body if init else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            target = node.targets[0]
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                found[target.attr] = node
    return found


def layers(source: Source, *kinds: str) -> list[tuple[ast.ClassDef, str, ast.Call]]:
    """Attributes that are layers of these kinds: class, name, call of the constructor."""
    return [
        (owner, name, node.value)
        for owner in source.classes()
        for name, node in made(owner).items()
        if isinstance(node.value, ast.Call) and called(node.value, *kinds)
    ]


def calls_of(owner: ast.ClassDef, name: str) -> list[ast.Call]:
    """The calls `self.name(...)` in methods."""
    return [n for n in ast.walk(owner) if isinstance(n, ast.Call) and ast.unparse(n.func) == f"self.{name}"]


def indent(node: ast.stmt) -> str:
    return " " * node.col_offset


# ---- names -----------------------------------------------------------------------------------------------------------


def _renamable(source: Source) -> list[str]:
    names = {name for owner in source.classes() for name in made(owner)}
    return sorted(n for n in names if n not in COMMON and f'"{n}"' not in source.text and len(n) > 1)


@keeps
def rename_attribute(source: Source, rng: random.Random) -> Edited | None:
    name = drawn(rng, _renamable(source))
    return Edited(re.sub(rf"\.{name}\b", f".my_{name}", source.text)) if name else None


@keeps
def rename_all(source: Source, rng: random.Random) -> Edited | None:
    text, names = source.text, _renamable(source)
    for number, name in enumerate(names):
        text = re.sub(rf"\.{name}\b", f".part{number}", text)
    return Edited(text) if names else None


@keeps
def rename_class(source: Source, rng: random.Random) -> Edited | None:
    name = drawn(rng, (c.name for c in source.classes()[:-1]))
    return (
        Edited(re.sub(rf"(?<![.\w]){name}\b(?!\()|(?<![.\w]){name}\b(?=\()", f"My{name}", source.text))
        if name
        else None
    )


@keeps
def rename_local(source: Source, rng: random.Random) -> Edited | None:
    for _, method in rng.sample(all_ := list(source.methods(False)), len(all_)):
        names = {n.id for n in ast.walk(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names -= {a.arg for a in method.args.args}
        if names and not any(isinstance(n, (ast.Lambda, ast.FunctionDef)) for n in ast.walk(method) if n is not method):
            name = drawn(rng, sorted(names))
            nodes = [n for n in ast.walk(method) if isinstance(n, ast.Name) and n.id == name]
            return source.replaced(*((n, f"{name}_now") for n in nodes))
    return None


# ---- statements ------------------------------------------------------------------------------------------------------


@keeps
def extract_variable(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for block, number in source.statements():
        statement = block[number]
        if any(isinstance(n, (ast.ListComp, ast.GeneratorExp, ast.Lambda, ast.IfExp)) for n in ast.walk(statement)):
            continue
        places += [
            (statement, n)
            for n in ast.walk(statement)
            if isinstance(n, (ast.Call, ast.BinOp)) and n is not statement.value
        ]
    if not places:
        return None
    statement, node = rng.choice(places)
    inner = source.of(statement)
    start = Source(inner) if False else None  # the statement is replaced as a whole
    del start
    part = source.of(node)
    at = source.text.index(inner)
    del at
    new = inner.replace(part, "extracted", 1)
    if "\n" in part or new == inner or inner.count(part) > 1:
        return None
    return source.replaced((statement, f"extracted = {part}\n{indent(statement)}{new}"))


@keeps
def inline_variable(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for block, number in source.statements():
        one = block[number]
        if number + 1 >= len(block) or not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name):
            continue
        name, after = one.targets[0].id, block[number + 1]
        if not isinstance(after, (ast.Assign, ast.Return)) or any(
            isinstance(n, (ast.ListComp, ast.Lambda)) for n in ast.walk(after)
        ):
            continue
        uses = [n for b in block[number + 1 :] for n in ast.walk(b) if isinstance(n, ast.Name) and n.id == name]
        inside = [
            n for n in ast.walk(after) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        ]
        again = isinstance(after, ast.Assign) and ast.unparse(after.targets[0]) == name
        if len(inside) == 1 and (len(uses) == 1 or again):
            places.append((one, inside[0]))
    if not places:
        return None
    one, use = rng.choice(places)
    return source.replaced((use, f"({source.of(one.value)})"), (one, "pass"))


@keeps
def reorder_statements(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for block, number in source.statements():
        if (
            number + 1 < len(block)
            and isinstance(block[number], ast.Assign)
            and isinstance(block[number + 1], ast.Assign)
        ):
            one, other = block[number], block[number + 1]
            names = [[n for n in ast.walk(s) if isinstance(n, ast.Name) and n.id != "self"] for s in (one, other)]
            stored = [{n.id for n in each if isinstance(n.ctx, ast.Store)} for each in names]
            used = [{n.id for n in each} for each in names]
            if not stored[0] & used[1] and not stored[1] & used[0]:
                places.append((one, other))
    if not places:
        return None
    one, other = rng.choice(places)
    return source.replaced((one, source.of(other)), (other, source.of(one)))


@keeps
def reorder_layers(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for _, init in source.methods(True):
        for one, other in zip(init.body, init.body[1:], strict=False):
            if all(
                isinstance(s, ast.Assign)
                and ast.unparse(s.value).startswith("nn.")
                and "Parameter" not in ast.unparse(s)
                for s in (one, other)
            ):
                places.append((one, other))
    if not places:
        return None
    one, other = rng.choice(places)
    return source.replaced((one, source.of(other)), (other, source.of(one)))


@keeps
def extract_function(source: Source, rng: random.Random) -> Edited | None:
    nodes = [n for n in source.found(ast.BinOp) if "self" not in ast.unparse(n) and "\n" not in source.of(n)]
    node = drawn(rng, nodes)
    if node is None:
        return None
    names = sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in ("torch", "F", "nn")})
    bound = {a.arg for n in ast.walk(source.tree) if isinstance(n, (ast.Lambda, ast.FunctionDef)) for a in n.args.args}
    del bound
    edited = source.replaced((node, f"combined({', '.join(names)})"))
    edited.text = with_helper(edited.text, f"def combined({', '.join(names)}):\n    return {source.of(node)}\n")
    return edited


def with_helper(text: str, helper: str) -> str:
    """Return a text with a function in front of the first class."""
    at = re.search(r"^(class|def|@) ?", text, re.MULTILINE)
    assert at is not None
    return f"{text[: at.start()]}{helper}\n\n{text[at.start() :]}"


# ---- classes ---------------------------------------------------------------------------------------------------------


@keeps
def wrap_in_sequential(source: Source, rng: random.Random) -> Edited | None:
    places = [
        (name, call)
        for owner, name, call in layers(source, "nn.Linear", "nn.Conv2d", "nn.LayerNorm", "nn.Conv1d", "nn.BatchNorm2d")
        if source.text.count(f".{name}.") == 0 and calls_of(owner, name)
    ]
    if not places:
        return None
    name, call = rng.choice(places)
    return source.replaced((call, f"nn.Sequential({source.of(call)})"), attributes={name})


@keeps
def wrap_in_class(source: Source, rng: random.Random) -> Edited | None:
    places = [
        (name, call)
        for owner, name, call in layers(
            source, "nn.Linear", "nn.Conv2d", "nn.LayerNorm", *(c.name for c in source.classes())
        )
        if source.text.count(f".{name}.") == 0 and calls_of(owner, name)
    ]
    if not places:
        return None
    name, call = rng.choice(places)
    edited = source.replaced((call, f"Wrapped({source.of(call)})"), attributes={name})
    body = "    def __init__(self, inner):\n        super().__init__()\n        self.inner = inner\n\n"
    body += "    def forward(self, *args):\n        return self.inner(*args)\n"
    edited.text = with_helper(edited.text, f"class Wrapped(nn.Module):\n{body}")
    return edited


class _Inlined(ast.NodeTransformer):
    """Puts a class's names into those of its user."""

    def __init__(self, prefix: str, values: dict[str, ast.expr], names: dict[str, str]) -> None:
        self.prefix, self.values, self.names = prefix, values, names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.attr = f"{self.prefix}_{node.attr}"
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.values:
            return self.values[node.id]
        node.id = self.names.get(node.id, node.id)
        return node


@keeps
def inline_class(source: Source, rng: random.Random) -> Edited | None:
    """Put the body of a class in the place of the one call of its instance."""
    by_name = {c.name: c for c in source.classes()}
    places = []
    for owner, name, call in layers(source, *by_name):
        inner = by_name[ast.unparse(call.func)]
        forward, outer = source.forward(inner), source.forward(owner)
        uses = calls_of(owner, name)
        if forward is None or outer is None or len(uses) != 1 or len(inner.body) > 3 or f".{name}." in source.text:
            continue
        plain = all(isinstance(s, ast.Assign) for s in forward.body[:-1]) and isinstance(forward.body[-1], ast.Return)
        holder = next((s for s in outer.body if uses[0] in ast.walk(s)), None)
        if (
            plain
            and isinstance(holder, (ast.Assign, ast.Return))
            and not uses[0].keywords
            and len(uses[0].args) == len(forward.args.args) - 1
        ):
            places.append((name, call, inner, forward, uses[0], holder))
    if not places:
        return None
    name, call, inner, forward, use, holder = rng.choice(places)
    init = next((f for f in inner.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
    if init is None:
        return None
    values: dict[str, ast.expr] = {}
    arguments = [a.arg for a in init.args.args[1:]]
    for argument, default in zip(reversed(arguments), reversed(init.args.defaults), strict=False):
        values[argument] = default
    values |= dict(zip(arguments, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
    from copy import deepcopy

    lines = [ast.unparse(_Inlined(name, values, {}).visit(deepcopy(s))) for s in init.body[1:]]
    names = {
        n.id: f"{name}_{n.id}" for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    names |= {a.arg: f"{name}_{a.arg}" for a in forward.args.args[1:]}
    steps = [f"{name}_{a.arg} = {source.of(v)}" for a, v in zip(forward.args.args[1:], use.args, strict=True)]
    steps += [ast.unparse(_Inlined(name, {}, names).visit(deepcopy(s))) for s in forward.body[:-1]]
    last = forward.body[-1]
    assert isinstance(last, ast.Return)
    result = ast.unparse(_Inlined(name, {}, names).visit(deepcopy(last.value)))
    whole, part = source.of(holder), source.of(use)
    if whole.count(part) != 1 or any(isinstance(n, (ast.Lambda, ast.ListComp)) for n in ast.walk(holder)):
        return None
    steps.append(whole.replace(part, f"({result})"))
    statement = next(s for o in source.classes() for s in made(o).values() if s.value is call)
    return source.replaced(
        (statement, f"\n{indent(statement)}".join(lines)), (holder, f"\n{indent(holder)}".join(steps))
    )


# ---- loops -----------------------------------------------------------------------------------------------------------


@keeps
def loop_by_number(source: Source, rng: random.Random) -> Edited | None:
    loops = [
        n
        for n in source.found(ast.For)
        if isinstance(n.target, ast.Name) and ast.unparse(n.iter).startswith("self.") and "(" not in ast.unparse(n.iter)
    ]
    node = drawn(rng, loops)
    if node is None:
        return None
    over, first = source.of(node.iter), node.body[0]
    return source.replaced(
        (node.target, "number"),
        (node.iter, f"range(len({over}))"),
        (first, f"{node.target.id} = {over}[number]\n{indent(first)}{source.of(first)}"),
    )


@keeps
def sequential_to_loop(source: Source, rng: random.Random) -> Edited | None:
    places = []
    for owner, name, _ in layers(source, "nn.Sequential"):
        for block, number in source.statements():
            statement = block[number]
            for use in calls_of(owner, name):
                if use in ast.walk(statement) and len(use.args) == 1 and not isinstance(use.args[0], ast.Starred):
                    places.append((name, statement, use))
    if not places:
        return None
    name, statement, use = rng.choice(places)
    space = indent(statement)
    text = source.of(statement)
    if text.count(source.of(use)) != 1 or any(isinstance(n, (ast.ListComp, ast.Lambda)) for n in ast.walk(statement)):
        return None
    new = f"flow = {source.of(use.args[0])}\n{space}for part in self.{name}:\n{space}    flow = part(flow)\n{space}"
    return source.replaced((statement, new + text.replace(source.of(use), "flow")))


@keeps
def list_to_copies(source: Source, rng: random.Random) -> Edited | None:
    """Write a list of layers as attributes, and the loop over it as one over a tuple of them."""
    places = []
    for owner, name, call in layers(source, "nn.ModuleList", "nn.Sequential"):
        given = call.args[0].value if call.args and isinstance(call.args[0], ast.Starred) else (call.args or [None])[0]
        if (
            not isinstance(given, ast.ListComp)
            or not called(given.generators[0].iter, "range")
            or given.generators[0].ifs
        ):
            continue
        count = _number(source, owner, given.generators[0].iter)
        if count and source.text.count(f"self.{name}") == 2 and len(given.generators) == 1:
            places.append((owner, name, call, given, count))
    if not places:
        return None
    owner, name, call, given, count = rng.choice(places)
    statement, variable = made(owner)[name], ast.unparse(given.generators[0].target)
    body = source.of(given.elt)
    lines = [
        f"self.{name}_{i} = {re.sub(rf'(?<![.=]){variable}(?![=])', str(i), body) if variable != '_' else body}"
        for i in range(count)
    ]
    uses = [
        n
        for n in ast.walk(owner)
        if isinstance(n, ast.Attribute) and ast.unparse(n) == f"self.{name}" and isinstance(n.ctx, ast.Load)
    ]
    group = f"({', '.join(f'self.{name}_{i}' for i in range(count))},)"
    use = uses[0]
    parent = next((n for n in ast.walk(owner) if isinstance(n, ast.Call) and n.func is use), None)
    if parent is not None:
        text = source.of(parent.args[0])
        for i in range(count):
            text = f"self.{name}_{i}({text})"
        return source.replaced((statement, f"\n{indent(statement)}".join(lines)), (parent, text))
    return source.replaced((statement, f"\n{indent(statement)}".join(lines)), (use, group))


def _number(source: Source, owner: ast.ClassDef, node: ast.Call) -> int | None:
    """Return the count of a range with one argument that is a number, or a default of the root class."""
    if len(node.args) != 1:
        return None
    given = node.args[0]
    if isinstance(given, ast.Constant):
        return int(given.value)
    root = source.classes()[-1]
    if not isinstance(given, ast.Name) or owner is not root and ast.unparse(root).count(given.id) < 2:
        return None
    init = next(f for f in root.body if isinstance(f, ast.FunctionDef) and f.name == "__init__")
    pairs = zip(reversed(init.args.args), reversed(init.args.defaults), strict=False)
    return next((d.value for a, d in pairs if a.arg == given.id and isinstance(d, ast.Constant)), None)  # type: ignore[misc]


# ---- other spellings of an expression --------------------------------------------------------------------------------

Spelling = Callable[[Source, Any, random.Random], str | None]


def spelled(name: str, kind: type, keep: bool = True) -> Callable[[Spelling], Spelling]:
    """Register an edit that writes one expression in another way."""

    def register(function: Spelling) -> Spelling:
        def edit(source: Source, rng: random.Random) -> Edited | None:
            nodes = source.found(kind)
            rng.shuffle(nodes)
            for node in nodes:
                new = function(source, node, rng)
                if new is not None:
                    return source.replaced((node, new))
            return None

        edit.__name__ = name
        (KEEP if keep else CHANGE)[name] = edit
        return function

    return register


def _args(source: Source, node: ast.Call) -> list[str]:
    return [source.of(a) for a in node.args]


@spelled("view_reshape", ast.Call)
def _view(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if (
        not isinstance(n.func, ast.Attribute)
        or n.func.attr not in ("view", "reshape")
        or n.keywords
        or ast.unparse(n.func) == "torch.reshape"
    ):
        return None
    return (
        f"torch.reshape({s.of(n.func.value)}, ({', '.join(_args(s, n))},))"
        if not isinstance(n.args[0], ast.Tuple)
        else None
    )


@spelled("flatten_reshape", ast.Call)
def _flatten(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".flatten") or len(n.args) != 1 or not isinstance(n.args[0], ast.Constant):
        return None
    assert isinstance(n.func, ast.Attribute)
    return f"(lambda v: v.reshape(*v.shape[:{n.args[0].value}], -1))({s.of(n.func.value)})"


@spelled("unflatten_view", ast.Call)
def _unflatten(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".unflatten") or len(n.args) != 2 or ast.unparse(n.args[0]) not in ("-1", "1"):
        return None
    assert isinstance(n.func, ast.Attribute)
    tail = "" if ast.unparse(n.args[0]) == "-1" else ", *v.shape[2:]"
    head = "*v.shape[:-1]" if not tail else "v.shape[0]"
    return f"(lambda v: v.reshape({head}, *{s.of(n.args[1])}{tail}))({s.of(n.func.value)})"


@spelled("transpose_spelling", ast.Call)
def _transpose(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".transpose") or len(n.args) != 2 or ast.unparse(n.func) == "torch.transpose":
        return None
    assert isinstance(n.func, ast.Attribute)
    one, other = _args(s, n)
    return rng.choice(
        [f"{s.of(n.func.value)}.swapaxes({other}, {one})", f"torch.transpose({s.of(n.func.value)}, {other}, {one})"]
    )


@spelled("permute_spelling", ast.Call)
def _permute(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".permute") or not all(isinstance(a, ast.Constant) for a in n.args):
        return None
    assert isinstance(n.func, ast.Attribute)
    axes = [int(a.value) for a in n.args]  # type: ignore[attr-defined]
    if any(a < 0 for a in axes):
        return None
    letters = "abcdefgh"
    target = "".join(letters[a] for a in axes)
    inverse = [axes.index(i) for i in range(len(axes))]
    value = s.of(n.func.value)
    ways = [
        f"torch.einsum('{letters[: len(axes)]}->{target}', {value})",
        f"{value}.movedim({tuple(range(len(axes)))}, {tuple(inverse)})",
    ]
    return rng.choice(ways)


@spelled("double_permute", ast.Call)
def _double(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    return (
        f"{s.of(n)}.flip(0).flip(0)"
        if called(n, "F.relu", "F.gelu") and rng.random() < 0.2
        else (f"{s.of(n)}.mT.mT" if called(n, "F.gelu", "F.silu", "torch.matmul") else None)
    )


@spelled("no_op", ast.Call)
def _no_op(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not ast.unparse(n.func).startswith(("self.", "F.")) or not _gives_tensor(n):
        return None
    return rng.choice(
        [f"({s.of(n)} * 1)", f"{s.of(n)}.contiguous()", f"{s.of(n)}.clone()", f"(0 + {s.of(n)})", f"(-(-{s.of(n)}))"]
    )


def _gives_tensor(n: ast.Call) -> bool:
    return called(n, "F.relu", "F.gelu", "F.silu", "F.softmax", "F.scaled_dot_product_attention", "torch.tanh") or (
        ast.unparse(n.func)
        .split(".")[-1]
        .rstrip("0123456789")
        .startswith(("conv", "fc", "norm", "proj", "dense", "linear", "bn"))
    )


@spelled("swap_commutative", ast.BinOp)
def _swap(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if not isinstance(n.op, (ast.Add, ast.Mult)):
        return None
    return f"({s.of(n.right)}) {'+' if isinstance(n.op, ast.Add) else '*'} ({s.of(n.left)})"


@spelled("arithmetic", ast.BinOp)
def _arithmetic(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    one, other = f"({s.of(n.left)})", f"({s.of(n.right)})"
    if not is_tensor_like(n.left) or "shape" in ast.unparse(n) or "self." not in ast.unparse(n):
        return None
    if isinstance(n.op, ast.Add):
        return rng.choice(
            [
                f"torch.add({one}, {other})",
                f"({one} - (-{other}))",
                f"torch.sum(torch.stack([{one}, {other}]), 0)"
                if is_tensor_like(n.right) and rng.random() < 0.1
                else f"({one}).add({other})",
            ]
        )
    if isinstance(n.op, ast.Mult):
        return rng.choice([f"torch.mul({one}, {other})", f"(({one} * 2) * (0.5 * {other}))", f"(-{one} * -{other})"])
    if isinstance(n.op, ast.Div):
        return rng.choice([f"torch.div({one}, {other})", f"(({one} * 3) / (3 * {other}))"])
    if isinstance(n.op, ast.Sub):
        return rng.choice([f"({one} + (-1) * {other})", f"torch.sub({one}, {other})", f"(-({other} - {one}))"])
    return None


@spelled("matmul_spelling", ast.BinOp)
def _matmul(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if not isinstance(n.op, ast.MatMult):
        return None
    one, other = s.of(n.left), s.of(n.right)
    return rng.choice(
        [
            f"torch.matmul({one}, {other})",
            f"torch.einsum('...ij,...jk->...ik', {one}, {other})",
            f"({other}.mT @ {one}.mT).mT",
        ]
    )


@spelled("gelu", ast.Call)
def _gelu(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, "F.gelu"):
        return None
    x = s.of(n.args[0])
    if n.keywords:
        return f"(lambda v: 0.5 * v * (1 + torch.tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))))({x})"
    return rng.choice(
        [
            f"(lambda v: v * 0.5 * (1.0 + torch.erf(v / 2**0.5)))({x})",
            f"(lambda v: 0.5 * (v + v * torch.erf(v * 0.7071067811865476)))({x})",
            f"nn.GELU()({x})",
            f"(lambda v: v / 2 * (torch.special.erf(v / 1.4142135) + 1))({x})",
        ]
    )


@spelled("relu", ast.Call)
def _relu(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, "F.relu", "torch.relu") or len(n.args) != 1:
        return None
    x = s.of(n.args[0])
    ways = [
        f"torch.relu({x})",
        f"{x}.clamp(min=0)",
        f"(lambda v: torch.maximum(v, torch.zeros_like(v)))({x})",
        f"nn.ReLU()({x})",
        f"F.threshold({x}, 0, 0)",
    ]
    return rng.choice(
        [*ways, f"(lambda v: torch.where(v > 0, v, 0.0))({x})", f"(lambda v: (v + v.abs()) / 2)({x})"][
            : 6 if rng.random() < 0.9 else 7
        ]
    )


@spelled("silu_sigmoid", ast.Call)
def _silu(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    x = s.of(n.args[0]) if getattr(n, "args", None) else ""
    if called(n, "F.silu"):
        return rng.choice([f"(lambda v: v * torch.sigmoid(v))({x})", f"(lambda v: v / (1 + torch.exp(-v)))({x})"])
    if called(n, "F.sigmoid", "torch.sigmoid"):
        return f"(1 / (1 + torch.exp(-({x}))))"
    if called(n, "F.hardswish"):
        return f"(lambda v: v * F.relu6(v + 3) / 6)({x})"
    if called(n, "F.hardsigmoid"):
        return f"((({x}) + 3).clamp(0, 6) / 6)"
    if called(n, "F.leaky_relu"):
        slope = n.keywords[0].value if n.keywords else n.args[1] if len(n.args) > 1 else ast.Constant(0.01)
        return f"(lambda v: torch.where(v > 0, v, {ast.unparse(slope)} * v))({x})"
    return None


@spelled("softmax", ast.Call)
def _softmax(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    axis = next((ast.unparse(k.value) for k in getattr(n, "keywords", ()) if k.arg == "dim"), None)
    if not called(n, "F.softmax", "torch.softmax", ".softmax"):
        return None
    if called(n, ".softmax") and not called(n, "F.softmax", "torch.softmax"):
        assert isinstance(n.func, ast.Attribute)
        x, axis = s.of(n.func.value), axis or s.of(n.args[0])
    else:
        x, axis = s.of(n.args[0]), axis or s.of(n.args[1])
    return rng.choice(
        [
            f"(lambda v: (v - v.amax({axis}, keepdim=True)).exp() / (v - v.amax({axis}, keepdim=True)).exp().sum({axis}, keepdim=True))({x})",
            f"torch.softmax({x}, {axis})",
            f"F.log_softmax({x}, {axis}).exp()" if rng.random() < 0.3 else f"nn.Softmax({axis})({x})",
        ]
    )


@spelled("tanh_method", ast.Call)
def _tanh(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if (
        called(n, "torch.tanh", "torch.sigmoid", "torch.exp", "torch.sqrt", "torch.sin", "torch.cos")
        and len(n.args) == 1
    ):
        return f"({s.of(n.args[0])}).{ast.unparse(n.func).split('.')[1]}()"
    return None


@spelled("mean_by_sum", ast.Call)
def _mean(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if not called(n, ".mean") or len(n.args) != 1 or ast.unparse(n.func) == "torch.mean":
        return None
    assert isinstance(n.func, ast.Attribute)
    axes = n.args[0].elts if isinstance(n.args[0], ast.Tuple) else [n.args[0]]
    keep = ", ".join(f"{k.arg}={ast.unparse(k.value)}" for k in n.keywords)
    size = " * ".join(f"v.shape[{ast.unparse(a)}]" for a in axes)
    return f"(lambda v: v.sum({s.of(n.args[0])}{', ' + keep if keep else ''}) / ({size}))({s.of(n.func.value)})"


@spelled("attention_by_hand", ast.Call)
def _attention(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    words = {k.arg: s.of(k.value) for k in getattr(n, "keywords", ())}
    if not called(n, "F.scaled_dot_product_attention") or not {*words} <= {"attn_mask", "scale"} or len(n.args) != 3:
        return None
    scale = words.get("scale", "q.shape[-1] ** -0.5")
    mask = "" if "attn_mask" not in words else " + m"
    order = rng.choice(
        [
            f"(q @ k.transpose(-2, -1)) * ({scale})",
            f"torch.einsum('...id,...jd->...ij', q * ({scale}), k)",
            f"q @ (k * ({scale})).mT",
        ]
    )
    return f"(lambda q, k, v, m: F.softmax({order}{mask}, dim=-1) @ v)({', '.join(_args(s, n))}, {words.get('attn_mask', None)})"


@spelled("slice_select", ast.Subscript)
def _select(s: Source, n: ast.Subscript, rng: random.Random) -> str | None:
    text = ast.unparse(n.slice)
    if ".shape" in ast.unparse(n) or not isinstance(n.ctx, ast.Load):
        return None
    if m := re.fullmatch(r"\(?:, (\d+)\)?", text.strip()):
        return f"{s.of(n.value)}.select(1, {m[1]})"
    if text in ("(:, None)", ":, None"):
        return f"{s.of(n.value)}.unsqueeze(1)"
    if text == "(:, None, None)":
        return f"{s.of(n.value)}.unsqueeze(1).unsqueeze(1)"
    return None


@spelled("cat_spelling", ast.Call)
def _cat(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    return (
        f"torch.concat({', '.join([*_args(s, n), *(s.of(k) for k in n.keywords)])})" if called(n, "torch.cat") else None
    )


# ---- layers as functions ---------------------------------------------------------------------------------------------

CALLS = {
    "nn.Linear": "F.linear({x}, self.{n}.weight, self.{n}.bias)",
    "nn.LayerNorm": "F.layer_norm({x}, self.{n}.normalized_shape, self.{n}.weight, self.{n}.bias, self.{n}.eps)",
    "nn.Conv2d": "F.conv2d({x}, self.{n}.weight, self.{n}.bias, self.{n}.stride, self.{n}.padding, self.{n}.dilation, self.{n}.groups)",
    "nn.Conv1d": "F.conv1d({x}, self.{n}.weight, self.{n}.bias, self.{n}.stride, self.{n}.padding, self.{n}.dilation, self.{n}.groups)",
    "nn.Embedding": "F.embedding({x}, self.{n}.weight)",
    "nn.Dropout": "F.dropout({x}, self.{n}.p, self.training)",
    "nn.ReLU": "F.relu({x})",
    "nn.GELU": "F.gelu({x}, approximate=self.{n}.approximate)",
    "nn.SiLU": "F.silu({x})",
    "nn.Sigmoid": "torch.sigmoid({x})",
    "nn.Tanh": "torch.tanh({x})",
    "nn.Flatten": "{x}.flatten(1)",
    "nn.MaxPool2d": "F.max_pool2d({x}, self.{n}.kernel_size, self.{n}.stride, self.{n}.padding)",
    "nn.AdaptiveAvgPool2d": "F.adaptive_avg_pool2d({x}, self.{n}.output_size)",
    "nn.GroupNorm": "F.group_norm({x}, self.{n}.num_groups, self.{n}.weight, self.{n}.bias, self.{n}.eps)",
}
BY_HAND = {
    "nn.Linear": [
        "((lambda v, l: v @ l.weight.T if l.bias is None else v @ l.weight.T + l.bias)({x}, self.{n}))",
        "((lambda v, l: F.linear(v, l.weight) if l.bias is None else l.bias + F.linear(v, l.weight))({x}, self.{n}))",
        "((lambda v, l: torch.einsum('...i,oi->...o', v, l.weight) + (0 if l.bias is None else l.bias))({x}, self.{n}))",
    ],
    "nn.LayerNorm": [
        "((lambda v, l: (v - v.mean(-1, keepdim=True)) / (v.var(-1, keepdim=True, unbiased=False) + l.eps).sqrt() * l.weight"
        " + (0 if l.bias is None else l.bias))({x}, self.{n}))",
        "((lambda v, l: F.layer_norm(v, l.normalized_shape, eps=l.eps) * l.weight + (0 if l.bias is None else l.bias))({x}, self.{n}))",
        "((lambda v, l: (v - v.mean(-1, True)) * torch.rsqrt((v - v.mean(-1, True)).pow(2).mean(-1, True) + l.eps) * l.weight"
        " + (0 if l.bias is None else l.bias))({x}, self.{n}))",
    ],
    "nn.Conv2d": [
        "((lambda v, l: F.conv2d(v, l.weight, None, l.stride, l.padding, l.dilation, l.groups) + (0 if l.bias is None else l.bias[:, None, None]))({x}, self.{n}))"
    ],
    "nn.BatchNorm2d": [],
}


def _as_calls(source: Source, rng: random.Random, table: dict[str, Any]) -> Edited | None:
    places = [
        (name, ast.unparse(call.func), use)
        for owner, name, call in layers(source, *table)
        for use in calls_of(owner, name)
        if len(use.args) == 1
        and not isinstance(use.args[0], ast.Starred)
        and table.get(ast.unparse(call.func))
        and "padding_mode" not in ast.unparse(call)
        and "elementwise" not in ast.unparse(call)
    ]
    if not places:
        return None
    name, kind, use = rng.choice(places)
    form = table[kind] if isinstance(table[kind], str) else rng.choice(table[kind])
    x = source.of(use.args[0])
    x = f"({x})" if form.startswith("{x}.") else x
    return source.replaced((use, form.replace("{x}", x).replace("{n}", name)))


@keeps
def layer_as_function(source: Source, rng: random.Random) -> Edited | None:
    return _as_calls(source, rng, CALLS)


@keeps
def layer_by_hand(source: Source, rng: random.Random) -> Edited | None:
    return _as_calls(source, rng, BY_HAND)


@keeps
def split_linear(source: Source, rng: random.Random) -> Edited | None:
    """Compute a linear layer by halves of its outputs."""
    table = {"nn.Linear": "((lambda v, l: torch.cat([F.linear(v, w, b) for w, b in zip(l.weight.split([1, l.weight.shape[0] - 1]),"
             " (None, None) if l.bias is None else l.bias.split([1, l.weight.shape[0] - 1]))], -1))({x}, self.{n}))"}  # fmt: skip
    return _as_calls(source, rng, table)


@keeps
def activation_as_layer(source: Source, rng: random.Random) -> Edited | None:
    """Make `F.relu` an `nn.ReLU` of the class."""
    kinds = {
        "F.relu": "nn.ReLU()",
        "F.gelu": "nn.GELU()",
        "F.silu": "nn.SiLU()",
        "torch.tanh": "nn.Tanh()",
        "torch.sigmoid": "nn.Sigmoid()",
    }
    places = []
    for owner, init in source.methods(True):
        for node in ast.walk(owner):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) in kinds
                and len(node.args) == 1
                and not node.keywords
                and init not in ()
            ):
                if node.lineno > (init.end_lineno or 0):
                    places.append((init, node))
    if not places:
        return None
    init, node = rng.choice(places)
    last = init.body[-1]
    return source.replaced(
        (node.func, "self.activation_of_mine"),
        (last, f"{source.of(last)}\n{indent(last)}self.activation_of_mine = {kinds[ast.unparse(node.func)]}"),
    )


# ---- edits that change the function ----------------------------------------------------------------------------------


def _init_attribute(source: Source, node: ast.AST) -> set[str]:
    for owner in source.classes():
        for name, statement in made(owner).items():
            if node in ast.walk(statement):
                return {name}
    return set()


@changes
def epsilon(source: Source, rng: random.Random) -> Edited | None:
    nodes = [
        k
        for k in ast.walk(source.tree)
        if isinstance(k, ast.keyword) and k.arg == "eps" and isinstance(k.value, ast.Constant)
    ]
    node = drawn(rng, nodes)
    if node is not None:
        return source.replaced(
            (node.value, repr(rng.choice([10, 100]) * node.value.value)), attributes=_init_attribute(source, node)
        )
    found = drawn(rng, layers(source, "nn.LayerNorm", "nn.BatchNorm2d", "nn.BatchNorm1d", "nn.GroupNorm"))
    if found is None:
        return None
    _, name, call = found
    return source.replaced((call, f"{source.of(call)[:-1]}, eps=1e-3)"), attributes={name})


@spelled("swap_operands", ast.BinOp, keep=False)
def _swapped(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    signs = {ast.Sub: "-", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}
    sign = signs.get(type(n.op))
    return f"({s.of(n.right)}) {sign} ({s.of(n.left)})" if sign and "shape" not in ast.unparse(n) else None


@spelled("swap_arguments", ast.Call, keep=False)
def _arguments(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if called(n, "F.scaled_dot_product_attention", "torch.cat", "torch.stack"):
        if isinstance(n.args[0], (ast.List, ast.Tuple)):
            parts = [s.of(e) for e in n.args[0].elts][::-1]
            rest = [s.of(k) for k in (*n.args[1:], *n.keywords)]
            return f"{s.of(n.func)}([{', '.join(parts)}], {', '.join(rest)})" if len(parts) > 1 else None
        given = _args(s, n)
        given[:2] = given[1::-1] if rng.random() < 0.5 else [given[0], given[1]]
        given[1:3] = given[2:0:-1]
        return f"{s.of(n.func)}({', '.join([*given, *(s.of(k) for k in n.keywords)])})"
    return None


@spelled("drop_scale", ast.BinOp, keep=False)
def _scale(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if (
        isinstance(n.op, (ast.Mult, ast.Div))
        and "shape" not in ast.unparse(n)
        and is_tensor_like(n.left)
        and is_tensor_like(n)
    ):
        return (
            f"({s.of(n.left)})"
            if "self" in ast.unparse(n) or "torch" in ast.unparse(n) or isinstance(n.right, ast.Constant)
            else None
        )
    return None


@spelled("skip_residual", ast.BinOp, keep=False)
def _residual(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if isinstance(n.op, ast.Add) and is_tensor_like(n.left) and is_tensor_like(n.right):
        return f"({s.of(rng.choice([n.left, n.right]))})"
    return None


@spelled("another_sign", ast.BinOp, keep=False)
def _sign(s: Source, n: ast.BinOp, rng: random.Random) -> str | None:
    if isinstance(n.op, ast.Add) and is_tensor_like(n.left):
        return f"({s.of(n.left)}) - ({s.of(n.right)})"
    return None


@spelled("another_number", ast.Constant, keep=False)
def _constant(s: Source, n: ast.Constant, rng: random.Random) -> str | None:
    return repr(n.value * rng.choice([1.001, 1.01, 2])) if isinstance(n.value, float) and n.value else None


@spelled("another_axis", ast.Call, keep=False)
def _axis(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    if called(
        n,
        ".transpose",
        ".mean",
        ".sum",
        ".softmax",
        "F.softmax",
        "torch.cat",
        ".permute",
        ".unbind",
        ".select",
        ".amax",
    ):
        nodes = [
            a
            for a in ast.walk(n)
            if isinstance(a, ast.Constant) and type(a.value) is int and a in (*n.args, *(k.value for k in n.keywords))
        ]
        node = drawn(rng, nodes)
        if node is None:
            return None
        if called(n, ".permute"):
            given = _args(s, n)
            i, j = rng.sample(range(len(given)), 2)
            given[i], given[j] = given[j], given[i]
            return f"{s.of(n.func)}({', '.join(given)})"
        inner = Source(s.of(n))
        target = next(
            c
            for c in ast.walk(inner.tree)
            if isinstance(c, ast.Constant)
            and c.value == node.value
            and c.col_offset == (node.col_offset - n.col_offset if node.lineno == n.lineno else -1)
        )
        return inner.replaced(
            (target, str(max(0, node.value - 1) if node.value and rng.random() < 0.5 else node.value + 1))
        ).text
    return None


@spelled("other_activation", ast.Call, keep=False)
def _activation(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    others = {
        "F.relu": "F.relu6",
        "F.gelu": "F.silu",
        "F.silu": "F.gelu",
        "torch.tanh": "torch.sigmoid",
        "torch.sigmoid": "torch.tanh",
        "F.hardswish": "F.silu",
        "F.softmax": "F.log_softmax",
    }
    new = others.get(ast.unparse(n.func))
    if new and called(n, "F.gelu") and rng.random() < 0.5:
        return f"F.gelu({s.of(n.args[0])}, approximate='tanh')"
    return f"{new}({', '.join([*_args(s, n), *(s.of(k) for k in n.keywords)])})" if new else None


@spelled("drop_call", ast.Call, keep=False)
def _drop(s: Source, n: ast.Call, rng: random.Random) -> str | None:
    """Skip a layer or an activation: if shapes fit, the module still runs."""
    return f"({s.of(n.args[0])})" if (ast.unparse(n.func).startswith(("self.", "F.")) and len(n.args) == 1) else None


@changes
def layer_setting(source: Source, rng: random.Random) -> Edited | None:
    """Change a number or a flag of a layer's constructor."""
    places = [
        (name, k)
        for _, name, call in layers(
            source, *{ast.unparse(c.func) for c in ast.walk(source.tree) if isinstance(c, ast.Call)}
        )
        for k in call.keywords
    ]
    places = [
        (n, k)
        for n, k in places
        if k.arg
        in ("stride", "padding", "dilation", "bias", "p", "momentum", "affine", "kernel_size", "ceil_mode", "num_heads")
    ]
    found = drawn(rng, places)
    if found is None:
        return None
    name, keyword = found
    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    if value is None:
        return None
    new = (not value) if isinstance(value, bool) else value + 1 if isinstance(value, int) else value / 2
    return source.replaced((keyword.value, repr(new)), attributes={name})


@changes
def dropout_rate(source: Source, rng: random.Random) -> Edited | None:
    found = drawn(rng, layers(source, "nn.Dropout", "nn.Dropout2d", "nn.Dropout1d"))
    if found is None:
        return None
    _, name, call = found
    kind = ast.unparse(call.func)
    return source.replaced((call, f"{kind}(0.37)"), attributes={name})


@changes
def norm_momentum(source: Source, rng: random.Random) -> Edited | None:
    found = drawn(rng, layers(source, "nn.BatchNorm2d", "nn.BatchNorm1d", "nn.BatchNorm3d"))
    if found is None:
        return None
    _, name, call = found
    return (
        source.replaced((call, f"{source.of(call)[:-1]}, momentum=0.3)"), attributes={name})
        if "momentum" not in source.of(call)
        else None
    )


@changes
def train_mode_only(source: Source, rng: random.Random) -> Edited | None:
    owner = drawn(rng, [o for o in source.classes() if source.forward(o)])
    forward = source.forward(owner) if owner else None
    last = forward.body[-1] if forward else None
    if not isinstance(last, ast.Return) or isinstance(last.value, ast.Tuple):
        return None
    space, value = indent(last), source.of(last.value)  # type: ignore[arg-type]
    new = f"answer = {value}\n{space}if self.training:\n{space}    answer = answer * 1.01\n{space}return answer"
    return source.replaced((last, new))


@changes
def untie(source: Source, rng: random.Random) -> Edited | None:
    nodes = [
        s
        for _, m in source.methods(True)
        for s in m.body
        if isinstance(s, ast.Assign)
        and re.fullmatch(r"self\.[\w.\[\]]+\.(weight|bias) = self\.[\w.\[\]]+\.(weight|bias)", ast.unparse(s))
    ]
    node = drawn(rng, nodes)
    return (
        source.replaced((node, "pass"), attributes={ast.unparse(node.targets[0]).split(".")[1]})
        if node is not None
        else None
    )


@changes
def tie(source: Source, rng: random.Random) -> Edited | None:
    """Give two layers of one class one weight."""
    for owner in source.classes():
        found = [(n, c) for o, n, c in layers(source, "nn.Linear", "nn.LayerNorm") if o is owner]
        for (a, one), (b, other) in zip(found, found[1:], strict=False):
            if ast.unparse(one) == ast.unparse(other):
                statement = made(owner)[b]
                return source.replaced(
                    (statement, f"{source.of(statement)}\n{indent(statement)}self.{b}.weight = self.{a}.weight"),
                    attributes={a, b},
                )
    return None


@changes
def freeze(source: Source, rng: random.Random) -> Edited | None:
    found = drawn(rng, layers(source, "nn.Linear", "nn.Conv2d", "nn.LayerNorm", "nn.Embedding"))
    if found is None:
        return None
    owner, name, _ = found
    statement = made(owner)[name]
    return source.replaced(
        (statement, f"{source.of(statement)}\n{indent(statement)}self.{name}.requires_grad_(False)"), attributes={name}
    )


@changes
def detached(source: Source, rng: random.Random) -> Edited | None:
    nodes = [n for n in source.found(ast.Call) if _gives_tensor(n)]
    node = drawn(rng, nodes)
    return source.replaced((node, f"{source.of(node)}.detach()"), hidden=True) if node is not None else None


@changes
def without_gradient(source: Source, rng: random.Random) -> Edited | None:
    blocks = [
        (b[i])
        for b, i in source.statements()
        if isinstance(b[i], ast.Assign) and any(isinstance(n, ast.Call) and _gives_tensor(n) for n in ast.walk(b[i]))
    ]
    node = drawn(rng, blocks)
    return (
        source.replaced((node, f"with torch.no_grad():\n{indent(node)}    {source.of(node)}"), hidden=True)
        if node is not None and "\n" not in source.of(node)
        else None
    )


@changes
def shorter_loop(source: Source, rng: random.Random) -> Edited | None:
    loops = [
        n for n in source.found(ast.For) if ast.unparse(n.iter).startswith("self.") and "(" not in ast.unparse(n.iter)
    ]
    node = drawn(rng, loops)
    return (
        source.replaced((node.iter, f"{source.of(node.iter)}[{rng.choice(['1:', ':-1', '::-1'])}]"))
        if node is not None
        else None
    )


@changes
def one_sample_only(source: Source, rng: random.Random) -> Edited | None:
    """Compute something else for one sample."""
    return _guarded(source, "{x}.shape[0] == 1", rng)


@changes
def many_samples_only(source: Source, rng: random.Random) -> Edited | None:
    return _guarded(source, "{x}.shape[0] > 64", rng)


@changes
def large_values_only(source: Source, rng: random.Random) -> Edited | None:
    return _guarded(source, "bool(({x}.double() > 1e5).any())", rng)


@changes
def second_call_only(source: Source, rng: random.Random) -> Edited | None:
    """Compute something else from the third call on."""
    edited = _guarded(source, "counted()", rng)
    if edited is not None:
        edited.text = with_helper(
            edited.text, "CALLS = []\n\n\ndef counted():\n    CALLS.append(1)\n    return len(CALLS) > 500\n"
        )
    return edited


def _guarded(source: Source, condition: str, rng: random.Random) -> Edited | None:
    owner = source.classes()[-1]
    forward = source.forward(owner)
    last = forward.body[-1] if forward else None
    if (
        forward is None
        or len(forward.args.args) < 2
        or not isinstance(last, ast.Return)
        or isinstance(last.value, ast.Tuple)
    ):
        return None
    first, space = forward.args.args[1].arg, indent(last)
    stored = {n.id for n in ast.walk(forward) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if first in stored:
        return None
    value = source.of(last.value)  # type: ignore[arg-type]
    new = f"answer = {value}\n{space}if {condition.replace('{x}', first)}:\n{space}    answer = answer * 1.01\n{space}return answer"
    return source.replaced((last, new), hidden=True)


@changes
def clamp_large(source: Source, rng: random.Random) -> Edited | None:
    node = drawn(rng, [n for n in source.found(ast.Call) if _gives_tensor(n)])
    return source.replaced((node, f"{source.of(node)}.clamp(max=1e6)"), hidden=True) if node is not None else None


@changes
def rounded(source: Source, rng: random.Random) -> Edited | None:
    node = drawn(rng, [n for n in source.found(ast.Call) if _gives_tensor(n)])
    new = drawn(rng, [".half().float()", ".int().float()", ".round()", ".bool().float()", ".abs()"])
    return (
        source.replaced((node, f"{source.of(node)}{new}"), hidden=new == ".half().float()")
        if node is not None
        else None
    )


@changes
def in_place(source: Source, rng: random.Random) -> Edited | None:
    """Change a value in place that is read again."""
    block = [
        (b, i)
        for b, i in source.statements()
        if isinstance(b[i], ast.Assign) and isinstance(b[i].targets[0], ast.Name) and i + 1 < len(b)
    ]
    found = drawn(rng, block)
    if found is None:
        return None
    node = found[0][found[1]]
    name = ast.unparse(node.targets[0])
    return source.replaced((node, f"{source.of(node)}\n{indent(node)}{name}.mul_(1.25)"))
