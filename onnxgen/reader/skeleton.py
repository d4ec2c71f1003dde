"""Read the structure of a large file without its weights, which stay in the file until they are used.

Protobuf holds a whole message in memory, and copies a tensor's bytes on each access: a file of 440 MB took 900 MB of
memory. So protobuf never gets the `raw_data` of large tensors. The wire format
(https://protobuf.dev/programming-guides/encoding) is walked down to them, and a token with their place replaces them.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from onnxgen.common.limits import MAX_GRAPH_DEPTH
from onnxgen.graph.nodes import all_nodes
from onnxgen.weights.file_tensor import FileTensor, SourceFile

MIN_FILE_BYTES = 1 << 22  # bytes; a smaller file is parsed whole
MIN_TENSOR_BYTES = 1 << 16  # bytes; a tensor of this size or more stays in the file
READ_AHEAD_BYTES = 1 << 16  # bytes that are read at once while walking
MAX_FIELDS = 1_000_000  # fields; a file with more is parsed whole, since its weights are not what makes it large

_MARK = secrets.token_bytes(16)  # random, so that no file can contain it
_PLACE = struct.Struct("<16sQQ")

Table = dict[int, Any]  # by tag, the tables of a message's fields; only fields that lead to tensors
_RAW: Table = {}
_TENSOR: Table = {onnx.TensorProto.RAW_DATA_FIELD_NUMBER << 3 | 2: _RAW}
_GRAPH: Table = {onnx.GraphProto.INITIALIZER_FIELD_NUMBER << 3 | 2: _TENSOR}
_ATTRIBUTE: Table = {
    onnx.AttributeProto.T_FIELD_NUMBER << 3 | 2: _TENSOR,
    onnx.AttributeProto.G_FIELD_NUMBER << 3 | 2: _GRAPH,
}
_GRAPH[onnx.GraphProto.NODE_FIELD_NUMBER << 3 | 2] = {onnx.NodeProto.ATTRIBUTE_FIELD_NUMBER << 3 | 2: _ATTRIBUTE}
_MODEL: Table = {onnx.ModelProto.GRAPH_FIELD_NUMBER << 3 | 2: _GRAPH}


class Field(NamedTuple):
    """One field of a message: its tag, the position of its length (if any), and the begin and end of its content."""

    tag: int
    length: int
    begin: int
    end: int


class Walk:
    """Walks over a protobuf file and skips large content."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self._window, self._start = b"", 0
        self._steps = 0

    def fields(self, begin: int, end: int) -> Iterator[Field]:
        """Yield the fields of the message in this range. Raises `ValueError` for a non-message or too many fields."""
        while begin < end:
            tag, begin = self._varint(begin)
            kind, length = tag & 7, begin
            if kind == 2:
                size, begin = self._varint(begin)
                stop = begin + size
            elif kind == 0:
                stop = self._varint(begin)[1]
            elif kind in (1, 5):
                stop = begin + (8 if kind == 1 else 4)
            else:
                raise ValueError("a group")
            if stop > end:
                raise ValueError("a field that is cut short")
            self._steps += 1
            if self._steps > MAX_FIELDS:
                raise ValueError("too many fields")
            yield Field(tag, length, begin, stop)
            begin = stop

    def _varint(self, position: int) -> tuple[int, int]:
        value = shift = 0
        while shift < 64:
            at = position - self._start
            if not 0 <= at < len(self._window):
                last = min(position + READ_AHEAD_BYTES, self._source.size)
                self._window, self._start, at = self._source.read(position, last).tobytes(), position, 0
            byte = self._window[at] if self._window else 128
            value, position, shift = value | (byte & 127) << shift, position + 1, shift + 7
            if byte < 128:
                return value, position
        raise ValueError("a number that does not end")


def structure(path: Path) -> tuple[bytes, SourceFile | None]:
    """Return the bytes for protobuf to parse, and the open file if it is large."""
    if path.stat().st_size < MIN_FILE_BYTES:
        return path.read_bytes(), None
    source = SourceFile(path)
    return skeleton(source), source


def skeleton(source: SourceFile) -> bytes:
    """Return the file with a token in place of each large tensor's `raw_data`, or unchanged if it cannot be walked.

    A length keeps its number of bytes, so that the positions of others stay valid.
    """
    try:
        cuts = list(_cuts(Walk(source), _MODEL, (), 0, source.size))
    except ValueError:
        return source.read(0, source.size).tobytes()
    changes: dict[int, tuple[int, bytes]] = {}  # by start position: end position, and the bytes to put there
    sizes: dict[Field, int] = {}
    for cut in cuts:
        raw = cut[-1]
        changes[raw.begin] = raw.end, _PLACE.pack(_MARK, raw.begin, raw.end - raw.begin)
        for field in cut:
            sizes[field] = sizes.get(field, field.end - field.begin) - (raw.end - raw.begin) + _PLACE.size
    for field, size in sizes.items():
        changes[field.length] = field.begin, _padded(size, field.begin - field.length)
    pieces, done = [], 0
    for at, (end, new) in sorted(changes.items()):
        pieces += [source.read(done, at).tobytes(), new]
        done = end
    return b"".join([*pieces, source.read(done, source.size).tobytes()])


def _cuts(walk: Walk, table: Table, around: tuple[Field, ...], begin: int, end: int) -> Iterator[tuple[Field, ...]]:
    """Yield each large `raw_data` field in a message, preceded by the message fields that enclose it."""
    if len(around) > 4 * MAX_GRAPH_DEPTH:
        raise ValueError("graphs in graphs without end")
    found = [field for field in walk.fields(begin, end) if field.tag in table]
    large = [field for field in found if field.end - field.begin >= MIN_TENSOR_BYTES]
    if table is _TENSOR:
        if len(found) == len(large) == 1:
            yield *around, *large
        return
    for field in large:
        yield from _cuts(walk, table[field.tag], (*around, field), field.begin, field.end)


def _padded(value: int, width: int) -> bytes:
    """Return a varint of exactly `width` bytes, which may be more than the value needs."""
    digits = [value >> 7 * i & 127 | 128 for i in range(width)]
    return bytes([*digits[:-1], digits[-1] & 127])


def raw_length(tensor: onnx.TensorProto) -> int:
    """Return the number of bytes of a tensor's raw data, in the protobuf or left in the file."""
    raw = tensor.raw_data
    return len(raw) if (place := _place(raw)) is None else place[1]


def put_elements(graph: ir.Graph, source: SourceFile) -> None:
    """Replace every tensor that holds a token by a `FileTensor`, anywhere in the graph."""
    for inner in (graph, *graph.subgraphs()):
        for value in inner.initializers.values():
            value.const_value = _in_file(value.const_value, source) or value.const_value
    for node in all_nodes(graph):
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and (tensor := _in_file(attribute.value, source)) is not None:
                node.attributes[name] = ir.AttrTensor(name, tensor, doc_string=attribute.doc_string)


def _in_file(tensor: ir.TensorProtocol | None, source: SourceFile) -> FileTensor | None:
    if not isinstance(tensor, ir.serde.TensorProtoTensor) or (place := _place(tensor.raw.raw_data)) is None:
        return None
    return FileTensor(source, place[0], tensor.raw)


def _place(raw: bytes) -> tuple[int, int] | None:
    """Return the offset and length that a token encodes, or None if the bytes are not a token."""
    if len(raw) != _PLACE.size or not raw.startswith(_MARK):
        return None
    _, offset, length = _PLACE.unpack(raw)
    return offset, length
