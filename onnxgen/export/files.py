"""Put the new ONNX file in place: it is verified in a temporary folder, then renamed. It never replaces the
original.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from onnxgen.common.atomic import is_same_file, own_folder, replacing
from onnxgen.errors import OnnxgenError
from onnxgen.reader.protos import tensors_of

MAX_PROTOBUF_BYTES = (1 << 31) - (1 << 20)  # bytes of tensors in a protobuf, with room for the rest below its limit
MAX_INLINE_BYTES = 1 << 10  # bytes; smaller tensors always stay inline
WORKSHOP_PREFIX = ".onnxgen-export-"  # prefix of the temporary folders
ALIGNMENT_BYTES = 4096  # bytes; large tensors begin at multiples of this, so that they can be mapped


def data_path(out: Path) -> Path:
    """Return the path of the external data of an ONNX file."""
    return out.with_name(out.name + ".data")


def original_files(path: Path) -> set[Path]:
    """Return an ONNX file and its external data files."""
    model = onnx.load(path, load_external_data=False)
    folder = path.absolute().parent
    found = {path}
    for tensor in tensors_of(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            found |= {folder / entry.value for entry in tensor.external_data if entry.key == "location"}
    return found


def refuse_overwriting(out: Path, original: Path, kept: Iterable[Path], force: bool) -> None:
    """Refuse to overwrite files with the new file or its data, unless they are an earlier export or `force` is set.

    What is there already may be an earlier export: a model whose inputs and outputs have the original's names.

    Raises:
        OnnxgenError: one of the files to keep, or, without `force`, anything else is there.
    """
    if not out.name or out.is_dir():
        raise OnnxgenError(f"cannot write {out}: it is a folder", help="name a file with -o")
    for target in (out, data_path(out)):
        for path in kept:
            if is_same_file(target, path):
                what = f"cannot write {target}: it is the original file or a file of the module"
                raise OnnxgenError(what, help="name another file with -o")
    there = next((path for path in (out, data_path(out)) if path.exists()), None)
    if force or there is None or (out.is_file() and _ends(out) == _ends(original)):
        return
    what = f"cannot write {out}: {'it' if there == out else there} exists and is not an earlier export of this model"
    raise OnnxgenError(what, help="name another file with -o, or overwrite it with --force")


def _ends(path: Path) -> tuple[list[str], list[str]] | None:
    """Return the names of a model's inputs and outputs, or None if the file is not ONNX."""
    try:
        graph = onnx.load(path, format="protobuf", load_external_data=False).graph  # not by the file's extension
    except (OSError, DecodeError):
        return None
    stored = {tensor.name for tensor in graph.initializer}
    return [v.name for v in graph.input if v.name not in stored], [v.name for v in graph.output]


@contextmanager
def workshop(out: Path) -> Iterator[Path]:
    """Make a temporary folder in the same file system, in which the new file is made and verified under its
    own name.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(out.absolute().parent, WORKSHOP_PREFIX))
        except OSError as error:
            raise OnnxgenError(f"cannot write {out}: {error.strerror}") from None
        yield folder / out.name


def put_in_place(made: Path, out: Path) -> list[Path]:
    """Move the new file to `out`, its data first. Returns the files."""
    pairs = [(path, out.with_name(path.name)) for path in sorted(made.parent.iterdir()) if path != made]
    if sys.platform == "win32":
        gc.collect()  # Windows cannot rename a file that is still mapped
    try:
        with replacing([out.absolute().parent]) as files:
            for source, target in (*pairs, (made, out)):
                files.take(source, target)
    except OSError as error:
        raise OnnxgenError(f"cannot write {out}: {error.strerror or error}") from error
    return [out, *(target for _, target in pairs)]


class Data:
    """The external data file. Tensors are written one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.name = file, Path(file.name).name

    def put(self, tensor: onnx.TensorProto, content: ir.TensorProtocol) -> None:
        """Write a tensor's elements, and record their position in its protobuf."""
        start = self.file.tell()
        if content.nbytes >= ALIGNMENT_BYTES and start % ALIGNMENT_BYTES:
            start += ALIGNMENT_BYTES - start % ALIGNMENT_BYTES
            self.file.seek(start)
        if isinstance(content, ir.ExternalTensor):
            content.tofile(self.file)  # copies in chunks
        else:
            self.file.write(content.tobytes())
        tensor.ClearField("raw_data")
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        where = {"location": self.name, "offset": str(start), "length": str(content.nbytes)}
        for key, value in where.items():
            tensor.external_data.add(key=key, value=value)


def save(model: onnx.ModelProto, path: Path, shown: str) -> None:
    """Write a protobuf. Raises `OnnxgenError`, which names the file `shown`."""
    try:
        path.write_bytes(model.SerializeToString())
    except OSError as error:
        raise OnnxgenError(f"cannot write {shown}: {error.strerror or error}") from error


@contextmanager
def data_file(out: Path) -> Iterator[Data]:
    """Open the external data file of `out`. It is removed if nothing was written."""
    path = data_path(out)
    with open(path, "wb") as file:
        yield Data(file)
        is_empty = not file.tell()
    if is_empty:
        path.unlink()
