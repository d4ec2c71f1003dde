"""Queries about nodes: those of a graph, producers of values, schemas, groups of element types.

Attributes become plain Python values here. The schemas are those of the installed onnx.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any, TypeVar

import onnx_ir as ir
from onnx import defs

from onnxgen.common.names import printable

Answer = TypeVar("Answer")
LOOPS = ("Loop", "Scan")  # with a body that carries states
ALIAS = ("", "Identity")  # domain and operator of what gives a value a second name


def all_nodes(graph: ir.Graph | ir.Function) -> list[ir.Node]:
    """Return the nodes of a graph or function. Each is followed by the nodes of the graphs in its attributes.

    It is a list, so that the caller may change the graph while it loops. This takes a quarter of the time of onnx_ir's
    own iterator, which matters because some fifty passes call it.
    """
    nodes: list[ir.Node] = []
    for node in graph:
        nodes.append(node)
        for attribute in node.attributes.data.values():
            kind = attribute.type
            if kind is ir.AttributeType.GRAPH and not attribute.is_ref():
                nodes += all_nodes(attribute.as_graph())
            elif kind is ir.AttributeType.GRAPHS and not attribute.is_ref():
                for inner in attribute.as_graphs():
                    nodes += all_nodes(inner)
    return nodes


def passed_on(value: ir.Value) -> ir.Node:
    """Make a node that gives a value a second name."""
    return ir.Node(*ALIAS, [value])


def origin(value: ir.Value) -> ir.Value:
    """Return what a value is a second name of, or the value itself."""
    node = value.producer()
    while node is not None and (node.domain, node.op_type) == ALIAS and (source := node.inputs[0]) is not None:
        value, node = source, source.producer()
    return value


def told(node: ir.Node) -> str:
    """Return the name of a node in messages: its own, or that of its first output."""
    return printable(node.name or next((o.name for o in node.outputs if o.name), "") or "")


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs in a node's attributes, but not the graphs nested in those."""
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif kind is ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def all_graphs(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph, and then all graphs inside it, of the nodes that it has by then.

    This takes a quarter of the time of onnx_ir's `Model.graphs`.
    """
    yield graph
    yield from [each for node in graph for inner in subgraphs(node) for each in all_graphs(inner)]


def has_subgraphs(node: ir.Node) -> bool:
    """Return True if a node has graphs in its attributes."""
    return any(True for _ in subgraphs(node))


def answered(
    value: ir.Value,
    known: dict[ir.Value, Answer],
    asked: Callable[[ir.Value], list[ir.Value]],
    answer: Callable[[ir.Value], Answer],
) -> Answer:
    """Return the answer for a value, computed after those of the values that it `asked` for. Chains may be long."""
    waiting = [value]
    while waiting:
        missing = [v for v in asked(waiting[-1]) if v not in known] if waiting[-1] not in known else []
        waiting += missing
        if not missing:
            last = waiting.pop()
            if last not in known:
                known[last] = answer(last)
    return known[value]


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """Return the node that produces a value if it is a standard operator of one of these types, else None."""
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in op_types and node.domain == "" else None


def opset_of(node: ir.Node, model: ir.Model) -> int:
    """Return the version of its domain that a node is written in."""
    return node.version or model.opset_imports.get(node.domain, 1)


NEWER_RUNTIME = (  # the reason if a node has an input or attribute that its function does not know
    "a newer onnxruntime may have it: update onnxgen, or export the model without it "
    "(or write a plugin for the operator: docs/EXTENDING.md)"
)


@cache
def schema(domain: str, name: str, opset: int) -> defs.OpSchema | None:
    """Return the schema of an operator in version `opset`, or None if onnx does not know the operator."""
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def first_since(name: str, opset: int) -> int:
    """Return the first version from `opset` on that has an operator of the standard.

    The installed onnx may know no such version: `opset` then.
    """
    versions = range(opset, defs.onnx_opset_version() + 1)
    return next((version for version in versions if schema("", name, version)), opset)


def types_of(known: defs.OpSchema, formal: defs.OpSchema.FormalParameter) -> Collection[str]:
    """Return the types that an input or output may have ("tensor(float)"). `formal.types` fails in onnx 1.20."""
    allowed = {c.type_param_str: c.allowed_type_strs for c in known.type_constraints}
    return allowed.get(formal.type_str, [formal.type_str])


def plain(value: Any) -> Any:
    """Convert an attribute's value to plain Python: bytes to text, sequences to lists, tensors to numpy arrays."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


# the types that can be trained, and that `--dtype` accepts
FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))

NAMED = {  # by the names that `--dtype` takes
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
}
