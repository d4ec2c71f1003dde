"""Texts of lines: class scores over time, read by connectionist temporal classification."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(context: Given) -> str:
    """Texts; names of folders are none."""
    name = context.aim(*CARD.columns)
    if not name or not context.source.raw:
        return ""
    whole = len(context.fields[name].shape) == 1 and not context.fields[name].dtype.is_floating_point
    return f"column {name!r} has a text for each sample" if name in context.source.text or whole else ""


CARD = Card(
    "ctc",
    later("ctc.make"),
    metrics=("character_error", "exact_match"),
    answers={"ctc_loss": later("answers.text", "runs")},
    reads="target",
    columns=("text",),
    classes="characters",
    resize="line",
    older={"resize": "stretch"},
    kinds=("ctc",),
    has=_has,
    needs="text for each sample",
    alone=True,
    new_head=True,
)
