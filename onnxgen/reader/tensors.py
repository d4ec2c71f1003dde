"""Check one tensor or type of a protobuf and where its data lies, and make sparse tensors dense.

A model may come from anywhere, and its tensors name files. A location outside of the model's own folder (an absolute
path, `..`, a symbolic link, a hard link to somewhere else) would let the model's author copy any file into the output.
So it is refused here, before anything is opened: data is in a plain file in the folder, which is long enough. `onnx_ir`
memory-maps the data later, and checks containment again. Source: https://onnx.ai/onnx/repo-docs/ExternalData.html

`locations` finds these files without reading the rest of the model.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnxgen.common.limits import Limits
from onnxgen.common.names import printable
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError
from onnxgen.reader.parsing import parse, raw_length
from onnxgen.reader.protos import tensors_of


class ExternalData:
    """Checks the external tensors of the model in `folder`. Each file is examined once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, int | str] = {}  # by location: the file's size in bytes, or what is wrong with it

    def problem(self, tensor: onnx.TensorProto, nbytes: int) -> str | None:
        """Describe what is wrong with the data of `tensor`, which must be `nbytes` long. Returns None if nothing is."""
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if any(isinstance(text, bytes) for text in entries.values()):
            return "the external data is described in text that is not valid UTF-8"
        location = entries.get("location", "")
        size = self._size(location)
        if isinstance(size, str):
            return size
        numbers: dict[str, int] = {}
        for key, default in (("offset", 0), ("length", nbytes)):
            text = entries.get(key, str(default))
            if not re.fullmatch(r"[0-9]{1,18}", text):
                return f"the external data has the {key} {printable(text)}, which is not a size"
            numbers[key] = int(text)
        if numbers["length"] != nbytes:
            return f"the external data has {numbers['length']} bytes, but its dtype and dims need {nbytes}"
        if numbers["offset"] + nbytes > size:
            end = numbers["offset"] + nbytes
            return f"the external data ends at byte {end} of {printable(location)}, which has only {size}"
        return None

    def file_problem(self, location: str) -> str | None:
        """Describe what is wrong with a data file, given the `location` of a tensor. Returns None if nothing is."""
        size = self._size(location)
        return size if isinstance(size, str) else None

    def _size(self, location: str) -> int | str:
        if location not in self._files:
            self._files[location] = self._look(location)
        return self._files[location]

    def _look(self, location: str) -> int | str:
        """Return the size of the data file in bytes, or the reason why it is refused."""
        shown = printable(location, 200)
        if not location or "\0" in location:
            return "the external data names no file"
        parts = re.split(r"[/\\]", location) if os.sep == "\\" else location.split("/")
        # Windows paths are refused on every system, so that a model means the same everywhere.
        if location[0] in "/\\" or re.match(r"[A-Za-z]:", location):
            return f"the external data is at an absolute path ({shown})"
        if ".." in re.split(r"[/\\]", location):
            return f"the external data leaves the model folder by .. ({shown})"
        try:
            return self._look_inside([p for p in parts if p not in ("", ".")], shown)
        except (FileNotFoundError, NotADirectoryError):
            return f"the external data file {shown} is missing; put it beside the .onnx file"
        except (OSError, ValueError) as error:
            return f"the external data file {shown} cannot be read: {printable(str(getattr(error, 'strerror', error)))}"

    def _look_inside(self, parts: list[str], shown: str) -> int | str:
        if not parts:
            return "the external data names no file"
        real = self._folder.resolve()
        folder = self._folder
        for part in parts[:-1]:
            folder = folder / part
            if folder.is_symlink() and not folder.resolve().is_relative_to(real):
                return f"the external data leaves the model folder by a symbolic link ({shown})"
        file = folder / parts[-1]
        facts = file.lstat()
        if stat.S_ISLNK(facts.st_mode):
            return f"the external data file {shown} is a symbolic link; copy the data there instead"
        if not stat.S_ISREG(facts.st_mode):
            return f"the external data file {shown} is not a regular file"
        if facts.st_nlink > 1:
            return f"the external data file {shown} is a hard link to another file; copy the data there instead"
        if not os.access(file, os.R_OK):
            return f"the external data file {shown} cannot be read"
        return facts.st_size


# The field with a tensor's elements if they are not raw bytes, by dtype (onnx.proto, message TensorProto).
_TYPED_FIELD = {
    ir.DataType.FLOAT: "float_data",
    ir.DataType.COMPLEX64: "float_data",
    ir.DataType.DOUBLE: "double_data",
    ir.DataType.COMPLEX128: "double_data",
    ir.DataType.INT64: "int64_data",
    ir.DataType.UINT32: "uint64_data",
    ir.DataType.UINT64: "uint64_data",
    ir.DataType.STRING: "string_data",
}
_DATA_FIELDS = ("int32_data", *sorted(set(_TYPED_FIELD.values())))


def tensor_problem(tensor: onnx.TensorProto, limits: Limits, external: ExternalData) -> str | None:
    """Describe what is wrong with a tensor: its dtype, dims or amount of data. Returns None if nothing is."""
    known = ir.DataType.__members__.values()
    if tensor.data_type not in known or tensor.data_type == ir.DataType.UNDEFINED:
        return f"the tensor has the unknown element type {tensor.data_type}"
    if problem := limits.past("rank", len(tensor.dims), f"the tensor has {len(tensor.dims)} dims"):
        return problem
    if any(d < 0 for d in tensor.dims):
        return f"the tensor has negative dims {list(tensor.dims)}"
    if tensor.HasField("segment"):
        return "the tensor is stored in segments, which ONNX does not define"
    dtype = ir.DataType(tensor.data_type)
    count = math.prod(tensor.dims)
    longest = max(map(len, tensor.string_data), default=0)
    if problem := limits.past("text_length", longest, f"a string has {longest} bytes"):
        return problem
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if dtype == ir.DataType.STRING:
            return "the strings are external data, which ONNX forbids"
        return external.problem(tensor, _nbytes(dtype, count))
    return _size_problem(tensor, dtype, count)


def _nbytes(dtype: ir.DataType, count: int) -> int:
    return (count * dtype.bitwidth + 7) // 8


def _size_problem(tensor: onnx.TensorProto, dtype: ir.DataType, count: int) -> str | None:
    dims = f"its dims {list(tensor.dims)}"
    if dtype != ir.DataType.STRING and tensor.HasField("raw_data"):
        with stage(WEIGHTS):  # protobuf copies the bytes to count them
            size = raw_length(tensor)
        if size or not count:
            need = _nbytes(dtype, count)
            return None if size == need else f"the tensor has {size} bytes of data, but {dims} and dtype need {need}"
    field = _TYPED_FIELD.get(dtype, "int32_data")
    if any(name != field and len(getattr(tensor, name)) for name in _DATA_FIELDS):
        return f"the tensor is of type {dtype.name}, but its elements are of another type"
    size = len(getattr(tensor, field))
    need = count
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        need = 2 * count
    elif dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        need = _nbytes(dtype, count)  # sub-byte elements are packed, a byte in each int32
    return None if size == need else f"the tensor has {size} elements of data, but {dims} need {need}"


def type_problem(kind: onnx.TypeProto, limits: Limits) -> str | None:
    """Describe what is wrong with the declared type of a value. Returns None if nothing is."""
    for shape, elem_type in _tensor_types(kind, limits.depth):
        if elem_type not in ir.DataType.__members__.values():
            return f"the tensor has the unknown element type {elem_type}"
        rank = 0 if shape is None else len(shape.dim)
        if problem := limits.past("rank", rank, f"the tensor has {rank} dims"):
            return problem
    return None


def _tensor_types(kind: onnx.TypeProto, depth: int) -> Iterator[tuple[onnx.TensorShapeProto | None, int]]:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(kind, which)
        yield (inner.shape if inner.HasField("shape") else None), inner.elem_type
    elif which == "map_type" and depth > 0:
        yield None, kind.map_type.key_type
        yield from _tensor_types(kind.map_type.value_type, depth - 1)
    elif which in ("sequence_type", "optional_type") and depth > 0:
        yield from _tensor_types(getattr(kind, which).elem_type, depth - 1)


def settle_type(info: onnx.ValueInfoProto) -> None:
    """Reduce a declared type to one that onnx_ir can hold, without claiming more than the file does.

    Negative dims become unknown, as in onnxruntime. Map, opaque and incomplete sequence types are dropped. The types of
    maps are recorded separately (see `graph.annotations`).
    """
    kind = info.type
    while (which := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
        kind = getattr(kind, which).elem_type
    if which not in ("tensor_type", "sparse_tensor_type"):
        info.ClearField("type")
        return
    for dim in getattr(kind, which).shape.dim if getattr(kind, which).HasField("shape") else ():
        if dim.dim_value < 0:
            dim.ClearField("dim_value")


def sparse_problem(sparse: onnx.SparseTensorProto, limits: Limits, external: ExternalData) -> str | None:
    """Describe what is wrong with a sparse tensor (message SparseTensorProto). Returns None if it can be made dense."""
    for part in (sparse.values, sparse.indices):
        if part.data_location == onnx.TensorProto.EXTERNAL:
            return "the tensor is sparse with external data, which is not supported; store it dense"
        if problem := tensor_problem(part, limits, external):
            return problem
    size = math.prod(sparse.dims)
    if any(d < 0 for d in sparse.dims):
        return f"the tensor is sparse with negative dims {list(sparse.dims)[:8]}"
    rank = len(sparse.dims)
    too_large = limits.past("fold_elements", size, f"the tensor is sparse, and has {size:,} elements when dense")
    if problem := limits.past("rank", rank, f"the tensor has {rank} dims") or too_large:
        return problem
    count = math.prod(sparse.values.dims)
    shapes = ([count], [count, rank])
    if sparse.indices.data_type != onnx.TensorProto.INT64 or list(sparse.indices.dims) not in shapes:
        return "the tensor is sparse and its indices do not fit its values"
    if sparse.values.data_type == onnx.TensorProto.STRING:
        return "the tensor is a sparse tensor of strings, which is not supported; store it dense"
    where = numpy_helper.to_array(sparse.indices)
    bound = np.array(sparse.dims if where.ndim == 2 else size, dtype=np.int64)
    if where.size and ((where < 0).any() or (where >= bound).any()):
        return "the tensor is sparse and its indices are out of range"
    return None


def dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a sparse tensor as a dense one; `sparse_problem` must have returned None."""
    values = numpy_helper.to_array(sparse.values)
    where = numpy_helper.to_array(sparse.indices)
    full = np.zeros(tuple(sparse.dims), dtype=values.dtype)
    if where.ndim == 2:
        full[tuple(where.T)] = values.reshape(-1)
    else:
        full.reshape(-1)[where] = values.reshape(-1)
    tensor = numpy_helper.from_array(full, sparse.values.name)
    return tensor


def label(name: str | bytes) -> str:
    """Return a tensor's or value's name as it appears in messages."""
    return printable(name) or "(unnamed)"


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
    paths = {str(entry.value) for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    shown = printable(str(path), 200)
    problems = [f"{shown}: {problem}" for text in sorted(paths) if (problem := external.file_problem(text))]
    if problems:
        raise OnnxgenError(*problems)
    return {posixpath.normpath(text) for text in paths}
