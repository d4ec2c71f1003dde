"""The signature of a generated module: inputs and outputs, its ONNX file, and its purpose.

It is in the sidecar's metadata, where edits of the module do not reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxgen.common.built import read_json

KINDS = (
    "classification",
    "multilabel",
    "regression",
    "segmentation",
    "detection",
    "keypoints",
    "embedding",
    "ctc",
    "token-classification",
    "language-model",
    "seq2seq",
    "image-to-image",
    "denoising",
)


@dataclass(frozen=True)
class Purpose:
    """What a network is for.

    Attributes:
        kind: one of `KINDS`, or of a later version; "" if unsure.
        evidence: plain sentences, which name nodes and outputs with their shapes.
        candidates: the kinds that are possible, the likeliest first, if unsure; else empty.
        facts: what training needs to know, as numbers, text, booleans and lists. `output` is the name of an output,
            `axis` the axis of its classes, values or channels, `classes` their number; the other keys belong to one
            kind each (see docs/CONVERT.md).
    """

    kind: str = ""
    evidence: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


KEY = "signature"  # in the sidecar's metadata


@dataclass(frozen=True)
class Port:
    """One input or output of a graph.

    Attributes:
        name: in the ONNX file. The arguments of `forward` have the same order.
        dtype: torch's name of the element type ("float32", "int64"), "str" for text, None if unknown.
        dims: for each axis a number or the text of a symbolic size; None if the rank is unknown.
        kind: "tensor", "sequence", "optional", "map", or "maps" for a list of maps. `dtype` and `dims` are those of the
            elements or the map's values.
    """

    name: str
    dtype: str | None
    dims: tuple[int | str, ...] | None
    kind: str = "tensor"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs in graph order; `source` is the ONNX file's name (no folder), `sha256` that of its bytes.

    `purpose` says what the network is for; None in sidecars of versions that did not record it.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    source: str = ""
    sha256: str = ""
    purpose: Purpose | None = None


def recorded(metadata: Mapping[str, str]) -> Signature | None:
    """Return the signature in a sidecar's metadata, or None."""
    try:
        return read_json(Signature, metadata[KEY])
    except (KeyError, ValueError):
        return None
