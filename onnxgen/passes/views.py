"""Replace chains of Reshape, Transpose, Squeeze and Unsqueeze by fewer nodes that do the same.

Exporters write a swap of two axes as three nodes where torch's kernel does so (dynamo transposes the keys of attention
in rank 3), and flatten and transpose in steps. The pass follows the *factors* of a chain's axes: a Reshape merges and
splits runs of factors, a Transpose permutes them, and axes of size 1 have none. The result is at most one split, one
permutation and one merge. It is written if it has fewer nodes than the chain.

SpaceToDepth is one such permutation: exporters write it as a Reshape to [N, C, H, r, W, r], a Transpose and a Reshape,
and before opset 11 DepthToSpace likewise (Shi et al. 2016, arXiv 1609.05158).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.graph.annotations import PRODUCER, SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import VIEW
from onnxgen.options import Options
from onnxgen.passes.match import maker, shape_of
from onnxgen.passes.no_ops import merge_equal
from onnxgen.passes.rewrite import drop, insert, known_ints, only_user, replace, stored_views, together
from onnxgen.shapes.dims import Dim, TooComplex, exact_div, floordiv, product
from onnxgen.shapes.info import Info, Shape, info

MAX_CHAIN = 16  # nodes


@dataclass(eq=False)
class _Factor:
    """A factor of an axis's size; split into two where a Reshape cuts through it."""

    size: Dim
    parts: list[_Factor] = field(default_factory=list)

    def leaves(self) -> list[_Factor]:
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


_Axes = list[list[_Factor]]


@dataclass
class _Step:
    """A node that is written, and the shape of its result; a Reshape also takes that shape as its input."""

    op_type: str
    shape: Shape
    attributes: dict[str, int | str | tuple[int, ...]] = field(default_factory=dict)


def views(model: ir.Model, options: Options) -> None:
    """Rewrite every chain, the last one first: nodes before it may be removed with it."""
    weights = stored_views(model)
    if PRODUCER.get(model.graph) != "pytorch":  # which names no scope that is no module
        _leave_hollow_scopes(model)
    merge_equal(model, _is_view, weights)  # a chain ends where a value has several users
    for node in reversed(all_nodes(model.graph)):
        if node.graph is not None and _is_view(node):
            following = only_user(node.outputs[0])
            if following is None or not _continues(following, node):
                _rewrite(node, weights)


def _leave_hollow_scopes(model: ir.Model) -> None:
    """Put views into the scope around theirs, if that has nothing else: TensorFlow names functions so, too."""
    nodes = [node for node in all_nodes(model.graph) if SCOPE.get(node)]
    filled = {SCOPE.get(n)[:depth] for n in nodes if not _is_view(n) for depth in range(1, len(SCOPE.get(n)) + 1)}
    for node in nodes:
        scope = SCOPE.get(node)
        while scope and scope not in filled:
            scope = scope[:-1]
        SCOPE.set(node, scope)


def arranges(node: ir.Node) -> bool:
    """True if a node is a view, but not Identity."""
    return is_a(node, VIEW) and node.op_type != "Identity"


def _is_view(node: ir.Node) -> bool:
    return arranges(node) and info(node.outputs[0]).data is None


def _continues(node: ir.Node, before: ir.Node) -> bool:
    return together((node, before)) and _is_view(node) and node.inputs[0] is before.outputs[0]


def _chain(last: ir.Node) -> list[ir.Node]:
    """Return the views before one that are only there for it, in order, and itself."""
    chain = [last]
    while len(chain) < MAX_CHAIN:
        before = maker(chain[0].inputs[0])
        if before is None or not _is_view(before) or only_user(before.outputs[0]) is not chain[0]:
            break
        if not _continues(chain[0], before):
            break
        chain.insert(0, before)
    return chain


def _rewrite(last: ir.Node, weights: set[ir.Value]) -> None:
    chain = _chain(last)
    x = chain[0].inputs[0]
    if len(chain) < 2 or x is None or x in weights:
        return
    try:
        followed = _follow(chain)
        if followed is None:
            return
        steps = _named(*followed, shape_of(last.outputs[0])) or _steps(*followed, shape_of(x))
    except TooComplex:  # no dim can express the sizes: the chain stays as it is
        return
    if not steps and last.outputs[0].is_graph_output():
        return  # the output must keep its name
    if len(steps) < len(chain):
        _write(last, x, steps)


# ---- from nodes to factors ----


def _follow(chain: list[ir.Node]) -> tuple[_Axes, _Axes] | None:
    """Return the factors of the source's and the result's axes, split as far as the chain needs."""
    shape = info(chain[0].inputs[0]).shape
    if shape is None:
        return None
    source: _Axes = [[] if d == 1 else [_Factor(d)] for d in shape]
    axes = source
    for node in chain:
        target = info(node.outputs[0]).shape
        if target is None:
            return None
        if node.op_type == "Transpose":
            perm = node.attributes.get_ints("perm", range(len(axes))[::-1])
            if sorted(perm) != list(range(len(axes))):
                return None
            axes = [axes[p] for p in perm]
        else:
            regrouped = _regroup([leaf for axis in axes for f in axis for leaf in f.leaves()], target)
            if regrouped is None:
                return None
            axes = regrouped
    return _leaves(source), _leaves(axes)


def _leaves(axes: _Axes) -> _Axes:
    return [[leaf for factor in axis for leaf in factor.leaves()] for axis in axes]


def _regroup(factors: list[_Factor], shape: Shape) -> _Axes | None:
    """Return the same factors, in order, as axes of these sizes; None if a size cuts where no factor can be split."""
    pending = list(reversed(factors))
    axes: _Axes = []
    for i, size in enumerate(shape):
        axis: list[_Factor] = []
        rest: Dim = size
        while rest != 1:
            factor = pending.pop() if pending else None
            after = None if factor is None else exact_div(rest, factor.size)
            if factor is not None and after is None:
                following = shape[i + 1] if i + 1 < len(shape) else None
                share = following if _cuts(factor.size, rest, following) else exact_div(factor.size, rest)
                if share is not None:
                    factor.parts = [_Factor(rest), _Factor(share)]
                    pending.append(factor.parts[1])
                    factor, after = factor.parts[0], 1
            if factor is None or after is None:
                return None
            axis.append(factor)
            rest = after
        axes.append(axis)
    return None if pending else axes


def _cuts(size: Dim, first: Dim, second: Dim | None) -> bool:
    """True if a Reshape to (h // 2, 2) or (2, h // 2) cuts an axis of size h. It would fail for an odd h."""
    pairs = ((first, second), (second, first))
    return any(isinstance(n, int) and n > 1 and part == floordiv(size, n) for part, n in pairs)


# ---- from factors to nodes ----


def _named(source: _Axes, target: _Axes, shape: Shape) -> list[_Step]:
    """Return SpaceToDepth or DepthToSpace if the chain is equal to it."""
    if len(source) != 4 or len(target) != 4 or source[0] != target[0]:
        return []
    for name, deep, flat in (("DepthToSpace", source, target), ("SpaceToDepth", target, source)):
        rows, columns = flat[2][len(deep[2]) :], flat[3][len(deep[3]) :]
        if flat[2] != deep[2] + rows or flat[3] != deep[3] + columns or len(rows) != 1 or len(columns) != 1:
            continue
        block = rows[0].size
        if not isinstance(block, int) or block != columns[0].size:
            continue
        for mode, channels in (("CRD", [*flat[1], *rows, *columns]), ("DCR", [*rows, *columns, *flat[1]])):
            if deep[1] == channels:
                return [_Step(name, shape, {"blocksize": block, "mode": mode})]
    return []


def _steps(source: _Axes, target: _Axes, shape: Shape) -> list[_Step]:
    """Return a split of the source's axes, a permutation and a merge, each only if it changes something."""
    result = _sizes(target)
    perm = _permutation(source, target)
    if perm is not None:
        return [_Step("Transpose", result, {"perm": perm})] if perm != tuple(range(len(perm))) else []
    groups = _groups(source, target)
    place = {id(leaf): i for i, leaf in enumerate(leaf for axis in source for leaf in axis)}
    order = sorted(groups, key=lambda group: place[id(group[0])])
    split, merged = _sizes(order), _sizes(groups)
    perm = tuple(order.index(group) for group in groups)
    if perm == tuple(range(len(perm))):
        return [_Step("Reshape", result)] if shape != result else []
    steps = [_Step("Reshape", split)] if split != shape else []
    steps.append(_Step("Transpose", merged, {"perm": perm}))
    return steps + ([_Step("Reshape", result)] if merged != result else [])


def _groups(source: _Axes, target: _Axes) -> _Axes:
    """Return the leaves of the target, those together that lie side by side in an axis of both."""
    follows = {id(a): b for axis in source for a, b in zip(axis, axis[1:])}
    groups: _Axes = []
    for axis in target:
        for position, leaf in enumerate(axis):
            if position and follows.get(id(axis[position - 1])) is leaf:
                groups[-1].append(leaf)
            else:
                groups.append([leaf])
    return groups


def _sizes(axes: _Axes) -> Shape:
    return tuple(product(leaf.size for leaf in axis) for axis in axes)


def _permutation(source: _Axes, target: _Axes) -> tuple[int, ...] | None:
    """Return the permutation if the chain only permutes whole axes, else None. Axes of size 1 keep their order."""
    if len(source) != len(target):
        return None
    left = list(range(len(source)))
    perm: list[int] = []
    for axis in target:
        position = next((i for i in left if source[i] == axis), None)
        if position is None:
            return None
        left.remove(position)
        perm.append(position)
    return tuple(perm)


def _write(last: ir.Node, x: ir.Value, steps: list[_Step]) -> None:
    """Replace the chain that ends with `last` by the steps."""
    if not steps:
        ir.convenience.replace_all_uses_with(last.outputs[0], x)
        drop(last)
        return
    for i, step in enumerate(steps):
        inputs = [x, known_ints(step.shape)] if step.op_type == "Reshape" else [x]
        version = 28 if step.op_type == "SpaceToDepth" else 13
        node = ir.node(step.op_type, inputs, step.attributes, version=version, name=last.name)
        if i < len(steps) - 1:
            x = insert(last, node, f"{last.outputs[0].name}.{i}", Info(info(x).dtype, step.shape), last)
    replace(last, node)
