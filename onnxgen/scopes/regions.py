"""The graph as numbered vertices, and its regions between a fork and where its paths meet again.

`Flow` has the nodes that compute at run time, in the file's order, and the dataflow. `kind` says what a node is as a
reader sees it: a convolution, a norm, an activation.

Examples of regions are a residual connection, the branches of an Inception block, the gate of a squeeze-and-excite and
the three projections of an attention. All paths from a vertex meet in its immediate post-dominator. Paths to outputs
that only show an intermediate value (hidden states, key and value caches) do not count. The layer that mixes
concatenated branches belongs to their region.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import FLOATS, subgraphs
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import (
    ACTIVATION,
    ADDS,
    BROADCASTS,
    CONVOLUTION,
    ELEMENTWISE,
    GLOBAL_POOL,
    NORMALISES,
    POOL,
    PRODUCT,
    QUANTISES,
    RANDOM,
    RECURRENT,
    REDUCTION,
    RESAMPLES,
    SAME,
    SAMPLES,
    SCALES,
    SHUFFLES,
    SOFTMAX,
    VIEW,
)
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


class Flow:
    """The vertices of a graph.

    Attributes:
        nodes: the vertices: nodes that compute something from inputs.
        fixed: the other nodes, which only compute with stored tensors and known sizes.
        before, after: for each vertex, those whose values it takes (also in subgraphs), and those that take its values.
        inputs: for each graph input, the vertices that take it.
        weighs: for each vertex, True if it is a layer: it has a stored matrix (or tensor of higher rank).
        thick: for each vertex, True if it is or depends on a layer, and not only on masks and positions.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.nodes: list[ir.Node] = []
        self.fixed: list[ir.Node] = []
        constant = self._constant = set(graph.initializers.values())
        for node in graph:
            if _is_fixed(node, constant):
                self.fixed.append(node)
                constant.update(node.outputs)
            else:
                self.nodes.append(node)
        index = self._index = {output: i for i, node in enumerate(self.nodes) for output in node.outputs}
        self.before = [list(dict.fromkeys(index[v] for v in taken(node) if v in index)) for node in self.nodes]
        self.after: list[list[int]] = [[] for _ in self.nodes]
        for i, sources in enumerate(self.before):
            for j in sources:
                self.after[j].append(i)
        self.inputs = self._takers()
        self.weighs = [self._has_matrix(node) for node in self.nodes]
        self.thick = list(self.weighs)
        for i, before in enumerate(self.before):
            self.thick[i] = self.thick[i] or any(map(self.thick.__getitem__, before))

    def _takers(self) -> list[list[int]]:
        """Return for each graph input the vertices that take it."""
        takers: dict[ir.Value, list[int]] = {v: [] for v in self.graph.inputs if v not in self._constant}
        for i, node in enumerate(self.nodes):
            for value in takers.keys() & taken(node):
                takers[value].append(i)
        return list(takers.values())

    def _has_matrix(self, node: ir.Node) -> bool:
        at = known(node).matrix
        if at is not None:
            value = node.inputs[at] if at < len(node.inputs) else None
            is_table = node.op_type != "Gather" or (info(value).dtype in FLOATS and (info(value).rank or 0) > 1)
            return value in self._constant and is_table
        return any(v in self._constant and _is_matrix(v) for v in node.inputs if v is not None)

    def operands(self, i: int) -> list[ir.Value]:
        """Return the inputs of a vertex that are computed."""
        return [v for v in self.nodes[i].inputs if v is not None and v not in self._constant]

    def maker(self, value: ir.Value | None) -> int | None:
        """Return the vertex that makes a value."""
        return None if value is None else self._index.get(value)


def taken(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node takes, including those that its subgraphs take from outside."""
    pending = [node]
    while pending:
        inner = pending.pop()
        yield from (v for v in inner.inputs if v is not None)
        for graph in subgraphs(inner):
            yield from graph.outputs
            pending.extend(graph)


def _is_fixed(node: ir.Node, constant: set[ir.Value]) -> bool:
    if all(not o.name or info(o).data is not None or stored(o) is not None for o in node.outputs):
        return True
    return bool(node.inputs) and not is_a(node, RANDOM) and all(v in constant for v in taken(node))


def _is_matrix(value: ir.Value) -> bool:
    facts = info(value)
    dims = [d for d in facts.shape or () if d != 1]
    return facts.dtype in FLOATS and len(dims) > 1 and is_trained(value)


_KINDS = {
    NORMALISES: "norm",
    ACTIVATION: "act",
    POOL: "pool",
    GLOBAL_POOL: "squeeze",
    RECURRENT: "recurrent",
    REDUCTION: "reduce",
    VIEW: "move",
    RESAMPLES: "resize",
    SHUFFLES: "resize",
    SOFTMAX: "softmax",
    QUANTISES: "quant",
    SAME: "move",
}
_BY_NAME = {"Erf": "act", "Attention": "attention", "Dropout": "drop", "Hardmax": "softmax", "Expand": "move"}
SOFT = {"norm", "act", "drop", "move", "scale", "quant", "gate"}  # optional in a block


def kind(flow: Flow, i: int) -> str:
    """Return the kind of a vertex. Convolutions are "conv", "point" (kernel of 1) or "depth" (depthwise)."""
    node = flow.nodes[i]
    facts = known(node)
    if CONVOLUTION in facts.traits and facts.matrix is not None:
        return _conv(node, info(node.inputs[facts.matrix]).shape)
    if SAMPLES in facts.traits and PRODUCT in facts.traits:
        return "deconv"
    named = _BY_NAME.get(node.op_type) or next((kind for trait, kind in _KINDS.items() if trait in facts.traits), None)
    if named is not None:
        return "squeeze" if named == "reduce" and _is_spatial(node) else named
    if ELEMENTWISE in facts.traits and BROADCASTS not in facts.traits:
        return "scale"
    return _of_operands(flow, i)


def _of_operands(flow: Flow, i: int) -> str:
    """Return the kind of a vertex by its operands: a layer with a matrix, or what joins several values."""
    node = flow.nodes[i]
    if flow.weighs[i]:
        return "linear" if is_a(node, PRODUCT) else "embedding" if node.op_type == "Gather" else f"own {node.op_type}"
    if is_a(node, ADDS, SCALES):
        return node.op_type.lower() if len(flow.before[i]) > 1 or len(flow.operands(i)) > 1 else "scale"
    if is_a(node, PRODUCT):
        return "product"
    return f"concat {len(flow.operands(i))}" if node.op_type == "Concat" else node.op_type


def _conv(node: ir.Node, shape: object) -> str:
    if not isinstance(shape, tuple) or len(shape) < 3:
        return "conv"
    groups = node.attributes["group"].value if "group" in node.attributes else 1
    if groups > 1 and shape[1] == 1:
        return "depth"
    return "point" if all(d == 1 for d in shape[2:]) else "conv"


def _is_spatial(node: ir.Node) -> bool:
    """True if a reduction leaves one number for each channel of a map."""
    facts, result = info(node.inputs[0]), info(node.outputs[0])
    if facts.rank is None or facts.rank < 3 or result.shape is None:
        return False
    return result.rank == facts.rank and all(d == 1 for d in result.shape[2:]) and result.shape[1] != 1


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
        vertex = users[0] if users else n
        for j in users[1:]:
            vertex = tree.common(vertex, j)
        return vertex

    for i in reversed(range(n)):
        tree.add(i, meet(flow.after[i]))
    inputs = [users for users in flow.inputs if len(users) > 1]
    return tree.parent[:n], [vertex for vertex in map(meet, inputs) if vertex < n]


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
        merges: dict[int, list[int]] = {}
        for i in range(n):
            if len(self.users[i]) > 1 and meets[i] < n:
                merges.setdefault(meets[i], []).append(i)
        for merge in from_inputs:
            merges.setdefault(merge, [-1])
        for merge, before in enumerate(self.flow.before):
            direct = [i for i in before if len(self.users[i]) > 2] if len(before) > 1 else []
            if direct and merge not in merges:  # a residual whose input is needed again, far away
                merges[merge] = direct
        return sorted(merges.items(), key=lambda item: (item[0] - item[1][-1], item[0]))

    def make(self, merge: int, forks: list[int]) -> None:
        """Make the region of a merge."""
        fork, between = self._best(merge, forks)
        inside = set(between)
        regions = {id(r): r for i in between if (r := self.owner[i]) is not None}
        inner = sorted(regions.values(), key=lambda r: r.merge)
        height = 1 + max((r.height for r in inner), default=0)
        if not between or height > _MAX_HEIGHT or not all(inside.issuperset(r.nodes) for r in inner):
            return
        nodes = [*between, *self._mixing(fork, merge)]
        region = self.made[merge] = Region(fork, merge, nodes, height, inner)
        for child in inner:
            del self.made[child.merge]
        for i in region.nodes:
            self.owner[i] = region

    def _best(self, merge: int, forks: list[int]) -> tuple[int, list[int]]:
        """Return the fork of a merge, with the vertices between them; none if no fork makes a region.

        Several forks can meet in it: a mask that two layers share meets where the second layer's input does. The one
        with the fewest other inputs into the region counts, and of those the last. Forks that do not depend on a layer
        count only if there are no others.
        """
        forks = [i for i in forks if i >= 0 and self.flow.thick[i]] or forks
        ways = [self._way(fork, merge) for fork in dict.fromkeys([*forks[:-4:-1], forks[0]])]
        best = min((way for way in ways if way is not None), key=lambda way: way[0], default=(0, -1, []))
        return best[1:]

    def _way(self, fork: int, merge: int) -> tuple[int, int, list[int]] | None:
        """Return the vertices between a fork and its merge, and how many others they depend on; None if it is none."""
        if not self._is_closed(fork, merge):
            return None
        nodes = self._between(fork, merge)
        inside, thick = set(nodes), self.flow.thick
        entries = {j for i in nodes for j in self.flow.before[i] if thick[j]} - inside
        meets = all(i == fork or i in inside or not thick[i] for i in self.flow.before[merge])
        return (len(entries), fork, nodes) if nodes and meets else None

    def _mixing(self, fork: int, merge: int) -> list[int]:
        """Return the pointwise layer behind concatenated branches, with its norm and activation.

        It is the branches' own if each of them begins with a layer that narrows their input, as in a CSP block. In
        others, as SqueezeNet's, it narrows the input of the next block.
        """
        branches = [i for i in self.flow.after[fork] if fork >= 0 and self.flow.weighs[i]]
        chain = [merge]
        is_joined = len(branches) > 1 and kind(self.flow, merge).startswith("concat")
        for wanted in ("point", "norm", "act") if is_joined and all(map(self._narrows, branches)) else ():
            after = self.flow.after[chain[-1]]
            if len(after) == 1 and kind(self.flow, after[0]) == wanted and self.flow.before[after[0]] == chain[-1:]:
                chain += after
            elif chain == [merge]:
                break
        return chain[1:]

    def _narrows(self, i: int) -> bool:
        node = self.flow.nodes[i]
        before, after = (
            info(value).shape if value is not None else None for value in (node.inputs[0], node.outputs[0])
        )
        if before is None or after is None or len(after) < 3:
            return False
        return isinstance(before[1], int) and isinstance(after[1], int) and after[1] < before[1]

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
