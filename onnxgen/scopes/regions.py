"""Regions: the nodes between a value that several nodes take and the node where all their paths meet again.

Examples are a residual connection, the branches of an Inception block, the gate of a squeeze-and-excite and the three
projections of an attention. All paths from a vertex meet in its immediate post-dominator. Paths to outputs that only
show an intermediate value (hidden states, key and value caches) do not count. The layer that mixes concatenated
branches belongs to their region.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxgen.scopes.flow import Flow
from onnxgen.scopes.kinds import kind
from onnxgen.shapes.info import info

_MAX_HEIGHT = 12  # regions nested in regions
_STEPS_PER_VERTEX = 64  # budget of the search


@dataclass
class Region:
    """The vertices between a fork and its merge.

    Attributes:
        fork: the vertex outside the region whose value several take; -1 for a graph input.
        merge: the vertex where the paths meet, the last of the region but for a layer that mixes what it concatenates.
        nodes: all its vertices, in order.
        height: how deep regions are nested in it; 1 if there are none.
        inner: the regions directly inside, in order.
    """

    fork: int
    merge: int
    nodes: list[int]
    height: int = 0
    inner: list[Region] = field(default_factory=list)


class _Tree:
    """Common ancestors in a tree that grows at its leaves, in logarithmic time (Myers 1983: one jump pointer each)."""

    def __init__(self, size: int) -> None:
        self.parent = [size] * (size + 1)
        self.jump = [size] * (size + 1)
        self.depth = [0] * (size + 1)

    def add(self, i: int, parent: int) -> None:
        self.parent[i], self.depth[i] = parent, self.depth[parent] + 1
        far = self.jump[parent]
        even = self.depth[parent] - self.depth[far] == self.depth[far] - self.depth[self.jump[far]]
        self.jump[i] = self.jump[far] if even else parent

    def common(self, a: int, b: int) -> int:
        """Return the lowest common ancestor."""
        if self.depth[a] < self.depth[b]:
            a, b = b, a
        while self.depth[a] > self.depth[b]:
            a = self.jump[a] if self.depth[self.jump[a]] >= self.depth[b] else self.parent[a]
        while a != b:
            far = self.jump[a] != self.jump[b]
            a, b = (self.jump[a], self.jump[b]) if far else (self.parent[a], self.parent[b])
        return a


def main_vertices(flow: Flow) -> list[bool]:
    """True for vertices that lead to a main output, not only to one that shows an intermediate value."""
    n = len(flow.nodes)
    ends = [i for i in range(n) if not flow.after[i]]
    main = {i for i in ends if not _shows_intermediate(flow, i)} or {max(ends, default=0)}
    leads = [i in main for i in range(n)]
    for i in reversed(range(n)):
        leads[i] = leads[i] or any(leads[j] for j in flow.after[i])
    return leads


def _shows_intermediate(flow: Flow, end: int) -> bool:
    """True if there is no layer between an end and a value that is also used elsewhere."""
    i = end
    for _ in range(16):
        if flow.weighs[i] or not flow.before[i]:
            return False
        through = [j for j in flow.before[i] if flow.after[j] == [i]]
        if len(through) < len(flow.before[i]):
            return True
        i = through[0]
    return False


def post_dominators(flow: Flow, leads: list[bool]) -> tuple[list[int], list[int]]:
    """Return the vertex where all paths from each vertex meet (`len(nodes)` if they never do), and the vertices where
    those from graph inputs with several users meet."""
    n = len(flow.nodes)
    tree = _Tree(n)

    def meet(users: list[int]) -> int:
        users = [j for j in users if leads[j]] or users
        found = users[0] if users else n
        for j in users[1:]:
            found = tree.common(found, j)
        return found

    for i in reversed(range(n)):
        tree.add(i, meet(flow.after[i]))
    inputs = [users for users in flow.inputs if len(users) > 1]
    return tree.parent[:n], [found for found in map(meet, inputs) if found < n]


def find_regions(flow: Flow) -> list[Region]:
    """Return all outermost regions, in order."""
    search = _Search(flow)
    for merge, forks in search.candidates():
        search.make(merge, forks)
    return sorted(search.made.values(), key=lambda r: r.merge)


class _Search:
    """Makes regions, inner ones first."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.leads = main_vertices(flow)
        self.users = [[j for j in after if self.leads[j]] for after in flow.after]
        self.owner: list[Region | None] = [None] * len(flow.nodes)  # the outermost region of each vertex
        self.made: dict[int, Region] = {}  # the outermost regions, by merge
        self.steps = _STEPS_PER_VERTEX * len(flow.nodes)

    def candidates(self) -> list[tuple[int, list[int]]]:
        """Return every merge with the forks whose paths meet in it, the shortest regions first."""
        n = len(self.flow.nodes)
        meets, from_inputs = post_dominators(self.flow, self.leads)
        found: dict[int, list[int]] = {}
        for i in range(n):
            if len(self.users[i]) > 1 and meets[i] < n:
                found.setdefault(meets[i], []).append(i)
        for merge in from_inputs:
            found.setdefault(merge, [-1])
        for merge, before in enumerate(self.flow.before):
            direct = [i for i in before if len(self.users[i]) > 2] if len(before) > 1 else []
            if direct and merge not in found:  # a residual whose input is needed again, far away
                found[merge] = direct
        return sorted(found.items(), key=lambda item: (item[0] - item[1][-1], item[0]))

    def make(self, merge: int, forks: list[int]) -> None:
        """Make the region of a merge.

        Several forks can meet in it: a mask that two layers share meets where the second layer's input does. The one
        with the fewest other inputs into the region counts, and of those the last. Forks that do not depend on a layer
        count only if there are no others.
        """
        forks = [i for i in forks if i >= 0 and self.flow.thick[i]] or forks
        best: tuple[int, int, list[int]] | None = None
        for fork in dict.fromkeys([*forks[:-4:-1], forks[0]]):
            if not self._is_closed(fork, merge):
                continue
            nodes = self._between(fork, merge)
            entries = {j for i in nodes for j in self.flow.before[i] if self.flow.thick[j]} - set(nodes)
            meets = all(i == fork or i in nodes or not self.flow.thick[i] for i in self.flow.before[merge])
            if nodes and meets and (best is None or len(entries) < best[0]):
                best = len(entries), fork, nodes
        if best is None:
            return
        found = {id(r): r for i in best[2] if (r := self.owner[i]) is not None}
        inner = sorted(found.values(), key=lambda r: r.merge)
        height = 1 + max((r.height for r in inner), default=0)
        inside = set(best[2])
        if height > _MAX_HEIGHT or not all(inside.issuperset(r.nodes) for r in inner):
            return
        nodes = [*best[2], *self._mixing(best[1], merge)]
        region = self.made[merge] = Region(best[1], merge, nodes, height, inner)
        for child in inner:
            del self.made[child.merge]
        for i in region.nodes:
            self.owner[i] = region

    def _mixing(self, fork: int, merge: int) -> list[int]:
        """Return the pointwise layer behind concatenated branches, with its norm and activation.

        It is the branches' own if each of them begins with a layer that narrows their input, as in a CSP block. In
        others, as SqueezeNet's, it narrows the input of the next block.
        """
        branches = [i for i in self.flow.after[fork] if fork >= 0 and self.flow.weighs[i]]
        found = [merge]
        is_joined = len(branches) > 1 and kind(self.flow, merge).startswith("concat")
        for wanted in ("point", "norm", "act") if is_joined and all(map(self._narrows, branches)) else ():
            after = self.flow.after[found[-1]]
            if len(after) == 1 and kind(self.flow, after[0]) == wanted and self.flow.before[after[0]] == found[-1:]:
                found += after
            elif found == [merge]:
                break
        return found[1:]

    def _narrows(self, i: int) -> bool:
        """True if a vertex makes a map of fewer channels."""
        node = self.flow.nodes[i]
        before, made = (info(value).shape if value is not None else None for value in (node.inputs[0], node.outputs[0]))
        if before is None or made is None or len(made) < 3:
            return False
        return isinstance(before[1], int) and isinstance(made[1], int) and made[1] < before[1]

    def _is_closed(self, fork: int, merge: int) -> bool:
        """True if the merge takes nothing that is older than the fork."""
        return all(i >= fork or not self.flow.thick[i] for i in self.flow.before[merge])

    def _between(self, fork: int, merge: int) -> list[int]:
        """Return the vertices between two that have no users elsewhere; [] once the search has used up its budget."""
        self.steps -= merge - fork
        if self.steps < 0:
            return []
        inside = {merge}
        for i in range(merge - 1, fork, -1):
            if self.users[i] and all(j in inside for j in self.users[i]):
                inside.add(i)
        for i in range(fork + 1, merge):
            if not self.leads[i] and self.flow.before[i] and all(j in inside for j in self.flow.before[i]):
                inside.add(i)
        return sorted(inside)
