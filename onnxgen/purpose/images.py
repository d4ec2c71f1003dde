"""Rules for outputs over an image: boxes of detectors, segmentation, keypoints, images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import onnx_ir as ir

from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ADDS, CONVOLUTION, GLOBAL_POOL, JOINS, POOL, RECTIFIER, RESAMPLES, SCALES, SHUFFLES
from onnxgen.passes.match import scalar
from onnxgen.purpose import names
from onnxgen.purpose.ends import CLIP, NMS, TANH, End, behind, first_live, is_convolution, is_layer, op_of
from onnxgen.purpose.names import quoted, words
from onnxgen.purpose.network import BUILT, FITS, NAMED, Image, Map, Network, Vote, ratio, shown, size_of
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Shape, info

_MOST = 400  # nodes between an output and the maps that it is made of
_WALK = 40  # nodes from a scale's boxes back to its map


@dataclass(frozen=True)
class Scale:
    """One scale of a detector: the stride of its cells in pixels, and the boxes of each cell."""

    stride: int
    anchors: int


def detection(net: Network) -> Iterator[Vote]:
    """Boxes and their classes."""
    if (nms := next((node for node in net.nodes if node.op_type in NMS), None)) is not None:
        text = f"the node that makes {shown(nms.outputs[0])} is a {op_of(nms)}: overlapping boxes are removed inside"
        facts = {**_scale_facts(_of_all(net)), "decoded": True, "nms": True}
        yield Vote("detection", BUILT, (text,), facts, whole=True)
        return
    if not net.images:
        return
    yield from _joined(net)
    yield from _apart(net)
    yield from _pairs(net)
    yield from _single(net)


# ---- one output for all scales ----


def _joined(net: Network) -> Iterator[Vote]:
    """Boxes of several scales, joined into one output: [N, boxes, 4 + classes] or [N, 4 + classes, boxes]."""
    scales, sides = _of_all(net), [end for end in net.ends if len(end.dims) == 3]
    if not scales or not sides:
        return
    facts = _scale_facts(scales)
    strides, anchors = ", ".join(map(str, facts["strides"])), ", ".join(map(str, facts["anchors"]))
    evidence = [f"maps of strides {strides} are joined, with {anchors} boxes in each cell"]
    is_decoded = any(_is_decoded(net, end) for end in sides)
    facts |= {"decoded": is_decoded, "nms": False}
    boxes = next((end for end in sides if end.dims[2] == 4), None)
    if boxes is not None:
        facts["boxes"] = boxes.name
        evidence.append(f"output {shown(boxes.value)} has 4 numbers for each box")
    if (scores := next((end for end in sides if end is not boxes), None)) is not None:
        width = _least(scores)
        facts |= dict(zip(("output", "width") if boxes is None else ("scores", "classes"), (scores.name, width)))
        if boxes is None and _may_be_features(width, is_decoded):
            yield Vote("detection", FITS, tuple(evidence), facts)
            return
        evidence.append(f"output {shown(scores.value)} has {width} numbers for each box")
    yield Vote("detection", BUILT, tuple(evidence), facts, whole=True)


def _least(end: End) -> int:
    return min((dim for dim in end.dims[1:] if isinstance(dim, int)), default=0)


def _may_be_features(width: int, is_decoded: bool) -> bool:
    """Return True if rows of so many numbers need be no boxes with classes."""
    return width < 5 or (width >= 64 and width % 32 == 0 and not is_decoded)


def _of_all(net: Network) -> list[Scale]:
    """Return the scales of the first output that joins several, by their strides."""
    for end in net.ends:
        for image in net.images:
            scales = _scales(net, end, image)
            if len({scale.stride for scale in scales}) > 1:
                return sorted(scales, key=lambda scale: scale.stride)
    return []


def _scales(net: Network, end: End, image: Image) -> list[Scale]:
    """Return the scales of the maps that an output joins before any further layer."""
    for node in _before_layers(net, end):
        if is_a(node, JOINS) and len(scales := _branches(net, node, image)) == len(node.inputs) > 1:
            if len({scale.stride for scale in scales}) > 1:
                return scales
    return []


def _before_layers(net: Network, end: End) -> Iterator[ir.Node]:
    """Yield the nodes that an output is made of, back to the last layers."""
    waiting, seen = [end.value], {end.value}
    while waiting and len(seen) < _MOST:
        node = waiting.pop(0).producer()
        if node is None or _is_layer(net, node):
            continue
        yield node
        for value in node.inputs:
            if value is not None and value in net.live and value not in seen:
                seen.add(value)
                waiting.append(value)


def _branches(net: Network, node: ir.Node, image: Image) -> list[Scale]:
    """Return the scale of each input of a Concat; shorter if one comes from no map of a convolution."""
    shape = info(node.outputs[0]).shape
    axis = node.attributes.get_int("axis", 0)
    if shape is None or not -len(shape) <= axis < len(shape):
        return []
    scales = []
    for value in node.inputs:
        rows = (info(value).shape or ())[axis : axis + 1 or None]
        grid = None if value is None else _map_of(net, value)
        stride = None if grid is None else _stride(grid, image)
        if grid is None or stride is None or not rows:
            break
        cells, most = size_of(grid[0] * grid[1]), size_of(rows[0])
        if not cells or not most or most % cells:
            break
        scales.append(Scale(stride, most // cells))
    return scales


def _map_of(net: Network, value: ir.Value) -> tuple[Dim, Dim] | None:
    """Return height and width of the map of a convolution that a value is computed from."""
    current: ir.Value | None = value
    for _ in range(_WALK):
        node = None if current is None else current.producer()
        if node is None:
            return None
        if _is_layer(net, node):
            shape = info(node.outputs[0]).shape
            return (shape[2], shape[3]) if shape is not None and len(shape) == 4 and is_convolution(node) else None
        if is_a(node, RESAMPLES, POOL, GLOBAL_POOL):
            return None
        current = first_live(node, net.live)
    return None


def _is_layer(net: Network, node: ir.Node) -> bool:
    return is_layer(node, net.live) and not _is_expectation(node)


def _is_expectation(node: ir.Node) -> bool:
    """Return True for the convolution of weights 0, 1, 2, ... that decodes distributions (arXiv 2006.04388)."""
    shape = info(node.inputs[1]).shape
    is_single = shape is not None and len(shape) == 4 and shape[0] == 1 and shape[2:] == (1, 1)
    return is_single and is_a(node, CONVOLUTION)


def _stride(grid: tuple[Dim, Dim], image: Image) -> int | None:
    """Return the power of two that a map is smaller than the image, or None. Sizes may be rounded."""
    sizes = [(size_of(whole), size_of(part)) for whole, part in zip((image.height, image.width), grid)]
    if any(not whole or not part for whole, part in sizes):
        return None
    fits = [2**n for n in range(1, 10) if all(part in (whole // 2**n, -(-whole // 2**n)) for whole, part in sizes)]
    return fits[0] if fits else None


def _is_decoded(net: Network, end: End) -> bool:
    """Return True if stored numbers, such as cells or anchors, move what the maps say to places in the image."""
    for node in _before_layers(net, end):
        values = [v for v in node.inputs if v is not None]
        if is_a(node, ADDS, SCALES) and len(values) == 2:
            if any(v not in net.live and (info(v).rank or 0) > 1 for v in values):
                return True
    return False


def _scale_facts(scales: Sequence[Scale]) -> dict[str, Any]:
    columns = {"strides": [scale.stride for scale in scales], "anchors": [scale.anchors for scale in scales]}
    return columns if scales else {}


# ---- outputs for each scale ----


def _apart(net: Network) -> Iterator[Vote]:
    """One output, or one group of outputs, for each scale."""
    several = {key: ends for key, ends in _by_stride(net, net.images[0]).items() if len(ends) > 1}
    if not several:
        return
    strides = sorted({stride for ends in several.values() for stride in ends})
    widths = sorted(width for (_, width) in several if isinstance(width, int))
    facts = {"strides": strides, "decoded": False, "nms": False, "widths": widths}
    shapes = ", ".join(shown(next(iter(ends.values())).value) for ends in several.values())
    text = f"each of {len(strides)} scales (strides {', '.join(map(str, strides))}) has its own outputs, as {shapes}"
    signs = _signs(net, several, widths)
    if signs:
        yield Vote("detection", BUILT, (text + signs[0], *signs[1:]), facts, whole=True)
    else:
        yield Vote("detection", FITS, (text,), facts)


def _signs(net: Network, several: dict[tuple[int, object], dict[int, End]], widths: list[int]) -> tuple[str, ...]:
    """Return what says that outputs are heads of a detector, to go behind their description; () if nothing does."""
    least = min(widths, default=0)
    has_boxes = len(several) > 1 and any(width % 4 == 0 for width in widths)
    if has_boxes and len(set(map(frozenset, several.values()))) == 1:
        return "", "one of them has 4 numbers for each box"
    if least > 5 and all(rank == 5 for rank, _ in several):
        return ("",)
    if least > 5 and len(several) == 1 and least % 8 and _are_heads(net, *several.values()):
        return (f": {least} channels at each scale, of a 1x1 convolution",)
    return ()


def _by_stride(net: Network, image: Image) -> dict[tuple[int, object], dict[int, End]]:
    """Return the outputs that are maps, by rank and width, and then by stride."""
    groups: dict[tuple[int, object], dict[int, End]] = defaultdict(dict)
    for end in net.ends:
        grid, width = _grid(net, end, image)
        if grid is not None and (stride := _stride(grid, image)) is not None:
            groups[len(end.dims), width][stride] = end
    return groups


def _are_heads(net: Network, ends: Mapping[int, End]) -> bool:
    """Return True if 1x1 convolutions make all maps (by stride), and no output is as large as the image."""
    if min(ends) < 8 or any((pixel_map := net.map(end)) is not None and pixel_map.ratio == 1 for end in net.ends):
        return False
    kernels = [None if end.layer is None else info(end.layer.inputs[1]).shape for end in ends.values()]
    return all(kernel is not None and kernel[2:] == (1, 1) for kernel in kernels)


def _grid(net: Network, end: End, image: Image) -> tuple[tuple[Dim, Dim] | None, Dim | None]:
    """Return height and width of an output's map, and its numbers for each cell: [N, C, H, W], [N, A, H, W, C],
    [N, H * W, C].
    """
    shape = end.dims
    if len(shape) == 4 and (pixel_map := net.map(end)) is not None and pixel_map.ratio < 1:
        axes = (2, 3) if pixel_map.axis == 1 else (1, 2)
        return (shape[axes[0]], shape[axes[1]]), pixel_map.channels
    if len(shape) == 5:
        return (shape[2], shape[3]), shape[4]
    if len(shape) == 3 and (grid := _map_of(net, end.value)) is not None:
        cells, rows = size_of(grid[0] * grid[1]), size_of(shape[1])
        if cells > 1 and rows and rows % cells == 0:
            return grid, shape[2]
    return None, None


# ---- boxes beside scores ----


def _pairs(net: Network) -> Iterator[Vote]:
    """Two outputs with as many rows: 4 numbers for a box, and scores."""
    for boxes in net.ends:
        shape = boxes.dims
        if len(shape) in (3, 4) and shape[_axis_of_numbers(shape)] == 4:
            rest = _without(shape)
            others = [end for end in net.ends if end is not boxes and len(end.dims) == len(shape)]
            yield from (_pair(boxes, scores) for scores in others if _without(scores.dims) == rest)


def _pair(boxes: End, scores: End) -> Vote:
    named, is_list = words(boxes.name) & names.BOXES, len(boxes.dims) == 3
    is_sure = scores.is_softmax or scores.is_sigmoid or boxes.is_sigmoid or words(scores.name) & names.SCORES
    facts: dict[str, object] = {"boxes": boxes.name, "scores": scores.name, "nms": False}
    width = scores.dims[_axis_of_numbers(scores.dims)]
    facts |= {"classes": width} if isinstance(width, int) else {}
    text = f"output {shown(boxes.value)} has 4 numbers where output {shown(scores.value)} has scores"
    text += f", and {quoted(named)} in its name" if named else ""
    weight = BUILT if is_sure and (named or is_list) else NAMED if named else FITS
    return Vote("detection", weight, (text,), facts, frozenset({boxes.name, scores.name}))


def _axis_of_numbers(shape: Shape) -> int:
    """Return the axis of the numbers for each box."""
    return 2 if len(shape) == 3 else 1


def _without(shape: Shape) -> Shape:
    axis = _axis_of_numbers(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def _single(net: Network) -> Iterator[Vote]:
    """Names alone, or a map of one scale that might be boxes."""
    named, others, sizes, centres = (
        [end for end in net.ends if words(end.name) & name_words]
        for name_words in (names.BOXES, names.SCORES, {"wh", "size", "sizes"}, names.HEATS)
    )
    if named and others and named != others:
        text = f"outputs are called {shown(named[0].value)} and {shown(others[0].value)}"
        facts = {"boxes": named[0].name, "scores": others[0].name}
        yield Vote("detection", NAMED, (text,), facts, whole=True)
    if sizes and centres and net.map(sizes[0]) is not None:
        text = f"outputs are called {shown(centres[0].value)} and {shown(sizes[0].value)}: centres and sizes of boxes"
        facts = {"scores": centres[0].name, "boxes": sizes[0].name}
        yield Vote("detection", NAMED, (text,), facts, whole=True)
    for end in net.ends:
        if fit := _fit(net, end):
            yield Vote("detection", FITS, (f"output {shown(end.value)}{fit} fit",), {"output": end.name})


def _fit(net: Network, end: End) -> str:
    """Return how the shape of an output allows boxes, "" if it does not."""
    pixel_map = net.map(end)
    if pixel_map is not None and pixel_map.ratio <= 1 / 4 and end.is_a(CONVOLUTION):
        return ": boxes of each cell"
    if len(end.dims) == 3 and 5 in (*end.dims[1:], 6) and _grids(net, end):
        return ": rows of boxes"
    is_flat = net.vector(end) is not None and end.is_a(CONVOLUTION) and end.layer is not None and _grids(net, end)
    return " is a flat map: boxes of each cell" if is_flat else ""


def _grids(net: Network, end: End) -> bool:
    """Return True if an output is computed from a map of more than one cell, without a further layer."""
    grid = _map_of(net, end.value)
    return grid is not None and size_of(grid[0] * grid[1]) > 1


def segmentation(net: Network) -> Iterator[Vote]:
    """A class for each pixel."""
    for end in net.ends:
        if end.is_choice:
            yield from _labelled(net, end)
        pixel_map = net.map(end)
        if pixel_map is not None and pixel_map.ratio <= 1:
            yield from _classes_of_pixels(end, pixel_map)


def _classes_of_pixels(end: End, pixel_map: Map) -> Iterator[Vote]:
    named, facts, size = words(end.name), _facts(pixel_map), _size(pixel_map)
    is_many = isinstance(pixel_map.channels, int) and pixel_map.channels > 1
    if end.is_softmax and end.axis == pixel_map.axis and is_many and not _is_points(pixel_map):
        text = f"{size} and ends in {end.op} over its {pixel_map.channels} channels"
        yield Vote.on(end, "segmentation", BUILT, facts, text)
    elif named & names.MASKS and not named & names.HEATS:
        yield Vote.on(end, "segmentation", NAMED, facts, f"{size}, and {quoted(named & names.MASKS)} in its name")
    elif end.is_a(RESAMPLES) and is_many and pixel_map.ratio == 1 and pixel_map.channels not in (3, _ins(pixel_map)):
        text = f"{size}: {pixel_map.channels} channels, resized to the image at the end"
        yield Vote.on(end, "segmentation", BUILT, facts, text)
    elif end.is_sigmoid or end.is_convolution or end.is_a(RESAMPLES):
        yield Vote.on(end, "segmentation", FITS, facts, f"{size}: scores of classes for each pixel fit")


def _labelled(net: Network, end: End) -> Iterator[Vote]:
    data = None if end.node is None else end.node.inputs[0]
    shape = info(data).shape
    if data is None or shape is None or len(shape) != 4 or end.axis not in (1, 3):
        return
    pixel_map = net.map(End(data, shape, end.node, end.op, end.axis, None, (0, 1, 2, 3)))
    if pixel_map is not None and pixel_map.axis == end.axis:
        facts = {**_facts(pixel_map), "output": end.name, "activation": "argmax"}
        text = f"output {shown(end.value)} is the ArgMax over the channels of {shown(data)}"
        yield Vote.on(end, "segmentation", BUILT, facts, text)


def keypoints(net: Network) -> Iterator[Vote]:
    """Places in an image: one map for each, or coordinates."""
    yield from _by_axis(net)
    for end in net.ends:
        pixel_map = net.map(end)
        if pixel_map is not None and pixel_map.ratio <= 1:
            yield from _heatmaps(end, pixel_map)
        elif net.images and _has_coordinates(end):
            yield from _coordinates(end)


def _heatmaps(end: End, pixel_map: Map) -> Iterator[Vote]:
    named = words(end.name) & names.HEATS
    facts = {**_facts(pixel_map), "points": pixel_map.channels if isinstance(pixel_map.channels, int) else None}
    if named:
        text = f"output {shown(end.value)} is a map over the image, and {quoted(named)} in its name"
        yield Vote.on(end, "keypoints", NAMED, facts, text)
    elif (end.is_sigmoid or end.is_a(CONVOLUTION, RECTIFIER)) and pixel_map.ratio < 1:
        yield Vote.on(end, "keypoints", FITS, facts, f"output {shown(end.value)}: a heatmap for each point fits")


def _has_coordinates(end: End) -> bool:
    """Return True for [N, points, 2 or 3], and for [N, an even number]."""
    match end.dims:
        case (_, int(numbers)):
            return numbers >= 4 and numbers % 2 == 0
        case (_, _, int(numbers)):
            return numbers in (2, 3)
    return False


def _coordinates(end: End) -> Iterator[Vote]:
    named, facts = words(end.name) & names.POINTS, {"output": end.name, "axis": 1}
    if named:
        text = f"output {shown(end.value)} has coordinates, and {quoted(named)} in its name"
        yield Vote.on(end, "keypoints", NAMED, facts, text)
    elif not end.is_softmax and (len(end.dims) == 3 or end.is_linear or end.is_sigmoid):
        yield Vote.on(end, "keypoints", FITS, facts, f"output {shown(end.value)}: coordinates of points fit")


def _by_axis(net: Network) -> Iterator[Vote]:
    """Two outputs with a row for each point: scores of its columns, and of its lines (SimCC, arXiv 2107.03332)."""
    if len(net.ends) != 2 or not net.images:
        return
    one, two = net.ends
    shapes = [end.shape for end in net.ends if end.shape is not None and len(end.shape) == 3]
    if len(shapes) < 2 or shapes[0][1] != shapes[1][1] or shapes[0][2] == shapes[1][2]:
        return
    wide, tall = ratio(shapes[0][2], net.images[0].width), ratio(shapes[1][2], net.images[0].height)
    if wide is not None and wide == tall and isinstance(shapes[0][1], int):
        both = f"outputs {shown(one.value)} and {shown(two.value)}"
        text = f"{both} score the columns and the lines of the image for each point"
        yield Vote("keypoints", BUILT, (text,), {"points": shapes[0][1]}, frozenset({one.name, two.name}))


def image_to_image(net: Network) -> Iterator[Vote]:
    """An image of an image: larger, without noise, in another style."""
    for end in net.ends:
        pixel_map = net.map(end)
        if pixel_map is None or pixel_map.ratio < 1:
            continue
        named = words(end.name) & names.PICTURES
        same = pixel_map.channels == _ins(pixel_map)
        if why := _is_image(net, end, pixel_map, same):
            weight = BUILT
        elif named:
            weight, why = NAMED, f", and {quoted(named)} in its name"
        elif not end.is_softmax and (same or pixel_map.channels in (1, 3)):
            weight, why = FITS, ": an image fits"
        else:
            continue
        facts = {"output": end.name, "axis": pixel_map.axis, "scale": pixel_map.ratio.numerator}
        yield Vote.on(end, "image-to-image", weight, facts, f"{_size(pixel_map)}{why}")


def _is_image(net: Network, end: End, pixel_map: Map, same: bool) -> str:
    """Return how the graph says that a map is an image, "" if it does not. `same`: it has the channels of the input."""
    channels = pixel_map.channels
    if pixel_map.ratio > 1:
        how = next((op_of(node) for node in net.tail(end) if is_a(node, SHUFFLES)), "upsampling")
        return f", and as many channels, by {how}" if channels in (1, 3) and same else ""
    if same and _has_step(net):
        return ", and as many channels, and another input is the step of a diffusion"
    if same and _is_residual(net, end, pixel_map.image):
        return ", and is added to it or subtracted from it"
    is_picture = channels in (3, *(1,) * same) and end.layer is not None
    return f", and ends in {end.op}, as pixels do" if is_picture and (end.op == TANH or same and _is_range(end)) else ""


def _has_step(net: Network) -> bool:
    """Return True if a further input is one number for each sample, called like the step of a diffusion."""
    return any((v.name or "").lower() in names.STEP and (info(v).rank or 0) <= 1 for v in net.inputs)


def _is_residual(net: Network, end: End, image: Image) -> bool:
    node = end.node
    if node is not None and op_of(node) == CLIP:
        node = behind(node.inputs[0], (), net.live)[0].producer() if node.inputs[0] is not None else None
    if node is None or not is_a(node, ADDS):
        return False
    return any(v is not None and behind(v, (), net.live)[0] is image.value for v in node.inputs)


def _is_range(end: End) -> bool:
    """Return True for a Clip to the values of pixels."""
    node = end.node
    if node is None or op_of(node) != CLIP:
        return False
    limits = [node.attributes.get_float(name, None) for name in ("min", "max")]
    bounds = [scalar(value) for value in node.inputs[1:3]]
    return (bounds if node.inputs[1:] else limits) in ([0.0, 1.0], [0.0, 255.0], [-1.0, 1.0])


def _ins(pixel_map: Map) -> object:
    return pixel_map.image.channels


def _is_points(pixel_map: Map) -> bool:
    """Return True for the cells of SuperPoint (arXiv 1712.07629): 8 x 8 pixels and one for no point."""
    return pixel_map.channels == 65 and pixel_map.ratio == Fraction(1, 8)


def _facts(pixel_map: Map) -> dict[str, object]:
    facts: dict[str, object] = {
        "output": pixel_map.end.name,
        "axis": pixel_map.axis,
        "stride": pixel_map.ratio.denominator,
    }
    facts |= {"classes": pixel_map.channels} if isinstance(pixel_map.channels, int) else {}
    return facts | {"activation": "sigmoid" if pixel_map.end.is_sigmoid else pixel_map.end.softmax}


def _size(pixel_map: Map) -> str:
    ratio = pixel_map.ratio
    size = "the size" if ratio == 1 else f"{ratio} of the size" if ratio < 1 else f"{ratio} times the size"
    return f"output {shown(pixel_map.end.value)} has {size} of the image {shown(pixel_map.image.value)}"
