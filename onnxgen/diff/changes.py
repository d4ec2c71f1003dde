"""What an alignment of operators says: changes, each with its places in both sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from onnxgen.diff import answer
from onnxgen.diff.aligning import Alignment, Operand, Step
from onnxgen.diff.answer import Change

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"})
MAX_OPERATORS = 6  # of a block that are named


class Source(Protocol):
    """Says where a step of one network is."""

    def place(self, step: Step) -> answer.Side: ...

    def class_of(self, path: str) -> str:
        """Return the name of a module's class."""
        ...


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
            what = f"{self.sources[side].class_of(path)} ({what})"
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
        return answer.Side() if step.node is None else self.sources[side].place(step)


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
