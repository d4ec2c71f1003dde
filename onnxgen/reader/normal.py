"""Rewrite unusual but unambiguous forms of the protobuf into the usual ones that onnx_ir understands.

The model must have passed `check`, and still computes the same. These forms are rewritten: missing attribute types,
types that onnx_ir cannot hold, subgraphs that return an outer value, types spelled as text, a missing axis that was
once optional, an operand that counts for nothing, sparse constants, and a missing ai.onnx import.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from onnxgen.reader.check import attribute_type
from onnxgen.reader.protos import graphs_of, inner_graphs
from onnxgen.reader.tensors import dense, settle_type


def normalize(proto: onnx.ModelProto) -> None:
    """Rewrite `proto` in place (see the module docstring)."""
    if not any(entry.domain in ("", "ai.onnx") for entry in proto.opset_import):
        # Files before IR version 3 use opset 1. In newer files no node is of ai.onnx, as `check` has made sure.
        proto.opset_import.append(onnx.OperatorSetIdProto(domain="", version=1))
    _graph(proto.graph, set())
    for function in proto.functions:
        for attribute in function.attribute_proto:
            _attribute(attribute, set())
        for info in function.value_info:
            settle_type(info)
        _nodes(function.node, {*function.input, *(name for node in function.node for name in node.output)})


def _graph(graph: onnx.GraphProto, outer: set[str]) -> None:
    for info in (*graph.input, *graph.output, *graph.value_info):
        settle_type(info)
    _declare_once(graph)
    graph.initializer.extend(dense(sparse) for sparse in graph.sparse_initializer)
    graph.ClearField("sparse_initializer")
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    _copy_outer_outputs(graph, own, outer)
    _nodes(graph.node, outer | own if any(True for node in graph.node for _ in inner_graphs(node)) else outer)


def _declare_once(graph: onnx.GraphProto) -> None:
    """Keep the first declaration of an input that is also an output: onnx_ir would keep the last, with less detail."""
    inputs = {info.name: info.type for info in graph.input if info.type.tensor_type.HasField("shape")}
    for info in (*graph.output, *graph.value_info):
        if info.name in inputs:
            info.type.CopyFrom(inputs[info.name])


def _copy_outer_outputs(graph: onnx.GraphProto, own: set[str], outer: set[str]) -> None:
    """Insert an Identity where a subgraph returns a value of an outer graph: onnx_ir would lose that output."""
    for info in graph.output:
        if info.name not in own and info.name in outer:
            name = info.name + "_copy"
            while name in own or name in outer:
                name += "_"
            graph.node.append(onnx.NodeProto(op_type="Identity", input=[info.name], output=[name]))
            info.name = name
            own.add(name)


def _nodes(nodes: Iterable[onnx.NodeProto], names: set[str]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            _attribute(attribute, names)
            if (node.op_type, attribute.name, attribute.type) == ("Cast", "to", onnx.AttributeProto.STRING):
                _type_as_number(attribute)
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR and node.op_type == "Constant":
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense(attribute.sparse_tensor)))
        if not node.domain and len(node.input) == 3 and any(a.name == "beta" and a.f == 0 for a in node.attribute):
            del node.input[2:]  # Gemm's C counts for nothing, whatever it is
        if (node.domain, node.op_type) == ("", "Concat") and not any(a.name == "axis" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("axis", 1))  # the default of Concat-1


def _type_as_number(attribute: onnx.AttributeProto) -> None:
    """Replace a type spelled as text by its number (Cast-1 has "FLOAT")."""
    name = attribute.s.decode("utf-8", "replace").upper()
    types = dict(onnx.TensorProto.DataType.items())
    if name in types:
        attribute.ClearField("s")
        attribute.type, attribute.i = onnx.AttributeProto.INT, types[name]


def _attribute(attribute: onnx.AttributeProto, names: set[str]) -> None:
    if not attribute.type and not attribute.ref_attr_name:
        attribute.type = attribute_type(attribute)  # type: ignore[assignment]
    for graph in graphs_of(attribute):
        _graph(graph, names)
