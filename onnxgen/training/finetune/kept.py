"""Classes that stay when a model gets a head for more or others (`--replace-head 12 --keep`)."""

from __future__ import annotations

from torch import nn

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.classes import classes_of
from onnxgen.surgery.head import find_head
from onnxgen.training.data.samples import Data
from onnxgen.training.settings import Settings


def kept_places(model: nn.Module, data: Data, settings: Settings) -> dict[int, int] | None:
    """Return the old place of each new class that stays: by their names if the model's are known, else by its place.

    Raises:
        OnnxgenError: no name is one of the model's, or the blank of a CTC network may change its place.
    """
    if not settings.keep or settings.replace_head is None:
        return None
    if settings.task == "ctc" and settings.blank != 0:
        what = "--keep leaves each class at its place, and the blank may be the last one"
        raise OnnxgenError(what, help="--blank 0, if it is the first; else replace_head(model, n, keep=...) in Python")
    old, new = classes_of(model), settings.classes or _names(data)
    if not (old and new):
        return {place: place for place in range(min(find_head(model).classes, settings.replace_head))}
    places = {name: place for place, name in enumerate(old)}
    kept = {place: places[name] for place, name in enumerate(new[: settings.replace_head]) if name in places}
    if not kept:
        what = f"--keep: no class of the data is one of the model's: {printable(', '.join(new[:5]))}"
        raise OnnxgenError(what, help=f"the model's are {printable(', '.join(old[:5]))}; or leave --keep out")
    return kept


def _names(data: Data) -> tuple[str, ...]:
    samples = next(iter(data.parts.values()), None)
    return () if samples is None or data.target not in data.named else samples.fields[data.target].classes
