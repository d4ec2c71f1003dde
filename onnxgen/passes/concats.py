"""Concat as authors write it: `torch.roll`, `rotate_half`, `torch.stack`, lists of tensors.

    Concat(x[k:], x[:k])                       roll(x, -k)
    Concat(x[-k:], x, x[:n])                   F.pad(x, (k, n), mode="circular")
    Concat(-x[..., n/2:], x[..., :n/2])        rotate_half(x)
    Concat(-x[..., 1::2], x[..., ::2])         rotate_pairs(x): along a new last axis, if a Reshape
                                               merges the last two
    Concat of Unsqueezes along the new axis    torch.stack, written as `onnxgen.Stack(...)`
    Concat(Concat(Concat(a, b), c), d)         Concat(a, b, c, d)
    Concat(a, b), Concat(a, b, c), ...         x = Concat(a, b), x = Concat(x, c), ...

Exporters write one pair for each axis that is rolled (Swin's shifted windows); rolls of several
axes become one node, `onnxgen.Roll`. An axis of unknown size is only accepted if it is provably at
least k long: these Slices leave a shorter one unchanged, but torch.roll would move it. Rotary
embeddings (Su et al. 2021, arXiv 2104.09864) compute `x * cos + rotated * sin`.
`onnxgen.RotateHalf` and `onnxgen.RotatePairs` stand for the functions that authors write.

Exporters write a list that grows in a loop as nested pairs (`concats`). Every layer of DenseNet
(Huang et al. 2017) takes a list of all earlier results (`growing`). In a traced file each layer has
a different number of inputs, so no two layers would share a class. The elements are the same, and
as many are copied. Gradients are the same sums in another order.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import common_scope
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_graphs, made_by
from onnxgen.options import Options
from onnxgen.passes.match import ints, standard_nodes
from onnxgen.passes.rewrite import known_ints, only_user, own, replace, stored_views, together
from onnxgen.passes.slices import cuts, make_up_axis, piece
from onnxgen.shapes.dims import Dim, nonnegative
from onnxgen.shapes.infer_layout import OPEN_END
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
    bounds = [cuts(made_by(value, "Slice")) for value in (before, after)]
    sources = {part.inputs[0] for value in (before, after) if (part := made_by(value, "Slice")) is not None}
    if sources != {x} or None in bounds or any([cut.axis for cut in c or []] != [axis] for c in bounds):
        return
    (last,), (first,) = bounds[0] or [], bounds[1] or []
    size = (info(x).shape or ())[axis]
    sizes = [(info(value).shape or ())[axis] for value in (before, after)]
    is_known = all(isinstance(d, int) and d > 0 for d in (size, *sizes)) and (last.step, first.step) == (1, 1)
    if is_known and last.start in (-sizes[0], size - sizes[0]) and first.start == 0 and 1 <= rank - axis < min(rank, 4):
        pads = [0] * rank * 2
        pads[axis], pads[axis + rank] = (d for d in sizes if isinstance(d, int))
        replace(node, ir.node("Pad", [x, known_ints(pads)], {"mode": "wrap"}, version=19))


def _shift(node: ir.Node, axis: int, size: Dim) -> int | None:
    """Return the number of elements by which a Concat rolls an axis of this size, else None."""
    last, first = map(piece, node.inputs)
    if first is not None and last is not None:
        if first.axis != axis or not make_up_axis([first, last]):
            return None
        return last.end - first.end if 2 * first.end > last.end else -first.end
    bounds = [cuts(made_by(value, "Slice")) for value in node.inputs]
    after, before = (c[0] if c is not None and [cut.axis for cut in c] == [axis] else None for c in bounds)
    if after is None or before is None or (after.step, before.step, before.start) != (1, 1, 0):
        return None
    k = after.start
    to_end = after.end == size or (isinstance(after.end, int) and after.end >= OPEN_END)
    if not isinstance(k, int) or k == 0 or not to_end or before.end not in (k, size + k):
        return None
    return -k if nonnegative(size - abs(k)) else None


def _rotate_half(node: ir.Node, negated: ir.Value | None, axis: int) -> None:
    first, second = piece(node.inputs[1]), piece(negated)
    if first is not None and second is not None and first.axis == axis and make_up_axis([first, second]):
        if 2 * first.end == second.end:
            replace(node, own("RotateHalf", [first.x]))


def _rotate_pairs(node: ir.Node, odd: ir.Value | None, axis: int) -> None:
    negated, second = made_by(odd, "Neg"), made_by(node.inputs[1], "Unsqueeze")
    last, even = only_user(node.outputs[0], "Reshape"), None if second is None else second.inputs[0]
    if negated is None or last is None:
        return
    if any(info(v).shape != (*(info(part).shape or ()), 1) for v, part in zip(node.inputs, (odd, even))):
        return
    slices = made_by(even, "Slice"), made_by(negated.inputs[0], "Slice")
    x = None if slices[0] is None else slices[0].inputs[0]
    if x is not None and info(last.outputs[0]).shape == info(x).shape:
        if all(_takes_every_second(s, x, first, axis - 1) for first, s in enumerate(slices)):
            replace(last, own("RotatePairs", [x]), origin=node)


def _takes_every_second(node: ir.Node | None, x: ir.Value, first: int, axis: int) -> bool:
    """True if a Slice takes `x[..., first::2]` of a last axis of even size."""
    bounds, shape = cuts(node), info(x).shape or ()
    if node is None or node.inputs[0] is not x or bounds is None or len(bounds) != 1 or len(shape) != axis + 1:
        return False
    cut, size = bounds[0], shape[axis]
    if (cut.axis, cut.start, cut.step) != (axis, first, 2) or not isinstance(cut.end, int) or not isinstance(size, int):
        return False
    return size % 2 == 0 and range(size)[first : cut.end : 2] == range(first, size, 2)


def stack(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of several tensors that were given the axis along which they are joined."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Concat"):
        facts = info(node.outputs[0])
        if len(node.inputs) < 2 or node.outputs[0] in weights or facts.rank is None or facts.data is not None:
            continue
        axis = node.attributes["axis"].as_int() % facts.rank
        makers = [made_by(value, "Unsqueeze") for value in node.inputs]
        parts = [m.inputs[0] for m in makers if m is not None and _axes(m, facts.rank) == [axis]]
        shapes = {info(part).shape for part in parts}
        if len(parts) == len(makers) and len(shapes) == 1 and None not in shapes:
            replace(node, own("Stack", parts, axis=axis))


def _axes(unsqueeze: ir.Node, rank: int) -> list[int]:
    return [a % rank for a in ints(unsqueeze, "axes", 1) or ()]


def concats(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat that takes the results of others, in its own module, which nothing else takes."""
    weights = stored_views(model)
    for node in standard_nodes(model, "Concat"):  # the outer one of two comes later, and takes what was merged
        facts = info(node.outputs[0])
        if node.outputs[0] in weights or facts.rank is None or facts.data is not None:
            continue
        inner = [_inner(value, node, facts.rank) for value in node.inputs]
        if any(inner):
            parts = [
                part for concat, value in zip(inner, node.inputs) for part in (concat.inputs if concat else [value])
            ]
            replace(node, ir.node("Concat", parts, {"axis": _axis(node, facts.rank)}, version=node.version))


def _inner(value: ir.Value | None, outer: ir.Node, rank: int) -> ir.Node | None:
    """Return the Concat that makes an operand, if it joins along the same axis and only for the outer one."""
    concat = made_by(value, "Concat")
    if concat is None or value is None or only_user(value) is not outer or not together((concat, outer)):
        return None
    return concat if _axis(concat, rank) == _axis(outer, rank) else None


def _axis(node: ir.Node, rank: int) -> int:
    return node.attributes["axis"].as_int() % rank


MIN_CHAIN = 3  # two Concats may begin alike by chance


def growing(model: ir.Model, options: Options) -> None:
    """Rewrite every Concat of such a list."""
    weights = stored_views(model)
    for graph in all_graphs(model.graph):
        for chain in _chains([node for node in graph if _joins(node) and node.outputs[0] not in weights]):
            for before, node in reversed(list(zip(chain, chain[1:]))):
                _hand_on(before, node)


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
        sequence = ~(node.attributes["axis"].as_int() % (info(node.outputs[0]).rank or 1))  # the root, below zero
        longest = None
        for value in node.inputs:
            longest = sequence if sequence in chains else longest
            sequence = tree.setdefault((sequence, value), len(tree))
        if sequence not in chains:
            chains[sequence] = [*(chains.pop(longest) if longest is not None else ()), node]
    return [chain for chain in chains.values() if len(chain) >= MIN_CHAIN]


def _hand_on(before: ir.Node, node: ir.Node) -> None:
    """Let a Concat start with the result of the one before it, and move that one to their common scope."""
    inputs = [before.outputs[0], *node.inputs[len(before.inputs) :]]
    if SCOPE.has(before) and SCOPE.has(node):
        SCOPE.set(before, common_scope([SCOPE.get(before), SCOPE.get(node)]) or ())
    replace(node, ir.Node("", "Concat", inputs, list(node.attributes.values()), version=node.version))
