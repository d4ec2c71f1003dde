"""How images are fed to a network: their scale, place in the frame, order of colours, and width.

The settings ask for these, or they are as the network was trained. Images that are stored as floats
from 0 to 255 are not taken for values from 0 to 1. A line of text that is longer than the width at
which a network was trained gets the width that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.data.arrays import Columns, Prepared, Tuples, decoder_of, subset
from onnxgen.training.data.folder import size_of
from onnxgen.training.data.image_options import by_input, of_inputs, parse_scale, scale_text
from onnxgen.training.data.image_targets import FROM_0_TO_1
from onnxgen.training.data.images import MEASURED, ToInput, measured
from onnxgen.training.data.layout import PARTS
from onnxgen.training.data.letterbox import GRAY, Placing
from onnxgen.training.data.samples import Field, Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.data.streaming.stream import leading, stream_of
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of


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
            step = steps[column] = _scaled(source, column, images[column], asked[name], before[name])
            scales[name] = "none" if step.scale is None else scale_text(step.scale)
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


BGR = "bgr"


def placing_of(settings: Settings, lines: bool = False) -> Placing:
    """Return how images get their size. `lines`: they are lines of text.

    Raises:
        OnnxgenError: what the settings ask for does not go together, or with the task.
    """
    card = card_of(settings.task)
    usual = "line" if lines else card.resize
    placing = Placing(
        usual if settings.resize == "auto" else settings.resize, GRAY if settings.beside is None else settings.beside
    )
    if not placing.moves and settings.beside is not None:
        what = f"--beside {settings.beside}: images are stretched, and nothing is beside them"
        raise OnnxgenError(what, help="--resize letterbox, corner or line; or leave --beside out")
    if placing.moves and card.stays:
        raise OnnxgenError(f"--resize {placing.how} would not move {card.stays}", help="--resize stretch")
    return placing


def refuse_unmoved(source: DataSource, columns: Iterable[str], images: Iterable[ToInput], settings: Settings) -> None:
    """Refuse targets that have a place on the images, and would stay where they are while the images move."""
    how = next((step.placing.how for step in images if step.placing.moves), "")
    fields = source.fields
    target = card_of(settings.task).target
    for column in columns if how and target != "moved" else ():
        if target == "image" or column in source.placed or len(fields[column].shape) >= 2:
            what = f"--resize {how} would not move {legible(column)!r}, which lies on the images"
            raise OnnxgenError(what, help="--resize stretch")


def refuse_order(settings: Settings, images: Mapping[str, ToInput]) -> None:
    """Refuse an order of colours that no image gets."""
    if settings.channel_order == BGR and not any(step.reversed for step in images.values()):
        what = "its images are gray" if images else "the data has no images whose colours onnxgen knows"
        raise OnnxgenError(f"--channel-order {BGR}: {what}", help="leave it out")


def order_told(steps: Sequence[ToInput], sizes: frozenset[tuple[int, ...]] | None = None) -> list[str]:
    """Return a note of the order in which colours are fed; none if all are gray.

    Args:
        sizes: channels, height and width of the files to train with, empty if they were not looked at; None if the
            order is that of a training, and there is nothing to choose.
    """
    coloured = [step for step in steps if step.frame.channels > 1]
    if not coloured or {size[0] for size in sizes or ()} == {1}:
        return []
    if coloured[0].reversed:
        return ["colours are fed in the order BGR, as OpenCV reads them"]
    way = "; a network that was trained on OpenCV's takes --channel-order bgr" if sizes is not None else ""
    return [f"colours are fed in the order RGB{way or ', as in the training'}"]


_LOOKED_AT = 200  # samples
_DARK = 16.0  # no image of values from 0 to 1, and no normalised one, is so bright
_WHITES = (255.0, 65535.0)


def white_of_floats(samples: Samples, column: str) -> float:
    """Return the value of white in a column of floats whose values reach far over 1, else 0."""
    if not samples.fields[column].dtype.is_floating_point:
        return 0.0
    values = samples.take(leading(samples, min(_LOOKED_AT, len(samples))), 0)[column]
    if not values.numel():
        return 0.0
    low, high = float(values.min()), float(values.max())
    return next((white for white in _WHITES if low >= 0 and _DARK < high <= white), 0.0)


def refuse_bright(samples: Samples, whites: Mapping[str, float]) -> None:
    """Refuse floats from 0 to 255 as images that are to be normalised or augmented: both mean values from 0 to 1."""
    for column, white in whites.items():
        if white == 1.0 and (highest := white_of_floats(samples, column)):
            what = f"column {column!r} holds images as floats up to {highest:.0f}, which are taken for 0 to 1"
            raise OnnxgenError(what, help=f"store them as uint8, or divide them by {highest:.0f}")


def bright_notes(samples: Samples, columns: Iterable[str]) -> list[str]:
    """Return a note for each column of floats up to 255 that may be images and is fed as it is stored."""
    return [
        f"{column} is fed as it is stored, floats up to {white:.0f}: images would be scaled if they were uint8; or "
        f"divide them by {white:.0f}, unless the network takes them so"
        for column in columns
        if (white := white_of_floats(samples, column))
    ]


def bytes_notes(fed: Mapping[str, torch.dtype], fields: Mapping[str, Field]) -> list[str]:
    """Return a note for each column of bytes that is fed as floats without being an image. `fed`: dtypes by column."""
    return [
        f"{name} is fed as it is stored, from 0 to 255: images would be [n, height, width]"
        for name, dtype in fed.items()
        if dtype.is_floating_point and fields[name].dtype == torch.uint8
    ]


Size = tuple[int, int]  # height and width


def by_width(samples: Samples) -> list[tuple[Sequence[int], Samples]]:
    """Return the samples in groups whose images have one width, narrow ones first, and their indices.

    A sample's width depends on nothing but its own size, so what is read does not depend on other samples.
    """
    lines = _lines(samples)
    if lines is None or not lines[1].width_step:
        return [(range(len(samples)), samples)]
    column, step, sizes = lines
    widths = np.array([step.width_of(size) for size in sizes])
    each = [(width, np.flatnonzero(widths == width)) for width in sorted({*widths.tolist()})]
    if len(each) == 1:
        return [(range(len(samples)), _widened(samples, column, each[0][0]))]
    return [(rows.tolist(), subset(_widened(samples, column, width), rows)) for width, rows in each]


def widest(samples: Samples) -> Samples:
    """Return the samples in the width of the longest one."""
    lines = _lines(samples)
    if lines is None or not lines[1].width_step:
        return samples
    column, step, sizes = lines
    return _widened(samples, column, max(map(step.width_of, sizes), default=step.frame.width))


def squeezed(samples: Samples, trains: bool = False) -> list[str]:
    """Return a note of the lines that are too long for the width, if there are some.

    `trains`: all samples are fed in one width, also if the network takes others.
    """
    lines = _lines(samples)
    if lines is None or lines[1].width_step and not trains:
        return []
    _, step, sizes = lines
    frame = step.frame
    needed = [step.placing.width_of(size, frame.height) for size in sizes]
    count = sum(width > frame.width for width in needed)
    if not count:
        return []
    what = f"{counted(count, 'line')} longer than {frame.height}x{frame.width} squeezed to it"
    if step.width_step:
        wide = step.widened(max(needed))
        return [f"{what}; predict gives each its own width -> --size {frame.height}x{wide} trains them so"]
    return [f"{what}, since the network takes that width alone -> cut long lines into shorter ones"]


def _lines(samples: Samples) -> tuple[str, ToInput, list[Size]] | None:
    """Return the column of lines, how they are fed, and the size of each; None if there are none, or of a stream."""
    if not isinstance(samples, Prepared) or isinstance(samples, Tuples):
        return None
    steps = samples.steps.items()
    column, step = next(((n, s) for n, s in steps if isinstance(s, ToInput) and s.placing.how == "line"), ("", None))
    sizes = None if step is None else _sizes(samples.samples, column, step)
    return None if step is None or sizes is None else (column, step, sizes)


def _sizes(samples: Samples, column: str, step: ToInput) -> list[Size] | None:
    """Return height and width of each image as it is stored; None if only reading all of it would tell."""
    if (files := decoder_of(samples, column)) is not None:
        return [size_of(path) for path in files.paths]
    if stream_of(samples) is not None:
        return None
    sides = dict(zip(step.axes, samples.fields[column].shape))
    return [(sides["H"], sides["W"])] * len(samples)


def _widened(samples: Samples, column: str, width: int) -> Samples:
    assert isinstance(samples, Prepared)
    step = samples.steps[column]
    step = replace(step, frame=replace(step.frame, width=width))
    fields = {**samples.fields, column: replace(samples.fields[column], shape=step.shape)}
    return replace(samples, samples=_sized(samples.samples, step), steps={**samples.steps, column: step}, fields=fields)


def _sized(samples: Samples, step: ToInput) -> Samples:
    frame = step.frame
    if isinstance(samples, Columns):
        return samples.sized(frame.channels, frame.height, frame.width, step.placing)
    return samples
