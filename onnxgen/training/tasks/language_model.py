"""The next token of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxgen.training.tasks.card import Card, later

if TYPE_CHECKING:
    from onnxgen.record.purpose import Purpose
    from onnxgen.training.goals.deciding import Given


def _has(given: Given, purpose: Purpose) -> str:
    return given.plain_text(purpose) if purpose.facts.get("causal") or not purpose.kind else ""


CARD = Card(
    "language-model",
    later("language.next_token"),
    metrics=("perplexity",),
    reads="labels",
    labels="next",
    data="tokens",
    kinds=("language-model",),
    has=_has,
    needs="text alone, without a target",
)
