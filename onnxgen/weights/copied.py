"""Stored tensors that constant folding made as copies of others, such as a weight for every step of a layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxgen.graph.annotations import COPIES
from onnxgen.weights.provenance import Source


@dataclass(frozen=True)
class Copied:
    """The elements of the tensor `original` are those of another one, from its flat element `offset` on.

    If `original` is "", they are zeros, whatever is trained.
    """

    original: str
    offset: int


def note_copy(value: ir.Value, copies: Iterable[Copied]) -> None:
    """Note what a stored tensor has copies of."""
    COPIES.set(value, list(dict.fromkeys([*COPIES.get(value), *copies])))


def twins(keys: Mapping[str, Source], values: Iterable[ir.Value]) -> list[tuple[str, Source]]:
    """Return the provenance of the copies of state-dict tensors, by key: see `provenance.way_back`."""
    using: dict[str, list[str]] = {}
    for key, source in keys.items():
        for name in source.names:
            using.setdefault(name, []).append(key)
    found = []
    for value in values:
        for copy in COPIES.get(value):
            for key in using.get(copy.original, ()):
                found.append((key, _moved(keys[key], copy, value)))
    return found


def _moved(source: Source, copy: Copied, value: ir.Value) -> Source:
    tensor, name = value.const_value, value.name or ""
    assert tensor is not None
    pieces = (p for p in source.pieces if p.name == copy.original)
    return replace(
        source, pieces=tuple(replace(p, name=name, tensor=tensor, offset=p.offset + copy.offset) for p in pieces)
    )
