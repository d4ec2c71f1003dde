"""The class labels of a model's outputs, as far as this process knows them."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

_CLASSES: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


def set_classes(model: nn.Module, classes: tuple[str, ...]) -> None:
    """Remember the class labels of a model's outputs, in the order in which it was trained."""
    _CLASSES[model] = classes


def classes_of(model: nn.Module) -> tuple[str, ...]:
    """Return the labels that `set_classes` stored for this very object; empty if none were."""
    return _CLASSES.get(model, ())
