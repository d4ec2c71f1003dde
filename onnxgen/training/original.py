"""The ONNX file of a model in memory, and what its metadata tell of the training that made it."""

from __future__ import annotations

from pathlib import Path

import onnx
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.labels import PREFIX, ultralytics_size
from onnxgen.record.sidecar import TRAINED, metadata_of, space_of
from onnxgen.record.signature import recorded
from onnxgen.record.way_back import source_of
from onnxgen.training.report.facts import file_of
from onnxgen.training.runs.contract import fed_size, onnx_beside_origin
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.runs.record import read_record


def ultralytics_file(model: nn.Module) -> Path | None:
    """Return the ONNX file of a model if Ultralytics wrote it; None if another one did, or if it is not there."""
    file = _onnx_of(model)
    return None if file is None or ultralytics_size(_entries(file)) is None else file


def size_told(model: nn.Module) -> tuple[int, int] | None:
    """Return the height and width of the training that made a model's ONNX file; None if that file does not tell it.

    Ultralytics writes it, and the export of a run.
    """
    if (file := _onnx_of(model)) is None:
        return None
    entries = _entries(file)
    return ultralytics_size(entries) or fed_size(entries.get(PREFIX + TRAINED, ""))


def _entries(file: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(file, load_external_data=False).metadata_props}


def _onnx_of(model: nn.Module) -> Path | None:
    try:
        module, onnx_file = files_of(model)
        return source_of(module, recorded(metadata_of(space_of(model))), onnx_file)
    except OnnxgenError:
        return None


def files_of(model: nn.Module) -> tuple[Path, Path | None]:
    """Return the generated file of a model, and its ONNX file if that is beside another one: the origin of its run."""
    if (file := file_of(model)) is None:
        what = f"{type(model).__name__} is of no generated file, which would say how its boxes are decoded"
        raise OnnxgenError(what, help="give the path of the module that onnxgen generated")
    folder = file.parent
    if not (folder / RECORD).is_file():
        return file, None
    record = read_record(folder)
    return record.origin_for(folder), onnx_beside_origin(folder, record)
