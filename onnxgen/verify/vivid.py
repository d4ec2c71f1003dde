"""Other inputs where the outputs of the drawn ones are mute: nearly the same everywhere, whatever the weights are.

A detector that is fed with noise finds nothing anywhere. Its map near 0 is then the map of many wrong modules, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxgen.verify.feeds import LOUDER, SPREADS
from onnxgen.verify.oracle import Answer, Refused

MUTE = 1e-4  # an output that varies by less, as a part of 1 or of its largest element if that is larger, is mute
MAX_SECONDS = 10.0  # for the search, by the time that the oracle took for the first inputs


def vivid(answer: Answer, draw: Callable[[str], Mapping[str, Any]]) -> Answer:
    """Return an answer in which more outputs vary, or the same one. `draw`: the inputs of a spread, of equal sizes."""
    best, most = answer, len(answer.outputs) - _mute(answer.outputs)
    if most == len(answer.outputs) or answer.seconds * (len(LOUDER) + len(SPREADS)) > MAX_SECONDS:
        return answer
    for spread in (*LOUDER, *SPREADS):
        feeds, started = dict(draw(spread)), time.monotonic()
        try:
            outputs = answer.oracle.run(feeds)
        except Refused:
            continue
        tell = len(outputs) - _mute(outputs)
        if tell > most and all(map(_are_as_finite, answer.outputs, outputs)):
            best, most = replace(answer, feeds=feeds, outputs=outputs, seconds=time.monotonic() - started), tell
        if most == len(outputs):
            break
    return best


def _mute(outputs: Sequence[Any]) -> int:
    """Return the number of floating point outputs that are mute."""
    found = 0
    for output in outputs:
        if isinstance(output, np.ndarray) and output.dtype.kind == "f" and output.size:
            finite = output[np.isfinite(output)].astype(np.float64)
            largest = float(np.abs(finite).max()) if finite.size else 0.0
            varies = float(finite.std()) if finite.size > 1 else largest
            found += varies < MUTE * max(1.0, largest)
    return found


def _are_as_finite(before: Any, after: Any) -> bool:
    if not (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)) or after.dtype.kind != "f":
        return True
    return bool(np.isfinite(after).all()) or not bool(np.isfinite(before).all())
