"""An axis whose pieces are put together again: `torch.roll`, `rotate_half` of rotary embeddings, circular padding.

    Concat(x[k:], x[:k])                                        roll(x, -k)
    Concat(x[-k:], x, x[:n])                                    F.pad(x, (k, n), mode="circular")
    Concat(-x[..., n/2:], x[..., :n/2])                         rotate_half(x)
    Concat(-x[..., 1::2], x[..., ::2]) along a new last axis    rotate_pairs(x), if a Reshape merges the last two axes

Exporters write one pair for each axis that is rolled (Swin's shifted windows); rolls of several axes become one node,
`onnxgen.Roll`. An axis of unknown size is only accepted if it is provably at least k long: these Slices leave a shorter
one unchanged, but torch.roll would move it. Rotary embeddings (Su et al. 2021, arXiv 2104.09864) compute
`x * cos + rotated * sin`. `onnxgen.RotateHalf` and `onnxgen.RotatePairs` stand for the functions that authors write.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, own, replace, together
from onnxgen.passes.slices import cuts, make_up_axis, piece
from onnxgen.passes.steps import known_ints, stored_views
from onnxgen.shapes.dims import Dim, nonnegative
from onnxgen.shapes.infer_slice import OPEN_END
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
    found = [cuts(made_by(value, "Slice")) for value in (before, after)]
    sources = {made.inputs[0] for value in (before, after) if (made := made_by(value, "Slice")) is not None}
    if sources != {x} or None in found or any([cut.axis for cut in c or []] != [axis] for c in found):
        return
    (last,), (first,) = found[0] or [], found[1] or []
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
    found = [cuts(made_by(value, "Slice")) for value in node.inputs]
    after, before = (c[0] if c is not None and [cut.axis for cut in c] == [axis] else None for c in found)
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
    found, shape = cuts(node), info(x).shape or ()
    if node is None or node.inputs[0] is not x or found is None or len(found) != 1 or len(shape) != axis + 1:
        return False
    cut, size = found[0], shape[axis]
    if (cut.axis, cut.start, cut.step) != (axis, first, 2) or not isinstance(cut.end, int) or not isinstance(size, int):
        return False
    return size % 2 == 0 and range(size)[first : cut.end : 2] == range(first, size, 2)
