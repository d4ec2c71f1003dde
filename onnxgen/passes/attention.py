"""Scaled dot product attention spelled out becomes Attention-23 (Vaswani et al. 2017, arXiv 1706.03762).

    softmax(q @ k^T * scale + mask) @ v          q, k, v of rank 4: [batch, heads, length, size]

Exporters put the scale on the product (Div or Mul), on q alone, or its root on both q and k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.match import made_by, scalar
from onnxgen.passes.rewrite import beside, replace
from onnxgen.propagate.info import Info, info, set_info

SWAPPED = [0, 1, 3, 2]


@dataclass
class _Scores:
    """`q @ k^T * scale`, k^T still transposed."""

    q: ir.Value
    transposed: ir.Value
    scale: float


def attention(model: ir.Model, options: Options) -> None:
    """Rewrite every product of a softmax over scores, where nothing else uses the probabilities."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "MatMul" and node.domain == "" and node.graph is not None:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    softmax = made_by(node.inputs[0], "Softmax")
    v = node.inputs[1]
    if softmax is None or v is None or info(node.outputs[0]).rank != 4 or not _over_last(softmax):
        return
    masked = softmax.inputs[0]
    for scores, mask in _candidates(masked):
        found = _scores(scores)
        if found is None or not _fits(found, v, mask):
            continue
        inputs = [found.q, _key(found.transposed, node), v] + ([mask] if mask is not None else [])
        scale = ir.AttrFloat32("scale", found.scale)
        replace(node, ir.Node("", "Attention", inputs, [scale], version=23))
        return


def _over_last(softmax: ir.Node) -> bool:
    axis = softmax.attributes["axis"].value if "axis" in softmax.attributes else -1
    return axis in (-1, 3)


def _candidates(masked: ir.Value | None) -> list[tuple[ir.Value | None, ir.Value | None]]:
    """(scores, mask) readings of what the softmax takes."""
    add = made_by(masked, "Add")
    if add is None:
        return [(masked, None)]
    return [(add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])]


def _scores(value: ir.Value | None) -> _Scores | None:
    value, scale = _scaled(value)
    product = made_by(value, "MatMul")
    if product is None or product.inputs[0] is None or product.inputs[1] is None:
        return None
    q, q_scale = _scaled(product.inputs[0])
    transposed, k_scale = _scaled(product.inputs[1])
    if q is None or transposed is None:
        return None
    return _Scores(q, transposed, scale * q_scale * k_scale)


def _scaled(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """(x, c), if a value is x * c for a constant c (1 if it is not)."""
    node = made_by(value, "Mul", "Div")
    if node is None:
        return value, 1.0
    number = scalar(node.inputs[1])
    if number is not None and number > 0:
        return node.inputs[0], number if node.op_type == "Mul" else 1 / number
    number = scalar(node.inputs[0])
    if node.op_type == "Mul" and number is not None and number > 0:
        return node.inputs[1], number
    return value, 1.0


def _fits(found: _Scores, v: ir.Value, mask: ir.Value | None) -> bool:
    """The shapes are those of attention: rank 4 all, batch and heads equal, a mask that broadcasts to the scores."""
    q, k, values = info(found.q).shape, info(found.transposed).shape, info(v).shape
    if q is None or k is None or values is None or not len(q) == len(k) == len(values) == 4:
        return False
    if q[:2] != k[:2] or q[:2] != values[:2] or info(found.q).dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False
    if mask is None:
        return True
    shape = info(mask).shape
    full = (*q[:3], k[3])
    return (
        shape is not None
        and 2 <= len(shape) <= 4
        and info(mask).dtype == info(found.q).dtype
        and all(d in (1, f) for d, f in zip(reversed(shape), reversed(full)))
    )


def _key(transposed: ir.Value, before: ir.Node) -> ir.Value:
    """k, from k^T: the transpose is undone, or merged with the one that made it."""
    graph = before.graph
    assert graph is not None
    node = made_by(transposed, "Transpose")
    source, perm = transposed, SWAPPED
    if node is not None and node.inputs[0] is not None and "perm" in node.attributes:
        inner = [int(p) for p in node.attributes["perm"].value]
        source, perm = node.inputs[0], [inner[p] for p in SWAPPED]
    if perm == [0, 1, 2, 3]:
        return source
    made = ir.Node("", "Transpose", [source], [ir.AttrInt64s("perm", perm)], version=13, num_outputs=1)
    beside(made, before)
    made.outputs[0].name = f"{transposed.name}.k"
    shape = info(source).shape
    set_info(made.outputs[0], Info(info(source).dtype, None if shape is None else tuple(shape[p] for p in perm)))
    producer = source.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, made)  # beside what it belongs to, and not between v and the product
    else:
        graph.insert_before(before, made)
    return made.outputs[0]


def default_scale(size: int) -> float:
    """What attention multiplies by if nothing else is said."""
    return 1 / math.sqrt(size)
