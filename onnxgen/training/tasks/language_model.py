"""The next token of a text."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(context: Given) -> str:
    return context.plain_text() if context.purpose.facts.get("causal") or not context.purpose.kind else ""


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
