"""The class labels of a model's outputs, if they were set in this process."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import nn

_CLASSES: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()


def set_classes(model: nn.Module, classes: tuple[str, ...]) -> None:
    """Remember the class labels of a model's outputs, in the order in which it was trained."""
    _CLASSES[model] = classes


def told_classes(model: nn.Module) -> tuple[str, ...] | None:
    """Return what `set_classes` stored for this object, which may be (); None if it was not called."""
    return _CLASSES.get(model)


def classes_of(model: nn.Module) -> tuple[str, ...]:
    """Return the labels that `set_classes` stored for this object; empty if there are none."""
    return _CLASSES.get(model, ())
