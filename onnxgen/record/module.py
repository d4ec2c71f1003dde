"""What a generated file in memory says of its weights. `space`: the names in the file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import INDEX, embedded_header, header_metadata, shapes_in

METADATA = "__metadata__"  # key in a header, and in a module made by `load`, which has no sidecar
Found = TypeVar("Found")


def space_of(model: object) -> Mapping[str, Any]:
    """Return the names in the file of a model's class; empty if it is of none."""
    return vars(sys.modules[type(model).__module__]) if type(model).__module__ in sys.modules else {}


def sidecar_of(space: Mapping[str, Any]) -> Path | None:
    """Return the weights file of a generated file, or None if it embeds them (`--embed`) or was not generated."""
    weights = space.get("WEIGHTS")
    return weights.with_name(weights.name.removesuffix(INDEX)) if isinstance(weights, Path) else None


def noted(space: Mapping[str, Any], key: str, parse: Callable[[str], Found]) -> Found | None:
    """Return an entry of the metadata of a generated file's weights, or None if it has none."""
    try:
        return parse(metadata_of(space)[key])
    except (OnnxgenError, KeyError, TypeError, ValueError):
        return None


def metadata_of(space: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the metadata of a generated file's weights; empty if it has none.

    Raises:
        OnnxgenError: the weights are damaged.
    """
    if METADATA in space:
        return dict(space[METADATA])
    sidecar = sidecar_of(space)
    return _embedded(space).get(METADATA, {}) if sidecar is None else header_metadata(sidecar)


def shapes_of(space: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a generated file's weights. Raises `OnnxgenError` if they are broken."""
    sidecar = sidecar_of(space)
    if sidecar is not None:
        return shapes_in(sidecar)
    return {key: tuple(e["shape"]) for key, e in _embedded(space).items() if key != METADATA}


def _embedded(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header of the weights that a generated file embeds (`--embed`)."""
    text = space.get("WEIGHTS")
    if not isinstance(text, str):
        return {}
    try:
        return embedded_header(text)
    except ValueError as error:
        raise OnnxgenError(f"the weights in the module are damaged: {printable(str(error), 300)}") from None
