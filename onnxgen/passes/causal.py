"""Causal masks, however they are made: a matrix that says one thing where the key is not after the query, else another.

    inside    for column j <= row i
    outside   for column j > row i

Exporters store such a triangle, cut it from Trilu, or compare positions; then they turn it into what is added or chosen
by casts, comparisons, arithmetic with a number, and Where. All of these are followed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import KEPT, is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import made_by
from onnxgen.graph.traits import RESHAPE
from onnxgen.passes.match import scalar
from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

DEEPEST = 16  # nodes between a triangle and the mask
LARGEST = 2**25  # elements of a stored triangle
SMALL = np.arange(4)  # comparisons of positions depend on their difference alone: a few rows and columns tell

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Equal": operator.eq,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.truediv,
}


@dataclass(frozen=True)
class Causal:
    """A matrix (its last two axes; all others are alike) of two values; truth is 1 and 0.

    `kept`: it comes from a buffer that the state dict has, so that it can't be left out.
    """

    rows: Dim
    columns: Dim
    inside: float
    outside: float
    kept: bool = False


def causal(value: ir.Value | None, depth: int = DEEPEST) -> Causal | None:
    """How a value is a causal mask, None if it is not known to be one."""
    shape = info(value).shape
    if value is None or shape is None or len(shape) < 2 or depth == 0:
        return None
    array = _array(value)
    if array is not None:
        found = _of_array(array)
        return found if found is None else replace(found, kept=KEPT.get(value))
    node = value.producer()
    if node is None or node.domain != "":
        return None
    made = _made(node, depth - 1)
    return None if made is None else replace(made, rows=shape[-2], columns=shape[-1])


def _array(value: ir.Value) -> np.ndarray[Any, Any] | None:
    constant = info(value).constant
    if constant is not None:
        return constant
    tensor = stored(value)
    known = tensor is not None and tensor.size <= LARGEST and not is_trained(value)
    return tensor.numpy() if tensor is not None and known else None


def _of_array(array: np.ndarray[Any, Any]) -> Causal | None:
    rows, columns = array.shape[-2:]
    if array.size != rows * columns or rows < 2 or columns < 2 or array.dtype.kind not in "biuf":
        return None
    matrix = array.reshape(rows, columns)
    inside, outside = matrix[0, 0], matrix[0, 1]
    if not np.array_equal(matrix, np.where(np.tri(rows, columns, dtype=bool), inside, outside)):
        return None
    return Causal(rows, columns, float(inside), float(outside))


def _arranges(node: ir.Node) -> bool:
    return is_a(node, RESHAPE) or node.op_type in ("Expand", "Identity")


def _made(node: ir.Node, depth: int) -> Causal | None:
    """The two values that a node makes (its sizes are not looked at)."""
    name = node.op_type
    if name == "Trilu":
        return _of_trilu(node)
    if _arranges(node) or name == "Slice":
        return _arranged(node, depth)
    if name == "Where":
        choice, (first, second) = causal(node.inputs[0], depth), (uniform(i) for i in node.inputs[1:3])
        sizes = [(info(v).shape or ())[-2:] for v in (node.inputs[0], node.outputs[0])]
        if choice is None or first is None or second is None or sizes[0] != sizes[1]:
            return None
        return _mapped(choice, lambda x: first if x else second)
    if name == "Not":
        found = causal(node.inputs[0], depth)
        return None if found is None else _mapped(found, lambda x: float(not x))
    if name == "Cast":
        found, to = causal(node.inputs[0], depth), ir.DataType(node.attributes["to"].value)
        exact = to.is_floating_point() or found is None or {found.inside, found.outside} <= {0.0, 1.0}
        if found is None or not exact and to != ir.DataType.BOOL:
            return None
        return _mapped(found, lambda x: float(bool(x))) if to == ir.DataType.BOOL else found
    function = COMPARISONS.get(name) or ARITHMETIC.get(name)
    return None if function is None else _computed(node, function, depth)


def _computed(node: ir.Node, function: Callable[[Any, Any], Any], depth: int) -> Causal | None:
    """A mask with a number, or a comparison of the columns' positions with the rows'."""
    a, b = node.inputs[:2]
    number = scalar(b)
    found = causal(a, depth) if number is not None else None
    if found is not None:
        return _mapped(found, lambda x: function(np.float32(x), np.float32(number)))
    number = scalar(a)
    found = causal(b, depth) if number is not None else None
    if found is not None:
        return _mapped(found, lambda x: function(np.float32(number), np.float32(x)))
    first, second = _positions(a, depth), _positions(b, depth)
    if node.op_type not in COMPARISONS or first is None or second is None or first[0] == second[0]:
        return None
    grids = [offset + (SMALL[:, None] if axis == -2 else SMALL[None, :]) for axis, offset in (first, second)]
    return _of_array(function(*grids))


def _mapped(found: Causal, function: Callable[[float], Any]) -> Causal | None:
    with np.errstate(all="ignore"):
        inside, outside = float(function(found.inside)), float(function(found.outside))
    made = replace(found, inside=inside, outside=outside)
    return None if math.isnan(inside) or math.isnan(outside) or inside == outside else made


def _of_trilu(node: ir.Node) -> Causal | None:
    upper = bool(node.attributes["upper"].value) if "upper" in node.attributes else True
    diagonal = scalar(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else 0
    number = uniform(node.inputs[0])
    if number is None or number == 0 or diagonal != int(upper):
        return None
    return Causal(0, 0, 0.0, number) if upper else Causal(0, 0, number, 0.0)


def uniform(value: ir.Value | None) -> float | None:
    """The number that every element of a value is."""
    node = made_by(value, "ConstantOfShape", "Expand")
    if node is not None and node.op_type == "Expand":
        return uniform(node.inputs[0])
    if node is not None:
        given = node.attributes.get("value")
        return 0.0 if given is None else float(given.value.numpy().reshape(-1)[0])
    array = None if value is None else _array(value)
    if array is None or array.size == 0 or array.dtype.kind not in "biuf":
        return None
    return float(array.flat[0]) if bool((array == array.flat[0]).all()) else None


def _arranged(node: ir.Node, depth: int) -> Causal | None:
    """The same matrix with more or fewer axes before it, or its top left corner."""
    found = causal(node.inputs[0], depth)
    before, after = info(node.inputs[0]).shape, info(node.outputs[0]).shape
    if found is None or before is None or after is None:
        return None
    if node.op_type == "Slice":
        return found if _from_the_start(node, len(before)) else None
    same = after[-2:] == before[-2:] and (node.op_type != "Reshape" or product(before[:-2]) == 1)
    return found if same else None


def _from_the_start(node: ir.Node, rank: int) -> bool:
    """Whether a Slice takes the two last axes from their beginning, every element of them."""
    given = [node.inputs[i] if i < len(node.inputs) else None for i in range(1, 5)]
    starts, axes, steps = (info(v).data for v in (given[0], given[2], given[3]))
    if "starts" in node.attributes:
        starts = np.asarray(node.attributes["starts"].value)
        axes = np.asarray(node.attributes["axes"].value) if "axes" in node.attributes else None
    if starts is None or (axes is None and given[2] is not None) or (steps is None and given[3] is not None):
        return False
    positions = range(len(starts)) if axes is None else [int(a) % rank for a in axes]
    strides = [1] * len(starts) if steps is None else list(steps)
    return all(axis < rank - 2 or (start == 0 and step == 1) for axis, start, step in zip(positions, starts, strides))


def _positions(value: ir.Value | None, depth: int) -> tuple[int, int] | None:
    """(axis, first) of a value that counts up by one along its last (-1) or last but one (-2) axis, alike elsewhere."""
    shape = info(value).shape
    if value is None or not shape or depth == 0:
        return None
    array = _array(value)
    if array is not None:
        counts = array.ndim == 1 and array.dtype.kind in "iuf" and len(array) > 1
        first = int(array[0]) if counts else 0
        return (-1, first) if counts and np.array_equal(array, np.arange(first, first + len(array))) else None
    node = None if value is None else value.producer()
    if node is None or not (made_by(value, "Range", "Cast", "Add") or _arranges(node)):
        return None
    if node.op_type == "Range":
        start, step = scalar(node.inputs[0]), scalar(node.inputs[2])
        return (-1, int(start)) if start is not None and step == 1 and start == int(start) else None
    source = node.inputs[0]
    offset = 0.0
    if node.op_type == "Add":
        numbers = [scalar(i) for i in node.inputs]
        if all(n is None for n in numbers):
            return None
        index = 0 if numbers[0] is None else 1
        source, offset = node.inputs[index], numbers[1 - index] or 0.0
    found, before = _positions(source, depth - 1), info(source).shape
    if found is None or not before or offset != int(offset):
        return None
    axis, length = found[0], before[found[0]]
    if _arranges(node):
        axis = next((a for a in (-1, -2) if len(shape) >= -a and shape[a] == length and length != 1), 0)
        others = product(shape) == length or node.op_type == "Expand"
        axis = axis if others and (node.op_type != "Expand" or axis == found[0]) else 0
    return (axis, found[1] + int(offset)) if axis else None
