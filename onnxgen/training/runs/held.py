"""The list of the samples that a run held back: `held_back.csv` in its folder."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from itertools import chain

from onnxgen.training.data.arrays import row_of
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.runs.seen import MOST, files_of_each


def held_back(parts: Mapping[str, Samples]) -> str:
    """Return a table of the samples of the validation and test parts: their files, else their rows in the data, from 0.

    It is "" without such parts, and of streamed or too many samples.
    """
    held = {part: samples for part, samples in parts.items() if part != "train"}
    if not held or any(stream_of(samples) is not None for samples in held.values()):
        return ""
    if sum(map(len, held.values())) > MOST:
        return ""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(("part", "sample"))
    for part, samples in held.items():
        files = files_of_each(samples)
        named = (" + ".join(path.as_posix() for path in of_sample) for of_sample in files or ())
        rows = (str(row_of(samples, index)) for index in range(len(samples) if files is None else 0))
        for name in chain(named, rows):
            write((part, name))
    return text.getvalue()
