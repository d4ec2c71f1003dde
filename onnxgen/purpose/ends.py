"""The end of an output: the last node that computes it, behind nodes that only move elements.

Here is also what the rules ask of a node's operator. Traits answer most of it; operators that need
a name have it here alone.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import (
    ADDS,
    AVERAGES,
    CONVOLUTION,
    KEEPS_SIGN,
    MOVES,
    NORM,
    RECURRENT,
    SAME,
    SAMPLES,
    SCALES,
    SIGMOID,
    SOFTMAX,
    VIEW,
    Trait,
)
from onnxgen.shapes.info import Shape, info

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


Axes = tuple[int | None, ...]  # for each axis of a value, the axis of the output that it becomes


@dataclass(frozen=True)
class End:
    """The end of one output.

    Attributes:
        value: the output.
        shape: its shape, or None if the rank is unknown.
        node: the last node that computes; None if the output only moves elements of an input.
        op: its operator; "Linear" for all layers of that kind that a matrix stands for, "" without a node.
        axis: the axis of the output along which the node normalises or compares; None if it does neither.
        layer: the product or convolution with a stored weight that the node, an activation, follows; the node itself if
            it is one; else None.
        axes: for each axis of the node's result, the axis of the output.
    """

    value: ir.Value
    shape: Shape | None
    node: ir.Node | None
    op: str
    axis: int | None
    layer: ir.Node | None
    axes: Axes

    @property
    def name(self) -> str:
        return self.value.name or ""

    @property
    def dims(self) -> Shape:
        """The shape, () if the rank is unknown."""
        return self.shape or ()

    @property
    def is_linear(self) -> bool:
        """Return True if the output is what a layer computes, without an activation."""
        return self.node is not None and self.node is self.layer

    @property
    def is_choice(self) -> bool:
        """Return True if the output says which of several values is the largest."""
        return self.op == CHOICE

    @property
    def is_softmax(self) -> bool:
        return self.is_a(SOFTMAX)

    @property
    def is_sigmoid(self) -> bool:
        return self.is_a(SIGMOID)

    @property
    def is_convolution(self) -> bool:
        return self.node is not None and is_convolution(self.node)

    @property
    def softmax(self) -> str:
        """Return "softmax", "log_softmax", or "none"."""
        return softmax_of(self.op) or "none"

    def is_a(self, *traits: Trait) -> bool:
        """Return True if the node has one of these traits."""
        return self.node is not None and is_a(self.node, *traits)


def end_of(value: ir.Value, live: Set[ir.Value]) -> End:
    """Return the end of an output. `live`: the values that depend on the graph's inputs."""
    shape = info(value).shape
    start: Axes = tuple(range(len(shape))) if shape is not None else ()
    source, axes = behind(value, start, live)
    node = source.producer()
    if node is None:
        return End(value, shape, None, "", None, None, axes)
    layer, bias = _layer(node, live), _unbiased(node, live)
    if bias is not None:
        node = layer = bias
    elif layer is None and (data := first_live(node, live)) is not None:
        under = behind(data, (), live)[0].producer()
        layer = None if under is None else _layer(under, live) or _unbiased(under, live)
    op = "Linear" if node is layer and is_product(node) else op_of(node)
    return End(value, shape, node, op, _axis(node, axes), layer, axes)


def behind(value: ir.Value, axes: Axes, live: Set[ir.Value]) -> tuple[ir.Value, Axes]:
    """Go back over nodes that only move all elements. Return the value there, and what `axes` says about its axes."""
    while (node := value.producer()) is not None and is_a(node, VIEW, SAME):
        data = first_live(node, live)
        if data is None or value is not node.outputs[0]:
            break
        axes = _moved(node, data, value, axes) if axes else ()
        value = data
    return value, axes


def first_live(node: ir.Node, live: Set[ir.Value]) -> ir.Value | None:
    """Return the first input of a node that depends on the graph's inputs."""
    return next((v for v in node.inputs if v is not None and v in live), None)


def is_layer(node: ir.Node, live: Set[ir.Value]) -> bool:
    """Return True for a linear layer or a convolution with a stored weight."""
    return _layer(node, live) is not None


def _layer(node: ir.Node, live: Set[ir.Value]) -> ir.Node | None:
    if not (is_product(node) or is_convolution(node)) or node.inputs[1] in live:
        return None
    return node if node.inputs[0] in live else None


def _unbiased(node: ir.Node, live: Set[ir.Value]) -> ir.Node | None:
    """Return the matrix product that a node adds a stored bias to, or None."""
    if not is_a(node, ADDS) or all(v in live for v in node.inputs):
        return None
    data = first_live(node, live)
    producer = None if data is None else data.producer()
    return None if producer is None or not is_product(producer) else _layer(producer, live)


def _axis(node: ir.Node, axes: Axes) -> int | None:
    """Return the axis of the output that a node normalises; for ArgMax that of its data."""
    if not (is_a(node, SOFTMAX) or op_of(node) in (CHOICE, *UNIT)) or not node.inputs:
        return None
    rank = info(node.inputs[0]).rank
    default = 0 if op_of(node) == CHOICE else -1
    axis = node.attributes.get_int("axis", default)
    if rank is None or not -rank <= axis < rank:
        return None
    axis %= rank
    if op_of(node) == CHOICE:
        return axis
    if is_a(node, SOFTMAX) and (node.version or 13) < 13 and axis != rank - 1:
        return None  # it flattens the axes from there on
    return axes[axis] if axis < len(axes) else None


def _moved(node: ir.Node, data: ir.Value, value: ir.Value, axes: Axes) -> Axes:
    """Return the axes of the output for those of a node's data, given those of its result."""
    before, after = info(data).shape, info(value).shape
    if before is None or after is None or len(after) != len(axes):
        return ()
    if op_of(node) == PERMUTES:
        order = node.attributes.get_ints("perm", None) or range(len(before))[::-1]
        return tuple(axes[list(order).index(i)] for i in range(len(before))) if len(order) == len(before) else ()
    if before == after:
        return axes
    first = _equal_begin(before, after)
    last = min(_equal_begin(before[::-1], after[::-1]), min(len(before), len(after)) - first)
    between = (None,) * (len(before) - first - last)
    return (*axes[:first], *between, *axes[len(axes) - last :])


def _equal_begin(one: Shape, other: Shape) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
