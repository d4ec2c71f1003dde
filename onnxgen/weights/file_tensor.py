"""Tensors whose elements lie in an ONNX file that is held open."""

from __future__ import annotations

import math
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError

Array = NDArray[Any]


class SourceFile:
    """An ONNX file that is held open, so that later reads come from the file that was parsed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  closed with the last tensor that lies in it
        self._lock = threading.Lock()
        self._facts = self._look()

    @property
    def size(self) -> int:
        return self._facts[0]

    def fileno(self) -> int:
        """Return the descriptor of the open file, for copies by the operating system."""
        return self._file.fileno()

    def _look(self) -> tuple[int, int]:
        facts = os.fstat(self._file.fileno())
        return facts.st_size, facts.st_mtime_ns

    def read(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Read the bytes from `begin` to `end`. Raises `OnnxgenError` if the file has changed since it was parsed."""
        array = np.empty(end - begin, np.uint8)
        with self._lock:
            self._file.seek(begin)
            view = array.data
            while len(view) and (count := self._file.readinto(view)):
                view = view[count:]
        if len(view) or self._look() != self._facts:
            self.changed()
        return array

    def changed(self) -> None:
        """Raise the error for a file that has changed."""
        what = f"{printable(str(self.path), 200)} changed while it was read"
        raise OnnxgenError(what, help="run it again when the file is complete")

    def check(self) -> None:
        """Raise `OnnxgenError` if the file has changed since it was parsed."""
        if self._look() != self._facts:
            self.changed()


class FileTensor(ir.LazyTensor):
    """A tensor whose elements lie in the ONNX file from byte `offset` on, row-major and little-endian."""

    def __init__(self, source: SourceFile, offset: int, proto: onnx.TensorProto) -> None:
        dtype, shape = ir.DataType(proto.data_type), ir.Shape(proto.dims)
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        whole = partial(_whole, source, offset, dtype, shape)  # a method would keep the file open
        super().__init__(whole, dtype, shape, name=proto.name, doc_string=proto.doc_string, metadata_props=metadata)
        self.source, self.offset = source, offset

    def __repr__(self) -> str:
        return f"{self._repr_base()}({self.source.path}, offset={self.offset}, name={self.name!r})"

    def elements(self, start: int, stop: int) -> Array:
        """Return the elements `start:stop` of the flat tensor. Reads nothing else if elements are whole bytes."""
        if self.dtype.bitwidth < 8:
            return self.numpy().reshape(-1)[start:stop]
        return _elements(self.source, self.offset, self.dtype, start, stop)


def _whole(source: SourceFile, offset: int, dtype: ir.DataType, shape: ir.Shape) -> ir.TensorProtocol:
    dims = tuple(shape.numpy())
    count = math.prod(dims)
    if dtype.bitwidth >= 8:
        return ir.Tensor(_elements(source, offset, dtype, 0, count).reshape(dims), dtype)
    with stage(WEIGHTS):
        packed = source.read(offset, offset + (count * dtype.bitwidth + 7) // 8)
    return ir.PackedTensor(packed, dtype, shape=dims)


def _elements(source: SourceFile, offset: int, dtype: ir.DataType, start: int, stop: int) -> Array:
    size = dtype.bitwidth // 8
    with stage(WEIGHTS):
        raw = source.read(offset + start * size, offset + stop * size)
    raw.flags.writeable = False
    return raw.view(dtype.numpy().newbyteorder("<"))
