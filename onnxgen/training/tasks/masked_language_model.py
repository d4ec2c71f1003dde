"""Tokens of a text that are hidden from the network."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(given: Given) -> str:
    return given.plain_text() if given.purpose.kind and not given.purpose.facts.get("causal") else ""


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
