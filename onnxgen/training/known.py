"""Remembers how data was fed to a model, so that other data is fed to it in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from onnxgen.training.data.preprocessing import Table
from onnxgen.training.settings import Settings


@dataclass(frozen=True)
class Known:
    """How data was fed to a model: images ("0.13,0.31"), a table, and settings of images by name."""

    normalize: str = ""
    table: Table | None = None
    images: Mapping[str, Any] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[nn.Module, Known] = WeakKeyDictionary()
OF_IMAGES = ("resize", "beside", "channel_order")  # settings that other images get, too


def set_known(model: nn.Module, normalize: str, table: Table | None, settings: Settings) -> None:
    """Remember how data was fed to a model, so that other data is fed in the same way."""
    _KNOWN[model] = Known(normalize, table, {name: getattr(settings, name) for name in OF_IMAGES})


def known_of(model: nn.Module) -> Known | None:
    """Return what `set_known` stored for this very object."""
    return _KNOWN.get(model)


def note_known(model: nn.Module, known: Known | None) -> None:
    """Remember for a model what is known of another one; None: nothing."""
    _KNOWN[model] = known or Known()


def as_trained(settings: Settings, model: nn.Module) -> Settings:
    """Return the settings with those of images with which a model was trained, where they are left open."""
    known = _KNOWN.get(model, Known()).images
    left = {name for name in known if getattr(settings, name) in ("auto", None)}
    return replace(settings, **{name: known[name] for name in left})


def scale_of(model: nn.Module) -> str:
    """Return the normalisation that `set_known` stored for this very object; empty if none was."""
    return _KNOWN.get(model, Known()).normalize


def table_of(model: nn.Module) -> Table | None:
    """Return the table that `set_known` stored for this very object."""
    return _KNOWN.get(model, Known()).table
