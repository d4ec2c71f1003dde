"""Boxes: the raw maps of a detector are trained, and the graph that decodes them stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from onnxgen.errors import OnnxgenError, Problems
from onnxgen.training.tasks.card import Card, Given, Parts, later

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.training.data.samples import Data
    from onnxgen.training.settings import Settings
    from onnxgen.training.tasks.card import Refitted

# Functions import what they need: the part that is trained is generated, which loads the whole pipeline.


def _divides(model: nn.Module, notes: list[str]) -> bool:
    from onnxgen.training.original import ultralytics_file

    if (file := ultralytics_file(model)) is None:
        return False
    notes.append(f"{file.name} is a file of Ultralytics (its metadata has imgsz), which trains on pixels of 0 to 1")
    return True


def _has(context: Given) -> str:
    """Boxes are for this task whatever the network is for. Raises `OnnxgenError` if there are classes instead."""
    asked = isinstance(context.settings.target, Mapping) or context.speaks_against()
    if context.purpose.kind and not asked and (classes := context.classes()):
        what = f"the network finds boxes ({context.purpose.evidence[0]}), but {classes}, and no boxes"
        way = "name a folder with labels of YOLO, COCO or Pascal VOC; for a loss of each output, --task outputs"
        raise OnnxgenError(what, help=way)
    return ""


def _is_there(path: Path) -> bool:
    from onnxgen.training.data.boxes.there import is_boxes

    return is_boxes(path)


def _refuse(path: Path, model: Path, settings: Settings) -> None:
    """Refuse a `data.yaml` or a detector that can't be used: both at once. What is trained of the detector is written.

    The same is done again before training, where it costs little then.
    """
    from onnxgen.training.data.boxes.there import described, is_coco, yolo_file

    problems = Problems()
    file = None if is_coco(path) else yolo_file(path)
    if file is not None:
        with problems.gathered():
            described(file, settings.classes)
    if not model.is_dir():
        with problems.gathered():
            _ready(model, settings.size)
    problems.raise_if_any()


def _ready(model: Path, size: str) -> tuple[Path | None, list[str]]:
    from onnxgen.training.goals.detection.ready import part_to_train

    return part_to_train(model, size)


def _refit(model: nn.Module, file: Path | None, opened: Data, settings: Settings) -> Refitted:
    """Return a detector up to its raw maps with a head for the classes of the data, its file, new layers and notes."""
    from onnxgen.training.goals.detection.head import detector_of, fit_head
    from onnxgen.training.model import begun

    notes: list[str] = []
    if file is not None and (part := detector_of(model, settings.size).part())[0] != file and not file.is_dir():
        file, notes = part
        model = begun(file, settings)[0]
    head, more = fit_head(model, opened, settings.replace_head, settings.from_scratch)
    return model, file, head, notes + more


CARD = Card(
    "detection",
    later("detection.goal.make"),
    metrics=("map", "map50", "map75", "best_score"),
    reads="target",
    columns=("boxes",),
    data="boxes",
    resize="letterbox",
    freezes_norms=True,
    target="moved",
    divides=_divides,
    refused={
        "keep": (
            "keep leaves classes in a new head of a classifier, and all classes of a detector's new head are new",
            "leave out --keep",
        )
    },
    parts=Parts(
        _is_there, _refuse, _ready, _refit, later("detection.head.class_layers"), later("detection.boxes.predicted")
    ),
    kinds=("detection",),
    has=_has,
)
