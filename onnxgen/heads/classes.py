"""Finds out which channels of the raw maps are classes, by the probabilities that the graph makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from onnxgen.heads.boxes import ACCURACY, Maps, Reading
from onnxgen.heads.decoding import Array, scores, taken
from onnxgen.heads.seen import Grid, Probe
from onnxgen.record.tail import Channels, Level, Tail

OBJECT = re.compile("obj|conf", re.I)  # in the name of a layer or value that says if there is an object
NO_OBJECTS = ("distances", "priors")  # kinds whose heads have no objectness in the map of their boxes
LOGITS = "the graph has no activation of the classes: a sigmoid of each is assumed"


def with_classes(maps: Maps, probe: Probe, reading: Reading, hints: Sequence[str]) -> Tail | None:
    """Return the tail of a reading with its classes, or None if none computes what the graph does.

    Args:
        hints: of each map, names that may say what it is.
    """
    drawn = [probe.maps[name] for name in maps.names]
    grid = Grid(maps.sizes, tuple(len(level.anchors) for level in reading.tail.levels))
    tables = [value.drawn[reading.order] for value in probe.seen(grid.counts)]
    options = list(_options(maps, reading))
    options.sort(key=lambda tail: (_is_unlikely(tail, hints), _comes_before(tail, drawn, tables)))
    for activated in (True, False):
        for tail in options:
            if _is_made(tail, drawn, tables, activated):
                return tail if activated else replace(tail, assumed=LOGITS)
    return None


def _is_unlikely(tail: Tail, hints: Sequence[str]) -> bool:
    """True if names call the map of classes one of objectness."""
    level = tail.levels[0]
    objects = level.objectness
    apart = objects is not None and objects.map != level.classes.map
    return apart and bool(OBJECT.search(hints[level.classes.map])) and not OBJECT.search(hints[objects.map])  # type: ignore[union-attr]


def _comes_before(tail: Tail, maps: Sequence[Array], tables: list[Array]) -> bool:
    """True if a value has a column of one class before that of the objectness, which comes first in all YOLOs."""
    if tail.classes != 1 or tail.background or tail.levels[0].objectness is None:
        return False
    places = [[_place(table, column) for column in scores(tail, maps)] for table in tables]
    return any(one is not None and other is not None and one < other for one, other in places)


def _options(maps: Maps, reading: Reading) -> Iterator[Tail]:
    """Yield the tail with every choice of channels for its classes and its objectness."""
    levels = reading.tail.levels
    anchors = [len(level.anchors) for level in levels]
    step, first = levels[0].boxes.step, levels[0].boxes.count
    if step > first + 1 and reading.tail.kind not in NO_OBJECTS:
        objects = [Channels(level.boxes.map, first, 1, step) for level in levels]
        classes = [Channels(level.boxes.map, first + 1, step - first - 1, step) for level in levels]
        yield _tail(reading, classes, objects)
    if step > first:
        yield from _activated(
            _tail(reading, [Channels(level.boxes.map, first, step - first, step) for level in levels])
        )
    parts = {}
    for series in maps.series:
        found = [divmod(maps.channels[index], count) for index, count in zip(series, anchors)]
        if series != reading.series and len(set(found)) == 1 and not found[0][1]:
            parts[series] = [Channels(index, 0, found[0][0], found[0][0]) for index in series]
    for series, channels in parts.items():
        for other, objects in parts.items():
            if other != series and objects[0].count == 1:
                yield _tail(reading, channels, objects)
    for channels in parts.values():
        yield from _activated(_tail(reading, channels))


def _activated(tail: Tail) -> Iterator[Tail]:
    yield tail
    if tail.classes > 1:
        yield replace(tail, background=True, classes=tail.classes - 1)


def _tail(reading: Reading, classes: list[Channels], objects: list[Channels] | None = None) -> Tail:
    levels: list[Level] = []
    for index, level in enumerate(reading.tail.levels):
        levels.append(replace(level, classes=classes[index], objectness=None if objects is None else objects[index]))
    return replace(reading.tail, levels=tuple(levels), classes=classes[0].count)


def _is_made(tail: Tail, maps: Sequence[Array], tables: list[Array], activated: bool) -> bool:
    """Return True if the graph has the probabilities of a tail (or, not activated, its logits) among its values."""
    if activated:
        found, objects = scores(tail, maps)
    else:
        if tail.background:
            return False
        found = np.concatenate([taken(level.classes, len(level.anchors), maps) for level in tail.levels])
        objects = np.ones((len(found), 1))
        if tail.levels[0].objectness is not None:
            objects = np.concatenate(
                [taken(lv.objectness, len(lv.anchors), maps) for lv in tail.levels if lv.objectness]
            )
    apart = tail.levels[0].objectness is None or any(_has(table, objects) for table in tables)
    return (apart and any(_has(table, found) for table in tables)) or any(_has(t, found * objects) for t in tables)


def _has(table: Array, columns: Array) -> bool:
    """Return True if neighbouring columns of a table are these."""
    return _place(table, columns) is not None


def _place(table: Array, columns: Array) -> int | None:
    """Return the first of neighbouring columns of a table that are these, or None."""
    count = columns.shape[1]
    for start in range(table.shape[1] - count + 1):
        if np.allclose(table[:, start : start + count], columns, ACCURACY, ACCURACY / 10):
            return start
    return None
