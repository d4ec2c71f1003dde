"""What an alignment of operators says: changes, each with its places in both sources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from onnxgen.canonical.places import Place, place_of
from onnxgen.diff import answer
from onnxgen.diff.aligning import Alignment
from onnxgen.diff.answer import Change
from onnxgen.diff.steps import Operand, Step
from onnxgen.errors import counted

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"})
MAX_OPERATORS = 6  # of a block that are named


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
