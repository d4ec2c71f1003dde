"""What the rules ask of a node's operator. Traits answer most of it; operators that need a name have it here alone."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.catalogue import is_a, known
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.traits import AVERAGES, CONVOLUTION, KEEPS_SIGN, MOVES, NORM, RECURRENT, SAMPLES, SCALES

CHOICE = "ArgMax"
TANH = "Tanh"
CLIP = "Clip"
PERMUTES = "Transpose"
UNIT = ("Normalize", "LpNormalization")  # divide by the length along an axis
CAUSAL = ("Trilu", "LessOrEqual")  # make the mask of a causal attention
NMS = ("NonMaxSuppression", "EfficientNMS_TRT", "BatchedNMS_TRT", "BatchedNMSDynamic_TRT", "TRTBatchedNMS")
POWER = "Pow"
DIVIDES = "Div"
_SQUARES = (POWER, "ReduceL2", "ReduceSumSquare")


def op_of(node: ir.Node) -> str:
    """Return the name of a node's operator; with its domain, if others might mean something else by that name."""
    known = node.domain in ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", DOMAIN)
    return node.op_type if known else f"{node.domain}.{node.op_type}"


def softmax_of(op: str) -> str:
    """Return "softmax" or "log_softmax" for the operator of that name, "" for another."""
    return {"Softmax": "softmax", "LogSoftmax": "log_softmax"}.get(op, "")


def is_convolution(node: ir.Node) -> bool:
    """Return True for a convolution or a transposed one."""
    return is_a(node, CONVOLUTION, SAMPLES) and known(node).matrix is not None


def is_product(node: ir.Node) -> bool:
    """Return True for a product with a matrix, the second input."""
    return known(node).matrix == 1 and not is_a(node, CONVOLUTION, SAMPLES, RECURRENT)


def is_norm_of_channels(node: ir.Node) -> bool:
    """Return True for a norm that takes the channels from axis 1, unlike that of a transformer."""
    return is_a(node, NORM) and is_a(node, SAMPLES)


def picks(node: ir.Node) -> bool:
    """Return True if a node copies elements of one tensor alone."""
    return is_a(node, MOVES) and len(known(node).data) == 1


def squares(node: ir.Node) -> bool:
    """Return True for what squares are computed with, in the length of a vector."""
    return op_of(node) in _SQUARES or is_a(node, SCALES)


def is_of_length(node: ir.Node) -> bool:
    """Return True for a step of the length of a vector: it squares, or no element becomes negative."""
    if op_of(node) in (POWER, CLIP):
        return True
    if is_a(node, AVERAGES) or op_of(node) == DIVIDES:
        return False
    return is_a(node, KEEPS_SIGN) or known(node).least == 0.0
