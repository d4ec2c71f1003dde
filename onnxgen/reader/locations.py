"""Find the external data files of a model without reading the rest of the model."""

from __future__ import annotations

import posixpath
from pathlib import Path

import onnx

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.reader.external import ExternalData
from onnxgen.reader.parse import parse
from onnxgen.reader.protos import tensors_of


def locations(path: Path) -> set[str]:
    """Return the files that hold tensors of the model at `path`, relative to its folder, separated by `/`.

    Files of functions that nothing calls are included.

    Raises:
        OnnxgenError: the file is not an ONNX model, or `read` would refuse a location; all such locations are named.
    """
    proto = parse(path).proto
    external = ExternalData(path.absolute().parent)
    tensors = [t for t in tensors_of(proto) if t.data_location == onnx.TensorProto.EXTERNAL]
    # protobuf returns text that is not UTF-8 as bytes; its `repr` names a file that does not exist
    found = {str(entry.value) for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    shown = printable(str(path), 200)
    problems = [f"{shown}: {problem}" for text in sorted(found) if (problem := external.file_problem(text))]
    if problems:
        raise OnnxgenError(*problems)
    return {posixpath.normpath(text) for text in found}
