"""What was added, removed and changed between two networks: the operators that both execute, aligned.

Source: S. B. Needleman, C. D. Wunsch: A general method applicable to the search for similarities in the amino acid
sequence of two proteins (1970).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from onnxgen.canonical.places import Place, place_of
from onnxgen.diff import answer
from onnxgen.diff.answer import Change
from onnxgen.errors import counted

GAP = 0.9  # the cost of an operator that only one has
OTHER_VALUES = 0.15  # the same operator with other weights
OTHER_NUMBERS = 0.4  # with other arguments, or weights of another shape
OTHER_FUNCTION = 0.8  # another operator of as many operands, both without weights
OTHER = 1.7  # any other pair: near the cost of one that was removed and one that was added
OTHER_PATH = 0.05  # of another module
MAX_CELLS = 1_500_000  # of the table; larger networks are aligned by their longest common parts first
SILENT = frozenset(
    {"alias", "detach", "contiguous", "clone", "lift_fresh_copy", "_to_copy", "dropout", "feature_dropout"}
)
FOLDABLE = ("conv1d", "conv2d", "conv3d", "linear")
COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"})
MAX_OPERATORS = 6  # of a block that are named

Operand = Any  # the number of a step, or ("input", its number)


@dataclass
class Step:
    """An operator that is executed.

    Attributes:
        name: of the operator.
        given: its arguments, without tensors, by name.
        leaves: the parameters and buffers that it takes, each with its shape, by argument.
        digests: names for their elements.
        operands: the values that it takes.
        node: of the graph.
        path: the module that called it.
    """

    name: str
    given: tuple[tuple[str, str], ...]
    leaves: dict[str, tuple[str, tuple[int, ...]]]
    digests: tuple[str, ...]
    operands: list[Operand]
    node: Node | None
    path: str

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((name, shape) for name, (_, shape) in self.leaves.items())

    @property
    def token(self) -> Any:
        return self.name, self.given, self.shapes, len(self.operands)

    @property
    def label(self) -> str:
        return self.name.strip("_")


@dataclass
class Alignment:
    """Steps of two networks.

    Attributes:
        pairs: of those that stand for each other, by number.
        folded: of both, tensors with the norm that was folded into them.
    """

    ones: list[Step]
    others: list[Step]
    pairs: list[tuple[int | None, int | None]] = field(default_factory=list)
    folded: tuple[Mapping[str, Tensor], Mapping[str, Tensor]] = ({}, {})

    @property
    def cost(self) -> float:
        return sum(GAP if a is None or b is None else _cost(self.ones[a], self.others[b]) for a, b in self.pairs)


class Steps:
    """Reads the steps of an exported program that its outputs need."""

    def __init__(
        self, program: Any, digests: Mapping[str, str], in_need: bool, state: Mapping[str, Tensor] | None = None
    ) -> None:
        """`in_need`: the order in which outputs need them; else that of the program. `state`: the tensors, if norms are
        to be folded into the layers before them."""
        self.program, self.digests, self.in_need, self.state = program, digests, in_need, state
        self.folded: dict[str, Tensor] = {}
        self.leaf: dict[Node, str] = {}
        self.number: dict[Node, Operand] = {}
        self.steps: list[Step] = []

    def read(self) -> list[Step]:
        graph, inputs = self.program.graph, 0
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        for spec, node in zip(self.program.graph_signature.input_specs, nodes, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.number[node] = ("input", inputs)
                inputs += 1
            else:
                self.leaf[node] = spec.target or node.name
        (output,) = (node for node in graph.nodes if node.op == "output")
        needed = list(self._in_need(output))
        there = {*needed}
        for node in needed if self.in_need else [n for n in graph.nodes if n in there]:
            self._step(node)
        operands = [self.number[n] for n in _nodes(output.args) if n in self.number]
        self.steps.append(Step("output", (), {}, (), operands, None, ""))
        return self.steps

    def _in_need(self, output: Node) -> Iterator[Node]:
        """Yield the nodes that a node needs, operands first."""
        done: set[Node] = set()
        todo = [(node, False) for node in reversed(_nodes(output.args))]
        while todo:
            node, ready = todo.pop()
            if node in done:
                continue
            if ready:
                done.add(node)
                yield node
            else:
                todo.append((node, True))
                todo += [(n, False) for n in reversed(node.all_input_nodes) if n not in done]

    def _step(self, node: Node) -> None:
        if node.op != "call_function" or node in self.leaf:
            return
        value = node.meta.get("val")
        if value is not None and not isinstance(value, (Tensor, tuple, list)):
            return  # a size
        taken = [n for n in node.all_input_nodes if n in self.number or n in self.leaf]
        name = _name(node)
        if taken and all(n in self.leaf for n in taken):  # made of weights alone
            self.leaf[node] = self.leaf[taken[0]]
        elif self.state is not None and name == "batch_norm" and (layer := self._folding(node)) is not None:
            self.number[node] = layer
        elif (node.target is operator.getitem or name in SILENT) and taken:
            self.number[node] = self.number[taken[0]]
        else:
            self.number[node] = len(self.steps)
            self.steps.append(self._made(node, name))

    def _folding(self, node: Node) -> int | None:
        """Fold a norm into the layer before it, and return the number of that, or None if there is none."""
        assert self.state is not None
        before = node.args[0]
        number = self.number.get(before) if isinstance(before, Node) and len(before.users) == 1 else None
        step = self.steps[number] if isinstance(number, int) else None
        if step is None or step.name not in FOLDABLE or "weight" not in step.leaves:
            return None
        norm = self._made(node, "batch_norm").leaves
        path = step.leaves["weight"][0]
        weight = self._tensor(path)
        mean, var = (self._tensor(norm[name][0]) for name in ("running_mean", "running_var"))
        scale = (var + float(node.args[7])).rsqrt()  # type: ignore[arg-type]
        scale = scale * self._tensor(norm["weight"][0]) if "weight" in norm else scale
        bias = step.leaves.get("bias") or norm.get("bias")
        if bias is None or weight.shape[0] != scale.shape[0]:
            return None
        shift = (self._tensor(bias[0]) if "bias" in step.leaves else 0) - mean
        beta = self._tensor(norm["bias"][0]) if "bias" in norm else 0
        self.folded[path] = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        self.folded[bias[0]] = shift * scale + beta
        step.leaves["bias"] = bias
        step.given = tuple((name, "*" if name == "bias" else text) for name, text in step.given)
        step.digests = ("", "")
        return number

    def _tensor(self, path: str) -> Tensor:
        assert self.state is not None
        return (self.folded[path] if path in self.folded else self.state[path]).detach().double()

    def _made(self, node: Node, name: str) -> Step:
        given, leaves, operands = [], {}, []
        schema = getattr(node.target, "_schema", None)
        names = [a.name for a in schema.arguments] if schema is not None else []
        known = dict(zip(names, node.args)) if names else dict(enumerate(node.args))
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()} if schema else {}
        every = {**defaults, **known, **node.kwargs}
        for argument, value in ((name, every[name]) for name in (names or every) if name in every):
            nodes = _nodes(value)
            operands += [self.number[n] for n in nodes if n in self.number]
            for place, leaf in enumerate(n for n in nodes if n in self.leaf):
                shape = leaf.meta.get("val")
                key = str(argument) if not place else f"{argument}[{place}]"
                sizes = tuple(int(s) if isinstance(s, int) else -1 for s in shape.shape) if shape is not None else ()
                leaves[key] = (self.leaf[leaf], sizes)
            given.append((str(argument), _text(value)))
        modules: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
        path = list(modules.values())[-1][0] if modules else ""
        return Step(
            name,
            tuple(given),
            leaves,
            tuple(self.digests.get(leaf, "") for leaf, _ in leaves.values()),
            operands,
            node,
            path,
        )


def _name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target))
    return str(schema.name.split("::")[1]).removesuffix("_")


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _nodes(v)]
    return []


def _text(value: Any) -> str:
    """Return an argument as text. Values of the network are only marked; a size that is free is "free"."""
    if isinstance(value, Node):
        made = value.meta.get("val")
        return "*" if isinstance(made, (Tensor, tuple, list)) or made is None else "free"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def aligned(
    programs: Sequence[Any], digests: Sequence[Mapping[str, str]], states: Sequence[Mapping[str, Tensor]]
) -> Alignment:
    """Align two networks: in the order of their programs, or in that in which outputs need the operators.

    The first says nothing about files whose independent nodes are in another order, the second about operators whose
    operands are. If one has fewer norms, they are also folded into the layers before them. The cheapest alignment is
    taken.
    """
    found: list[Alignment] = []
    for folds in (False, True):
        for in_need in (False, True):
            given = [state if folds else None for state in states]
            both = [Steps(p, d, in_need, state) for p, d, state in zip(programs, digests, given, strict=True)]
            ones, others = (side.read() for side in both)
            pairs = list(_pairs(ones, others, 0, 0))
            found.append(Alignment(ones, others, pairs, (both[0].folded, both[1].folded)))
            if found[-1].cost < OTHER_NUMBERS:
                break
            found.append(with_equals(found[-1]))
        norms = [sum(step.name == "batch_norm" for step in side) for side in (found[0].ones, found[0].others)]
        if norms[0] == norms[1]:
            break
    return min(found, key=lambda alignment: alignment.cost)


def with_equals(alignment: Alignment) -> Alignment:
    """Return an alignment in which steps with equal tensors stand for each other, also out of their order, and those
    that take what these make."""
    ones, others = alignment.ones, alignment.others
    partners_ = Partners(alignment)
    mine, theirs = (
        _by_key(steps, lambda s: (s.token, s.digests) if any(s.digests) else None) for steps in (ones, others)
    )
    for key, numbers in mine.items():
        if len(numbers) == len(theirs.get(key, ())) == 1:
            partners_.put(numbers[0], theirs[key][0])
    users = _by_key(others, lambda s: None if s.leaves else (s.token, tuple(s.operands)))
    for number, step in enumerate(ones):
        mapped = tuple(partners_.to.get(o) if isinstance(o, int) else o for o in step.operands)
        there = users.get((step.token, mapped), [])
        if mapped and None not in mapped and len(there) == 1 and not step.leaves:
            partners_.put(number, there[0])
    return Alignment(ones, others, _in_order(partners_.to, len(ones), len(others)), alignment.folded)


def _by_key(steps: Sequence[Step], key: Callable[[Step], Any]) -> dict[Any, list[int]]:
    """Return the numbers of steps by a key; those without one are left out."""
    found: dict[Any, list[int]] = {}
    for number, step in enumerate(steps):
        if (of := key(step)) is not None:
            found.setdefault(of, []).append(number)
    return found


class Partners:
    """Which step stands for which."""

    def __init__(self, alignment: Alignment) -> None:
        self.alignment = alignment
        self.to: dict[int, int] = {a: b for a, b in alignment.pairs if a is not None and b is not None}
        self.back = {b: a for a, b in self.to.items()}

    def put(self, a: int, b: int) -> None:
        """Let two steps stand for each other, and what stood for them, if these are alike."""
        if self.to.get(a) == b:
            return
        old_b, old_a = self.to.pop(a, None), self.back.pop(b, None)
        if old_b is not None:
            self.back.pop(old_b)
        if old_a is not None:
            self.to.pop(old_a)
        self.to[a], self.back[b] = b, a
        if old_a is not None and old_b is not None:
            ones, others = self.alignment.ones, self.alignment.others
            if ones[old_a].token == others[old_b].token:
                self.to[old_a], self.back[old_b] = old_b, old_a


def _in_order(to: Mapping[int, int], ones: int, others: int) -> list[tuple[int | None, int | None]]:
    """Return pairs, and what has no partner, in the order of the second network."""
    back = {b: a for a, b in to.items()}
    pairs: list[tuple[int | None, int | None]] = []
    alone = iter([a for a in range(ones) if a not in to])
    waiting = next(alone, None)
    for b in range(others):
        a = back.get(b)
        while waiting is not None and a is not None and waiting < a:
            pairs.append((waiting, None))
            waiting = next(alone, None)
        pairs.append((a, b))
    while waiting is not None:
        pairs.append((waiting, None))
        waiting = next(alone, None)
    return pairs


def _pairs(ones: Sequence[Step], others: Sequence[Step], i: int, j: int) -> Iterator[tuple[int | None, int | None]]:
    if len(ones) * len(others) <= MAX_CELLS:
        yield from ((a if a is None else a + i, b if b is None else b + j) for a, b in _table(ones, others))
        return
    mine, theirs = ([(s.token, s.digests) for s in side] for side in (ones, others))
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for tag, a, a_, b, b_ in matcher.get_opcodes():
        if tag == "equal":
            yield from zip(range(i + a, i + a_), range(j + b, j + b_))
        elif (a_ - a) * (b_ - b) <= MAX_CELLS:
            yield from _pairs(ones[a:a_], others[b:b_], i + a, j + b)
        else:
            yield from ((n, None) for n in range(i + a, i + a_))
            yield from ((None, n) for n in range(j + b, j + b_))


def _table(ones: Sequence[Step], others: Sequence[Step]) -> list[tuple[int | None, int | None]]:
    """Return the cheapest alignment. What both begin and end with is not in the table."""
    start, low = 0, min(len(ones), len(others))
    while start < low and _cost(ones[start], others[start]) == 0:
        start += 1
    end = 0
    while end < low - start and _cost(ones[-1 - end], others[-1 - end]) == 0:
        end += 1
    mine, theirs = ones[start : len(ones) - end], others[start : len(others) - end]
    rows = [[column * GAP for column in range(len(theirs) + 1)]]
    for number, a in enumerate(mine, 1):
        row = [number * GAP]
        before = rows[-1]
        for column, b in enumerate(theirs, 1):
            row.append(min(before[column - 1] + _cost(a, b), before[column] + GAP, row[-1] + GAP))
        rows.append(row)
    found: list[tuple[int | None, int | None]] = []
    i, j = len(mine), len(theirs)
    while i or j:
        if i and j and rows[i][j] == rows[i - 1][j - 1] + _cost(mine[i - 1], theirs[j - 1]):
            i, j = i - 1, j - 1
            found.append((start + i, start + j))
        elif i and rows[i][j] == rows[i - 1][j] + GAP:
            i -= 1
            found.append((start + i, None))
        else:
            j -= 1
            found.append((None, start + j))
    head: list[tuple[int | None, int | None]] = [(n, n) for n in range(start)]
    tail: list[tuple[int | None, int | None]] = [(len(ones) - end + n, len(others) - end + n) for n in range(end)]
    return head + found[::-1] + tail


def _cost(a: Step, b: Step) -> float:
    path = 0.0 if a.path == b.path else OTHER_PATH
    if a.name == b.name:
        if a.token == b.token:
            return path + (0 if a.digests == b.digests else OTHER_VALUES)
        return path + OTHER_NUMBERS + (0 if a.shapes == b.shapes else OTHER_VALUES)
    if not a.leaves and not b.leaves and len(a.operands) == len(b.operands) and "output" not in (a.name, b.name):
        return path + OTHER_FUNCTION
    return path + OTHER


@dataclass(frozen=True)
class Source:
    """What is known of the source of one network.

    Attributes:
        file: the name of the file in tracebacks.
        nodes: of the ONNX file, by line.
        kinds: the operator of each node of the ONNX file, in its order.
        classes: the name of the class of each module, by its path.
    """

    file: str
    nodes: Mapping[int, list[str]]
    kinds: Mapping[str, str]
    classes: Mapping[str, str]


class Changes:
    """What an alignment says, with the places in both sources."""

    def __init__(self, alignment: Alignment, sources: Sequence[Source]) -> None:
        self.alignment, self.sources = alignment, sources
        self.of_one = {a: b for a, b in alignment.pairs if a is not None and b is not None}
        self.of_other = {b: a for a, b in self.of_one.items()}

    def all(self) -> list[Change]:
        found: list[Change] = []
        gap: list[tuple[int, Step]] = []
        end: list[tuple[int | None, int | None]] = [(None, None)]
        for a, b in [*self.alignment.pairs, *end]:
            side = None if a is not None and b is not None else 0 if a is not None else 1 if b is not None else None
            if gap and (side is None or side != gap[0][0]):
                found.append(self._block(gap))
                gap = []
            if side is not None:
                number = a if side == 0 else b
                assert number is not None
                gap.append((side, (self.alignment.ones, self.alignment.others)[side][number]))
            elif a is not None and b is not None:
                found += self._pair(a, b)
        return found

    def _block(self, gap: Sequence[tuple[int, Step]]) -> Change:
        side, steps = gap[0][0], [step for _, step in gap]
        named = [step.label for step in steps]
        more = f" and {len(named) - MAX_OPERATORS} more" if len(named) > MAX_OPERATORS else ""
        what = ", ".join(named[:MAX_OPERATORS]) + more
        numbers = (self.alignment.ones, self.alignment.others)[side]
        at_input = all(self._is_near_input(numbers, o) for step in steps for o in step.operands)
        if at_input and not any(len(shape) > 1 for step in steps for _, shape in step.leaves.values()):
            what += " (of the inputs: preprocessing)"
        path = common([step.path for step in steps])
        if path and len(steps) > 1:
            what = f"{self.sources[side].classes.get(path, 'module')} ({what})"
        places = [self._place(side, step) for step in steps]
        nodes = tuple(dict.fromkeys(n for place in places for n in place.nodes))
        where = answer.Side(path, places[0].line, places[0].code, nodes)
        return Change("removed" if side == 0 else "added", what, *((where, None) if side == 0 else (None, where)))

    def _is_near_input(self, steps: Sequence[Step], operand: Operand, depth: int = 4) -> bool:
        if isinstance(operand, tuple):
            return True
        step = steps[operand]
        return bool(depth) and not step.leaves and all(self._is_near_input(steps, o, depth - 1) for o in step.operands)

    def _pair(self, i: int, j: int) -> Iterator[Change]:
        a, b = self.alignment.ones[i], self.alignment.others[j]
        said = []
        if a.name != b.name:
            said.append(f"{a.label} -> {b.label}")
        elif a.token != b.token:
            said += _other_arguments(a, b)
        if not said and (wired := self._wired(a, b)):
            said.append(f"{a.label} {wired}" if a.node is not None else f"outputs: it {wired}")
        if said:
            yield Change("changed", ", ".join(said), self._place(0, a), self._place(1, b))

    def _wired(self, a: Step, b: Step) -> str:
        """Say how the operands differ, if they do, other than by what was added or removed before."""
        mapped: list[Operand] = [self.of_one.get(o) if isinstance(o, int) else o for o in a.operands]
        theirs: list[Operand] = [o if not isinstance(o, int) or o in self.of_other else None for o in b.operands]
        pairs = list(zip(mapped, theirs))
        if None in mapped or None in theirs or mapped == theirs:
            return ""
        if sorted(map(str, mapped)) == sorted(map(str, theirs)):
            return "" if a.name in COMMUTATIVE else "takes its operands in another order"
        differ = next((m, t) for m, t in pairs if m != t)
        names = [
            f"input {o[1]}"
            if isinstance(o, tuple)
            else f"{self.alignment.others[o].label} of {self.alignment.others[o].path or 'the network'}"
            for o in differ
        ]
        return f"takes {names[1]} in place of {names[0]}"

    def _place(self, side: int, step: Step) -> answer.Side:
        if step.node is None:
            return answer.Side()
        place = self._line(side, step)
        if place is None:
            return answer.Side(step.path)
        return answer.Side(step.path, place.line, place.code, self._nodes(side, step, place.line))

    def _line(self, side: int, step: Step) -> Place | None:
        file = self.sources[side].file
        return (
            None if step.node is None else place_of(step.node, "generated" if file.startswith("<") else "edited", file)
        )

    def _nodes(self, side: int, step: Step, line: int) -> tuple[str, ...]:
        """Return the nodes of a step: those of its line, and of these the one that it is, if it can be told.

        A line of a class that is used several times has the nodes of all uses, in the order in which they run.
        """
        source, steps = self.sources[side], (self.alignment.ones, self.alignment.others)[side]
        nodes = tuple(source.nodes.get(line, ()))
        alike = [name for name, kind in source.kinds.items() if is_called(step.name, kind)]
        runs = [s for s in steps if s.name == step.name]
        if len(alike) != len(runs):
            alike = [name for name in alike if name in nodes]
            runs = [s for s in runs if (at := self._line(side, s)) is not None and at.line == line]
        if len(alike) != len(runs):
            return nodes
        found = alike[[id(s) for s in runs].index(id(step))]
        return (found,) if found in nodes else nodes


CALLED = {"cat": "concat", "linear": "gemm matmul", "permute": "transpose", "view": "reshape", "mm": "matmul gemm"}


def is_called(name: str, kind: str) -> bool:
    """Return True if an operator of torch may be that of an ONNX node, by their names."""
    mine, theirs = ("".join(c for c in word.lower() if c.isalpha()) for word in (re.sub(r"\d+d$", "", name), kind))
    words = CALLED.get(name, mine).split()
    return bool(theirs) and any(theirs.startswith(word) or word.startswith(theirs) for word in words)


def _other_arguments(a: Step, b: Step) -> list[str]:
    mine, theirs = dict(a.given), dict(b.given)
    said = [
        f"{name} {mine.get(name)} -> {theirs.get(name)}"
        for name in dict.fromkeys((*mine, *theirs))
        if mine.get(name) != theirs.get(name) and "*" not in (mine.get(name), theirs.get(name))
    ]
    for name in dict.fromkeys((*a.leaves, *b.leaves)):
        shapes = [list(leaves[name][1]) if name in leaves else None for leaves in (a.leaves, b.leaves)]
        if shapes[0] != shapes[1]:
            said.append(f"{name} {shapes[0] or 'none'} -> {shapes[1] or 'none'}")
    return [f"{a.label}: {', '.join(said)}"] if said else [f"{a.label}: its arguments differ"]


def blocks(one: nn.Module, other: nn.Module) -> Iterator[str]:
    """Say which lists of modules have another length."""
    lengths = [
        {p: len(list(m.children())) for p, m in side.named_modules() if isinstance(m, (nn.Sequential, nn.ModuleList))}
        for side in (one, other)
    ]
    for path, length in lengths[0].items():
        if path and lengths[1].get(path, length) != length:
            yield f"{path}: {counted(length, 'block')} -> {lengths[1][path]}"


def common(paths: Sequence[str]) -> str:
    """Return the module that all paths are in."""
    parts = [path.split(".") for path in paths]
    shared = []
    for names in zip(*parts, strict=False):
        if len({*names}) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def partners(alignment: Alignment) -> Iterator[tuple[str | None, str | None]]:
    """Yield the tensors that stand for each other, and those that only one has."""
    seen: set[tuple[str | None, str | None]] = set()
    for i, j in alignment.pairs:
        a = alignment.ones[i].leaves if i is not None else {}
        b = alignment.others[j].leaves if j is not None else {}
        for name in dict.fromkeys((*a, *b)):
            pair = (a[name][0] if name in a else None, b[name][0] if name in b else None)
            if pair not in seen:
                seen.add(pair)
                yield pair
