"""Parse the file at a path as an ONNX protobuf, within limits, or name what it is instead.

- *Survey.* A file's contents are counted before protobuf parses it, which may need 85 bytes of memory per byte of a
  hostile file. The wire format (https://protobuf.dev/programming-guides/encoding) is walked in Python, through the
  fields that hold messages. Invalid protobuf ends the walk; the parser refuses it at the same place.
- *Skeleton.* Protobuf holds a whole message in memory, and copies a tensor's bytes on each access: a file of 440 MB
  took 900 MB of memory. So protobuf never gets the `raw_data` of large tensors. The wire format is walked down to them,
  and a token with their place replaces them. They stay in the file until they are used.
- *Rehearsal.* Protobuf's parser and onnx's shape inference are native code. Within the default limits they are trusted.
  If the caller allows a file beyond them, a process with bounds on its memory and time reads and simplifies it first.
  It may crash without harm. Only how it ends counts: the caller finds errors in the file again, and reports them.
"""

from __future__ import annotations

import pickle
import secrets
import signal
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from onnxgen.common.limits import MAX_GRAPH_DEPTH, Limits
from onnxgen.common.names import printable
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.weights.file_tensor import FileTensor, SourceFile

Table = dict[int, Any]  # maps the tag byte of each field that holds messages to the table of that message type
DEFAULTS = Limits()


@dataclass
class Survey:
    """Counts of a file's contents. Counting ends at the first limit that is exceeded."""

    fields: int = 0
    nodes: int = 0
    initializers: int = 0

    @property
    def is_small(self) -> bool:
        """Return True if no count exceeds a default limit, whatever the caller allows."""
        return all(DEFAULTS.past(name, count, "") is None for name, count in vars(self).items())


def survey(data: bytes, limits: Limits) -> Survey:
    """Count the fields, nodes and stored tensors of a serialised `ModelProto`.

    Raises:
        OnnxgenError: a count exceeds its limit.
    """
    counts = Survey()
    with suppress(IndexError):  # the file is truncated
        _walk(data, limits, counts)
    if counts.fields > limits.fields:  # counting stopped at the limit
        what = f"the file has more than {limits.fields:,} fields"
        raise OnnxgenError(limits.past("fields", 2 * limits.fields, what) or what)
    for name, number in vars(counts).items():
        if problem := limits.past(name, number, f"the file has {number:,} {name}"):
            raise OnnxgenError(problem)
    return counts


def _walk(data: bytes, limits: Limits, counts: Survey) -> None:
    model, node, graph, tensor = _tables()
    around: list[tuple[int, Table]] = []
    position, end, table = 0, len(data), model
    most = limits.fields
    count = 0
    try:
        while True:
            while position >= end:
                if not around:
                    return
                end, table = around.pop()
            count += 1
            if count > most:
                return
            tag, position = _varint(data, position) if data[position] & 128 else (data[position], position + 1)
            kind = tag & 7
            if kind == 2:
                size, position = _varint(data, position) if data[position] & 128 else (data[position], position + 1)
                inner: Table | None = table.get(tag)
                if position + size > end:
                    return
                if inner is None:
                    position += size
                    continue
                counts.nodes += inner is node
                counts.initializers += inner is tensor and table is graph
                around.append((end, table))
                end, table = position + size, inner
            elif kind == 0:
                while data[position] & 128:
                    position += 1
                position += 1
            elif kind in (1, 5):
                position += 8 if kind == 1 else 4
    finally:  # also where the file is cut off in the middle of a field
        counts.fields = count


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 128 and shift < 70:
        value |= (data[position] & 127) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1


@cache
def _tables() -> tuple[Table, Table, Table, Table]:
    """Return the tables of a model, a node, a graph and a tensor."""
    tables: dict[str, Table] = {}

    def table(message: Any) -> Table:
        if message.full_name not in tables:
            own = tables[message.full_name] = {}
            own.update({f.number << 3 | 2: table(f.message_type) for f in message.fields if f.message_type is not None})
        return tables[message.full_name]

    kinds = (onnx.ModelProto, onnx.NodeProto, onnx.GraphProto, onnx.TensorProto)
    model, node, graph, tensor = (table(kind.DESCRIPTOR) for kind in kinds)
    return model, node, graph, tensor


MIN_FILE_BYTES = 1 << 22  # bytes; a smaller file is parsed whole
MIN_TENSOR_BYTES = 1 << 16  # bytes; a tensor of this size or more stays in the file
READ_AHEAD_BYTES = 1 << 16  # bytes that are read at once while walking
MAX_FIELDS = 1_000_000  # fields; a file with more is parsed whole, since its weights are not what makes it large

_MARK = secrets.token_bytes(16)  # random, so that no file can contain it
_PLACE = struct.Struct("<16sQQ")

TensorTable = dict[int, Any]  # by tag, the tables of a message's fields; only fields that lead to tensors
_RAW: TensorTable = {}
_TENSOR: TensorTable = {onnx.TensorProto.RAW_DATA_FIELD_NUMBER << 3 | 2: _RAW}
_GRAPH: TensorTable = {onnx.GraphProto.INITIALIZER_FIELD_NUMBER << 3 | 2: _TENSOR}
_ATTRIBUTE: TensorTable = {
    onnx.AttributeProto.T_FIELD_NUMBER << 3 | 2: _TENSOR,
    onnx.AttributeProto.G_FIELD_NUMBER << 3 | 2: _GRAPH,
}
_GRAPH[onnx.GraphProto.NODE_FIELD_NUMBER << 3 | 2] = {onnx.NodeProto.ATTRIBUTE_FIELD_NUMBER << 3 | 2: _ATTRIBUTE}
_MODEL: TensorTable = {onnx.ModelProto.GRAPH_FIELD_NUMBER << 3 | 2: _GRAPH}


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


def _cuts(
    walk: Walk, table: TensorTable, around: tuple[Field, ...], begin: int, end: int
) -> Iterator[tuple[Field, ...]]:
    """Yield each large `raw_data` field in a message, preceded by the message fields that enclose it."""
    if len(around) > 4 * MAX_GRAPH_DEPTH:
        raise ValueError("graphs in graphs without end")
    fields = [field for field in walk.fields(begin, end) if field.tag in table]
    large = [field for field in fields if field.end - field.begin >= MIN_TENSOR_BYTES]
    if table is _TENSOR:
        if len(fields) == len(large) == 1:
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


EXPORT_AGAIN, NAME_ONNX_FILE = "download or export it again", "name the .onnx file, or export the model to one first"
DAMAGED = "not a readable ONNX file (truncated or damaged)"
_PROTOBUF_LIMIT = 2**31 - 1

# Kinds of file that are mistaken for ONNX: offset, bytes at the offset, name of the kind, and a remedy if it has one.
_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", "a gzip file; unpack it first"),
    (0, b"\x89HDF", "an HDF5 file (Keras?)"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"GGUF", "a GGUF file"),
    (0, b"\x80\x02", "a Python pickle (an old PyTorch checkpoint?)"),
    (0, b"\x80\x03", "a Python pickle"),
    (0, b"\x80\x04", "a Python pickle"),
    (0, b"\x80\x05", "a Python pickle"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (4, b"ORTM", "an onnxruntime .ort model; convert the .onnx file that it was made from"),
    (5, b"\0\0\0{", "a safetensors file"),
    (257, b"ustar", "a tar archive; unpack it first"),
    (0, b"version https://git-lfs", "a Git LFS pointer; fetch the real file with `git lfs pull`"),
)
_ONNX_TEXTS: tuple[tuple[str, str, str], ...] = (  # first characters, text inside, name of the ONNX text form
    ("{", "graph", "JSON (onnx.load calls it json)"),
    ("<", "ir_version", "ONNX text syntax (onnx.load calls it onnxtxt)"),
    ("", "ir_version:", "protobuf text (onnx.load calls it textproto)"),
)


class Parsed(NamedTuple):
    """A parsed protobuf, and the open file if it is large. Tokens stand for tensors left in it (`skeleton`)."""

    proto: onnx.ModelProto
    source: SourceFile | None


def parse(path: Path, limits: Limits = DEFAULTS, rehearse: Callable[[], None] | None = None) -> Parsed:
    """Read and parse `path` as a binary ONNX `ModelProto`.

    `rehearse` is called first if the file exceeds a default limit and `limits` allow that.

    Raises:
        OnnxgenError: no such file, not a regular file, not readable, not ONNX, or more than the limits allow.
    """
    shown = printable(str(path), 200)
    with stage(WEIGHTS):  # weights are nearly all of a file's bytes
        data, source = _read(path, shown)
    if not survey(data, limits).is_small and rehearse is not None:
        rehearse()
    with stage(WEIGHTS):
        proto = _parsed(path, shown, data)
    # Protobuf has no signature. Other files may parse too, but lack what ONNX requires.
    if not proto.HasField("graph") or proto.ir_version <= 0:
        missing = "graph" if not proto.HasField("graph") else "ir_version"
        raise OnnxgenError(_explain(path, shown, data[: 1 << 20], f"not an ONNX model (it has no {missing})"))
    return Parsed(proto, source)


def _parsed(path: Path, shown: str, data: bytes) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
        return proto
    except (DecodeError, ValueError, RuntimeError):
        raise OnnxgenError(_explain(path, shown, data, DAMAGED)) from None


def _read(path: Path, shown: str) -> tuple[bytes, SourceFile | None]:
    try:
        mode = path.stat()
        if stat.S_ISDIR(mode.st_mode):
            raise OnnxgenError(f"{shown} is a folder", help="name the .onnx file in it")
        if not stat.S_ISREG(mode.st_mode):
            raise OnnxgenError(f"{shown} is not a regular file")
        if mode.st_size == 0:
            raise OnnxgenError(f"{shown} is empty", help=EXPORT_AGAIN)
        if mode.st_size > _PROTOBUF_LIMIT:
            what = f"{shown} is larger than 2 GB, the limit of protobuf"
            raise OnnxgenError(what, help="save it with external data (onnx.save_model)")
        return structure(path)
    except (FileNotFoundError, NotADirectoryError):
        raise OnnxgenError(f"{shown}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        why = printable(getattr(error, "strerror", "") or str(error))
        raise OnnxgenError(f"{shown} cannot be read: {why}") from None


def _explain(path: Path, shown: str, data: bytes, otherwise: str) -> Problem:
    kind, _, way_out = (_kind(path, data) or "").partition("; ")
    if not kind:
        return Problem(f"{shown} is {otherwise}", help=EXPORT_AGAIN)
    return Problem(f"{shown} is not an ONNX model: it looks like {kind}", help=way_out or NAME_ONNX_FILE)


def _kind(path: Path, data: bytes) -> str | None:
    """Name the kind of file that the bytes look like, and a remedy after "; "; None if it may be damaged ONNX."""
    if data.startswith(b"PK\x03\x04"):
        return _zip_kind(path)
    for offset, magic, kind in _SIGNATURES:
        if data[offset : offset + len(magic)] == magic:
            return kind
    return _text_kind(data[:2048]) or _proto_kind(data)


def _zip_kind(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return f"a damaged zip archive; {EXPORT_AGAIN}"
    if any(name.endswith(("data.pkl", "constants.pkl", "model.json")) for name in names):
        return "a PyTorch file (.pt); export it with torch.onnx.export"
    return "a zip archive; unpack it first"


def _text_kind(head: bytes) -> str | None:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # the error is not just a character cut off at the end
            return None
        text = head[: error.start].decode("utf-8")
    if any(ord(c) < 32 and c not in "\t\n\r\f" for c in text):
        return None
    text = text.lstrip()
    for start, content, form in _ONNX_TEXTS:
        if text.startswith(start) and content in text:
            return f"an ONNX model as {form}; save it in binary form"
    if text.lower().startswith(("<html", "<!doctype")):
        return f"a web page (a download that failed?); {EXPORT_AGAIN}"
    return "a text file"


def _proto_kind(data: bytes) -> str | None:
    """Name the other ONNX protobuf message that the bytes parse as, or return None."""
    if len(data) > 1 << 20:
        return None
    # Many bytes parse as some message. Require the message's main content, and no unknown field.
    kinds = (onnx.TensorProto, "data_type"), (onnx.GraphProto, "node"), (onnx.SequenceProto, "tensor_values")
    for kind, content in kinds:
        try:
            message = kind.FromString(data)
        except (DecodeError, ValueError, RuntimeError):
            continue
        known = kind()
        known.CopyFrom(message)
        known.DiscardUnknownFields()
        if content in {field.name for field, _ in known.ListFields()} and known.ByteSize() == len(data):
            return f"a single ONNX {kind.DESCRIPTOR.name}, not a whole model"
    return None


OUT_OF_MEMORY = 3
CHILD = "onnxgen.passes.rehearsed"  # the module that the child process runs


def rehearse(path: Path, options: Options) -> None:
    """Read the file in a child process with the caller's options.

    Raises:
        OnnxgenError: the process crashed, or took more memory or time than the limits allow.
    """
    limits, shown = options.limits, printable(str(path), 200)
    command = [sys.executable, "-m", CHILD]
    payload = pickle.dumps((sys.path, path.absolute(), options))  # safe to unpickle: none of it comes from the file
    try:
        done = subprocess.run(command, input=payload, capture_output=True, timeout=4 * limits.seconds, check=False)
        code = done.returncode
    except subprocess.TimeoutExpired:
        code = -int(getattr(signal, "SIGXCPU", signal.SIGTERM))
    if code == 0:
        return
    if code == OUT_OF_MEMORY:
        what, way_out = f"{limits.memory:,} bytes of memory", "raise the limit with --limit memory=N"
    elif -code in (getattr(signal, "SIGXCPU", None), getattr(signal, "SIGKILL", None), signal.SIGTERM):
        what, way_out = f"{limits.seconds:,} seconds", "raise the limit with --limit seconds=N"
    else:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        what, way_out = f"the process that reads {shown} crashes ({how})", "the file may be damaged"
        raise OnnxgenError(what, help=f"{way_out}: export or download it again")
    raise OnnxgenError(f"reading {shown} takes more than {what}", help=way_out)
