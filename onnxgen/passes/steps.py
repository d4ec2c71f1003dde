"""Small steps of passes that build nodes: insert a node, make a constant, move axes, redirect the users of a value."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_graphs
from onnxgen.graph.traits import RESHAPE
from onnxgen.passes.rewrite import beside
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.stored import view_of


def stored_views(model: ir.Model) -> set[ir.Value]:
    """Return the stored tensors and the values that are only cut, transposed or joined from them.

    Trained weights are written back through the nodes between, so those nodes must stay.
    """
    found: set[ir.Value] = set()
    for graph in all_graphs(model.graph):
        found.update(graph.initializers.values())
        for node in graph:
            data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
            is_part = node.op_type in ("Concat", "Split") and node.domain == ""
            is_view = (is_part or view_of(node) is not None) and bool(data) and all(v in found for v in data)
            if node.op_type == "Constant" or is_view:
                found.update(node.outputs)
    return found


def insert(
    before: ir.Node, new: ir.Node, name: str | None = None, facts: Info | None = None, scope_of: ir.Node | None = None
) -> ir.Value:
    """Insert a node before another one. Returns its first output, which gets the name and facts if they are given.

    `scope_of`: the node whose scope the new one takes.
    """
    assert before.graph is not None
    before.graph.insert_before(before, new)
    if scope_of is not None:
        beside(new, scope_of)
    output = new.outputs[0]
    if name is not None:
        output.name = name
    if facts is not None:
        set_info(output, facts)
    return output


def constant(before: ir.Node, elements: ArrayLike, name: str, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
    """Insert a Constant node before another node."""
    array = np.asarray(elements, dtype.numpy())
    node = ir.node("Constant", [], {"value": ir.tensor(array)}, version=13)
    return insert(before, node, name, Info(dtype, array.shape, array))


def filled(before: ir.Node, shape: Sequence[int], number: float, dtype: ir.DataType) -> ir.Value:
    """Insert a constant whose elements are all one number."""
    name = f"{before.outputs[0].name}.{'ones' if number else 'zeros'}"
    return constant(before, np.full(shape, number), name, dtype)


def known_ints(dims: Sequence[Dim]) -> ir.Value:
    """Make a value of known elements, numbers or symbolic dims, such as the shape input of a Reshape."""
    value = ir.Value(name="sizes", type=ir.TensorType(ir.DataType.INT64))
    data = np.empty(len(dims), object)
    data[:] = dims
    symbolic = any(not isinstance(d, int) for d in dims)
    set_info(value, Info(ir.DataType.INT64, (len(dims),), data if symbolic else data.astype(np.int64)))
    return value


def transposed(before: ir.Node, value: ir.Value, perm: Sequence[int], facts: Info | None = None) -> ir.Value:
    """Insert a Transpose. `facts` of its output are by default those of the value, permuted."""
    node = ir.node("Transpose", [value], {"perm": perm}, version=13)
    return insert(before, node, f"{value.name}.transposed", facts or permuted(info(value), perm), before)


def flattened(value: ir.Value, before: ir.Node) -> ir.Value:
    """Reshape a tensor of static shape to one axis, [1, C, 1, 1] to [C].

    If it was reshaped from one axis, that original is returned, and nothing is inserted.
    """
    source: ir.Value | None = value
    while source is not None and info(source).rank is not None:
        if info(source).rank == 1:
            return source
        node = source.producer()
        source = node.inputs[0] if node is not None and is_a(node, RESHAPE) else None
    size = math.prod(d for d in info(value).shape or () if isinstance(d, int))
    node = ir.node("Reshape", [value, constant(before, [size], f"{value.name}.size")], version=14)
    return insert(before, node, f"{value.name}.flat", Info(info(value).dtype, (size,)), before)


def permuted(facts: Info, perm: Sequence[int]) -> Info:
    return Info(facts.dtype, None if facts.shape is None else tuple(facts.shape[i] for i in perm))


def replace_uses(old: ir.Value, new: ir.Value) -> None:
    """Let everything use `new`; a graph output keeps its name."""
    if old.is_graph_output():
        new.name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, or None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None
