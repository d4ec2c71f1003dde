"""Elements that a mask chooses, which exporters write by their positions.

    Transpose(NonZero(mask))                     mask.nonzero()
    GatherND(x, the same)                        x[mask]
    Gather(x, Squeeze(the same), axis) of one    x[:, mask], which is a Compress

torch has a row for the position of each element, ONNX a column. Sizes must be the same for certain.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import ints, standard_nodes
from onnxgen.passes.rewrite import own, replace
from onnxgen.shapes.info import info


def chosen(model: ir.Model, options: Options) -> None:
    """Replace every such node."""
    for node in standard_nodes(model, "Transpose"):
        found = made_by(node.inputs[0], "NonZero")
        perm = node.attributes.get_ints("perm", [1, 0])
        if found is not None and list(perm) == [1, 0]:
            replace(node, own("Positions", [found.inputs[0]]))
    for node in standard_nodes(model, "GatherND", "Gather"):
        (_of_axes if node.op_type == "GatherND" else _of_axis)(node)


def _of_axes(node: ir.Node) -> None:
    mask, shape = _mask(node.inputs[1]), info(node.inputs[0]).shape
    sizes = info(mask).shape
    if sizes and shape is not None and shape[: len(sizes)] == sizes and not node.attributes.get_int("batch_dims", 0):
        replace(node, own("Chosen", [node.inputs[0], mask]))


def _of_axis(node: ir.Node) -> None:
    squeeze, shape = made_by(node.inputs[1], "Squeeze"), info(node.inputs[0]).shape
    if squeeze is None or shape is None or ints(squeeze, "axes", 1) not in ([1], [-1]):
        return
    axis, mask = node.attributes.get_int("axis", 0) % len(shape), _mask(squeeze.inputs[0])
    if info(mask).shape == (shape[axis],):
        replace(node, ir.node("Compress", [node.inputs[0], mask], {"axis": axis}, version=11))


def _mask(value: ir.Value | None) -> ir.Value | None:
    """Return the mask whose true elements are at these positions, else None."""
    node = None if value is None else value.producer()
    is_own = node is not None and (node.domain, node.op_type) == (DOMAIN, "Positions")
    mask = node.inputs[0] if node is not None and is_own else None
    return mask if info(mask).dtype == ir.DataType.BOOL else None
