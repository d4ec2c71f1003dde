"""Devices that come from outside: modules to import by name, and entry points of the group `onnxgen.devices`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

from onnxgen.errors import OnnxgenError, typed

GROUP = "onnxgen.devices"


def import_all(names: Iterable[str]) -> None:
    """Import modules that bring devices of their own.

    Raises:
        OnnxgenError: one can't be imported; the reason is the module's own.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            raise OnnxgenError(
                f"the module {name!r} can't be imported: {typed(error)}",
                help="install it, or put its folder on PYTHONPATH",
            ) from None


def load(kind: str | None = None) -> None:
    """Load the entry points, or only that of one kind: a module to import, or a function to call.

    Raises:
        OnnxgenError: the one of `kind` fails. Of all of them, one that fails is named in a warning.
    """
    for point in _points():
        if kind is not None and point.name != kind:
            continue
        try:
            loaded = point.load()
            if callable(loaded) and not isinstance(loaded, ModuleType):
                loaded()
        except Exception as error:
            text = f"the plug-in {point.name!r} ({point.value}) does not load: {typed(error)}"
            if kind is not None:
                raise OnnxgenError(text, help="reinstall the package it comes with") from None
            warnings.warn(f"{text}; it is skipped", stacklevel=3)


def _points() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)
