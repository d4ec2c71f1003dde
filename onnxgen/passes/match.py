"""Queries about the graph behind a value: the node that made it, its constants, its axes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import FILLS, MOVES
from onnxgen.passes.rewrite import input_at, is_used
from onnxgen.shapes.info import Shape, info
from onnxgen.weights.stored import stored

# Relative distance within which a constant counts as the number that it stands for, by the precision of the file.
TOLERANCES = {ir.DataType.DOUBLE: 1e-9, ir.DataType.FLOAT16: 2e-3, ir.DataType.BFLOAT16: 4e-3}
MAX_ELEMENTS = 2**25  # of a stored tensor that is compared as a whole


def standard_nodes(model: ir.Model, *op_types: str) -> Iterator[ir.Node]:
    """Yield the nodes of these standard operators in order, except those that are removed before their turn."""
    for node in all_nodes(model.graph):
        if node.op_type in op_types and node.domain == "" and node.graph is not None:
            yield node


def maker(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value; None for what is stored or an input of the graph."""
    return None if value is None else value.producer()


def source_of(value: ir.Value | None, *op_types: str) -> ir.Value | None:
    """Return the first input of the node that makes a value, if it is a standard operator of one of these types."""
    node = made_by(value, *op_types)
    return None if node is None else node.inputs[0]


def shape_of(value: ir.Value | None) -> Shape:
    """Return the shape of a value, () if its rank is not known."""
    return info(value).shape or ()


def elements(value: ir.Value | None, most: int = MAX_ELEMENTS) -> NDArray[np.generic] | None:
    """Return the elements of a value if they are known and not trained, and if a stored tensor has at most `most`."""
    constant = info(value).constant
    if constant is None and value is not None and not is_trained(value):
        tensor = stored(value)
        constant = tensor.numpy() if tensor is not None and tensor.size <= most else None
    return constant


def scalar(value: ir.Value | None) -> float | None:
    """Return the number that a constant of one element holds, else None."""
    array = elements(value, 1)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.dtype.kind in "iuf" else None


def uniform(value: ir.Value | None, depth: int = 8) -> float | None:
    """Return the number that every element of a value is known to be, else None. True is 1."""
    array, node = elements(value), maker(value)
    if array is not None:
        numbers = array.size and array.dtype.kind in "biuf" and bool((array == array.flat[0]).all())
        return float(array.flat[0]) if numbers else None
    if node is None or depth == 0:
        return None
    if made_by(value, "ConstantOfShape"):
        tensor = node.attributes.get_tensor("value", None)
        return 0.0 if tensor is None else float(tensor.numpy().reshape(-1)[0])
    if made_by(value, "Mul") and any(scalar(v) == 0 for v in node.inputs):  # no integer is NaN
        return 0.0 if (dtype := info(value).dtype) is not None and dtype.is_integer() else None
    return _moved_number(node, depth)


def _moved_number(node: ir.Node, depth: int) -> float | None:
    """Return the number that a node only moves; of a Cast only 0 and 1, which every type has."""
    is_cast = (node.domain, node.op_type) == ("", "Cast")
    if not is_cast and (not is_a(node, MOVES) or is_a(node, FILLS)):
        return None
    data = known(node).data
    numbers = {uniform(v, depth - 1) for i, v in enumerate(node.inputs) if i in data and v is not None}
    number = numbers.pop() if len(numbers) == 1 else None
    return number if number in (0, 1) or not is_cast else None


def ints(node: ir.Node, name: str, index: int) -> list[int] | None:
    """Return a list that is an attribute in old opsets and an input in new ones; None if absent or not constant."""
    attribute = node.attributes.get_ints(name, None)
    constant = info(input_at(node, index)).constant if attribute is None else None
    return list(attribute) if attribute is not None else None if constant is None else [int(v) for v in constant.flat]


def dropout_ratio(node: ir.Node) -> float | None:
    """Return the share of elements that a Dropout drops; None if it is computed, or if the Dropout's mask is used."""
    if any(map(is_used, node.outputs[1:])):
        return None
    ratio = input_at(node, 1)
    return scalar(ratio) if ratio is not None else node.attributes.get_float("ratio", 0.5)


def is_plain_gemm(node: ir.Node) -> bool:
    """True for a Gemm without factors that does not transpose its first operand."""
    factor = node.attributes.get_float
    return factor("alpha", 1.0) == factor("beta", 1.0) == 1 and not node.attributes.get_int("transA", 0)


def is_close(constant: float, number: float, near: ir.Value) -> bool:
    """True if a constant is `number`, to the precision of the type of `near`, a value beside it."""
    dtype = info(near).dtype
    return math.isclose(constant, number, rel_tol=1e-5 if dtype is None else TOLERANCES.get(dtype, 1e-5))


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the other operand of a binary node."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def trimmed(value: ir.Value, rank: int) -> tuple[object, ...] | None:
    """Return the last `rank` dims of a shape that has only ones before them, else None."""
    shape = info(value).shape
    if shape is None or any(d != 1 for d in shape[: len(shape) - rank]):
        return None
    return shape[max(0, len(shape) - rank) :]


@dataclass(frozen=True)
class Reduction:
    """A reduction of `x` over axes, which are counted from the front and sorted; `keepdims` is 1.0 or 0.0."""

    x: ir.Value
    axes: tuple[int, ...]
    keepdims: float


def reduction(value: ir.Value | None, op_type: str) -> Reduction | None:
    """Return the reduction that makes a value, if axes and rank are known. GlobalAveragePool counts as ReduceMean."""
    node = made_by(value, op_type, *(["GlobalAveragePool"] if op_type == "ReduceMean" else []))
    x = node.inputs[0] if node is not None else None
    rank = info(x).rank
    if node is None or x is None or not rank:
        return None
    if node.op_type == "GlobalAveragePool":
        return Reduction(x, tuple(range(2, rank)), 1.0)
    axes = ints(node, "axes", 1)
    if axes is None:
        if input_at(node, 1) is not None or node.attributes.get_int("noop_with_empty_axes", 0) != 0:
            return None
        axes = list(range(rank))
    return Reduction(x, tuple(sorted({a % rank for a in axes})), float(node.attributes.get_int("keepdims", 1)))
