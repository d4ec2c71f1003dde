"""Looks at data, packages and classes before PyTorch is loaded, which takes seconds. It refuses only what is certain.

All of it is checked again, and more, where the data is opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onnxgen.common.names import legible
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problems, counted
from onnxgen.record.sidecar import metadata_at, shapes_in
from onnxgen.record.signature import Signature, recorded
from onnxgen.training.config import DIGITS
from onnxgen.training.data.layout import (
    SOUNDS,
    SUFFIXES,
    files_below,
    folders,
    layout,
    nested,
    part_called,
    refuse_nested,
    refuse_special,
)
from onnxgen.training.data.looking import refuse_unopened
from onnxgen.training.data.named import check_ports, check_words
from onnxgen.training.data.read_early import check_file
from onnxgen.training.data.unpacked import unpacked
from onnxgen.training.goals.names import check_names, refuse_for_task
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import AUTO, CARDS
from onnxgen.training.tasks.card import Parts

ALWAYS = ("torch", "lightning", "torchmetrics", "tensorboard", "matplotlib")  # packages of every run
MOST_NAMES = 20  # of blocks, in an error
_AUTO = ("auto", "classification")


def glance(model: Path, data: str, settings: Settings) -> None:
    """Refuse what can't be trained.

    Args:
        model: a generated file, or the folder of a run.
        data: `DATA` of the command line.

    Raises:
        OnnxgenError: a package is missing, a folder has no images, or has more classes than the model.
    """
    path, problems = Path(data), Problems()
    refuse_special(path)
    is_folder = data != DIGITS and path.is_dir()
    path = unpacked(path) if is_folder else path
    if is_folder and (inside := _inside(path)) != path:
        with problems.gathered():
            refuse_nested(path, {"train": path}, SUFFIXES)
        path = inside  # which decides what else is wrong
    parts = parts_for(path, settings)
    kinds = {file.suffix.lower() for file in _files(path)} if is_folder else set[str]()
    with problems.gathered():
        _need_packages(path, kinds, parts is not None, settings)
    lacking = bool(problems.found)
    check_words(settings, problems)
    plain = settings.teacher is None and settings.noise is None and settings.task in _AUTO
    images = is_folder and parts is None and kinds <= {*SUFFIXES} and plain
    with problems.gathered():
        if settings.task in CARDS:
            refuse_for_task(settings)
    sure = (images or (plain and data == DIGITS)) and settings.loss == "auto" and _classes_of(model) > 0
    check_names(settings, problems, sure)
    if (found := _signature_of(model)) is not None and parts is None:  # another part of it may be trained
        check_ports(found.inputs, settings, problems)
    if parts is None and settings.replace_head is None:  # another part or another head has its own names
        _check_patterns(model, settings, problems)
    if parts is not None and not lacking:  # they read its file, and write the part that is trained
        with problems.gathered():
            parts.refuse(path, model, settings)
    if images:
        with problems.gathered():
            laid = layout(path)
            if not lacking:
                refuse_unopened(path, laid, settings.strict, problems)
            _refuse_classes(model, settings, laid.classes)
    elif data != DIGITS and not is_folder:
        count = 0 if _may_change(settings) else _classes_of(model)
        check_file(path, found, settings, problems, partial(_refuse_classes, model, settings), count)
    problems.raise_if_any()


def _inside(folder: Path) -> Path:
    """Return the folder that an archive was unpacked into, if there is nothing beside it; else `folder`."""
    only = folders(folder)
    alone = len(only) == 1 and not any(path.is_file() for path in folder.iterdir())
    return nested(folder) if alone and part_called(only[0].name) is None else folder


def _need_packages(path: Path, kinds: set[str], boxes: bool, settings: Settings) -> None:
    need(
        (
            *ALWAYS,
            *(name for name in settings.loggers if name in ("wandb", "mlflow")),
            *(["peft"] if settings.lora else []),
            *(["sklearn"] if str(path) == DIGITS else []),
            *(["soundfile"] if path.suffix.lower() in SOUNDS else []),
            *(["PIL"] if kinds & {*SUFFIXES} or boxes else []),
            *(["yaml", "faster_coco_eval"] if boxes else []),
        )
    )


def parts_for(data: Any, settings: Settings) -> Parts | None:
    """Return how a part of the network is trained for the data, unless another task is asked for; None: all of it."""
    if not isinstance(data, (str, Path)) or str(data) == DIGITS:
        return None
    for card in CARDS.values():
        if card.parts is not None and settings.task in (AUTO, card.name):
            refuse_special(Path(data))
            if card.parts.is_there(unpacked(Path(data))):
                return card.parts
    return None


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in files_below(folder) if path.is_file())


def _may_change(settings: Settings) -> bool:
    """Return True if the network gets another number of classes, or its outputs may be none."""
    changed = settings.weights is not None or settings.partial or settings.loss != "auto"
    return changed or settings.replace_head is not None


def _refuse_classes(model: Path, settings: Settings, names: Sequence[str]) -> None:
    """Refuse more classes than a classifier has, with the words of `checking.py`."""
    if settings.weights is not None or settings.partial or settings.loss != "auto":
        return
    has, count = len(names), settings.replace_head or _classes_of(model)
    if count and has > count:
        some = ", ".join(map(legible, names[:3])) + (", ..." if has > 3 else "")
        what = f"the data has {counted(has, 'class')} ({some}), but the model has {count}"
        raise OnnxgenError(what, help=f"--replace-head {has}")


def _check_patterns(model: Path, settings: Settings, problems: Problems) -> None:
    """Add the patterns whose first part is nowhere: neither a word of the module's text nor in the names of weights."""
    patterns = [p for p in (*settings.freeze, *settings.lora_target) if not {*"*?[]"} & {*p.partition(".")[0]}]
    names = [name for name in _stored(model) if name != "__metadata__"] if patterns else []
    if not names or model.is_dir():
        return
    tops = [*dict.fromkeys(name.partition(".")[0] for name in names)]
    known = {*tops, *re.findall(r"\w+", model.read_text(encoding="utf-8", errors="replace"))}
    for pattern in patterns:
        if pattern.partition(".")[0] not in known:
            what = f"no module or parameter is called {legible(pattern)!r}"
            more = ", ..." if tops[MOST_NAMES:] else ""
            problems.add(what, help=f"there are {', '.join(map(legible, tops[:MOST_NAMES]))}{more}")


def _classes_of(model: Path) -> int:
    """Return how many classes a generated classifier has by what its weights say; 0 if they do not say it."""
    found = _signature_of(model)
    purpose = None if found is None else found.purpose
    if purpose is None or purpose.kind != "classification" or purpose.facts.get("axis") != 1:
        return 0
    count: Any = purpose.facts.get("classes")
    return count if type(count) is int else 0


def _signature_of(model: Path) -> Signature | None:
    """Return what the weights beside a module say of its inputs and outputs; None if they say nothing."""
    if model.is_dir():  # of a run another module may be trained
        return None
    return recorded(metadata_at(model.with_suffix(".safetensors")))


def _stored(model: Path) -> list[str]:
    """Return the names of the weights beside a module; none if they can't be read."""
    try:
        return [*shapes_in(model.with_suffix(".safetensors"))]
    except (OnnxgenError, ValueError):
        return []
