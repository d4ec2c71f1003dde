"""Finds the tail of a detector: its raw maps, and what they mean.

The raw maps are where the trained layers of a graph end (`raw_values`, `behind`). The graph behind them is not compared
with the forms in which exporters write it. It is computed, for maps of zeros, of ones and of drawn numbers. A reading
counts if it computes the same boxes and probabilities of drawn maps.

`boxes` finds out which raw maps are boxes, and how the graph decodes them. `with_classes` finds out which of their
channels are classes, by the probabilities that the graph makes of them. Some files do not decode boxes, and their
published programs do: these heads are known by the shapes of their maps (`published`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import FIX_SHAPE, OnnxgenError
from onnxgen.graph.annotations import is_trained
from onnxgen.graph.nodes import FLOATS, subgraphs
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import ADDS, NORM, PASSES_ON, SCALES, SIZES
from onnxgen.heads.response import Array, Grid, Probe, Response, Seen, cells_of, corners, scores, sizes, taken
from onnxgen.options import Options
from onnxgen.passes.trainable import trainable
from onnxgen.record.tail import Channels, Level, Tail
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


def raw_values(graph: ir.Graph) -> list[ir.Value]:
    """Return the last values that trained layers make, in the order of the graph.

    `onnxgen.passes.trainable` must have run.
    """
    reached, ends = set[ir.Value](), list[ir.Value]()
    todo = list(graph.outputs)
    while todo:
        value = todo.pop()
        node = value.producer()
        if value in reached or node is None:
            continue
        reached.add(value)
        if is_layer(node):
            ends.append(value)
        elif not is_a(node, SIZES):
            todo.extend(operand for operand in node.inputs if operand is not None)
            todo.extend(operand for inner in subgraphs(node) for operand in _captured(inner))
    order = {node: number for number, node in enumerate(graph)}
    return sorted(ends, key=lambda value: order[value.producer()])  # type: ignore[index]


def is_layer(node: ir.Node) -> bool:
    """Return True for a layer with trained weights, or a trained bias or scale of its channels."""
    trained = [index for index, value in enumerate(node.inputs) if value is not None and _is_trained(value)]
    if any(index in known(node).weights or is_a(node, NORM) for index in trained):
        return True
    if not is_a(node, ADDS, SCALES) or len(node.inputs) != 2 or len(trained) != 1:
        return False
    tensor, data = stored(node.inputs[trained[0]]), node.inputs[1 - trained[0]]
    producer = None if data is None else data.producer()
    return tensor is not None and producer is not None and _is_of_channels(tensor.shape.numpy(), producer)


def _is_of_channels(shape: Sequence[int], layer: ir.Node) -> bool:
    """Return True if a bias or scale has an element for each channel of a layer's result."""
    if layer.op_type == "MatMul":
        return len(shape) == 1
    return is_layer(layer) and len(shape) >= 3 and tuple(shape[-2:]) == (1, 1)


def _is_trained(value: ir.Value) -> bool:
    """Return True for a trained stored tensor, also behind nodes that only pass it on."""
    for _ in range(8):
        node = value.producer()
        if is_trained(value) or node is None or not is_a(node, PASSES_ON) or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return is_trained(value)


def behind(raw: Iterable[ir.Value], graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes that the outputs need beside the raw values, in the order of the graph."""
    ends, needed = set(raw), set[ir.Value](graph.outputs)
    nodes = []
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs) or not ends.isdisjoint(node.outputs):
            continue
        nodes.append(node)
        if not is_a(node, SIZES):
            needed.update(operand for operand in node.inputs if operand is not None)
            needed.update(operand for inner in subgraphs(node) for operand in _captured(inner))
    return nodes[::-1]


def _captured(graph: ir.Graph) -> list[ir.Value]:
    """Return the values that a subgraph takes, those of its own included."""
    inputs = [value for node in graph for value in node.inputs if value is not None]
    return inputs + [value for node in graph for inner in subgraphs(node) for value in _captured(inner)]


# UltraFace (Linzaer, Ultra-Light-Fast-Generic-Face-Detector-1MB): widths of the priors by level, in pixels.
ULTRAFACE = ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256))


def published(tail: Tail) -> Tail | None:
    """Return a tail with the kind that its published program decodes, or None for an unknown head."""
    counts = [len(level.anchors) for level in tail.levels]
    if max(counts) == 1 and tail.levels[0].objectness is not None:
        return replace(tail, kind="offsets", assumed="the file does not decode boxes: offsets as in YOLOX and YuNet")
    if counts == [len(widths) for widths in ULTRAFACE] and tail.background and tail.classes == 1:
        anchors = [tuple((float(min(w, tail.width)), float(min(w, tail.height))) for w in ws) for ws in ULTRAFACE]
        levels = tuple(replace(level, anchors=priors) for level, priors in zip(tail.levels, anchors))
        assumption = "the file does not decode boxes: priors and variances as in UltraFace"
        return replace(tail, kind="priors", levels=levels, variances=(0.1, 0.2), assumed=assumption)
    return None


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
        tail = _tail_of_boxes(maps, levels, "", 1)
        raw = corners(replace(tail, kind="distances"), drawn)
        centres = np.concatenate([(cells_of(level) + 0.5) * level.stride for level in levels])
        far = np.concatenate([np.full((count, 1), level.stride) for count, level in zip(grid.counts, levels)])
        for value in probe.seen(grid.counts):
            for order in grid.orders():
                table = value.drawn[order][:, :4]  # YOLOX has objects and classes behind them
                if table.shape[1] == 4:
                    moved = np.concatenate((centres - table[:, :2] * far, centres + table[:, 2:] * far), 1)
                    if np.allclose(raw, moved, ACCURACY, 10 * ACCURACY):
                        return Reading(replace(tail, decoded=""), order, series)
    return None


def splits(maps: Maps) -> Iterator[tuple[tuple[int, ...], Grid, list[Channels], int]]:
    """Yield (series, grid, channels of the boxes in each level, bins): every way in which maps may hold boxes."""
    for series in maps.series:
        counts = [maps.channels[index] for index in series]
        if all(count % 4 == 0 for count in counts):
            if len(set(counts)) == 1:
                grid = Grid(maps.sizes, (1,) * len(series))
                yield series, grid, [Channels(i, 0, counts[0], counts[0]) for i in series], counts[0] // 4
            if max(counts) > 4:
                anchors = tuple(count // 4 for count in counts)
                yield series, Grid(maps.sizes, anchors), [Channels(i, 0, 4, 4) for i in series], 1
        if len(set(counts)) == 1:
            yield from _splits_with_classes(maps, series, counts[0])


def _splits_with_classes(
    maps: Maps, series: tuple[int, ...], count: int
) -> Iterator[tuple[tuple[int, ...], Grid, list[Channels], int]]:
    """Yield the ways in which maps of `count` channels may hold boxes and their classes."""
    for anchors in (n for n in range(1, count // 5 + 1) if count % n == 0):
        step, grid = count // anchors, Grid(maps.sizes, (anchors,) * len(series))
        for bins in (1, *range(2, (step - 1) // 4 + 1)) if anchors == 1 else (1,):
            yield series, grid, [Channels(i, 0, 4 * bins, step) for i in series], bins


def _readings(maps: Maps, grid: Grid, channels: list[Channels], bins: int, value: Seen) -> Iterator[Tail]:
    """Yield tails that decode maps of zeros as the graph does, without their classes."""
    for layout in LAYOUTS:
        for shares in (False, True):
            zeros, ones = (_centres(table[:, :4], layout, shares, maps.image) for table in (value.zeros, value.ones))
            stride_and_offset = _strides(maps, grid, zeros[:, :2])
            if stride_and_offset is None:
                continue
            strides, offset = stride_and_offset
            levels = _levels(maps, grid, channels, strides)
            tail = replace(_tail_of_boxes(maps, levels, "", bins), decoded=value.name, layout=layout, shares=shares)
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
        strides = []
        for (height, width), anchors, start, stop in zip(grid.sizes, grid.anchors, starts, starts[1:]):
            cells = cells_of(Level(height, width, 1, ((1, 1),) * anchors, *[Channels(0, 0, 0, 0)] * 2)) + offset
            options = [maps.image[1] / width, maps.image[0] / height, _rounded(maps, (height, width))]
            strides += [s for s in options if np.allclose(centres[start:stop], cells * s, ACCURACY, 10 * ACCURACY)][:1]
        if len(strides) == len(grid.sizes):
            return strides, offset > 0
    return None


def _rounded(maps: Maps, size: tuple[int, int]) -> float:
    """Return the power of two that is nearest to the stride of a map whose size may have been rounded up."""
    return float(2 ** round(float(np.log2(maps.image[1] / size[1]))))


def _anchors(grid: Grid, sizes: Array) -> list[tuple[tuple[float, float], ...]] | None:
    """Return the anchors of each level, or None if their sizes differ from cell to cell."""
    starts, levels = np.cumsum([0, *grid.counts]), []
    for anchors, start, stop in zip(grid.anchors, starts, starts[1:]):
        table = sizes[start:stop].reshape(-1, anchors, 2)
        if not np.allclose(table, table[:1], ACCURACY, 10 * ACCURACY) or (table <= 0).any():
            return None
        levels.append(tuple((round(float(width), 4), round(float(height), 4)) for width, height in table[0]))
    return levels


def _levels(maps: Maps, grid: Grid, channels: Sequence[Channels], strides: Sequence[float]) -> tuple[Level, ...]:
    return tuple(
        Level(height, width, stride, ((stride, stride),) * anchors, part, part)
        for (height, width), anchors, part, stride in zip(grid.sizes, grid.anchors, channels, strides)
    )


def _tail_of_boxes(maps: Maps, levels: tuple[Level, ...], kind: str, bins: int) -> Tail:
    return Tail(kind, maps.names, levels, *maps.image, 0, bins)


def _agrees(tail: Tail, maps: Sequence[Array], table: Array) -> bool:
    """Return True if a tail decodes drawn maps as the graph does."""
    wanted = _centres(table[:, :4], tail.layout, tail.shares, (tail.height, tail.width))
    with np.errstate(all="ignore"):
        decoded = corners(tail, maps)
    decoded = _centres(decoded, "corners", False, (1, 1))
    return bool(np.allclose(decoded, wanted, ACCURACY, 10 * ACCURACY))


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
            if _computes(tail, drawn, tables, activated):
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
    step, first = levels[0].boxes.step, levels[0].boxes.count
    if step > first + 1 and reading.tail.kind not in NO_OBJECTS:
        objects = [Channels(level.boxes.map, first, 1, step) for level in levels]
        classes = [Channels(level.boxes.map, first + 1, step - first - 1, step) for level in levels]
        yield _tail_with(reading, classes, objects)
    if step > first:
        classes = [Channels(level.boxes.map, first, step - first, step) for level in levels]
        yield from _activated(_tail_with(reading, classes))
    parts = _other_maps(maps, reading)
    for classes in parts:
        for objects in parts:
            if objects is not classes and objects[0].count == 1:
                yield _tail_with(reading, classes, objects)
    for classes in parts:
        yield from _activated(_tail_with(reading, classes))


def _other_maps(maps: Maps, reading: Reading) -> list[list[Channels]]:
    """Return the channels of the other series of maps, by level, where all have as many for each anchor."""
    parts = []
    for series in maps.series:
        pairs = zip(series, reading.tail.levels)
        divided = {divmod(maps.channels[index], len(level.anchors)) for index, level in pairs}
        if series != reading.series and len(divided) == 1:
            ((count, rest),) = divided
            parts += [] if rest else [[Channels(index, 0, count, count) for index in series]]
    return parts


def _activated(tail: Tail) -> Iterator[Tail]:
    yield tail
    if tail.classes > 1:
        yield replace(tail, background=True, classes=tail.classes - 1)


def _tail_with(reading: Reading, classes: list[Channels], objects: list[Channels] | None = None) -> Tail:
    levels: list[Level] = []
    for index, level in enumerate(reading.tail.levels):
        levels.append(replace(level, classes=classes[index], objectness=None if objects is None else objects[index]))
    return replace(reading.tail, levels=tuple(levels), classes=classes[0].count)


def _computes(tail: Tail, maps: Sequence[Array], tables: list[Array], activated: bool) -> bool:
    """Return True if the graph has the probabilities of a tail (or, not activated, its logits) among its values."""
    if activated:
        classes, objects = scores(tail, maps)
    else:
        if tail.background:
            return False
        classes = np.concatenate([taken(level.classes, len(level.anchors), maps) for level in tail.levels])
        objects = np.ones((len(classes), 1))
        if tail.levels[0].objectness is not None:
            objects = np.concatenate(
                [taken(lv.objectness, len(lv.anchors), maps) for lv in tail.levels if lv.objectness]
            )
    apart = tail.levels[0].objectness is None or any(_has(table, objects) for table in tables)
    return (apart and any(_has(table, classes) for table in tables)) or any(_has(t, classes * objects) for t in tables)


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


QUERIES = "a head of queries (DETR) is trained by matching, which onnxgen can't do"
CUT = "generate the module again with --outputs, which names the raw maps, and train it with a loss of your own"


def find_tail(model: ir.Model) -> Tail:
    """Return the tail of a detector.

    Args:
        model: the whole network, as `reader.read` returns it. Nodes are not changed.

    Raises:
        OnnxgenError: the graph is no detector that can be read. The error says what was found.
    """
    options = Options()
    propagate(model.graph, options)
    trainable(model, options)
    raw = raw_values(model.graph)
    spatial = [value for value in raw if len(info(value).shape or ()) == 4]
    if not spatial:
        is_queries = any(len(shape := info(value).shape or ()) == 3 and shape[-1] == 4 for value in raw)
        what = f"no raw maps of a detector: the layers end in {_described(raw)}"
        raise OnnxgenError(what, help=QUERIES if is_queries else CUT)
    if any(value.dtype not in (None, ir.DataType.FLOAT) for value in spatial):
        raise OnnxgenError("the raw maps of the detector are not float32", help="convert the file to float32")
    maps = _maps(model, spatial)
    probe = Probe(Response(model, raw, behind(raw, model.graph)))
    hints = [_hint(value) for value in spatial]
    if (reading := boxes(maps, probe)) is not None:
        tail = with_classes(maps, probe, reading, hints)
        what = f"boxes are decoded from {_described(spatial)}, but no map has their classes"
    else:
        tail = _published_tail(maps, probe, hints)
        what = f"the layers end in {_described(raw)}, and nothing behind them decodes boxes in a known way"
    if tail is None:
        raise OnnxgenError(what, help=CUT)
    return _used(tail, [str(value.name) for value in raw])


def _published_tail(maps: Maps, probe: Probe, hints: Sequence[str]) -> Tail | None:
    """Return the tail of a head that the published program decodes."""
    reading = undecoded(maps, probe)
    tail = None if reading is None else with_classes(maps, probe, reading, hints)
    return None if tail is None else published(tail)


def _maps(model: ir.Model, spatial: Sequence[ir.Value]) -> Maps:
    """Sort raw maps by their sizes. A size that has fewer maps than most belongs to something else, such as masks."""
    shapes = [sizes(value) for value in spatial]
    groups = defaultdict[tuple[int, int], list[int]](list)
    for index, (_, _, height, width) in enumerate(shapes):
        groups[height, width].append(index)
    usual, _ = Counter(map(len, groups.values())).most_common(1)[0]
    levels = sorted((size for size, indices in groups.items() if len(indices) == usual), reverse=True)
    parts = [sorted(groups[size], key=lambda index: (shapes[index][1], index)) for size in levels]
    names = tuple(str(value.name) for value in spatial)
    image = _image(model, FIX_SHAPE)
    return Maps(names, tuple(shape[1] for shape in shapes), tuple(zip(*parts)), tuple(levels), image)


def _image(model: ir.Model, way_out: str) -> tuple[int, int]:
    """Return height and width of the only image among the inputs."""
    images = [v for v in model.graph.inputs if len(info(v).shape or ()) == 4 and info(v).dtype in FLOATS]
    if len(images) != 1:
        raise OnnxgenError(
            f"a detector has one image as its input, but the inputs are {_described(model.graph.inputs)}"
        )
    _, _, height, width = sizes(images[0])
    return height, width


def _used(tail: Tail, raw: Sequence[str]) -> Tail:
    """Leave out maps that are no part of the boxes and their classes."""
    parts = [part for level in tail.levels for part in (level.boxes, level.classes, level.objectness) if part]
    used = sorted({part.map for part in parts})
    names = tuple(tail.maps[index] for index in used)

    def moved(part: Channels | None) -> Channels | None:
        return None if part is None else replace(part, map=used.index(part.map))

    levels = []
    for level in tail.levels:
        channels = {name: moved(getattr(level, name)) for name in ("boxes", "classes", "objectness")}
        levels.append(replace(level, **channels))  # type: ignore[arg-type]
    return replace(tail, maps=names, levels=tuple(levels), others=tuple(name for name in raw if name not in names))


def _hint(value: ir.Value) -> str:
    """Return names that may say what a map is: its own, and those of its layer's weights."""
    node = value.producer()
    weights = [] if node is None else [v.name for v in node.inputs[1:] if v is not None]
    outputs = [o.name for use in value.uses() for o in use.node.outputs]
    return " ".join(str(name) for name in (value.name, *weights, *outputs))


def _described(values: Sequence[ir.Value]) -> str:
    """Return names and shapes of values for a message."""
    texts = []
    for value in values[:4]:
        shape = info(value).shape
        dims = "" if shape is None else f" [{', '.join(str(dim) for dim in shape)}]"
        texts.append(f"{printable(value.name or '')}{dims}")
    more = f" and {len(values) - 4} more" if len(values) > 4 else ""
    return (", ".join(texts) or "nothing") + more
