"""Infer a node with onnx's own shape inference, for operators without a rule here.

Symbolic dims pass through the C++ code as tokens (`dim_param`). A token in the result stands for the dim that was
passed in; any other dim is new. (`onnx.shape_inference.infer_node_outputs`, about 50 microseconds a call.)
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx.shape_inference import infer_node_outputs

from onnxgen.graph.nodes import has_subgraphs
from onnxgen.graph.schemas import schema
from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.info import UNKNOWN, Info
from onnxgen.shapes.node_facts import NodeFacts

MAX_CONSTANT_ELEMENTS = 1024  # larger constants are not passed to shape inference


def infer_with_onnx(n: NodeFacts) -> list[Info]:
    """Return the facts of a node's outputs, `UNKNOWN` where onnx cannot infer them. Never raises."""
    unknown = [UNKNOWN] * len(n.node.outputs)
    known = schema("", n.op, n.opset)
    if known is None or has_subgraphs(n.node):
        return unknown
    tokens: dict[Dim, str] = {}
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    names: list[str] = []
    for i in range(len(n.inputs)):
        facts = n.input(i)
        names.append(f"i{i}" if n.has(i) else "")
        if n.has(i):
            types[names[i]] = _type(facts, tokens)
            constant = facts.constant
            if constant is not None and constant.size <= MAX_CONSTANT_ELEMENTS and facts.dtype is not None:
                data[names[i]] = ir.serde.serialize_tensor(ir.Tensor(constant, dtype=facts.dtype))
    try:
        node = onnx.NodeProto(op_type=n.op, input=names, output=[f"o{i}" for i in range(len(unknown))])
        node.attribute.extend(ir.serde.serialize_attribute(a) for a in n.node.attributes.values())
        opsets = [onnx.helper.make_opsetid("", n.opset)]
        found = infer_node_outputs(known, node, types, data, opset_imports=opsets)
    except Exception:  # the node may be invalid; any error of the native code means that nothing is known
        return unknown
    dims = {token: dim for dim, token in tokens.items()}
    return [_facts(n, i, found.get(f"o{i}"), dims) for i in range(len(unknown))]


def _type(facts: Info, tokens: dict[Dim, str]) -> onnx.TypeProto:
    element = onnx.TypeProto()
    if facts.dtype is not None:
        element.tensor_type.elem_type = facts.dtype.value
    if facts.shape is not None:
        element.tensor_type.shape.SetInParent()
        for dim in facts.shape:
            if isinstance(dim, Sym):
                element.tensor_type.shape.dim.add().dim_param = tokens.setdefault(dim, f"d{len(tokens)}")
            else:
                element.tensor_type.shape.dim.add().dim_value = dim
    result = onnx.TypeProto()
    if facts.kind == "sequence":
        result.sequence_type.elem_type.CopyFrom(element)
    elif facts.kind == "optional":
        result.optional_type.elem_type.CopyFrom(element)
    else:
        return element
    return result


def _facts(n: NodeFacts, output: int, found: onnx.TypeProto | None, dims: dict[str, Dim]) -> Info:
    if found is None:
        return UNKNOWN
    kind = "tensor"
    if found.HasField("optional_type"):
        kind, found = "optional", found.optional_type.elem_type
    elif found.HasField("sequence_type"):
        kind, found = "sequence", found.sequence_type.elem_type
    if not found.HasField("tensor_type"):
        return Info(kind=kind)
    tensor_type = found.tensor_type
    dtype = ir.DataType(tensor_type.elem_type) if tensor_type.elem_type else None
    if not tensor_type.HasField("shape"):
        return Info(dtype, kind=kind)
    shape: list[Dim] = []
    for axis, dim in enumerate(tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            known = dims.get(dim.dim_param) if dim.dim_param else None
            shape.append(n.fresh(axis, output) if known is None else known)
    return Info(dtype, tuple(shape), kind=kind)
