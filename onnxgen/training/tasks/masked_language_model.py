"""Tokens of a text that are hidden from the network."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(context: Given) -> str:
    return context.plain_text() if context.purpose.kind and not context.purpose.facts.get("causal") else ""


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
