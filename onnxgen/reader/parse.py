"""Parse the file at a path as an ONNX protobuf, or name the kind of file that it is instead."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from onnxgen.common.limits import Limits
from onnxgen.common.names import printable
from onnxgen.common.timing import WEIGHTS, stage
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.reader.skeleton import structure
from onnxgen.reader.survey import DEFAULTS, survey
from onnxgen.weights.file_tensor import SourceFile

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
    """A parsed protobuf, and the open file if it is large. Tokens stand for tensors left in it (`reader.skeleton`)."""

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
        raise OnnxgenError(
            f"{shown} cannot be read: {printable(getattr(error, 'strerror', '') or str(error))}"
        ) from None


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
