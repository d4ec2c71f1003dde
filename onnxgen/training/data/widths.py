"""Lines of text that are longer than the width at which a network was trained: each gets the width that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnxgen.errors import counted
from onnxgen.training.data.arrays import Columns, decoder_of, subset
from onnxgen.training.data.folder import size_of
from onnxgen.training.data.images import ToInput
from onnxgen.training.data.prepared import Prepared, Tuples
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.streaming.stream import stream_of

Size = tuple[int, int]  # height and width


def by_width(samples: Samples) -> list[tuple[Sequence[int], Samples]]:
    """Return the samples in groups whose images have one width, narrow ones first, and their indices.

    A sample's width depends on nothing but its own size, so what is read does not depend on other samples.
    """
    found = _lines(samples)
    if found is None or not found[1].width_step:
        return [(range(len(samples)), samples)]
    column, step, sizes = found
    widths = np.array([step.width_of(size) for size in sizes])
    each = [(width, np.flatnonzero(widths == width)) for width in sorted({*widths.tolist()})]
    if len(each) == 1:
        return [(range(len(samples)), _widened(samples, column, each[0][0]))]
    return [(rows.tolist(), subset(_widened(samples, column, width), rows)) for width, rows in each]


def widest(samples: Samples) -> Samples:
    """Return the samples in the width of the longest one."""
    found = _lines(samples)
    if found is None or not found[1].width_step:
        return samples
    column, step, sizes = found
    return _widened(samples, column, max(map(step.width_of, sizes), default=step.frame.width))


def squeezed(samples: Samples, trains: bool = False) -> list[str]:
    """Return a note of the lines that are too long for the width, if there are some.

    `trains`: all samples are fed in one width, also if the network takes others.
    """
    found = _lines(samples)
    if found is None or found[1].width_step and not trains:
        return []
    _, step, sizes = found
    frame = step.frame
    needed = [step.placing.width_of(size, frame.height) for size in sizes]
    count = sum(width > frame.width for width in needed)
    if not count:
        return []
    told = f"{counted(count, 'line')} longer than {frame.height}x{frame.width} squeezed to it"
    if step.width_step:
        wide = step.widened(max(needed))
        return [f"{told}; predict gives each its own width -> --size {frame.height}x{wide} trains them so"]
    return [f"{told}, since the network takes that width alone -> cut long lines into shorter ones"]


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
