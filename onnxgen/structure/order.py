"""Grouping, and three textbook graph algorithms over numbered units, without recursion.

Goes in: for each unit, the numbers of the units that must come before it. Comes out: an order of execution, or the
units that are in cycles.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def in_cycles(before: list[list[int]]) -> list[set[int]]:
    """Return the strongly connected components of more than one unit (Kosaraju). `before[i]` must precede i."""
    after = _reversed(before)
    finished = _finished(before, range(len(before)))
    seen = set(finished)
    components: list[set[int]] = []
    for root in reversed(finished):
        component = set()
        pending = [root] if root in seen else []
        while pending:
            i = pending.pop()
            if i in seen:
                seen.remove(i)
                component.add(i)
                pending += after[i]
        if len(component) > 1:
            components.append(component)
    return components


def topological(before: list[list[int]]) -> list[int]:
    """Return an order with predecessors first, as near to the numbering as possible; without the units in cycles."""
    after = _reversed(before)
    waiting = [len(b) for b in before]
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in after[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    return order


def depth_first(before: list[list[int]], first: Collection[int] = ()) -> list[int]:
    """Return an order in which all that a unit needs stands before it: what its first predecessor needs, then the next.

    Args:
        first: units that come as early as possible, in this order.
    """
    after = _reversed(before)
    return _finished(before, [*first, *(i for i in range(len(before)) if not after[i])])


def _finished(before: list[list[int]], roots: Sequence[int]) -> list[int]:
    """Return the units in the order in which a depth-first search from these roots leaves them."""
    order: list[int] = []
    stack = [(i, False) for i in reversed(roots)]
    seen: set[int] = set()
    while stack:
        i, is_done = stack.pop()
        if is_done:
            order.append(i)
        elif i not in seen:
            seen.add(i)
            stack += [(i, True), *((j, False) for j in reversed(before[i]))]
    return order


def _reversed(before: list[list[int]]) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in before]
    for i, predecessors in enumerate(before):
        for p in predecessors:
            after[p].append(i)
    return after
