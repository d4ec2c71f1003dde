"""Vectors that lie close together if their samples belong together."""

from __future__ import annotations

from dataclasses import replace

from onnxgen.errors import OnnxgenError
from onnxgen.training.tasks.card import Card, Given, later


def _has(context: Given) -> str:
    """Pairs, or classes; of a network that may be for something else no classes that each output has a score for."""
    from onnxgen.training.data.image_pairs import member_columns

    if not context.purpose.kind and context.has_a_score_of_each_class():
        return ""
    members = member_columns(context.source, context.ports, context.settings) or _pairs_of_texts(context)
    if members:
        return f"columns {' and '.join(members)} belong together"
    output = context.purpose.facts.get("output")
    dims = next((port.dims for port in context.ports.outputs if port.name == output), None)
    vectors = not context.purpose.kind or dims is None or len(dims) == 2
    return context.classes() if vectors else ""


def _pairs_of_texts(context: Given) -> tuple[str, ...]:
    """Return the columns of text that make pairs: anchors and positives, or two with a number beside them."""
    from onnxgen.training.data.text.choosing import apart
    from onnxgen.training.data.text.roles import IDS

    ids = context.roles().get(IDS)
    settings = replace(context.settings, task=CARD.name)
    try:
        chosen = apart(context.source, ids, settings, True, context.aims()) if ids is not None else None
    except OnnxgenError:  # two texts, and nothing says how they belong together
        chosen = None
    return chosen.texts if chosen is not None else ()


CARD = Card(
    "embedding",
    later("embedding.make"),
    losses=("arcface", "triplet", "info_nce", "cosine"),
    metrics=("spearman", "pearson", "recall_at_1", "recall_at_1_samples"),
    reads="target",
    classes="some",
    data="tuples",
    compares=True,
    kinds=("embedding",),
    has=_has,
    needs="class for each sample",
)
