"""The kind of a node, as a reader sees it: a convolution, a norm, an activation."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a, known
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
from onnxgen.scopes.flow import Flow
from onnxgen.shapes.info import info

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
_BY_NAME = {
    "Erf": "act",
    "Attention": "attention",
    "Dropout": "drop",
    "Hardmax": "softmax",
    "Expand": "move",
}
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
    if flow.weighs[i]:
        return "linear" if is_a(node, PRODUCT) else "embedding" if node.op_type == "Gather" else f"own {node.op_type}"
    if is_a(node, ADDS, SCALES):
        return node.op_type.lower() if _is_merge(flow, i) else "scale"
    if is_a(node, PRODUCT):
        return "product"
    if node.op_type == "Concat":
        return f"concat {len(flow.operands(i))}"
    return node.op_type


def _conv(node: ir.Node, shape: object) -> str:
    if not isinstance(shape, tuple) or len(shape) < 3:
        return "conv"
    groups = node.attributes["group"].value if "group" in node.attributes else 1
    if groups > 1 and shape[1] == 1:
        return "depth"
    return "point" if all(d == 1 for d in shape[2:]) else "conv"


def _is_merge(flow: Flow, i: int) -> bool:
    return len(flow.before[i]) > 1 or len(flow.operands(i)) > 1


def _is_spatial(node: ir.Node) -> bool:
    """True if a reduction leaves one number for each channel of a map."""
    facts, made = info(node.inputs[0]), info(node.outputs[0])
    if facts.rank is None or facts.rank < 3 or made.shape is None:
        return False
    return made.rank == facts.rank and all(d == 1 for d in made.shape[2:]) and made.shape[1] != 1
