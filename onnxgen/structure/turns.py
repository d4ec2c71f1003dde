"""The turns of a loop: runs of statements that do the same with each item of a list.

x = self.layers[0][0](x) + x             for attention, feed_forward in self.layers:
x = self.layers[0][1](x) + x                 x = attention(x) + x
x = self.layers[1][0](x) + x                 x = feed_forward(x) + x
x = self.layers[1][1](x) + x

Goes in: a body, and the statements that use each item. Comes out: the statements of each turn, in several ways, best
first. A statement without an item belongs to a turn if data flows through it from one of the turn's statements to
another. Statements between two turns end the first, begin the second, or are divided between them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from onnxgen.code.module_def import Assign, Member, Statement, assigned, spelled, used
from onnxgen.code.quote import MemberRef, Ref, refs
from onnxgen.code.torch_api import ACTIVATIONS, function_of
from onnxgen.common.names import ModulePath

MAX_CUTS = 8  # up to so many statements between two turns are divided at every point


@dataclass
class Items:
    """The items that a loop goes over.

    Attributes:
        path: the module path of the list; None for the calls of one submodule, and for a stretch (`stretch.py`).
        parts: for each item its submodules by number; an item that is itself a submodule has the number -1.
    """

    path: ModulePath | None
    parts: list[dict[int, Member]]

    def __post_init__(self) -> None:
        self.number = {id(m): n for parts in self.parts for n, m in parts.items()}

    @property
    def is_inner(self) -> bool:
        """True for a list in a list."""
        return self.path is not None and len(self.path) > 1 and self.path[-1].isdigit()

    def text(self, statement: Assign) -> str:
        """Return a text that is equal for statements that do the same with other values and another item."""
        return spelled(statement, self._token)

    def are_alike(self, turns: list[list[Assign]]) -> bool:
        """True if the statements of all turns do the same."""
        first, *others = ([self.text(statement) for statement in turn] for turn in turns)
        return all(other == first for other in others)

    def _token(self, node: ast.AST) -> str | None:
        if isinstance(node, MemberRef):
            number = self.number.get(id(node.member))
            return f"%{id(node.member)}" if number is None else f"item {number}"
        return "%" if isinstance(node, Ref) else None


def find_turns(body: list[Statement], items: Items, anchors: list[list[Assign]]) -> Iterator[list[list[Assign]]]:
    """Yield possible turns, best first. `anchors`: the statements that use each item, in order."""
    at = {id(statement): i for i, statement in enumerate(body)}
    positions = [at[id(s)] for s in chain.from_iterable(anchors)]
    if not items.are_alike(anchors) or len(set(positions)) < len(positions):
        return
    between = _between(body[min(positions) : max(positions) + 1], anchors)
    if between is None or len({*map(len, between[1])}) > 1:
        return
    inner, outer = between
    size = len(outer[0])
    turns = [sorted([*own, *more], key=lambda s: at[id(s)]) for own, more in zip(anchors, inner)]
    search = _Search(body, items, [*chain.from_iterable([*turns, *outer])])
    inner_cuts = sorted(range(size), key=lambda n: is_activation(outer[0][n])) if size <= MAX_CUTS else [0]
    for cut in dict.fromkeys([size, *inner_cuts, 0]):
        ends, begins = [statements[:cut] for statements in outer], [statements[cut:] for statements in outer]
        end = search.end([turns[-2], *begins[-2:-1]], [turns[-1], *begins[-1:]], ends[-1])
        begin = search.begin(turns[1], turns[0], begins[0])
        if end is not None and begin is not None:
            yield [[*first, *own, *last] for first, own, last in zip([begin, *begins], turns, [*ends, end])]


def _between(
    body: list[Statement], anchors: list[list[Assign]]
) -> tuple[list[list[Assign]], list[list[Assign]]] | None:
    """Return the statements between those of one turn, and between those of one turn and the next.

    None if other statements are between them, or statements between turns that do not follow each other.
    """
    turn = {id(s): i for i, statements in enumerate(anchors) for s in statements}
    inner: list[list[Assign]] = [[] for _ in anchors]
    outer: list[list[Assign]] = [[] for _ in anchors[1:]]
    goal: dict[str, int] = {}  # the earliest turn that needs a value
    for statement, first in zip(reversed(body), reversed(_latest(body, turn))):
        last = turn.get(id(statement), min((goal[t] for t in assigned(statement) if t in goal), default=-1))
        if last < 0:
            continue
        for name in used(statement):
            goal[name] = min(goal.get(name, last), last)
        if id(statement) in turn or first < 0:
            continue
        if not isinstance(statement, Assign) or last not in (first, first + 1):
            return None
        (inner[first] if last == first else outer[first]).insert(0, statement)
    return inner, outer


def _latest(body: list[Statement], turn: Mapping[int, int]) -> list[int]:
    """Return the latest turn from which data flows into each statement; -1 if there is none."""
    origin: dict[str, int] = {}
    latest: list[int] = []
    for statement in body:
        latest.append(turn.get(id(statement), max((origin.get(name, -1) for name in used(statement)), default=-1)))
        origin.update(dict.fromkeys(assigned(statement), latest[-1]))
    return latest


def is_activation(statement: Assign) -> bool:
    """True for an activation: it belongs to the layer before it, if both may be in one turn."""
    return function_of(statement.value) in ACTIVATIONS


class _Search:
    """Finds the end of the last turn and the beginning of the first, by comparison with the turn beside it."""

    def __init__(self, body: list[Statement], items: Items, taken: list[Assign]) -> None:
        self.body, self.items = body, items
        self.taken = {id(s) for s in taken}
        self.makers: dict[str, Assign] = {}
        self.users: dict[str, list[Assign]] = {}
        for statement in body:
            if isinstance(statement, Assign):
                self.makers.update(dict.fromkeys(statement.targets, statement))
                for name in set(refs(statement.value)):
                    self.users.setdefault(name, []).append(statement)

    def end(self, before: list[list[Assign]], last: list[list[Assign]], ends: list[Assign]) -> list[Assign] | None:
        """Return the statements that end the last turn as `ends` do the one before it; None if there are none."""
        known: dict[str, str] = {}
        for statements, others in zip(before, last):
            _align(known, statements, others)
        matched: list[Assign] = []
        for model in ends:
            wanted = [known.get(name, name) for name in refs(model.value)]
            users = [s for name in wanted for s in self.users.get(name, ())]
            text = self.items.text(model)
            like = next((s for s in users if list(refs(s.value)) == wanted and self._is_like(s, text)), None)
            if like is None or like in matched:
                return None
            matched.append(like)
            _align(known, [model], [like])
        return matched

    def begin(self, second: list[Assign], first: list[Assign], begins: list[Assign]) -> list[Assign] | None:
        """Return the statements that begin the first turn as `begins` do the second; None if there are none."""
        known: dict[str, str] = {}
        _align(known, second, first)
        matched: list[Assign] = []
        for model in reversed(begins):
            like = self.makers.get(known.get(model.targets[0], ""))
            if like is None or not self._is_like(like, self.items.text(model)):
                return None
            matched.insert(0, like)
            _align(known, [model], [like])
        return matched

    def _is_like(self, statement: Assign, text: str) -> bool:
        return id(statement) not in self.taken and self.items.text(statement) == text


def _align(known: dict[str, str], statements: list[Assign], others: list[Assign]) -> None:
    """Note which values of one turn correspond to which of the other."""
    for mine, its in zip(statements, others):
        pairs = [*zip(refs(mine.value), refs(its.value)), *zip(mine.targets, its.targets)]
        for name, other in pairs:
            known.setdefault(name, other)
