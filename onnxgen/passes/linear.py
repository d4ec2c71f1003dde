"""MatMul with a stored matrix, and the Add of a stored vector after it, are one `nn.Linear`.

ONNX has no linear operator for tensors of any rank (Gemm takes rank 2 only), so the pass writes
`onnxgen.Linear(x, weight, bias)` with a weight of [in, out], which `ops/linear.py` lowers.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.domains import DOMAIN
from onnxgen.options import Options
from onnxgen.passes.added_bias import added_vector
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import own, replace
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Views

COMPUTED = ("FakeQuantize", "WeightNorm", "SpectralNorm")  # a weight that is computed of a stored tensor


def linear(model: ir.Model, options: Options) -> None:
    """Rewrite every MatMul whose right operand is a stored matrix, a view of one, or computed of one (`COMPUTED`)."""
    views = Views(model, options, through=[(DOMAIN, op) for op in COMPUTED])
    for node in standard_nodes(model, "MatMul"):
        x, weight = node.inputs
        facts = info(weight)
        if x is None or (info(x).rank or 0) < 2 or facts.rank != 2 or views(weight) is None:
            continue
        if facts.dtype is not None and not facts.dtype.is_floating_point():
            continue
        found = added_vector(node, -1)
        if found is not None and (views(found[1]) is None or _is_outside(found[0], node)):
            found = None
        last, bias = found if found is not None else (node, None)
        # An exporter that transposes the matrix drops its name; then only the bias's name tells the scope.
        origin = max(node, last, key=lambda n: len(SCOPE.get(n)))
        replace(last, own("Linear", [x, weight] if bias is None else [x, weight, bias]), origin=origin)


def _is_outside(add: ir.Node, product: ir.Node) -> bool:
    """True if a module around the product's adds a vector of its own, as `lm_head(x) + final_logits_bias`.

    Only PyTorch's TorchScript exporter writes both nodes of a layer under the layer's own name.
    """
    if not all((node.name or "").startswith("/") and SCOPE.has(node) for node in (add, product)):
        return False
    around, scope = SCOPE.get(add), SCOPE.get(product)
    return around != scope and scope[: len(around)] == around
