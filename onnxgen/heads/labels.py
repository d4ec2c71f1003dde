"""Where the classes of a detector's raw maps are in the values behind them: found by raising them, class by class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.heads.reading import behind, raw_values
from onnxgen.heads.response import Array, Response
from onnxgen.options import Options
from onnxgen.passes.trainable import trainable
from onnxgen.record.tail import Tail
from onnxgen.shapes import propagate

RAISED = 0.5  # added to a class
NONE, SEVERAL = -1, -2  # instead of the number of a class


@dataclass(frozen=True)
class Axis:
    """The axis of a value that has the classes, and what it becomes with another number of classes.

    Attributes:
        axis: its index.
        rank: the number of axes of the value.
        codes: int64 [positions], the class of each position; negative for a position of none.
        moved: int64 [positions + 1], the new position of each position and of the end; -1 inside of a row of classes.
        origins: int64 [new positions], the position of what is now there: of its class, or of the last one.
        firsts: int64 [positions], the position of the first class in the same row; of none: itself.
    """

    axis: int
    rank: int
    codes: Array
    moved: Array
    origins: Array
    firsts: Array

    @property
    def size(self) -> int:
        """Return the new number of positions."""
        return len(self.origins)


@dataclass(frozen=True)
class Labels:
    """Where classes are behind the raw maps.

    Attributes:
        axes: of each value that has an axis of classes, by name.
        early: names of the values that are computed before anything is chosen by its score.
    """

    axes: Mapping[str, Axis]
    early: frozenset[str]


def labels_of(model: ir.Model, tail: Tail, classes: int) -> Labels:
    """Find the axis of the classes of every value behind the raw maps that has one.

    Args:
        model: the whole network, as `reader.read` returns it.
        tail: its head.
        classes: the other number of classes.

    Raises:
        OnnxgenError: see `Response`.
    """
    options = Options()
    propagate(model.graph, options)
    trainable(model, options)
    raw = raw_values(model.graph)
    response = Response(model, raw, behind(raw, model.graph))
    axes = {name: _axis(codes, tail.classes, classes) for name, codes in _codes(response, tail).items()}
    shapes = {name: np.full(shape, NONE) for name, shape in response.shapes.items()}
    for name, channel, number in channels_of_classes(tail):
        shapes[name][:, channel] = number
    axes |= {name: _axis(shapes[name], tail.classes, classes) for name in tail.maps}
    return Labels({name: axis for name, axis in axes.items() if axis is not None}, frozenset(response.names))


def channels_of_classes(tail: Tail) -> Iterator[tuple[str, int, int]]:
    """Yield (raw map, channel, class) for each channel of a class. A background is none."""
    for level in tail.levels:
        part = level.classes
        for anchor in range(len(level.anchors)):
            start = anchor * part.step + part.first + tail.background
            yield from ((tail.maps[part.map], start + number, number) for number in range(tail.classes))


def _codes(response: Response, tail: Tail) -> dict[str, Array]:
    """Return the class on which each element depends, int64, of each value that depends on one."""
    drawn = np.random.default_rng(0)
    maps = {name: drawn.standard_normal(shape, np.float32) for name, shape in response.shapes.items()}

    def raised(chosen: Sequence[bool]) -> Mapping[str, Array]:
        feeds = {name: array.copy() for name, array in maps.items()}
        for name, channel, number in channels_of_classes(tail):
            feeds[name][:, channel] += RAISED * chosen[number]
        with np.errstate(all="ignore"):
            return response(feeds)

    with np.errstate(all="ignore"):
        before = response(maps)
    rises = {name: array > before[name] for name, array in raised([True] * tail.classes).items()}
    names = [name for name, array in rises.items() if array.any()]
    codes = {name: np.zeros(before[name].shape, np.int64) for name in names}
    unclear = {name: np.zeros(before[name].shape, bool) for name in names}
    for bit in range(max(1, (tail.classes - 1).bit_length())):
        ones = [bool(number >> bit & 1) for number in range(tail.classes)]
        some, others = raised(ones), raised([not one for one in ones])
        for name in names:
            first, second = some[name] > before[name], others[name] > before[name]
            codes[name] += first.astype(np.int64) << bit
            unclear[name] |= first == second
    return {name: np.where(rises[name], np.where(unclear[name], SEVERAL, codes[name]), NONE) for name in names}


def _axis(codes: Array, old: int, new: int) -> Axis | None:
    """Return the axis along which the class changes, if the class changes along one only."""
    candidates = list[Axis]()
    for axis in range(codes.ndim):
        rows = np.moveaxis(codes, axis, 0).reshape(codes.shape[axis], -1)
        is_batch = axis == 0 and codes.ndim > 1 and codes.shape[0] == 1
        if rows.size and not is_batch and (rows == rows[:, :1]).all() and (rows >= 0).any():
            row = rows[:, 0]
            places = _places(row, old, new)
            candidates += [] if places is None else [Axis(axis, codes.ndim, row, *places)]
    return min(candidates, key=lambda one: (len(one.codes), one.axis), default=None)


def _places(codes: Array, old: int, new: int) -> tuple[Array, Array, Array] | None:
    """Return `moved`, `origins` and `firsts` of an `Axis`; None if classes are missing.

    Classes follow each other in order, each once or each equally often.
    """
    moved, origins, firsts, start = np.full(len(codes) + 1, -1), list[int](), np.arange(len(codes)), 0
    while start < len(codes):
        moved[start] = len(origins)
        if codes[start] < 0:
            origins.append(start)
            start += 1
            continue
        most = int(np.argmax(np.append(codes[start:], NONE) != 0))
        fits = (n for n in (most, 1) if n and np.array_equal(codes[start : start + n * old], np.arange(n * old) // n))
        times = next(fits, 0)
        if not times:
            return None
        origins += [start + min(number, old - 1) * times + turn for number in range(new) for turn in range(times)]
        firsts[start : start + times * old] = start + np.arange(times * old) % times
        start += times * old
    moved[start] = len(origins)
    return moved, np.array(origins), firsts
