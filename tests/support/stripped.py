"""Takes every name out of an ONNX file: what is left is the graph and its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto


def strip(source: Path, target: Path, keep_dims: bool = False) -> Path:
    """Write `source` to `target` without names, and return `target`.

    Values, initializers and nodes are numbered as they come; metadata, doc strings, the producer and (unless
    `keep_dims`) the names of dims are gone. Operators, attributes, weights, the order of nodes, and which dims are
    equal stay.
    """
    model = onnx.load(source)
    stripped(model, keep_dims)
    onnx.save(model, target)
    return target


def stripped(model: ModelProto, keep_dims: bool = False) -> None:
    """The same on a model in memory, whose external data is loaded."""
    for field in ("metadata_props", "doc_string", "producer_name", "producer_version", "domain", "training_info"):
        model.ClearField(field)
    names = _Names(keep_dims)
    names.graph(model.graph, {})
    for function in model.functions:
        names.function(function)


class _Names:
    """Numbers for names; a map from old to new is copied into each subgraph, which sees what is outside it."""

    def __init__(self, keep_dims: bool) -> None:
        self.keep_dims = keep_dims
        self.dims: dict[str, str] = {}
        self.count = 0

    def graph(self, graph: GraphProto, outside: dict[str, str]) -> None:
        known = dict(outside)
        graph.name = "g"
        for field in ("doc_string", "metadata_props", "value_info"):
            graph.ClearField(field)
        stored = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
        declared = [v.name for v in graph.input] + stored
        made = [name for node in graph.node for name in node.output]
        self._define(known, [name for name in declared + made if name])
        for tensor in graph.initializer:
            tensor.name = known[tensor.name]
            tensor.doc_string = ""
        for sparse in graph.sparse_initializer:
            sparse.values.name = known[sparse.values.name]
        for value in (*graph.input, *graph.output):
            value.name = known[value.name]
            self._clean(value)
        for note in graph.quantization_annotation:
            note.tensor_name = known.get(note.tensor_name, note.tensor_name)
            for pair in note.quant_parameter_tensor_names:
                pair.value = known.get(pair.value, pair.value)
        self._nodes(graph.node, known)

    def function(self, function: FunctionProto) -> None:
        """A local function keeps its own name, which its calls are found by."""
        known: dict[str, str] = {}
        for field in ("doc_string", "metadata_props", "value_info"):
            function.ClearField(field)
        made = [name for node in function.node for name in node.output]
        self._define(known, [name for name in (*function.input, *made) if name])
        for names in (function.input, function.output):
            names[:] = [known[name] for name in names]
        self._nodes(function.node, known)

    def _nodes(self, nodes: Iterable[NodeProto], known: dict[str, str]) -> None:
        for node in nodes:
            for field in ("name", "doc_string", "metadata_props"):
                node.ClearField(field)
            node.input[:] = [known.get(name, name) for name in node.input]
            node.output[:] = [known.get(name, name) for name in node.output]
            for attribute in node.attribute:
                attribute.doc_string = ""
                if attribute.type == AttributeProto.TENSOR:
                    attribute.t.name = attribute.t.doc_string = ""
                for graph in (attribute.g, *attribute.graphs) if _has_graph(attribute) else ():
                    self.graph(graph, known)

    def _define(self, known: dict[str, str], names: list[str]) -> None:
        for name in dict.fromkeys(names):
            known[name] = str(self.count)
            self.count += 1

    def _clean(self, value: ValueInfoProto) -> None:
        value.doc_string = ""
        value.ClearField("metadata_props")
        if not value.type.HasField("tensor_type"):
            return
        for dim in value.type.tensor_type.shape.dim:
            dim.denotation = ""
            if dim.dim_param and not self.keep_dims:
                dim.dim_param = self.dims.setdefault(dim.dim_param, f"d{len(self.dims)}")


def _has_graph(attribute: AttributeProto) -> bool:
    return attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
