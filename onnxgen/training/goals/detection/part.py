"""The generated module of a detector in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from onnxgen.record.module import metadata_of, space_of
from onnxgen.surgery.ports import signature_of
from onnxgen.training.original import files_of

if TYPE_CHECKING:
    from onnxgen.training.goals.detection.ready import Detector


def detector_of(model: nn.Module, size: str = "auto") -> Detector:
    """Return what is known of a detector. `size`: see `detector_at`.

    Raises:
        OnnxgenError: the model is of no generated file, its ONNX file is not there, or it is no detector that can be
            read.
    """
    from onnxgen.training.goals.detection.ready import detector_at  # imported here: it imports the pipeline

    module, onnx_file = files_of(model)
    found = detector_at(module, metadata_of(space_of(model)), size, onnx_file)
    names = [port.name for port in signature_of(model).outputs]  # some may have been added by hand
    return replace(found, missing=tuple(name for name in found.tail.maps if name not in names))
