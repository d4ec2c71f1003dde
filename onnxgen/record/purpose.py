"""What a network is for, as its sidecar says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
