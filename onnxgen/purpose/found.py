"""What the rules return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
