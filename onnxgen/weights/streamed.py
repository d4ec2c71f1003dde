"""`Source`s streamed into safetensors files, and the headers of such files.

The format (https://github.com/huggingface/safetensors, "Format"): the header's length as 8 bytes little-endian, the
header (JSON, padded with spaces to a multiple of 8), then the tensors' bytes, row-major, little-endian, without gaps.

The safetensors library's `serialize_file` needs all tensors in memory at once. This writer holds one tensor at a time,
and only the pages that it is reading if the tensor is memory-mapped.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

import numpy as np
import onnx_ir as ir

from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import MAX_HEADER
from onnxgen.weights.dtypes import SAFETENSORS_DTYPES, WIDER
from onnxgen.weights.file_tensor import FileTensor, SourceFile
from onnxgen.weights.provenance import Source
from onnxgen.weights.strided import Array as Array
from onnxgen.weights.strided import merged

Tensors = Mapping[str, Source | Array]

CHUNK = 16 << 20  # bytes in one chunk
COPIED = 1 << 30  # bytes in one system call, at most
SAMPLES = 8  # approximate number of sampled elements of each tensor


# ---- writing ---------------------------------------------------------------------------------------------------------


def embed_bytes(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file."""
    file = io.BytesIO()
    write_tensors(file, header_of(tensors, metadata), in_order(tensors), tensors)
    return file.getvalue()


# ---- one file --------------------------------------------------------------------------------------------------------


def in_order(tensors: Tensors) -> tuple[str, ...]:
    """Return the keys in the library's order, widest type first: each tensor is aligned, and bytes are reproducible."""
    return tuple(sorted(tensors, key=lambda key: (-int(stored_dtype(tensors[key]).itemsize), key)))


def header_of(tensors: Tensors, metadata: Mapping[str, str]) -> bytes:
    """Return the header of a file. Raises `OnnxgenError` if the type of a tensor has no safetensors dtype."""
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    end = 0
    for key in in_order(tensors):
        value = tensors[key]
        dtype = stored_dtype(value)
        if dtype not in SAFETENSORS_DTYPES or key == "__metadata__":
            raise OnnxgenError(f"weight {key!r} of type {dtype.name} cannot be stored as safetensors")
        begin, end = end, end + stored_size(value)
        header[key] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise OnnxgenError(f"the header of the safetensors file would have {len(text):,} bytes, which is too many")
    return len(text).to_bytes(8, "little") + text


def write_tensors(file: BinaryIO, header: bytes, keys: Iterable[str], tensors: Tensors) -> None:
    """Write a safetensors file, one tensor at a time. Bytes that a file already stores in this form are copied."""
    with stage(WEIGHTS):
        file.write(header)
        for key in keys:
            if not _copied(file, key, tensors[key]):
                for chunk in stored_chunks(key, tensors[key]):
                    file.write(chunk)


def _copied(file: BinaryIO, key: str, value: Source | Array) -> bool:
    """Append a tensor by copying it from file to file, as `cp` does. Returns False if that is not possible."""
    if not isinstance(value, Source) or not isinstance(file, io.BufferedWriter) or not hasattr(os, "copy_file_range"):
        return False
    external = _external(value)
    if external is None:
        return False
    if not isinstance(external[0], SourceFile):
        _array(key, value)  # opening it checks its location and length
        value.release()
    source, start = external
    begin, left = file.tell(), stored_size(value)
    file.flush()
    with suppress(OSError), _opened(source) as number:  # old kernel, or two file systems; a full disk fails again later
        while left and (count := os.copy_file_range(number, file.fileno(), min(left, COPIED), start)):
            start, left = start + count, left - count
    file.seek(begin if left else begin + stored_size(value))
    return not left


@contextmanager
def _opened(source: SourceFile | str) -> Iterator[int]:
    """Open the source file. Yields its descriptor."""
    if isinstance(source, SourceFile):
        yield source.fileno()
        source.check()
        return
    with open(source, "rb") as file:
        yield file.fileno()


def _external(value: Source) -> tuple[SourceFile | str, int] | None:
    """Return the file and offset of a tensor whose bytes are stored contiguously in their final form, else None."""
    if len(value.pieces) != 1 or value.dtype != stored_dtype(value):
        return None
    (piece,) = value.pieces
    in_one = merged(itertools.chain(*piece.axes)) in ((), ((math.prod(value.shape), 1),))
    tensor = piece.tensor
    if piece.casts or not in_one or not isinstance(tensor, (ir.ExternalTensor, FileTensor)):
        return None
    file = tensor.source if isinstance(tensor, FileTensor) else tensor.path
    return file, (tensor.offset or 0) + piece.offset * int(value.dtype.itemsize)


def stored_dtype(value: Source | Array) -> ir.DataType:
    dtype = value.dtype if isinstance(value, Source) else ir.DataType.from_numpy(value.dtype)
    return WIDER.get(dtype, dtype)


def stored_size(value: Source | Array) -> int:
    return math.prod(value.shape) * int(stored_dtype(value).itemsize)


def sample(key: str, value: Source | Array) -> bytes:
    """Return a few elements of a tensor's ONNX tensors. Reads only a few pages of memory-mapped ones."""
    stored = [piece.tensor for piece in value.pieces] if isinstance(value, Source) else [value]
    try:
        flat = [(value if isinstance(value, np.ndarray) else value.numpy()).reshape(-1) for value in stored]
        return b"".join(array[:: max(1, array.size // SAMPLES)].tobytes() for array in flat)
    except (OSError, ValueError) as error:
        raise OnnxgenError(f"cannot read weight {key!r}: {error}") from error
    finally:
        flat = []
        if isinstance(value, Source):
            value.release()


def stored_chunks(key: str, value: Source | Array) -> Iterator[memoryview]:
    """Yield the tensor's stored bytes in chunks. A memory-mapped tensor is unmapped afterwards."""
    array = _array(key, value)
    try:
        dtype = stored_dtype(value).numpy()
        array = array.reshape(-1) if array.flags.c_contiguous or not array.ndim else array
        rows = max(1, CHUNK // max(1, math.prod(array.shape[1:]) * dtype.itemsize))
        for row in range(0, len(array) if array.size else 0, rows):
            part = np.ascontiguousarray(array[row : row + rows]).astype(dtype, copy=False)
            # Released here, not by the receiver: a mapping with a view on it cannot be closed.
            with part.reshape(-1).view(np.uint8).data as view:
                del part
                yield view
    finally:
        del array
        if isinstance(value, Source):
            value.release()


def _array(key: str, value: Source | Array) -> Array:
    try:
        return value.numpy() if isinstance(value, Source) else value
    except (OSError, ValueError) as error:  # external data is missing, too short or outside its folder
        raise OnnxgenError(f"cannot read weight {key!r}: {error}") from error
