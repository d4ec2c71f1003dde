"""Concat as authors write it: `torch.roll`, `rotate_half`, `torch.stack`, lists of tensors.

    Concat(x[k:], x[:k])                       roll(x, -k)
    Concat(x[-k:], x, x[:n])                   F.pad(x, (k, n), mode="circular")
    Concat(-x[..., n/2:], x[..., :n/2])        rotate_half(x)
    Concat(-x[..., 1::2], x[..., ::2])         rotate_pairs(x): along a new last axis, if a Reshape
                                               merges the last two
    Concat of Unsqueezes along the new axis    torch.stack, written as `onnxgen.Stack(...)`
    Concat(Concat(Concat(a, b), c), d)         Concat(a, b, c, d)
    Concat(a, b), Concat(a, b, c), ...         x = Concat(a, b), x = Concat(x, c), ...

Exporters write one pair for each axis that is rolled (Swin's shifted windows); rolls of several axes become one node,
`onnxgen.Roll`. An axis of unknown size is only accepted if it is provably at least k long: these Slices leave a shorter
one unchanged, but torch.roll would move it. Rotary embeddings (Su et al. 2021, arXiv 2104.09864) compute
`x * cos + rotated * sin`. `onnxgen.RotateHalf` and `onnxgen.RotatePairs` stand for the functions that authors write.

Exporters write a list that grows in a loop as nested pairs (`concats`). Every layer of DenseNet (Huang et al. 2017)
takes a list of all earlier results (`growing`). In a traced file each layer has a different number of inputs, so no two
layers would share a class. The elements are the same, and as many are copied. Gradients are the same sums in another
order.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.common.names import common_scope
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_graphs, made_by
from onnxgen.options import Options
from onnxgen.passes.match import ints, maker, shape_of, source_of, standard_nodes
from onnxgen.passes.rewrite import known_ints, only_user, own, replace, stored_views, together
from onnxgen.passes.slices import make_up_axis, only_cut, piece
from onnxgen.shapes.dims import Dim, nonnegative
from onnxgen.shapes.info import info


def roll(model: ir.Model, options: Options) -> None:
    """Rewrite every such Concat, the first one first: the next one may roll its result."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Concat"):
        rank = info(node.outputs[0]).rank
        if len(node.inputs) not in (2, 3) or rank is None or node.outputs[0] in weights:
            continue
        axis = node.attributes["axis"].as_int() % rank
        if len(node.inputs) == 3:
            _wrap(node, axis, rank)
            continue
        maker = made_by(node.inputs[0], "Slice", "Split", "Neg", "Unsqueeze")
        if maker is not None and maker.op_type in ("Slice", "Split"):
            _roll(node, axis)
        elif maker is not None and axis == rank - 1:
            (_rotate_half if maker.op_type == "Neg" else _rotate_pairs)(node, maker.inputs[0], axis)


def _roll(node: ir.Node, axis: int) -> None:
    first, second = (made_by(value, "Slice", "Split") for value in node.inputs)
    x = None if first is None else first.inputs[0]
    shape, shift = info(x).shape, None
    if x is not None and second is not None and second.inputs[0] is x and shape is not None:
        shift = _shift(node, axis, shape[axis])
    if x is None or shift is None:
        return
    shifts, axes, before = [shift], [axis], x.producer()
    if before is not None and (before.domain, before.op_type) == (DOMAIN, "Roll") and together((before, node)):
        if {use.node for use in x.uses()} == {first, second} and not x.is_graph_output():
            shifts = [*before.attributes["shifts"].as_ints(), shift]
            axes = [*before.attributes["axes"].as_ints(), axis]
            x = before.inputs[0]
    replace(node, own("Roll", [x], shifts=shifts, axes=axes))


def _wrap(node: ir.Node, axis: int, rank: int) -> None:
    """Write a Pad that continues an axis with its other end; of the axes that `F.pad` knows, and of a known size."""
    before, x, after = node.inputs
    last, first = only_cut(maker(before)), only_cut(maker(after))
    is_of_x = source_of(before, "Slice") is x is source_of(after, "Slice")
    if last is None or first is None or not is_of_x or {last.axis, first.axis} != {axis}:
        return
    sizes = [size for value in node.inputs if isinstance(size := shape_of(value)[axis], int) and size > 0]
    if len(sizes) < 3 or (last.step, first.step, first.start) != (1, 1, 0) or not 1 <= rank - axis < min(rank, 4):
        return
    ahead, size, behind = sizes
    if last.start in (-ahead, size - ahead):
        pads = [0] * rank * 2
        pads[axis], pads[axis + rank] = ahead, behind
        replace(node, ir.node("Pad", [x, known_ints(pads)], {"mode": "wrap"}, version=19))


def _shift(node: ir.Node, axis: int, size: Dim) -> int | None:
    """Return the number of elements by which a Concat rolls an axis of this size, else None."""
    last, first = map(piece, node.inputs)
    if first is not None and last is not None:
        is_whole = first.axis == axis and make_up_axis([first, last])
        return _shift_of(first.end, last.end) if is_whole else None
    after, before = map(only_cut, map(maker, node.inputs))
    if after is None or before is None or {after.axis, before.axis} != {axis}:
        return None
    k = after.start
    if (after.step, before.step, before.start) != (1, 1, 0) or not isinstance(k, int) or k == 0:
        return None
    is_whole = (after.end == size or after.is_open) and before.end in (k, size + k)
    return -k if is_whole and nonnegative(size - abs(k)) else None


def _shift_of(start: int, size: int) -> int:
    """Return the shorter way to roll what is at `start` to the front."""
    return size - start if 2 * start > size else -start


def _rotate_half(node: ir.Node, negated: ir.Value | None, axis: int) -> None:
    first, second = piece(node.inputs[1]), piece(negated)
    if first is not None and second is not None and first.axis == axis and make_up_axis([first, second]):
        if 2 * first.end == second.end:
            replace(node, own("RotateHalf", [first.x]))


def _rotate_pairs(node: ir.Node, odd: ir.Value | None, axis: int) -> None:
    negated, even = made_by(odd, "Neg"), source_of(node.inputs[1], "Unsqueeze")
    last = only_user(node.outputs[0], "Reshape")
    if negated is None or last is None:
        return
    if any(info(v).shape != (*shape_of(part), 1) for v, part in zip(node.inputs, (odd, even))):
        return
    slices = made_by(even, "Slice"), made_by(negated.inputs[0], "Slice")
    x = source_of(even, "Slice")
    if x is not None and info(last.outputs[0]).shape == info(x).shape:
        if all(_takes_every_second(s, x, first, axis - 1) for first, s in enumerate(slices)):
            replace(last, own("RotatePairs", [x]), origin=node)


def _takes_every_second(node: ir.Node | None, x: ir.Value, first: int, axis: int) -> bool:
    """True if a Slice takes `x[..., first::2]` of a last axis of even size."""
    cut, shape = only_cut(node), shape_of(x)
    if node is None or node.inputs[0] is not x or cut is None or len(shape) != axis + 1:
        return False
    size = shape[axis]
    if (cut.axis, cut.start, cut.step) != (axis, first, 2) or not isinstance(cut.end, int) or not isinstance(size, int):
        return False
    return size % 2 == 0 and range(size)[first : cut.end : 2] == range(first, size, 2)


def stack(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of several tensors that were given the axis along which they are joined."""
    for node, axis in _of_data(model):
        axes = [axis], [axis - (info(node.outputs[0]).rank or 1)]
        makers = [made_by(value, "Unsqueeze") for value in node.inputs]
        parts = [m.inputs[0] for m in makers if m is not None and ints(m, "axes", 1) in axes]
        shapes = {info(part).shape for part in parts}
        if 1 < len(parts) == len(makers) and len(shapes) == 1 and None not in shapes:
            replace(node, own("Stack", parts, axis=axis))


def _of_data(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    """Yield every Concat whose result is neither stored nor known, and its axis from the front."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Concat"):
        if node.outputs[0] not in weights and _joins(node):
            yield node, _axis(node)


def concats(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat that takes the results of others, in its own module, which nothing else takes."""
    for node, axis in _of_data(model):  # the outer one of two comes later, and takes what was merged
        inner = [_inner(value, node) for value in node.inputs]
        if any(inner):
            parts = [part for concat, v in zip(inner, node.inputs) for part in (concat.inputs if concat else [v])]
            replace(node, ir.node("Concat", parts, {"axis": axis}, version=node.version))


def _inner(value: ir.Value | None, outer: ir.Node) -> ir.Node | None:
    """Return the Concat that makes an operand, if it joins along the same axis and only for the outer one."""
    concat = made_by(value, "Concat")
    if concat is None or value is None or only_user(value) is not outer or not together((concat, outer)):
        return None
    return concat if _axis(concat) == _axis(outer) else None


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() % (info(node.outputs[0]).rank or 1)


MIN_CHAIN = 3  # two Concats may begin alike by chance


def growing(model: ir.Model, options: Options) -> None:
    """Let every Concat of such a list start with the result of the one before it, which moves to their common scope."""
    weights = stored_views(model)
    for graph in all_graphs(model.graph):
        for chain in _chains([node for node in graph if _joins(node) and node.outputs[0] not in weights]):
            for before, node in reversed(list(zip(chain, chain[1:]))):
                if SCOPE.has(before) and SCOPE.has(node):
                    SCOPE.set(before, common_scope([SCOPE.get(before), SCOPE.get(node)]) or ())
                inputs = [before.outputs[0], *node.inputs[len(before.inputs) :]]
                replace(node, ir.Node("", "Concat", inputs, list(node.attributes.values()), version=node.version))


def _joins(node: ir.Node) -> bool:
    facts = info(node.outputs[0]) if node.op_type == "Concat" and node.domain == "" else None
    return facts is not None and facts.data is None and facts.rank is not None


def _chains(nodes: list[ir.Node]) -> list[list[ir.Node]]:
    """Return chains in which each Concat joins the inputs of the one before it and more. Chains share no node.

    Sequences of inputs are numbered: each is a node of a prefix tree, which has one root for each axis.
    """
    tree: dict[tuple[int, ir.Value | None], int] = {}  # (number of a sequence, next input) to the longer sequence
    chains: dict[int, list[ir.Node]] = {}  # by the sequence that the last node of the chain joins
    for node in nodes:
        sequence = ~_axis(node)  # the root, below zero
        longest = None
        for value in node.inputs:
            longest = sequence if sequence in chains else longest
            sequence = tree.setdefault((sequence, value), len(tree))
        if sequence not in chains:
            chains[sequence] = [*(chains.pop(longest) if longest is not None else ()), node]
    return [chain for chain in chains.values() if len(chain) >= MIN_CHAIN]
