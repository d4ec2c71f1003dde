"""Two textbook graph algorithms over numbered units, both linear and without recursion."""

from __future__ import annotations

import heapq


def components(before: list[list[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan 1972); `before[i]` are the predecessors of i."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in range(len(before)):
        if root in index:
            continue
        work = [(root, iter(before[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, successors = work[-1]
            for successor in successors:
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(before[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(component)
    return found


def topological(before: list[list[int]]) -> list[int]:
    """An order in which predecessors come first, as near to the given numbering as possible."""
    after: list[list[int]] = [[] for _ in before]
    waiting = [len(b) for b in before]
    for i, predecessors in enumerate(before):
        for p in predecessors:
            after[p].append(i)
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
