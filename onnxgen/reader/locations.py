"""Find the external data files of a model without reading the rest of the model."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.reader.external import ExternalData
from onnxgen.reader.parse import parse


def locations(path: Path) -> set[str]:
    """Return the files that hold tensors of the model at `path`, relative to its folder, separated by `/`.

    Those of functions that nothing calls are among them.

    Raises:
        OnnxgenError: the file is no ONNX model, or a location is one that reading refuses, too; all of them.
    """
    proto = parse(path).proto
    external = ExternalData(path.absolute().parent)
    tensors = [*_tensors(proto.graph), *(t for f in proto.functions for t in _of_nodes(f.node))]
    # protobuf returns text that is not UTF-8 as bytes; its `repr` names a file that does not exist
    found = {str(entry.value) for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    shown = printable(str(path), 200)
    problems = [f"{shown}: {problem}" for text in sorted(found) if (problem := external.file_problem(text))]
    if problems:
        raise OnnxgenError(*problems)
    return {posixpath.normpath(text) for text in found}


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every external tensor of a graph."""
    yield from (tensor for tensor in graph.initializer if _is_external(tensor))
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (tensor for tensor in (attribute.t, *attribute.tensors) if _is_external(tensor))
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(graph)


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)
