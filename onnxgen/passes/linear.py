"""MatMul with a stored matrix, and the Add of a stored vector after it, are one `nn.Linear`.

ONNX has no N-dimensional linear operator (Gemm is of rank 2 only), so the pass writes `onnxgen.Linear(x, weight,
bias)`, `weight` as [in, out], lowered in `ops/linear.py`.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Views


def _is_float(value: ir.Value | None) -> bool:
    dtype = info(value).dtype
    return dtype is None or dtype.is_floating_point()


def linear(model: ir.Model, options: Options) -> None:
    """Rewrite every MatMul whose right operand is a stored matrix, or a view or fake quantisation of one."""
    views = Views(model, options, through=[(DOMAIN, "FakeQuantize")])
    for node in all_nodes(model.graph):
        if (
            node.op_type == "MatMul"
            and node.domain == ""
            and info(node.inputs[1]).rank == 2
            and views(node.inputs[1]) is not None
        ):
            x, weight = node.inputs
            if (info(x).rank or 0) < 2 or x is None or not _is_float(weight):
                continue
            bias, last = _bias(node, views)
            inputs = [x, weight] if bias is None else [x, weight, bias]
            # Of a layer whose matrix an exporter turned, only the bias has a name that tells where it is.
            origin = max(node, last, key=lambda n: len(SCOPE.get(n)))
            replace(last, ir.Node(DOMAIN, "Linear", inputs, version=1), origin=origin)


def _bias(node: ir.Node, views: Views) -> tuple[ir.Value | None, ir.Node]:
    """The stored vector, perhaps [1, out], that is added to a product, if there is one, and the node that does it."""
    add = only_user(node.outputs[0])
    if add is None or add.op_type != "Add" or add.domain != "":
        return None, node
    other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
    columns, shape, rank = info(node.inputs[1]).shape, info(other).shape, info(node.inputs[0]).rank
    if other is None or columns is None or shape is None or rank is None or views(other) is None:
        return None, node
    ones = shape[:-1]  # CNTK's biases are [1, out]
    if shape[-1:] != columns[1:] or any(d != 1 for d in ones) or len(shape) > rank:
        return None, node
    return other, add
