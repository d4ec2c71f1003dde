"""Texts of lines: class scores over time, read by connectionist temporal classification."""

from __future__ import annotations

from onnxgen.training.tasks.card import Card, Given, later


def _has(given: Given) -> str:
    """Texts; names of folders are none."""
    name = given.aim(*CARD.columns)
    if not name or not given.source.raw:
        return ""
    whole = len(given.fields[name].shape) == 1 and not given.fields[name].dtype.is_floating_point
    return f"column {name!r} has a text for each sample" if name in given.source.text or whole else ""


CARD = Card(
    "ctc",
    later("ctc.make"),
    metrics=("character_error", "exact_match"),
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
