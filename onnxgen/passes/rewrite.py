"""Edits of the graph that all passes need: find users, insert and replace nodes, move axes."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from onnxgen.graph.annotations import SCOPE, STANDS_FOR
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import all_graphs
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.stored import view_of


def is_used(value: ir.Value) -> bool:
    """True if a node takes a value, or the graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def is_used_outside(value: ir.Value, nodes: Container[ir.Node]) -> bool:
    """True if another node than these takes a value, or the graph returns it."""
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def only_user(value: ir.Value, *op_types: str) -> ir.Node | None:
    """Return the node that uses a value if the value is used once and is not a graph output, else None.

    If `op_types` are given, the node must also be a standard operator of one of them.
    """
    # onnx_ir's own dict, where there is one: `uses()` copies it, which is slow for a value that every node reads
    uses = getattr(value, "_uses", None)
    uses = value.uses() if uses is None else uses
    if len(uses) != 1 or value.is_graph_output():
        return None
    node: ir.Node = next(iter(uses)).node
    return node if not op_types or (node.domain == "" and node.op_type in op_types) else None


def own(op_type: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Node:
    """Make a node of one of onnxgen's own operators."""
    return ir.node(op_type, inputs, attributes, domain=DOMAIN, num_outputs=outputs, version=1)


def replace(last: ir.Node, new: ir.Node, origin: ir.Node | None = None) -> None:
    """Put `new` in the place of `last`, the final node of an idiom, and remove the nodes that only served the idiom.

    The new node takes the names and facts of the outputs of `last`, and the scope of `origin` (by default `last`).
    """
    origin = origin or last
    graph = last.graph
    assert graph is not None
    new.name = origin.name
    beside(new, origin if SCOPE.has(origin) else last)
    graph.insert_before(last, new)
    for old, fresh in zip(last.outputs, new.outputs):
        take_facts(fresh, old)
        ir.convenience.replace_all_uses_with(old, fresh, replace_graph_outputs=True)
    note_replaced(new, [node for node in reversed(drop(last)) if node.op_type != "Constant"])


def take_facts(new: ir.Value, old: ir.Value) -> None:
    """Give a value the name, the type, the shape and the facts of another one."""
    new.name, new.shape, new.type = old.name, old.shape, old.type
    set_info(new, info(old))


def note_replaced(new: ir.Node, nodes: Iterable[ir.Node]) -> None:
    """Note which of the file's nodes a new one stands for: those that these stand for."""
    STANDS_FOR.set(new, tuple(dict.fromkeys(name for node in nodes for name in names_of(node))))


def beside(new: ir.Node, node: ir.Node) -> None:
    """Put a new node in the scope of another one, if that has a scope."""
    SCOPE.copy(node, new)


def names_of(node: ir.Node) -> tuple[str, ...]:
    """Return the file's names of the nodes that this one replaces; a nameless node has that of its first output."""
    return STANDS_FOR.get(node) or ((node.name or (node.outputs[0].name if node.outputs else "") or node.op_type),)


def together(nodes: Iterable[ir.Node]) -> bool:
    """True if nodes are in one graph, and those with a scope in one scope."""
    nodes = list(nodes)
    return len({n.graph for n in nodes}) <= 1 and len({SCOPE.get(n) for n in nodes if SCOPE.has(n)}) <= 1


def drop(node: ir.Node) -> list[ir.Node]:
    """Remove a node if nothing uses it, then its producers that only served it. Returns all removed nodes."""
    gone: list[ir.Node] = []
    pending = [node]
    while pending:
        node = pending.pop()
        if node.graph is None or any(map(is_used, node.outputs)):
            continue
        producers = [p for i in node.inputs if i is not None and (p := i.producer()) is not None]
        node.graph.remove(node, safe=True)
        gone.append(node)
        pending.extend(producers)
    return gone


def stored_views(model: ir.Model) -> set[ir.Value]:
    """Return the stored tensors and the values that are only cut, transposed or joined from them.

    Trained weights are written back through the nodes between, so those nodes must stay.
    """
    views: set[ir.Value] = set()
    for graph in all_graphs(model.graph):
        views.update(graph.initializers.values())
        for node in graph:
            data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
            is_part = node.op_type in ("Concat", "Split") and node.domain == ""
            is_view = (is_part or view_of(node) is not None) and bool(data) and all(v in views for v in data)
            if node.op_type == "Constant" or is_view:
                views.update(node.outputs)
    return views


def insert(
    before: ir.Node, new: ir.Node, name: str | None = None, facts: Info | None = None, scope_of: ir.Node | None = None
) -> ir.Value:
    """Insert a node, in the scope of `scope_of`. Returns its first output, which gets the name and facts if given."""
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


def reshaped(before: ir.Node, value: ir.Value, shape: Sequence[Dim], name: str) -> ir.Value:
    """Insert a Reshape."""
    node = ir.node("Reshape", [value, known_ints(shape)], version=14)
    return insert(before, node, name, Info(info(value).dtype, tuple(shape)), before)


def flattened(value: ir.Value, before: ir.Node) -> ir.Value:
    """Reshape a tensor of static shape to one axis, [1, C, 1, 1] to [C]; return a vector that was reshaped to it."""
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


def insert_behind(value: ir.Value, new: ir.Node, suffix: str) -> None:
    """Insert a node behind a value, for all its users. Its first output gets the name; that of the value the suffix."""
    node, output, index = value.producer(), new.outputs[0], new.inputs.index(value)
    assert node is not None and node.graph is not None
    take_facts(output, value)
    node.graph.insert_after(node, new)
    ir.convenience.replace_all_uses_with(value, output, replace_graph_outputs=True)
    new.replace_input_with(index, value)
    value.name = f"{value.name}.{suffix}"


def replace_uses(old: ir.Value, new: ir.Value) -> None:
    """Let everything use `new`; a graph output keeps its name."""
    if old.is_graph_output():
        new.name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let everything use `new`, and remove the nodes that only made the old value."""
    producer = old.producer()
    replace_uses(old, new)
    if producer is not None:
        drop(producer)


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, or None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def without_last(inputs: Sequence[ir.Value | None]) -> Sequence[ir.Value | None]:
    """Return inputs without those at the end that are left out."""
    return inputs if inputs[-1] is not None else without_last(inputs[:-1])
