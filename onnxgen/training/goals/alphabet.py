"""The characters that a model reads already, which are those of its file or of its own training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.labels import PREFIX, SPACE, Alphabet, recorded_alphabet
from onnxgen.record.module import metadata_of, space_of
from onnxgen.record.usual import usual_of
from onnxgen.surgery.classes import told_classes
from onnxgen.training.data.images import ToInput

if TYPE_CHECKING:
    from onnxgen.training.tasks.card import Situation


def own_alphabet(model: nn.Module, classes: int) -> Alphabet | None:
    """Return the alphabet of a model whose output has so many classes; None if nothing says what they are.

    It is what was trained or chosen in this process (`set_classes`), else what the weights of its module record.
    """
    found = _recorded(model)
    found = None if found is None else found.of(classes)
    told = told_classes(model)
    if told is None or (found is not None and found.characters == told):
        return found
    return Alphabet(PREFIX + "classes", told) if 0 < len(told) < classes else None


def added(model: nn.Module, characters: Sequence[str]) -> list[str]:
    """Return those of the characters that the file of a model does not list; [] if it lists none."""
    listed = _recorded(model)
    return [] if listed is None else [c for c in characters if c not in {*listed.characters, SPACE}]


def extended(known: Sequence[str], used: Sequence[str], classes: int) -> tuple[str, ...]:
    """Return the alphabet of a new head of so many classes in which characters of an old one stay.

    With room for all of them, the old ones keep their places, and those that only the data uses are behind them. With
    less, it is the characters that the data uses.
    """
    every = (*known, *(c for c in used if c not in {*known}))
    return every if len(every) < classes else tuple(used)


def as_author(found: Situation) -> list[str]:
    """Return a note of how the author of the file feeds images, if the file tells the author, but these are not so fed.

    A new head changes nothing about that.
    """
    step, usual = getattr(found.samples, "steps", {}).get(found.feeding.inputs[0]), usual_of(_metadata(found.model))
    return usual.left(found.settings) if usual is not None and isinstance(step, ToInput) else []


def _recorded(model: nn.Module) -> Alphabet | None:
    return recorded_alphabet(_metadata(model))


def _metadata(model: nn.Module) -> Mapping[str, str]:
    try:
        return metadata_of(space_of(model))
    except OnnxgenError:  # damaged weights, which the model does not need any more
        return {}
