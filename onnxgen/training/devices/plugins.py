"""Loads plug-ins that register devices: modules by name, and entry points of the group `onnxgen.devices`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterable
from importlib.metadata import entry_points
from types import ModuleType

from onnxgen.errors import OnnxgenError, typed

GROUP = "onnxgen.devices"


def import_all(names: Iterable[str]) -> None:
    """Import modules that register devices.

    Raises:
        OnnxgenError: a module can't be imported.
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
    """Load all entry points, or only the one of a kind: a module to import, or a function to call.

    Raises:
        OnnxgenError: the entry point of `kind` fails. When all are loaded, those that fail are skipped with a warning.
    """
    for point in entry_points(group=GROUP):
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
