"""Where a detector's file has its boxes and scores: outputs, columns and layout, found by what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnxgen.export.places import Array
from onnxgen.export.proof import computed, outputs_behind
from onnxgen.export.shared import CannotWriteBack
from onnxgen.heads.boxes import ACCURACY, LAYOUTS
from onnxgen.heads.decoding import corners, scores, taken
from onnxgen.heads.seen import SEED, Grid
from onnxgen.record.tail import Tail

Table = tuple[str, int, Array]  # an output, the axis of its columns, and its numbers [points, columns]


def decoded_boxes(source: Path, tail: Tail, classes: int) -> dict[str, Any]:
    """Return where an exported file has its boxes; {} if it chooses them itself, or if they are in no table of points.

    Args:
        source: the original file, and `tail` its head.
        classes: of the exported file.

    Returns:
        `boxes`, `scores` and `objects` (or None), each with its `output`, the `axis` of its columns, the `first` one,
        their `count`, and the function to `apply`; the `layout` of the boxes (`Tail.layout`), and `shares`. Of a file
        that leaves offsets as they are the layout is "offsets", and `grid` has the `stride`, `height` and `width` of
        each level.
    """
    model, maps = onnx.load(source), _drawn(tail)
    names = outputs_behind(model, tail.maps)
    try:
        values = computed(model, tail, names, maps)
    except CannotWriteBack:
        return {}
    tables = list(_tables(dict(zip(names, values)), tail.points))
    raw = [maps[name] for name in tail.maps]
    grid = Grid(
        tuple((level.height, level.width) for level in tail.levels), tuple(len(lv.anchors) for lv in tail.levels)
    )
    for order in grid.orders():
        ordered = [(name, axis, table[order]) for name, axis, table in tables]
        boxes = _boxes(ordered, tail, raw) or _offsets(ordered, tail, raw, order)
        found = _scores(ordered, tail, raw) if boxes else {}
        if found:
            return {**boxes, **_of_classes(found, tail.classes, classes)}
    return {}


def _drawn(tail: Tail) -> dict[str, Array]:
    """Return raw maps of one image."""
    drawn, made = np.random.default_rng(SEED), dict[str, Array]()
    for level in tail.levels:
        for part in filter(None, (level.boxes, level.classes, level.objectness)):
            shape = (1, part.step * len(level.anchors), level.height, level.width)
            made.setdefault(tail.maps[part.map], drawn.standard_normal(shape).astype(np.float32))
    return made


def _tables(values: dict[str, Array], points: int) -> Iterator[Table]:
    for name, value in values.items():
        for axis in (1, 2) if value.ndim == 3 and value.dtype.kind == "f" else ():
            if value.shape[3 - axis] == points:
                yield name, axis, np.moveaxis(value[0], axis - 1, 1).astype(np.float64)


def _boxes(tables: list[Table], tail: Tail, maps: list[Array]) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        low, high = np.split(corners(tail, maps), 2, 1)
    pairs = ((low + high) / 2, high - low), (low, high), (low, high - low)
    for layout, pair in zip(LAYOUTS, pairs, strict=True):
        for shares in (False, True):
            wanted = np.concatenate(pair, 1) / (np.tile([tail.width, tail.height], 2) if shares else 1)
            if (place := _place(tables, wanted)) is not None:
                return {"boxes": place, "layout": layout, "shares": shares}
    return {}


def _offsets(tables: list[Table], tail: Tail, maps: list[Array], order: Array) -> dict[str, Any]:
    """Return the columns of offsets and of logarithms of sizes, for another program to decode."""
    if tail.kind != "offsets" or any(len(level.anchors) > 1 for level in tail.levels):
        return {}
    wanted = np.concatenate([taken(level.boxes, 1, maps) for level in tail.levels])
    if (place := _place(tables, wanted)) is None:
        return {}
    begins = order[np.cumsum([0, *(level.height * level.width for level in tail.levels[:-1])])]
    levels = [tail.levels[n] for n in np.argsort(begins)]
    grid = [{"stride": level.stride, "height": level.height, "width": level.width} for level in levels]
    return {"boxes": place, "layout": "offsets", "shares": False, "grid": grid}


def _scores(tables: list[Table], tail: Tail, maps: list[Array]) -> dict[str, Any]:
    """Return the columns of scores: alone, beside those of objects, or as logits."""
    of_classes, of_objects = scores(tail, maps)
    has_objects = tail.levels[0].objectness is not None
    if (place := _place(tables, of_classes * of_objects)) is not None:
        return {"scores": place, "objects": None}
    place, objects = _place(tables, of_classes), _place(tables, of_objects)
    if has_objects and place is not None and objects is not None:
        return {"scores": place, "objects": objects}
    logits = np.concatenate([taken(level.classes, len(level.anchors), maps) for level in tail.levels])
    if not has_objects and not tail.background and (place := _place(tables, logits)) is not None:
        return {"scores": {**place, "apply": "sigmoid"}, "objects": None}
    return {}


def _place(tables: list[Table], columns: Array) -> dict[str, Any] | None:
    """Return where neighbouring columns of an output are these."""
    count = columns.shape[1]
    for name, axis, table in tables:
        for first in range(table.shape[1] - count + 1):
            if np.allclose(table[:, first : first + count], columns, ACCURACY, ACCURACY):
                return {"output": name, "axis": axis, "first": first, "count": count, "apply": ""}
    return None


def _of_classes(found: dict[str, Any], before: int, after: int) -> dict[str, Any]:
    """Return the columns in a file with another number of classes."""
    place, objects = found["scores"], found["objects"]
    moved = dict(objects) if objects is not None else None
    if moved is not None and moved["output"] == place["output"] and moved["first"] > place["first"]:
        moved["first"] += after - before
    return {"scores": {**place, "count": after}, "objects": moved}
