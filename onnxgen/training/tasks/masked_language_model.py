"""Tokens of a text that are hidden from the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxgen.training.tasks.card import Card, later

if TYPE_CHECKING:
    from onnxgen.record.purpose import Purpose
    from onnxgen.training.goals.deciding import Given


def _has(given: Given, purpose: Purpose) -> str:
    return given.plain_text(purpose) if purpose.kind and not purpose.facts.get("causal") else ""


CARD = Card(
    "masked-language-model",
    later("language.every_token"),
    metrics=("perplexity",),
    reads="labels",
    labels="masked",
    kinds=("language-model",),
    has=_has,
    needs="text alone, without a target",
)
