"""Finds out which raw maps are boxes, and how the graph decodes them: a reading must compute what the graph does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxgen.heads.decoding import Array, cells_of, corners
from onnxgen.heads.seen import Grid, Probe, Seen
from onnxgen.record.tail import Channels, Level, Tail

LAYOUTS = ("centres", "corners", "corner")
ACCURACY = 1e-4  # relative, or in pixels by 10: of the graph's float32


@dataclass(frozen=True)
class Maps:
    """The raw maps of a head.

    Attributes:
        names: of all maps, in the order of the graph.
        channels: of each map.
        series: indices of maps that have one part in each level.
        sizes: height and width of each level.
        image: height and width of the image.
    """

    names: tuple[str, ...]
    channels: tuple[int, ...]
    series: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, int], ...]
    image: tuple[int, int]


@dataclass(frozen=True)
class Reading:
    """A reading of the boxes: a tail whose classes are not read yet, and the order of the graph's points."""

    tail: Tail
    order: Array
    series: tuple[int, ...]


def boxes(maps: Maps, probe: Probe) -> Reading | None:
    """Return how the graph decodes boxes, or None if no reading computes what it computes."""
    drawn = [probe.maps[name] for name in maps.names]
    for series, grid, channels, bins in splits(maps):
        values = [value for value in probe.seen(grid.counts) if value.drawn.shape[1] >= 4]
        for value in reversed(values):
            for order in grid.orders():
                for tail in _readings(maps, grid, channels, bins, value.ordered(order)):
                    if _agrees(tail, drawn, value.drawn[order]):
                        return Reading(tail, order, series)
    return None


def undecoded(maps: Maps, probe: Probe) -> Reading | None:
    """Return the boxes of a graph that ends in their numbers as the layers make them; its kind is left open ("")."""
    drawn = [probe.maps[name] for name in maps.names]
    for series, grid, channels, bins in splits(maps):
        levels = _levels(maps, grid, channels, [_rounded(maps, size) for size in grid.sizes])
        if bins > 1 or any(part.count != part.step for part in channels):
            continue
        tail = _tail(maps, levels, "", 1)
        raw = corners(replace(tail, kind="distances"), drawn)
        for value in probe.seen(grid.counts):
            for order in grid.orders():
                table = value.drawn[order][:, :4]  # YOLOX has objects and classes behind them
                low = [(cells_of(level) + 0.5) * level.stride for level in levels]
                far = np.concatenate([np.full(len(cells), level.stride) for cells, level in zip(low, levels)])[:, None]
                found = np.concatenate(low)
                if table.shape[1] == 4 and np.allclose(
                    raw,
                    np.concatenate((found - table[:, :2] * far, found + table[:, 2:] * far), 1),
                    ACCURACY,
                    10 * ACCURACY,
                ):
                    return Reading(replace(tail, decoded=""), order, series)
    return None


def splits(maps: Maps) -> Iterator[tuple[tuple[int, ...], Grid, list[Channels], int]]:
    """Yield (series, grid, channels of the boxes in each level, bins): every way in which maps may hold boxes."""
    for series in maps.series:
        counts = [maps.channels[index] for index in series]
        if all(count % 4 == 0 for count in counts):
            if len(set(counts)) == 1:
                yield (
                    series,
                    Grid(maps.sizes, (1,) * len(series)),
                    [Channels(i, 0, counts[0], counts[0]) for i in series],
                    counts[0] // 4,
                )
            if max(counts) > 4:
                anchors = tuple(count // 4 for count in counts)
                yield series, Grid(maps.sizes, anchors), [Channels(i, 0, 4, 4) for i in series], 1
        for anchors_of_all in range(1, counts[0] // 5 + 1) if len(set(counts)) == 1 else ():
            step, rest = divmod(counts[0], anchors_of_all)
            if not rest:
                grid = Grid(maps.sizes, (anchors_of_all,) * len(series))
                for bins in (1, *range(2, (step - 1) // 4 + 1)) if anchors_of_all == 1 else (1,):
                    yield series, grid, [Channels(i, 0, 4 * bins, step) for i in series], bins


def _readings(maps: Maps, grid: Grid, channels: list[Channels], bins: int, value: Seen) -> Iterator[Tail]:
    """Yield tails that decode maps of zeros as the graph does, without their classes."""
    for layout in LAYOUTS:
        for shares in (False, True):
            zeros, ones = (_centres(table[:, :4], layout, shares, maps.image) for table in (value.zeros, value.ones))
            found = _strides(maps, grid, zeros[:, :2])
            if found is None:
                continue
            strides, offset = found
            levels = _levels(maps, grid, channels, strides)
            tail = replace(_tail(maps, levels, "", bins), decoded=value.name, layout=layout, shares=shares)
            for kind in ("distances",) if offset else ("offsets",):
                for distance in ("identity", "relu", "exp") if kind == "distances" else ("identity",):
                    yield replace(tail, kind=kind, distance=distance)
            if not offset or bins > 1:
                continue
            anchors = _anchors(grid, zeros[:, 2:])
            if anchors is None:
                continue
            tail = replace(tail, levels=tuple(replace(level, anchors=a) for level, a in zip(levels, anchors)))
            yield replace(tail, kind="yolov5")
            yield replace(tail, kind="yolov3")
            with np.errstate(all="ignore"):
                moved = ((ones - zeros)[:, :2] / zeros[:, 2:])[0, 0], np.log(ones[:, 2:] / zeros[:, 2:])[0, 0]
            if np.isfinite(moved).all():
                yield replace(tail, kind="priors", variances=(round(float(moved[0]), 5), round(float(moved[1]), 5)))


def _centres(table: Array, layout: str, shares: bool, image: tuple[int, int]) -> Array:
    """Return centre and size in pixels of boxes in a layout."""
    table = table * np.array([image[1], image[0]] * 2) if shares else table
    low, high = table[:, :2], table[:, 2:]
    if layout == "corners":
        return np.concatenate(((low + high) / 2, high - low), 1)
    return np.concatenate((low + high / 2, high), 1) if layout == "corner" else table


def _strides(maps: Maps, grid: Grid, centres: Array) -> tuple[list[float], bool] | None:
    """Return the strides of the levels, and if points are in the middle of cells (else in their corner)."""
    starts = np.cumsum([0, *grid.counts])
    for offset in (0.5, 0.0):
        found = []
        for (height, width), anchors, start, stop in zip(grid.sizes, grid.anchors, starts, starts[1:]):
            cells = cells_of(Level(height, width, 1, ((1, 1),) * anchors, *[Channels(0, 0, 0, 0)] * 2)) + offset
            options = [maps.image[1] / width, maps.image[0] / height, _rounded(maps, (height, width))]
            found += [s for s in options if np.allclose(centres[start:stop], cells * s, ACCURACY, 10 * ACCURACY)][:1]
        if len(found) == len(grid.sizes):
            return found, offset > 0
    return None


def _rounded(maps: Maps, size: tuple[int, int]) -> float:
    """Return the power of two that is nearest to the stride of a map whose size may have been rounded up."""
    return float(2 ** round(float(np.log2(maps.image[1] / size[1]))))


def _anchors(grid: Grid, sizes: Array) -> list[tuple[tuple[float, float], ...]] | None:
    """Return the anchors of each level, or None if their sizes differ from cell to cell."""
    starts, found = np.cumsum([0, *grid.counts]), []
    for anchors, start, stop in zip(grid.anchors, starts, starts[1:]):
        table = sizes[start:stop].reshape(-1, anchors, 2)
        if not np.allclose(table, table[:1], ACCURACY, 10 * ACCURACY) or (table <= 0).any():
            return None
        found.append(tuple((round(float(width), 4), round(float(height), 4)) for width, height in table[0]))
    return found


def _levels(maps: Maps, grid: Grid, channels: Sequence[Channels], strides: Sequence[float]) -> tuple[Level, ...]:
    return tuple(
        Level(height, width, stride, ((stride, stride),) * anchors, part, part)
        for (height, width), anchors, part, stride in zip(grid.sizes, grid.anchors, channels, strides)
    )


def _tail(maps: Maps, levels: tuple[Level, ...], kind: str, bins: int) -> Tail:
    return Tail(kind, maps.names, levels, *maps.image, 0, bins)


def _agrees(tail: Tail, maps: Sequence[Array], table: Array) -> bool:
    """Return True if a tail decodes drawn maps as the graph does."""
    wanted = _centres(table[:, :4], tail.layout, tail.shares, (tail.height, tail.width))
    with np.errstate(all="ignore"):
        found = corners(tail, maps)
    found = _centres(found, "corners", False, (1, 1))
    return bool(np.allclose(found, wanted, ACCURACY, 10 * ACCURACY))
