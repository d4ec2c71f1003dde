"""Put the new ONNX file in place, with facts about its training in `metadata_props`.

The file is verified in a temporary folder, then renamed. It never replaces the original. Our entries have a prefix of
ours. What other tools tell there of the classes and of the inputs is made to fit the file.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from onnxgen.common.atomic import is_same_file, own_folder, replacing
from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.export.report import ExportReport
from onnxgen.reader.protos import tensors_of
from onnxgen.record.labels import KEYS, PREFIX, alphabet_of, read_list, ultralytics_size
from onnxgen.record.sidecar import TRAINED

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
    paths = {path}
    for tensor in tensors_of(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            paths |= {folder / entry.value for entry in tensor.external_data if entry.key == "location"}
    return paths


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
    """Make a folder beside the new file, in which it is made and verified under its own name."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(own_folder(out.absolute().parent, WORKSHOP_PREFIX))
        except OSError as error:
            raise OnnxgenError(f"cannot write {out}: {error.strerror}") from None
        yield folder / out.name


def put_in_place(draft: Path, out: Path) -> list[Path]:
    """Move the new file to `out`, its data first. Returns the files."""
    pairs = [(path, out.with_name(path.name)) for path in sorted(draft.parent.iterdir()) if path != draft]
    if sys.platform == "win32":
        gc.collect()  # Windows cannot rename a file that is still mapped
    try:
        with replacing([out.absolute().parent]) as files:
            for source, target in (*pairs, (draft, out)):
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


def record_metadata(path: Path, metadata: Mapping[str, str], report: ExportReport) -> None:
    """Put entries into the ONNX file at `path`, instead of all that an earlier export put there.

    Those describe another training. So they go, even if no new ones are given; then the report says so.
    """
    model = onnx.load(path, load_external_data=False)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    facts, missing = _of_outputs(metadata, {value.name for value in model.graph.output})
    new = {PREFIX + key: text for key, text in facts.items()}
    others = {key: text for key, text in entries.items() if not key.startswith(PREFIX)}
    kept, unknown = relabelled(others, json.loads(metadata.get("classes", "[]")))
    mended = [key for key in others if kept.get(key) != others[key] and key not in unknown]
    if missing:
        what = f"the file has no output {', '.join(map(printable, missing))}, which the run's answers are read from"
        report.notes.append(f"{what}: its metadata does not say how")
    report.notes += [
        *_left_to_others(facts),
        *_naming(
            "left out what the original says of its own training",
            [key for key in entries if key not in others and key not in new],
        ),
        *_naming("the file's own list of classes has the new ones", mended),
        *_naming("left out what may list other classes, in a form that is not known", unknown),
    ]
    kept = _of_input(kept, model.graph)
    if new or kept != entries:
        onnx.helper.set_model_props(model, kept | new)
        save(model, path, report.out)


def _naming(what: str, keys: list[str]) -> list[str]:
    """Return a note on keys of the metadata; none if there are none."""
    return [f"{what}: {', '.join(map(printable, keys))}"] if keys else []


def _of_input(entries: dict[str, str], graph: onnx.GraphProto) -> dict[str, str]:
    """Return the entries of Ultralytics with the size and the batch of the image that the network takes, if fixed."""
    shapes = [value.type.tensor_type.shape.dim for value in graph.input]
    images = [[dim.dim_value for dim in dims] for dims in shapes if len(dims) == 4]
    size = ultralytics_size(entries)
    if size is None or len(images) != 1:
        return entries
    batch, _, height, width = images[0]  # 0 is an open one
    fitted = dict(entries)
    if height and width and (height, width) != size:
        fitted["imgsz"] = f"[{height}, {width}]"
    if batch and "batch" in fitted:
        fitted["batch"] = str(batch)
    return fitted


def _of_outputs(metadata: Mapping[str, str], names: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Return the facts without what they say of outputs that the file does not have, and the names of these.

    A detector that is exported anew ends in its raw maps, and an edited `forward` may return more than the file.
    """
    facts = dict(metadata)
    try:
        contract = json.loads(facts[TRAINED])
        outputs = [(entry, _read_from(entry)) for entry in contract["outputs"]]
    except (KeyError, TypeError, ValueError):  # none, or one that a user wrote
        return facts, []
    missing = {name for _, read in outputs for name in read if name not in names}
    if missing:
        contract["outputs"] = [entry for entry, read in outputs if not missing & read]
        facts[TRAINED] = json.dumps(contract)
    return facts, sorted(missing)


def _left_to_others(facts: Mapping[str, str]) -> list[str]:
    """Return a note if a program that runs the file has to make boxes of its outputs."""
    try:
        entries = [entry for entry in json.loads(facts[TRAINED])["outputs"] if entry["kind"] == "boxes"]
    except (KeyError, TypeError, ValueError):
        return []
    how = f"{PREFIX}{TRAINED} in its metadata says how, and samples/deploy/predict.py does it"
    for entry in entries:
        if not entry.get("boxes"):
            return ["its metadata does not say where its boxes are: they are read as the author of the network says"]
        if entry["layout"] == "offsets":
            place = printable(entry["boxes"]["output"])
            return [f"the file does not decode boxes: output {place} has offsets and logarithms of sizes; {how}"]
    return []


def _read_from(entry: Mapping[str, Any]) -> set[str]:
    """Return the outputs that an entry of the contract is read from."""
    if entry["kind"] != "boxes":
        return {entry["name"]}
    return {entry[part]["output"] for part in ("boxes", "scores", "objects") if entry.get(part)}


def relabelled(entries: dict[str, str], classes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return entries with the new classes, and the keys of those that list others in a form that is unknown.

    An entry that lists the same classes stays as it is, also one that lacks the space at the end of an alphabet. A
    list with the name of the blank at one end keeps it there.
    """
    if not classes:
        return entries, []
    fitted, unknown = dict(entries), []
    for key, text in entries.items():
        if not KEYS.fullmatch(key):
            continue
        listing = read_list(text)
        if listing is None:
            del fitted[key]
            unknown.append(key)
        elif (new := _renamed(listing[0], list(classes))) != listing[0]:
            fitted[key] = listing[1](new)
    return fitted, unknown


def _renamed(old: list[str], classes: list[str]) -> list[str]:
    """Return a list with the new classes; the old one if it has the same."""
    alphabet = alphabet_of(old)
    if alphabet is None:
        return classes
    same = alphabet.of(len(classes) + 1)
    if same is not None and [*same.characters] == classes:
        return old
    if alphabet.blank is None or not all(len(name) == 1 for name in classes):
        return classes
    return [old[0], *classes] if alphabet.blank == 0 else [*classes, old[-1]]
