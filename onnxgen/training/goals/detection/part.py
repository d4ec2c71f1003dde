"""The generated module of a detector in memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import onnx
from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.export.origin import source_of
from onnxgen.output.signature import recorded
from onnxgen.surgery.ports import signature_of
from onnxgen.training.goals.detection.ready import Detector, detector_at, ultralytics_size
from onnxgen.training.report.facts import file_of
from onnxgen.training.runs.folder import RECORD
from onnxgen.training.runs.record import read_record
from onnxgen.verify.integrity import metadata_of


def detector_of(model: nn.Module, size: str = "auto") -> Detector:
    """Return what is known of a detector. `size`: see `detector_at`.

    Raises:
        OnnxgenError: the model is of no generated file, its ONNX file is not there, or it is no detector that can be
            read.
    """
    found = detector_at(_module(model), metadata_of(vars(sys.modules[type(model).__module__])), size)
    names = [port.name for port in signature_of(model).outputs]  # some may have been added by hand
    return replace(found, missing=tuple(name for name in found.tail.maps if name not in names))


def ultralytics_file(model: nn.Module) -> Path | None:
    """Return the ONNX file of a model if Ultralytics wrote it; None if another one did, or if it is not there."""
    try:
        file = source_of(_module(model), recorded(metadata_of(vars(sys.modules[type(model).__module__]))))
    except OnnxgenError:
        return None
    return None if ultralytics_size(onnx.load(file, load_external_data=False)) is None else file


def _module(model: nn.Module) -> Path:
    """Return the generated file of a model; of a run, the file that was trained, beside which its ONNX file is."""
    if (file := file_of(model)) is None:
        what = f"{type(model).__name__} is of no generated file, which would say how its boxes are decoded"
        raise OnnxgenError(what, help="give the path of the module that onnxgen generated")
    folder = file.parent
    return read_record(folder).origin_for(folder) if (folder / RECORD).is_file() else file
