"""A text of another text."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(context: Given) -> str:
    from onnxgen.training.data.text.choosing import text_columns
    from onnxgen.training.data.text.roles import DECODER

    several = len(text_columns(context.source)) > 1 and DECODER in context.roles()
    return "the data has two columns of text" if several else ""


CARD = Card(
    "seq2seq",
    later("language.every_token"),
    metrics=("perplexity",),
    reads="labels",
    labels="other",
    kinds=("seq2seq",),
    has=_has,
    needs="second column of text",
)
