"""Turn numbers in attributes of classical models (ai.onnx.ml) into stored tensors.

The coefficients of a linear model are then trained, named and written back like any weight. The attribute becomes an
additional input of its node, after the schema's own; `TABLE_INPUTS` has the names of these inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import TABLE_INPUTS
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import find

NEWEST = 1 << 31


def tables_of(domain: str, op_type: str) -> tuple[str, ...]:
    """Return the attributes of an operator with respect to which its output is differentiable."""
    if domain in ("", "ai.onnx"):
        return ()
    operator = find(domain, op_type, NEWEST)
    return operator.tables if operator is not None else ()


def table_name(attribute: str, outputs: Sequence[str]) -> str:
    """Return the name of the tensor made from an attribute: the node's first named output, and the attribute's name."""
    return f"{next((name for name in outputs if name), '')}:{attribute}"


def store_tables(model: ir.Model) -> None:
    """Turn these attributes into initializers, for every node of the model."""
    for node in all_nodes(model.graph):
        if not isinstance(node.graph, ir.Graph) or not (names := tables_of(node.domain, node.op_type)):
            continue
        if "one_class" in node.attributes and node.attributes["one_class"].value:
            continue  # its output is a sign, so no gradient flows
        _store(node, names, node.graph)


def _store(node: ir.Node, names: tuple[str, ...], graph: ir.Graph) -> None:
    inputs, stored = list(node.inputs), []
    for name in names:
        tensor = _tensor(node.attributes.get(name))
        if tensor is None or not tensor.size:
            continue
        label = table_name(name, [o.name or "" for o in node.outputs])
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=label, shape=shape, type=kind, const_value=tensor)
        graph.register_initializer(value)
        inputs.append(value)
        stored.append(name)
        del node.attributes[name]
    node.resize_inputs(len(inputs))
    for index, new in enumerate(inputs):
        node.replace_input_with(index, new)
    TABLE_INPUTS.set(node, tuple(stored))


def _tensor(attribute: ir.Attr | None) -> ir.TensorProtocol | None:
    if attribute is None:
        return None
    if attribute.type == ir.AttributeType.TENSOR:
        tensor: ir.TensorProtocol = attribute.value
        return tensor
    return ir.tensor(np.asarray(attribute.value, np.float32))
