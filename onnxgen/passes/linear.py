"""MatMul with a stored matrix, and the Add of a stored vector after it, are one `nn.Linear`.

ONNX has no linear operator for tensors of any rank (Gemm takes rank 2 only), so the pass writes
`onnxgen.Linear(x, weight, bias)` with a weight of [in, out], which `ops/linear.py` lowers. TensorFlow's Tensordot and
the layers of GPT-2 make rows of all axes but the last before the product, and axes of the rows behind it: a linear
layer takes the axes as they are.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.catalogue import having, is_a
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.traits import RESHAPE, WEIGHT
from onnxgen.options import Options
from onnxgen.passes.added_bias import added_vector
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.passes.steps import insert, known_ints
from onnxgen.shapes.info import Info, info
from onnxgen.weights.stored import Views


def linear(model: ir.Model, options: Options) -> None:
    """Rewrite every MatMul whose right operand is a stored matrix, a view of one, or computed of one."""
    views = Views(model, options, through=[(DOMAIN, op) for op in having(WEIGHT)])
    for node in standard_nodes(model, "Gemm"):
        axes = _around(node.inputs[0], node) if node.inputs[0] is not None and _is_plain(node, views) else None
        if axes is not None:
            replace(axes[1], own("Linear", [axes[0], *node.inputs[1:]]), origin=node)
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
        if (axes := _around(x, last)) is not None:
            x, last = axes
            found = added_vector(last, -1) if bias is None else None
            if found is not None and views(found[1]) is not None and not _is_outside(found[0], node):
                last, bias = found
        # An exporter that transposes the matrix drops its name; then only the bias's name tells the scope.
        origin = max(node, last, key=lambda n: len(SCOPE.get(n)))
        replace(last, own("Linear", [x, weight] if bias is None else [x, weight, bias]), origin=origin)


def _is_plain(node: ir.Node, views: Views) -> bool:
    """True for a Gemm of a matrix that is stored as [in, out], and of a vector, without factors."""
    factors = {a.name: a.value for a in node.attributes.values()}
    if factors.get("transA") or factors.get("transB") or {factors.get(f, 1.0) for f in ("alpha", "beta")} != {1.0}:
        return False
    _, matrix, vector = (*node.inputs, None)[:3]
    return views(matrix) is not None and (vector is None or views(vector) is not None and info(vector).rank == 1)


def _around(rows: ir.Value, last: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return what a Reshape makes rows of, with the axes that a Reshape makes of the results, and that Reshape."""
    before, after = rows.producer(), only_user(last.outputs[0])
    if before is None or after is None or not is_a(before, RESHAPE) or not is_a(after, RESHAPE):
        return None
    x, facts, made = before.inputs[0], info(rows), info(after.outputs[0]).shape or ()
    results = info(last.outputs[0]).shape
    if x is None or {before.graph, after.graph} != {last.graph} or facts.rank != 2 or facts.shape is None:
        return None
    if not results or len(made) < 3 or made[-1] != results[-1] or (info(x).shape or ())[: len(made) - 1] != made[:-1]:
        return None  # other axes than x has
    shape = (*made[:-1], facts.shape[-1])
    if info(x).shape != shape:
        new = ir.node("Reshape", [x, known_ints(shape)], version=13)
        x = insert(before, new, f"{rows.name}.axes", Info(facts.dtype, shape), before)
    return x, after


def _is_outside(add: ir.Node, product: ir.Node) -> bool:
    """True if a module around the product's adds a vector of its own, as `lm_head(x) + final_logits_bias`.

    Only PyTorch's TorchScript exporter writes both nodes of a layer under the layer's own name.
    """
    if not all((node.name or "").startswith("/") and SCOPE.has(node) for node in (add, product)):
        return False
    around, scope = SCOPE.get(add), SCOPE.get(product)
    return around != scope and scope[: len(around)] == around
