"""Gives images the scale that the settings ask for, or that the network was trained with, and tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onnxgen.training.data.image_targets import FROM_0_TO_1
from onnxgen.training.data.images import MEASURED, ToInput, measured
from onnxgen.training.data.layout import PARTS
from onnxgen.training.data.scales import by_input, of_inputs, parse_scale, scale_text
from onnxgen.training.data.source import DataSource


def normalised(
    source: DataSource, images: Mapping[str, ToInput], columns: Mapping[str, str], asked: Mapping[str, str], known: str
) -> tuple[dict[str, ToInput], str]:
    """Return the steps with their scales, by column; and the scales as text, as in `Settings.normalize`.

    Args:
        columns, asked: by input: its column, and the normalisation that the settings ask for.
        known: the normalisation with which the model was trained; "auto" uses it.
    """
    before, steps, scales = by_input(known, [*asked]), dict(images), {}
    for name, column in columns.items():
        if column in images:
            made = steps[column] = _scaled(source, column, images[column], asked[name], before[name])
            scales[name] = "none" if made.scale is None else scale_text(made.scale)
    return steps, of_inputs(scales, [*asked])


def _scaled(source: DataSource, column: str, step: ToInput, asked: str, known: str) -> ToInput:
    """Return the step with mean and deviation as asked for, and note them."""
    if not step.dtype.is_floating_point or "none" in (asked, known if asked == "auto" else ""):
        source.notes.append(f"{column} is fed as it is stored, from 0 to {step.white:g}")
        return step
    if asked == FROM_0_TO_1:
        source.notes.append(f"{column} goes from 0 to 1, which is white; --normalize mean,std gives another scale")
        return replace(step, scale=parse_scale(asked, step.frame.channels))
    if asked != "auto":
        scale = parse_scale(asked, step.frame.channels)
        source.notes.append(f"{column} is normalised by --normalize {scale_text(scale)}")
    elif known not in ("", "auto"):
        scale = parse_scale(known, step.frame.channels)
        source.notes.append(f"{column} is normalised by {known}, as in training")
    else:
        scale = measured(source.parts[part := next(p for p in PARTS if p in source.parts)], column, step)
        source.notes.append(
            f"{column} {MEASURED} {part} part, {scale_text(scale)}; if the weights "
            "were trained with others, give them with --normalize mean,std"
        )
    return replace(step, scale=scale)
