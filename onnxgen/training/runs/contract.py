"""The contract of a trained network: all that a program does before and after it, for the metadata of its files.

It is made of `run.json` alone, and written here alone. docs/EXPORT.md describes its fields. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnxgen.common.built import json_object
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.record.sidecar import TRAINED
from onnxgen.training.data.image_options import scale_text
from onnxgen.training.runs.folder import RECORD, TOKENIZER
from onnxgen.training.runs.record import BOXES, VECTORS, Carried, Image, Input, Record, Target
from onnxgen.training.tasks import known

VERSION = 2  # 1 was the list of inputs
APPLIED = {"softmax": "", "log_softmax": "exp", "sigmoid": "", "": "softmax"}  # by what a model of classes ends in
LIKELY_BOX = 0.25  # a box with a greater score is found
BEST_SCORE = "best_score"  # the metric of the surest box
MOST_OVERLAP = 0.7  # IoU of boxes of one class: of two that overlap by more, the better one is found
CANDIDATES, MOST_BOXES = 1024, 300  # of an image: boxes that are compared, and that are found
CHOSEN = {"score": LIKELY_BOX, "candidates": CANDIDATES, "overlap": MOST_OVERLAP, "most": MOST_BOXES}


@dataclass(frozen=True)
class Finding:
    """Which boxes of an image are found.

    Attributes:
        least: boxes with a lower score are left out.
        overlap: of two boxes that overlap by a greater IoU, the better one is found.
        across: this holds for boxes of two classes, too.
    """

    least: float = LIKELY_BOX
    overlap: float = MOST_OVERLAP
    across: bool = False


_WHITE = 255.0  # of the bytes of image files


def finds_nothing(best: float) -> str:
    """Return a sentence if no box has a score that is found by default; else "". `best`: the highest one."""
    if not 0 <= best < LIKELY_BOX:
        return ""
    what = f"no box has a score of {LIKELY_BOX:g}, below which predict leaves boxes out: the best one has {best:.3g}"
    return f"{what} -> onnxgen predict --min-score {best / 2:.1g} shows it; a longer training makes scores higher"


def facts_of(record: Record) -> dict[str, str]:
    """Return what the metadata of weights and of exported files says of a run: JSON by key."""
    return {"classes": json.dumps(record.classes), TRAINED: json.dumps(contract(record))}


def shipped_facts(run: Path, record: Record) -> dict[str, str]:
    """Return what the metadata of an exported file says of a run: also a digest of its record, and its tokenizer.

    Raises:
        OnnxgenError: the run's tokenizer is gone.
    """
    facts = {**facts_of(record), "run": hashlib.sha256((run / RECORD).read_bytes()).hexdigest()}
    if "tokenizer" in record.settings:
        try:
            facts["tokenizer"] = (run / TOKENIZER).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise OnnxgenError(f"{run / TOKENIZER} can't be read: {one_line(error)}", help="restore it") from None
    return facts


def contract(record: Record) -> dict[str, Any]:
    """Return the contract: how each input is made, and what each output says."""
    table = record.settings.get("table")
    columns: Mapping[str, Any] = table["columns"] if isinstance(table, Mapping) and "columns" in table else {}
    inputs = [_input(entry, columns, record.settings) for entry in record.inputs]
    constants: Mapping[str, float] = record.settings.get("const", {})
    states = [_state(one) for one in record.states]
    held = {one["name"] for one in states}
    constants = {name: value for name, value in constants.items() if name not in held}
    inputs += [{"name": name, "kind": "constant", "value": value} for name, value in constants.items()] + states
    return {"version": VERSION, "inputs": inputs, "outputs": [_output(target) for target in record.targets]}


def fed_images(text: str) -> tuple[str, dict[str, Any]]:
    """Return how images are fed by the contract of a file: their `Settings.normalize`, and other settings by name.

    They are "" and {} if the text is no contract, or its first input takes no images.
    """
    try:
        first = json_object(text)["inputs"][0]
        scale = (tuple(map(float, first["mean"])), tuple(map(float, first["std"])))
        placed = {"middle": "letterbox"}.get(first["at"], first["at"]) if first["beside"] else "stretch"
        settings: dict[str, Any] = {"channel_order": str(first["order"]).lower(), "resize": str(placed)}
        settings["beside"] = int(first["beside"][0]) if first["beside"] else None
        return "none" if scale == plain_scale(first["channels"], _WHITE) else scale_text(scale), settings
    except (KeyError, TypeError, ValueError, IndexError):
        return "", {}


def fed_size(text: str) -> tuple[int, int] | None:
    """Return the height and width of images by the contract of a file; None as `fed_images` has none."""
    try:
        first = json_object(text)["inputs"][0]
        return int(first["height"]), int(first["width"])
    except (KeyError, TypeError, ValueError, IndexError):
        return None


def plain_scale(channels: int, white: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation that leave values as they are, of a picture whose white is `white`."""
    return (0.0,) * channels, (1 / white,) * channels


def _input(entry: Input, columns: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    shape = entry.shape if entry.steps is None else entry.steps.shape(entry.shape)
    known = {"name": entry.name, "column": entry.column, "dtype": entry.dtype, "shape": shape}
    cut = {} if entry.steps is None else {"steps": asdict(entry.steps)}
    return {**known, "batch": None if entry.alone else entry.batch, **_kind(entry, columns, settings), **cut}


def _state(one: Carried) -> dict[str, Any]:
    """Return how an input begins and goes on that holds a state."""
    known = {"name": one.name, "kind": "state", "dtype": one.dtype, "shape": one.shape}
    return {**known, "batch": None if one.alone else one.batch, "value": one.value, "from": one.output}


def _kind(entry: Input, columns: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of an input, and what that kind needs."""
    if entry.image is not None:
        return {"kind": "image", **_image(entry.image)}
    if entry.rate:
        return {"kind": "sound", "rate": entry.rate, "length": entry.shape[-1] if entry.steps is None else None}
    if entry.role:
        texts = entry.columns[:1] if known(settings.get("task")).compares else entry.columns  # a vector is of one text
        text = {"role": entry.role, "columns": texts, "most": settings.get("max_length"), "pad": entry.pad}
        return {"kind": "text", **text, "start": settings.get("decoder_start")}
    if entry.columns:
        plain = {"fill": None, "mean": 0.0, "scale": 1.0, "categories": None, "onehot": False, "zeros": False}
        return {"kind": "table", "columns": [{"name": n, **plain, **columns.get(n, {})} for n in entry.columns]}
    return {"kind": "numbers"}


def _image(image: Image) -> dict[str, Any]:
    """Return how bytes become the input; without a mean in the run, 255 becomes the white of its data."""
    names = ("channels", "height", "width", "width_step", "beside", "at", "order", "axes")
    fixed = {name: getattr(image, name) for name in names}
    plain = plain_scale(image.channels, image.white)
    mean, std = image.mean or plain[0], image.std or plain[1]
    return {**fixed, "white": _WHITE, "mean": mean, "std": std}


def _output(target: Target) -> dict[str, Any]:
    """Return what an output says. Axes count the batch's."""
    axes = {"batch": None if target.alone else target.batch, "axis": target.axis}
    if target.loss == BOXES:
        rules = target.head.get("found", {})
        return {"name": target.name, "kind": "boxes", "names": target.all_names, **(rules and {**rules, **CHOSEN})}
    if target.loss == VECTORS:
        return {"name": target.name, "kind": "vectors", "batch": axes["batch"], **target.head}
    if target.loss == "ctc_loss":
        return {"name": target.name, "kind": "text", **axes, "blank": target.blank, "characters": target.names}
    if target.loss == "heatmaps":
        return {"name": target.name, "kind": "heatmaps", **axes}
    if target.loss == "image":
        mean, std = ([float(x) for x in part.split("/")] for part in target.scale.split(","))
        return {"name": target.name, "kind": "image", **axes, "mean": mean, "std": std, "order": target.order}
    if not target.classes:
        return {"name": target.name, "kind": "numbers", **axes}
    if target.loss.startswith("binary"):
        applied = "" if target.activation else "sigmoid"
        return {"name": target.name, "kind": "labels", **axes, "apply": applied, "names": target.names}
    applied = "none" if target.loss == "multi_margin_loss" else APPLIED[target.activation]
    return {"name": target.name, "kind": "classes", **axes, "apply": applied, "names": target.all_names}


def onnx_beside_origin(run: Path, record: Record) -> Path | None:
    """Return the ONNX file of a run, which is beside the module that was trained; None if it is not there."""
    file = record.place_of_origin(run).with_name(record.onnx) if record.onnx else None
    return file if file is not None and file.is_file() else None
