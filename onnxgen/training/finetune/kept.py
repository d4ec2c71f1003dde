"""Classes that stay when a model gets a head for more or others (`--replace-head 12 --keep`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted
from onnxgen.record.labels import alphabet_of, listed_names
from onnxgen.surgery.head import find_head
from onnxgen.surgery.ports import classes_of, set_classes
from onnxgen.surgery.replacing import replace_head
from onnxgen.training.data import feed
from onnxgen.training.data.samples import Data
from onnxgen.training.goals.outputs import extended, own_alphabet, set_alphabet
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of

_LIST = "name them with --own-classes FILE"
_PYTHON = "replace_head(model, n, keep=...) in Python"


def put_head(model: nn.Module, data: Data, settings: Settings) -> None:
    """Give a model the head that `--replace-head` asks for.

    Raises:
        OnnxgenError: as `kept_places` and `replace_head`; or `--own-classes` does not fit the old head.
    """
    assert settings.replace_head is not None
    if settings.own_classes is not None:
        _name(model, settings.own_classes, card_of(settings.task).classes == "characters")
    if (new := _new_alphabet(model, data, settings)) is None:
        replace_head(model, settings.replace_head, keep=kept_places(model, data, settings))
        return
    replace_head(model, settings.replace_head, keep=new[1])
    set_classes(model, new[0])


def _name(model: nn.Module, file: Path, reads: bool) -> None:
    """Say which classes a model has, by a list of them. `reads`: it reads text, and one of them may be the blank."""
    names, count = tuple(listed_names(file, "--own-classes")), find_head(model).classes
    if (again := [name for name, times in Counter(names).items() if times > 1]) and not reads:
        raise OnnxgenError(f"--own-classes: {file} lists {legible(again[0])!r} twice", help="each class has a name")
    alphabet = alphabet_of(names, "--own-classes") if reads else None
    if alphabet is not None and alphabet.of(count) is not None:
        set_alphabet(model, alphabet)
    elif len(names) == count and not reads:
        set_classes(model, names)
    else:
        what = f"--own-classes: {file} lists {_listed_kind(names, reads)}, but the model has {count:,}"
        order = "in the order of its outputs" + (", without the blank or with it at one end" if reads else "")
        raise OnnxgenError(what, help=f"one in each line, or a JSON list, {order}")


def _listed_kind(names: Sequence[str], reads: bool) -> str:
    """Say how many names a list has, and of an alphabet what is none of its characters."""
    signs = [f"line {place} is {legible(name)!r}" for place, name in enumerate(names, 1) if len(name) != 1]
    if not reads or not signs:
        return f"{len(names):,} {'characters' if reads else 'classes'}"
    return f"{len(names) - len(signs):,} characters and {counted(len(signs), 'other name')} ({listed(signs, 3)})"


def _new_alphabet(model: nn.Module, data: Data, settings: Settings) -> tuple[tuple[str, ...], dict[int, int]] | None:
    """Return the characters of a new head, and the old class of each new one that stays; the first one is the blank.

    None if the model reads no text, does not keep its characters, or if nothing says which they are.
    """
    old = find_head(model).classes if settings.keep and card_of(settings.task).classes == "characters" else 0
    own = own_alphabet(model, old) if old else None
    if own is None or own.blank or settings.blank or settings.replace_head is None:
        return None
    if len(settings.classes) >= settings.replace_head:  # one of them is the blank, at any place
        return None
    from onnxgen.training.goals.ctc import characters_of  # imported here: it imports torchmetrics

    column = feed(data, model, settings).others[0]
    used = characters_of(next(iter(data.parts.values())), column)
    names = settings.classes or extended(own.characters, used, settings.replace_head)
    places = {character: place for place, character in enumerate(own.characters, 1)}
    return names, {0: 0, **{place: places[name] for place, name in enumerate(names, 1) if name in places}}


def kept_places(model: nn.Module, data: Data, settings: Settings) -> dict[int, int] | None:
    """Return the old place of each new class that stays: by their names if the model's are known, else by its place.

    Raises:
        OnnxgenError: no name is one of the model's, or the blank of a CTC network may change its place.
    """
    if not settings.keep or settings.replace_head is None:
        return None
    if card_of(settings.task).classes == "characters" and settings.blank != 0:
        what = "--keep leaves each class at its place, and the blank may be the last one"
        raise OnnxgenError(what, help=f"{_LIST}; --blank 0, if it is the first; else {_PYTHON}")
    old, new = classes_of(model), settings.classes or _names(data)
    if not (old and new):
        return {place: place for place in range(min(find_head(model).classes, settings.replace_head))}
    places = {name: place for place, name in enumerate(old)}
    kept = {place: places[name] for place, name in enumerate(new[: settings.replace_head]) if name in places}
    if not kept:
        what = f"--keep: no class of the data is one of the model's: {legible(', '.join(new[:5]))}"
        raise OnnxgenError(what, help=f"the model's are {legible(', '.join(old[:5]))}; or leave --keep out")
    return kept


def _names(data: Data) -> tuple[str, ...]:
    samples = next(iter(data.parts.values()), None)
    return () if samples is None or data.target not in data.named else samples.fields[data.target].classes
