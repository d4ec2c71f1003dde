"""Recognise causal masks: matrices with one number where the key is not after the query, and another elsewhere.

    inside    for column j <= row i
    outside   for column j > row i

Exporters store such a triangle, make it with Trilu, or compare positions. Casts, comparisons, arithmetic with a number
and Where then turn it into a mask that is added to scores or selects them. All of these are followed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import KEPT
from onnxgen.graph.catalogue import card, is_a
from onnxgen.graph.traits import ADDS, COMPARISON, RESHAPE, SCALES
from onnxgen.passes.match import elements, scalar, uniform
from onnxgen.passes.slices import cuts
from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import info

MAX_DEPTH = 16  # nodes between a triangle and the mask
SAMPLE = np.arange(4)  # a few rows and columns: comparisons of positions depend on the difference alone


@dataclass(frozen=True)
class Causal:
    """A causal mask: its last two axes, and the two numbers (truth values are 1 and 0). It repeats along other axes.

    `kept`: True if it comes from a buffer of the state dict, which must not be dropped.
    """

    rows: Dim
    columns: Dim
    inside: float
    outside: float
    kept: bool = False


def causal(value: ir.Value | None, depth: int = MAX_DEPTH) -> Causal | None:
    """Return a value as a causal mask; None if it is not known to be one."""
    shape = info(value).shape
    if value is None or shape is None or len(shape) < 2 or depth == 0:
        return None
    array = elements(value)
    if array is not None:
        found = _of_array(array)
        return None if found is None else replace(found, kept=KEPT.get(value))
    node = value.producer()
    made = None if node is None or node.domain != "" else _made(node, depth - 1)
    return None if made is None else replace(made, rows=shape[-2], columns=shape[-1])


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
    """Return the mask that a node makes; its rows and columns are not set."""
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
        return _mapped(causal(node.inputs[0], depth), operator.not_)
    if name == "Cast":
        found, to = causal(node.inputs[0], depth), ir.DataType(node.attributes["to"].as_int())
        if to == ir.DataType.BOOL:
            return _mapped(found, bool)
        exact = to.is_floating_point() or found is None or {found.inside, found.outside} <= {0.0, 1.0}
        return found if exact else None
    is_computed = is_a(node, COMPARISON, ADDS, SCALES) and len(node.inputs) == 2
    function = card("", name).rules.numbers if is_computed else None
    return None if function is None else _computed(node, function, depth)


def _computed(node: ir.Node, function: Callable[[Any, Any], Any], depth: int) -> Causal | None:
    """Return the result of a mask and a number, or of a comparison of the columns' positions with the rows'."""
    a, b = node.inputs[:2]
    left, right = scalar(a), scalar(b)
    if right is not None and (found := causal(a, depth)) is not None:
        return _mapped(found, lambda x: function(np.float32(x), np.float32(right)))
    if left is not None and (found := causal(b, depth)) is not None:
        return _mapped(found, lambda x: function(np.float32(left), np.float32(x)))
    first, second = _positions(a, depth), _positions(b, depth)
    if not is_a(node, COMPARISON) or first is None or second is None or first[0] == second[0]:
        return None
    grids = [offset + (SAMPLE[:, None] if axis == -2 else SAMPLE[None, :]) for axis, offset in (first, second)]
    return _of_array(function(*grids))


def _mapped(found: Causal | None, function: Callable[[float], Any]) -> Causal | None:
    """Apply a function to both numbers of a mask; None if they are equal afterwards, or NaN."""
    if found is None:
        return None
    with np.errstate(all="ignore"):
        inside, outside = float(function(found.inside)), float(function(found.outside))
    made = replace(found, inside=inside, outside=outside)
    return None if math.isnan(inside) or math.isnan(outside) or inside == outside else made


def _of_trilu(node: ir.Node) -> Causal | None:
    upper = node.attributes.get_int("upper", 1)
    diagonal = scalar(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else 0
    number = uniform(node.inputs[0])
    if number is None or number == 0 or diagonal != upper:
        return None
    return Causal(0, 0, 0.0, number) if upper else Causal(0, 0, number, 0.0)


def _arranged(node: ir.Node, depth: int) -> Causal | None:
    """Return the mask behind a view that only changes its leading axes, or a Slice that takes the top left corner."""
    found = causal(node.inputs[0], depth)
    before, after = info(node.inputs[0]).shape, info(node.outputs[0]).shape
    if found is None or before is None or after is None:
        return None
    if node.op_type == "Slice":
        taken = cuts(node)
        corner = taken is not None and all(c.axis < len(before) - 2 or (c.start, c.step) == (0, 1) for c in taken)
        return found if corner else None
    same = after[-2:] == before[-2:] and (node.op_type != "Reshape" or product(before[:-2]) == 1)
    return found if same else None


def _positions(value: ir.Value | None, depth: int) -> tuple[int, int] | None:
    """Return (axis, first number) of a value that counts up by one along its last (-1) or second last (-2) axis.

    It must be the same along all other axes.
    """
    shape = info(value).shape
    if value is None or not shape or depth == 0:
        return None
    array = elements(value)
    if array is not None:
        counts = array.ndim == 1 and array.dtype.kind in "iuf" and len(array) > 1
        first = int(array[0]) if counts else 0
        return (-1, first) if counts and np.array_equal(array, np.arange(first, first + len(array))) else None
    node = value.producer()
    if node is None or node.domain != "":
        return None
    if node.op_type == "Range":
        start, step = scalar(node.inputs[0]), scalar(node.inputs[2])
        return (-1, int(start)) if start is not None and step == 1 and start == int(start) else None
    if node.op_type not in ("Cast", "Add") and not _arranges(node):
        return None
    source, offset = node.inputs[0], 0.0
    if node.op_type == "Add":
        numbers = [scalar(i) for i in node.inputs]
        index = 0 if numbers[0] is None else 1
        source, number = node.inputs[index], numbers[1 - index]
        if number is None:
            return None
        offset = number
    found, before = _positions(source, depth - 1), info(source).shape
    if found is None or not before or offset != int(offset):
        return None
    axis, length = found[0], before[found[0]]
    if _arranges(node):
        axis = next((a for a in (-1, -2) if len(shape) >= -a and shape[a] == length and length != 1), 0)
        others = product(shape) == length or node.op_type == "Expand"
        axis = axis if others and (node.op_type != "Expand" or axis == found[0]) else 0
    return (axis, found[1] + int(offset)) if axis else None
