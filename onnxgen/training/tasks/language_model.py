"""The next token of a text."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(given: Given) -> str:
    return given.plain_text() if given.purpose.facts.get("causal") or not given.purpose.kind else ""


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
