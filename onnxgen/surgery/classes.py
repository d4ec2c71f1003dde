"""Which class each output of a model is of, as far as this process knows."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

_CLASSES: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


def set_classes(model: nn.Module, classes: tuple[str, ...]) -> None:
    """Remember which class each output is of, as it was trained."""
    _CLASSES[model] = classes


def classes_of(model: nn.Module) -> tuple[str, ...]:
    """What `set_classes` was told of this very object; empty if nothing was."""
    return _CLASSES.get(model, ())
