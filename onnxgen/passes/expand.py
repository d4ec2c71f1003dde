"""Replace operators that onnxgen has no function for by the function bodies of the ONNX standard.

The same is done for calls that a function cannot take (`@op(..., takes=...)`), such as attention with a cache. A schema
may have a fixed body, or one that depends on the types and attributes of the call
(https://onnx.ai/onnx/repo-docs/IR.html#functions). Bodies may use such operators again.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, opset_of
from onnxgen.graph.operators import find
from onnxgen.graph.schemas import schema
from onnxgen.options import Options
from onnxgen.reader.functions import inline
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info

MAX_NESTING = 8  # of bodies in bodies; the standard needs 3


def expand(model: ir.Model, options: Options) -> None:
    """Replace every such node by its body, and propagate types and dims through the new nodes.

    New nodes get the scope and name of the old one. A node without a usable body stays; `lower` refuses it.
    """
    for _ in range(MAX_NESTING):
        if not _expand_once(model):
            return
        propagate(model.graph, options)


def _expand_once(model: ir.Model) -> bool:
    """Replace the nodes that are there now. Returns False if none can be replaced."""
    for number, node in enumerate(all_nodes(model.graph)):
        version = opset_of(node, model)
        operator = find(node.domain, node.op_type, version)
        body = None if operator is not None and operator.takes(node) else _body(node, version)
        if body is None:
            continue
        body.domain, body.name, body.overload = node.domain, node.op_type, f"onnxgen:{number}"
        node.overload = body.overload
        for step in body.node:
            step.name = node.name or ""
        _fill_outputs(body)
        for attribute in list(node.attributes.values()):
            if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                del node.attributes[attribute.name]  # its nodes are in the body
        function = ir.serde.deserialize_function(body)
        model.functions[function.identifier()] = function
        _add_defaults(node, version)
    found = bool(model.functions)
    inline(model)
    return found


def _fill_outputs(body: onnx.FunctionProto) -> None:
    """Remove or fill the optional outputs that the call leaves out and the body does not make."""
    made = {*body.input, *(name for step in body.node for name in step.output)}
    while body.output and body.output[-1] not in made:
        body.output.pop()
    for name in body.output:
        if name not in made:
            body.node.append(onnx.helper.make_node("Constant", [], [name], value_float=0.0))


def _body(node: ir.Node, version: int) -> onnx.FunctionProto | None:
    """Return the function body of a node's operator as of an opset, else None."""
    operator: Any = schema(node.domain, node.op_type, version)  # onnx's type stubs lack its methods
    if operator is None:
        return None
    written_for = _nearest(operator.function_opset_versions, version)
    if written_for is not None:
        found: onnx.FunctionProto = onnx.FunctionProto.FromString(operator.get_function_with_opset_version(written_for))
        return found
    written_for = _nearest(operator.context_dependent_function_opset_versions, version)
    types = [proto for value in node.inputs if (proto := _type(value)) is not None]
    if written_for is None or len(types) < len(node.inputs):
        return None
    call, inputs = ir.serde.serialize_node(node).SerializeToString(), [t.SerializeToString() for t in types]
    made = operator.get_context_dependent_function_with_opset_version(written_for, call, inputs)
    body = onnx.FunctionProto.FromString(made)
    return body if made and _is_closed(body) else None


def _is_closed(body: onnx.FunctionProto) -> bool:
    """True if a body only uses its own values, and none from around the call as a graph attribute may."""
    known = {"", *body.input, *(name for step in body.node for name in step.output)}
    return known.issuperset(name for step in body.node for name in step.input)


def _nearest(versions: list[int], version: int) -> int | None:
    """Return the newest opset with a body that is not newer than the call's, else the oldest with a body.

    The nodes of a body have the body's opset, so a newer one does no harm.
    """
    return max((v for v in versions if v <= version), default=min(versions, default=None))


def _type(value: ir.Value | None) -> onnx.TypeProto | None:
    """Return the type of an input as a body that depends on it needs it; None if the element type is not known."""
    if value is None:
        return onnx.TypeProto()
    facts = info(value)
    if facts.dtype is None:
        return None
    shape = None if facts.shape is None else [d if isinstance(d, int) else str(d) for d in facts.shape]
    made = onnx.helper.make_tensor_type_proto(facts.dtype.value, shape)
    return onnx.helper.make_sequence_type_proto(made) if facts.kind == "sequence" else made


def _add_defaults(node: ir.Node, version: int) -> None:
    """Give a node the default values of the attributes that it leaves out: its body may refer to them."""
    operator = schema(node.domain, node.op_type, version)
    for name, attribute in operator.attributes.items() if operator is not None else ():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes.add(ir.serde.deserialize_attribute(attribute.default_value))
