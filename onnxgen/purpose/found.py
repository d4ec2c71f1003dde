"""What the rules return, and what is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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

# How strong a vote is.
FITS, NAMED, BUILT = 1, 2, 3


@dataclass(frozen=True)
class Vote:
    """One reason to think that a network is of a kind.

    Attributes:
        kind: one of `KINDS`.
        weight: `FITS`: shapes allow it. `NAMED`: a name of the file says so. `BUILT`: the graph is built like it, and
            hardly anything else is.
        evidence: plain sentences, which name nodes and outputs with their shapes.
        facts: see `Purpose.facts`.
        outputs: the names of the outputs that it explains; all of them if `whole`.
    """

    kind: str
    weight: int
    evidence: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    outputs: frozenset[str] = frozenset()
    whole: bool = False


@dataclass(frozen=True)
class Purpose:
    """What a network is for.

    Attributes:
        kind: one of `KINDS`, or "" if unsure.
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

    def to_dict(self) -> dict[str, Any]:
        """Return the purpose in plain types, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, found: Any) -> Purpose:
        """Raises `ValueError` for anything that `to_dict` did not make. Kinds of later versions are allowed."""
        if not isinstance(found, Mapping):
            raise ValueError("a purpose is an object")
        texts = [found.get(key, ()) for key in ("evidence", "candidates")]
        kind, facts = found.get("kind", ""), found.get("facts", {})
        if not isinstance(kind, str) or not isinstance(facts, Mapping) or not all(map(_is_texts, texts)):
            raise ValueError("a purpose has a kind, evidence, candidates and facts")
        return cls(kind, tuple(texts[0]), tuple(texts[1]), dict(facts))


def _is_texts(found: Any) -> bool:
    return isinstance(found, Sequence) and not isinstance(found, str) and all(isinstance(text, str) for text in found)
