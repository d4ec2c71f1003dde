"""Looks at data, packages and classes before PyTorch is loaded, which takes seconds. It refuses only what is certain.

All of it is checked again, and more, where the data is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onnxgen.common.paths import need
from onnxgen.errors import EditedError, OnnxgenError, Problems, counted
from onnxgen.training.config import DIGITS
from onnxgen.training.data.layout import SOUNDS, SUFFIXES, Layout, layout
from onnxgen.training.settings import Settings

ALWAYS = ("torch", "lightning", "torchmetrics", "tensorboard", "matplotlib")  # packages of every run
_AUTO = ("auto", "classification")


def glance(model: Path, data: str, settings: Settings) -> None:
    """Refuse what can't be trained.

    Args:
        model: a generated file, or the folder of a run.
        data: `DATA` of the command line.

    Raises:
        OnnxgenError: a package is missing, a folder has no images, or has more classes than the model.
    """
    path, boxes = Path(data), has_boxes(data, settings)
    is_folder = data != DIGITS and path.is_dir()
    kinds = {file.suffix.lower() for file in _files(path)} if is_folder else set[str]()
    need(
        (
            *ALWAYS,
            *(name for name in settings.loggers if name in ("wandb", "mlflow")),
            *(["peft"] if settings.lora else []),
            *(["sklearn"] if data == DIGITS else []),
            *(["soundfile"] if path.suffix.lower() in SOUNDS else []),
            *(["PIL"] if kinds & {*SUFFIXES} or boxes else []),
            *(["yaml", "faster_coco_eval"] if boxes else []),
        )
    )
    if boxes:
        _refuse_boxes(path, model, settings)
        return
    plain = settings.teacher is None and settings.noise is None and settings.task in _AUTO
    if is_folder and kinds <= {*SUFFIXES} and plain:
        _refuse_classes(layout(path), path, model, settings)


def has_boxes(data: Any, settings: Settings) -> bool:
    """Return True if the data is boxes, which are trained with their task unless another one is asked for."""
    if settings.task not in ("auto", "detection") or not isinstance(data, (str, Path)) or str(data) == DIGITS:
        return False
    from onnxgen.training.data.boxes.there import is_boxes

    return is_boxes(Path(data))


def _refuse_boxes(path: Path, model: Path, settings: Settings) -> None:
    """Refuse a `data.yaml` or a detector that can't be used: both at once. What is trained of the detector is written.

    The same is done again before training, where it costs little then.
    """
    from onnxgen.training.data.boxes.there import described, is_coco, yolo_file
    from onnxgen.training.goals.detection.ready import part_to_train

    problems = Problems()

    def add(found: Callable[[], object]) -> None:
        try:
            found()
        except EditedError:
            raise
        except OnnxgenError as error:
            for problem in error.problems:
                problems.add(problem)

    file = None if is_coco(path) else yolo_file(path)
    if file is not None:
        add(lambda: described(file))
    if not model.is_dir():
        add(lambda: part_to_train(model, settings.size))
    problems.raise_if_any()


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


def _refuse_classes(found: Layout, folder: Path, model: Path, settings: Settings) -> None:
    """Refuse more classes than a classifier has, with the words of `checking.py`."""
    if settings.replace_head is not None or settings.weights is not None or settings.partial or settings.loss != "auto":
        return
    has, count = len(found.classes), _classes_of(model)
    if count and has > count:
        some = ", ".join(found.classes[:3]) + (", ..." if has > 3 else "")
        what = f"the data has {counted(has, 'class')} ({some}), but the model has {count}"
        raise OnnxgenError(what, help=f"--replace-head {has}")


def _classes_of(model: Path) -> int:
    """Return how many classes a generated classifier has by what its weights say; 0 if they do not say it."""
    from onnxgen.weights.sidecar import sidecar_files  # these import onnx, which an empty folder need not wait for
    from onnxgen.weights.streamed import read_header

    try:
        metadata = read_header(sidecar_files(model.with_suffix(".safetensors"))[0])[0]
        purpose: Any = json.loads(metadata["signature"])["purpose"]
        if purpose["kind"] == "classification" and purpose["facts"]["axis"] == 1:
            return int(purpose["facts"]["classes"])
    except (OnnxgenError, OSError, LookupError, TypeError, ValueError):
        pass
    return 0
