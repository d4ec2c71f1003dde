"""Places in an image."""

from __future__ import annotations

from onnxgen.training.tasks.card import PLACE_LOSSES, Card, Given, later


def _has(context: Given) -> str:
    name = context.aim(*CARD.columns)
    shape = context.fields[name].shape if name else ()
    return f"column {name!r} has {shape[0]} places" if len(shape) == 2 and shape[1] in (2, 3) else ""


CARD = Card(
    "keypoints",
    later("keypoints.make"),
    losses=PLACE_LOSSES,
    metrics=("keypoint_error", "pck"),
    answers={"heatmaps": later("answers.places", "runs")},
    reads="target",
    columns=("keypoints",),
    stays="the keypoints",
    kinds=("keypoints",),
    has=_has,
    needs="places for each sample",
    alone=("keypoints",),
)
