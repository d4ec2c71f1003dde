"""Operators that onnxgen has no function for, but that the ONNX standard defines by others: their bodies replace them.
So they do for calls that a function can't take: attention with a cache, say.

An operator's schema may hold a function body, or one that depends on the types and attributes of the call
(https://onnx.ai/onnx/repo-docs/IR.html#functions). Bodies may again use such operators.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import find
from onnxgen.graph.schemas import schema
from onnxgen.options import Options
from onnxgen.reader.functions import inline
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info

GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
DEPTH = 8  # bodies within bodies; the standard has 3


def expand(model: ir.Model, options: Options) -> None:
    """Replace every such node by its body, and propagate types and dims through what came in.

    The new nodes stand in the scope of the old one, under its name. What has no usable body stays: `lower` refuses it.
    """
    for _ in range(DEPTH):
        if not _expand_once(model):
            return
        propagate(model.graph, options)


def _expand_once(model: ir.Model) -> bool:
    """Replace the nodes that are there now; False if none can be."""
    for number, node in enumerate(all_nodes(model.graph)):
        version = node.version or model.opset_imports.get(node.domain, 1)
        operator = find(node.domain, node.op_type, version)
        if operator is not None and operator.takes(node):
            continue
        body = _body(node, version)
        if body is None:
            continue
        body.domain, body.name, body.overload = node.domain, node.op_type, f"onnxgen:{number}"
        node.overload = body.overload
        for step in body.node:
            step.name = node.name or ""
        _leave_out(body)
        for name in [a.name for a in node.attributes.values() if a.type in GRAPHS]:
            del node.attributes[name]  # its nodes are in the body
        function = ir.serde.deserialize_function(body)
        model.functions[function.identifier()] = function
        _complete(node, version)
    found = bool(model.functions)
    inline(model)
    return found


def _leave_out(body: onnx.FunctionProto) -> None:
    """Optional outputs that the call leaves out: the body does not make them, and has something in their places."""
    made = {*body.input, *(name for step in body.node for name in step.output)}
    while body.output and body.output[-1] not in made:
        body.output.pop()
    for name in body.output:
        if name not in made:
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))


def _body(node: ir.Node, version: int) -> onnx.FunctionProto | None:
    """The function body of a node's operator as of an opset, None if there is none."""
    operator: Any = schema(node.domain, node.op_type, version)  # onnx's type stubs lack its methods
    if operator is None:
        return None
    written_for = _nearest(operator.function_opset_versions, version)
    if written_for is not None:
        found: onnx.FunctionProto = onnx.FunctionProto.FromString(operator.get_function_with_opset_version(written_for))
        return found
    written_for = _nearest(operator.context_dependent_function_opset_versions, version)
    types = [_type(value) for value in node.inputs]
    if written_for is None or any(t is None for t in types):
        return None
    call = ir.serde.serialize_node(node).SerializeToString()
    made = operator.get_context_dependent_function_with_opset_version(
        written_for, call, [t.SerializeToString() for t in types if t is not None]
    )
    body = onnx.FunctionProto.FromString(made)
    return body if made and _is_closed(body) else None


def _is_closed(body: onnx.FunctionProto) -> bool:
    """Whether a body uses nothing from around the call, as a graph among the call's attributes may."""
    known = {"", *body.input, *(name for step in body.node for name in step.output)}
    return known.issuperset(name for step in body.node for name in step.input)


def _nearest(versions: list[int], version: int) -> int | None:
    """The opset that a body is written in: the newest that is not newer than the call's, or else the oldest.

    A body's nodes carry its own opset, so that a newer one is no harm.
    """
    older = [v for v in versions if v <= version]
    return max(older) if older else min(versions, default=None)


def _type(value: ir.Value | None) -> onnx.TypeProto | None:
    """What is known of an input, as a body that depends on it wants to know; None if that is not enough."""
    if value is None:
        return onnx.TypeProto()
    facts = info(value)
    if facts.dtype is None:
        return None
    shape = None if facts.shape is None else [d if isinstance(d, int) else str(d) for d in facts.shape]
    made = onnx.helper.make_tensor_type_proto(facts.dtype.value, shape)
    return onnx.helper.make_sequence_type_proto(made) if facts.kind == "sequence" else made


def _complete(node: ir.Node, version: int) -> None:
    """Give a node the default values of the attributes that it leaves out: its body may refer to them."""
    operator = schema(node.domain, node.op_type, version)
    for name, attribute in operator.attributes.items() if operator is not None else ():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes.add(ir.serde.deserialize_attribute(attribute.default_value))
