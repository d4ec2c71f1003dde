"""Small steps of passes that build nodes: put one in, move axes, hand a name or the users of a value on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.stored import VIEWS

MOVED = {*VIEWS, "Concat", "Split"}


def stored_views(model: ir.Model) -> set[ir.Value]:
    """The stored tensors, and what is only cut, turned or joined of them: weights are taken back by these nodes."""
    found: set[ir.Value] = set()
    for graph in model.graphs():
        found.update(graph.initializers.values())
        for node in graph:
            data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
            is_view = node.op_type in MOVED and node.domain == "" and bool(data) and all(v in found for v in data)
            if node.op_type == "Constant" or is_view:
                found.update(node.outputs)
    return found


def insert(before: ir.Node, new: ir.Node) -> None:
    assert before.graph is not None
    before.graph.insert_before(before, new)


def constant(before: ir.Node, array: np.ndarray[tuple[int, ...], np.dtype[np.int64]], name: str) -> ir.Value:
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array.astype(np.int64)))], version=13)
    insert(before, node)
    node.outputs[0].name = name
    set_info(node.outputs[0], Info(ir.DataType.INT64, array.shape, array.astype(np.int64)))
    return node.outputs[0]


def filled(before: ir.Node, shape: Sequence[int], number: float, dtype: ir.DataType) -> ir.Value:
    """A constant of equal numbers."""
    array = np.full(shape, number, dtype.numpy())
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(array))], version=13)
    insert(before, node)
    node.outputs[0].name = f"{before.outputs[0].name}.{'ones' if number else 'zeros'}"
    set_info(node.outputs[0], Info(dtype, array.shape, array))
    return node.outputs[0]


def known_ints(dims: Sequence[Dim]) -> ir.Value:
    """A value whose elements are known: the shape that a Reshape is given, of numbers and symbolic dims."""
    value = ir.Value(name="sizes", type=ir.TensorType(ir.DataType.INT64))
    data = np.empty(len(dims), object)
    data[:] = dims
    symbolic = any(not isinstance(d, int) for d in dims)
    set_info(value, Info(ir.DataType.INT64, (len(dims),), data if symbolic else data.astype(np.int64)))
    return value


def transposed(before: ir.Node, value: ir.Value, perm: tuple[int, ...], facts: Info) -> ir.Value:
    node = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], version=13)
    SCOPE.set(node, SCOPE.get(before))
    insert(before, node)
    node.outputs[0].name = f"{value.name}.transposed"
    set_info(node.outputs[0], facts)
    return node.outputs[0]


def flattened(value: ir.Value, before: ir.Node) -> ir.Value:
    """[1, C, 1, 1] as [C]: all elements of a static shape, in one axis, as they were if they had only one before."""
    before_views: ir.Value | None = value
    while before_views is not None and info(before_views).rank is not None:
        if info(before_views).rank == 1:
            return before_views
        node = before_views.producer()
        before_views = node.inputs[0] if node is not None and is_a(node, RESHAPE) else None
    size = math.prod(d for d in info(value).shape or () if isinstance(d, int))
    node = ir.Node("", "Reshape", [value, constant(before, np.asarray([size]), f"{value.name}.size")], version=14)
    SCOPE.set(node, SCOPE.get(before))
    insert(before, node)
    node.outputs[0].name = f"{value.name}.flat"
    set_info(node.outputs[0], Info(info(value).dtype, (size,)))
    return node.outputs[0]


def permuted(facts: Info, perm: tuple[int, ...]) -> Info:
    return Info(facts.dtype, None if facts.shape is None else tuple(facts.shape[i] for i in perm))


def name_after(new: ir.Value, old: ir.Value, suffix: str = "") -> None:
    new.name = f"{old.name}.{suffix}" if suffix and old.name else old.name


def replace_uses(old: ir.Value, new: ir.Value) -> None:
    """Let everything use `new`; a graph output keeps its name."""
    if old.is_graph_output():
        new.name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None
