"""Rules for outputs over an image: boxes of detectors, segmentation, keypoints, images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import onnx_ir as ir

from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ADDS, CONVOLUTION, GLOBAL_POOL, JOINS, POOL, RECTIFIER, RESAMPLES, SCALES, SHUFFLES
from onnxgen.passes.match import scalar
from onnxgen.purpose.ends import CLIP, NMS, TANH, End, behind, first_live, is_convolution, is_layer, op_of
from onnxgen.purpose.network import (
    BOXES,
    BUILT,
    FITS,
    HEATS,
    MASKS,
    NAMED,
    PICTURES,
    POINTS,
    SCORES,
    STEP,
    Image,
    Map,
    Network,
    Vote,
    quoted,
    ratio,
    shown,
    words,
)
from onnxgen.shapes.dims import Dim, TooComplex, evaluate, symbols
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
    scales = _of_all(net)
    if not scales:
        return
    sides = [end for end in net.ends if end.shape is not None and len(end.shape) == 3]
    facts = _scale_facts(scales) | {"decoded": any(_is_decoded(net, end) for end in sides), "nms": False}
    strides = ", ".join(str(scale.stride) for scale in scales)
    anchors = ", ".join(str(scale.anchors) for scale in scales)
    evidence = [f"maps of strides {strides} are joined, with {anchors} boxes in each cell"]
    boxes = next((end for end in sides if end.shape is not None and end.shape[2] == 4), None)
    scores = next((end for end in sides if end is not boxes), None)
    if boxes is not None:
        facts["boxes"] = boxes.name
        evidence.append(f"output {shown(boxes.value)} has 4 numbers for each box")
    if scores is not None and scores.shape is not None:
        widths = [dim for dim in scores.shape[1:] if isinstance(dim, int)]
        least = min(widths) if widths else 0
        facts |= {"scores": scores.name} if boxes is not None else {"output": scores.name}
        facts |= {"classes": least} if boxes is not None else {"width": least}
        features = least >= 64 and least % 32 == 0 and not facts["decoded"]
        if boxes is None and (least < 5 or features):
            yield Vote("detection", FITS, tuple(evidence), facts)
            return
        evidence.append(f"output {shown(scores.value)} has {least} numbers for each box")
    if sides:
        yield Vote("detection", BUILT, tuple(evidence), facts, whole=True)


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
    waiting, seen = [end.value], {end.value}
    while waiting and len(seen) < _MOST:
        node = waiting.pop(0).producer()
        if node is None or is_layer(node, net.live) and not _is_expectation(node):
            continue
        if is_a(node, JOINS) and len(scales := _branches(net, node, image)) == len(node.inputs) > 1:
            if len({scale.stride for scale in scales}) > 1:
                return scales
        for value in node.inputs:
            if value is not None and value in net.live and value not in seen:
                seen.add(value)
                waiting.append(value)
    return []


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
        cells, most = _number(grid[0] * grid[1]), _number(rows[0])
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
        if is_layer(node, net.live) and not _is_expectation(node):
            shape = info(node.outputs[0]).shape
            return (shape[2], shape[3]) if shape is not None and len(shape) == 4 and is_convolution(node) else None
        if is_a(node, RESAMPLES, POOL, GLOBAL_POOL):
            return None
        current = first_live(node, net.live)
    return None


def _is_expectation(node: ir.Node) -> bool:
    """Return True for the convolution of weights 0, 1, 2, ... that decodes distributions (arXiv 2006.04388)."""
    shape = info(node.inputs[1]).shape
    is_single = shape is not None and len(shape) == 4 and shape[0] == 1 and shape[2:] == (1, 1)
    return is_single and is_a(node, CONVOLUTION)


def _stride(grid: tuple[Dim, Dim], image: Image) -> int | None:
    """Return the power of two that a map is smaller than the image, or None. Sizes may be rounded."""
    sizes = [(_number(whole), _number(part)) for whole, part in zip((image.height, image.width), grid)]
    if any(not whole or not part for whole, part in sizes):
        return None
    fits = [2**n for n in range(1, 10) if all(part in (whole // 2**n, -(-whole // 2**n)) for whole, part in sizes)]
    return fits[0] if fits else None


def _number(dim: Dim) -> int:
    """Return a size, with 640 for every size that may be any; 0 if it can't be computed."""
    try:
        return evaluate(dim, dict.fromkeys(symbols(dim), 640))
    except (KeyError, ArithmeticError, ValueError, TooComplex):
        return 0


def _is_decoded(net: Network, end: End) -> bool:
    """Return True if stored numbers, such as cells or anchors, move what the maps say to places in the image."""
    waiting, seen = [end.value], {end.value}
    while waiting and len(seen) < _MOST:
        node = waiting.pop(0).producer()
        if node is None or is_layer(node, net.live) and not _is_expectation(node):
            continue
        sides = [v in net.live for v in node.inputs if v is not None]
        large = [v for v in node.inputs if v is not None and v not in net.live and (info(v).rank or 0) > 1]
        if is_a(node, ADDS, SCALES) and len(sides) == 2 and large:
            return True
        for value in node.inputs:
            if value is not None and value in net.live and value not in seen:
                seen.add(value)
                waiting.append(value)
    return False


def _scale_facts(scales: Sequence[Scale]) -> dict[str, object]:
    if not scales:
        return {}
    anchors = [scale.anchors for scale in scales]
    return {"strides": [scale.stride for scale in scales], "anchors": anchors}


# ---- outputs for each scale ----


def _apart(net: Network) -> Iterator[Vote]:
    """One output, or one group of outputs, for each scale."""
    image = net.images[0]
    groups: dict[tuple[int, object], dict[int, End]] = defaultdict(dict)  # by rank and width: end by stride
    for end in net.ends:
        grid, width = _grid(net, end, image)
        if grid is not None and (stride := _stride(grid, image)) is not None:
            groups[len(end.shape or ()), width][stride] = end
    several = {key: ends for key, ends in groups.items() if len(ends) > 1}
    if not several:
        return
    strides = sorted({stride for ends in several.values() for stride in ends})
    widths = sorted(width for (_, width) in several if isinstance(width, int))
    facts = {"strides": strides, "decoded": False, "nms": False, "widths": widths}
    shapes = ", ".join(shown(end.value) for ends in several.values() for end in list(ends.values())[:1])
    text = f"each of {len(strides)} scales (strides {', '.join(map(str, strides))}) has its own outputs, as {shapes}"
    alike = len({tuple(sorted(ends)) for ends in several.values()}) == 1
    if len(several) > 1 and alike and any(width % 4 == 0 for width in widths):
        yield Vote("detection", BUILT, (text, "one of them has 4 numbers for each box"), facts, whole=True)
    elif all(rank == 5 for rank, _ in several) and min(widths, default=0) > 5:
        yield Vote("detection", BUILT, (text,), facts, whole=True)
    elif (
        len(several) == 1
        and widths
        and (odd := widths[0] % 8)
        and widths[0] > 5
        and strides[0] >= 8
        and _are_heads(net, several)
    ):
        text = f"{text}: {widths[0]} channels at each scale, of a 1x1 convolution" if odd else text
        yield Vote("detection", BUILT, (text,), facts, whole=True)
    else:
        yield Vote("detection", FITS, (text,), facts)


def _are_heads(net: Network, several: dict[tuple[int, object], dict[int, End]]) -> bool:
    """Return True if 1x1 convolutions make all maps, and no output is as large as the image."""
    if any((pixel_map := net.map(end)) is not None and pixel_map.ratio == 1 for end in net.ends):
        return False
    ends = [end for group in several.values() for end in group.values()]
    kernels = [None if end.layer is None else info(end.layer.inputs[1]).shape for end in ends]
    return all(kernel is not None and kernel[2:] == (1, 1) for kernel in kernels)


def _grid(net: Network, end: End, image: Image) -> tuple[tuple[Dim, Dim] | None, Dim | None]:
    """Return height and width of an output's map, and its numbers for each cell: [N, C, H, W], [N, A, H, W, C],
    [N, H * W, C].
    """
    shape: Shape = end.shape or ()
    if len(shape) == 4 and (pixel_map := net.map(end)) is not None and pixel_map.ratio < 1:
        axes = (2, 3) if pixel_map.axis == 1 else (1, 2)
        return (shape[axes[0]], shape[axes[1]]), pixel_map.channels
    if len(shape) == 5:
        return (shape[2], shape[3]), shape[4]
    if len(shape) == 3 and (grid := _map_of(net, end.value)) is not None:
        cells, rows = _number(grid[0] * grid[1]), _number(shape[1])
        if cells > 1 and rows and rows % cells == 0:
            return grid, shape[2]
    return None, None


# ---- boxes beside scores ----


def _pairs(net: Network) -> Iterator[Vote]:
    """Two outputs with as many rows: 4 numbers for a box, and scores."""
    for boxes in net.ends:
        shape = boxes.shape
        if shape is None or len(shape) not in (3, 4) or shape[-1 if len(shape) == 3 else 1] != 4:
            continue
        rest = _without(shape)
        for scores in net.ends:
            if (
                scores is boxes
                or scores.shape is None
                or len(scores.shape) != len(shape)
                or _without(scores.shape) != rest
            ):
                continue
            named = words(boxes.name) & BOXES
            sure = scores.is_softmax or scores.is_sigmoid or boxes.is_sigmoid or words(scores.name) & SCORES
            facts: dict[str, object] = {"boxes": boxes.name, "scores": scores.name, "nms": False}
            width = scores.shape[-1 if len(shape) == 3 else 1]
            facts |= {"classes": width} if isinstance(width, int) else {}
            text = f"output {shown(boxes.value)} has 4 numbers where output {shown(scores.value)} has scores"
            text += f", and {quoted(named)} in its name" if named else ""
            weight = BUILT if sure and (named or len(shape) == 3) else NAMED if named else FITS
            yield Vote("detection", weight, (text,), facts, frozenset({boxes.name, scores.name}))


def _without(shape: Shape) -> Shape:
    """Return a shape without the axis of the numbers for each box."""
    return shape[:-1] if len(shape) == 3 else (shape[0], *shape[2:])


def _single(net: Network) -> Iterator[Vote]:
    """Names alone, or a map of one scale that might be boxes."""
    named = [end for end in net.ends if words(end.name) & BOXES]
    others = [end for end in net.ends if words(end.name) & SCORES]
    if named and others and named != others:
        text = f"outputs are called {shown(named[0].value)} and {shown(others[0].value)}"
        facts = {"boxes": named[0].name, "scores": others[0].name}
        yield Vote("detection", NAMED, (text,), facts, whole=True)
    sizes = [end for end in net.ends if words(end.name) & {"wh", "size", "sizes"}]
    centres = [end for end in net.ends if words(end.name) & HEATS]
    if sizes and centres and net.map(sizes[0]) is not None:
        text = f"outputs are called {shown(centres[0].value)} and {shown(sizes[0].value)}: centres and sizes of boxes"
        facts = {"scores": centres[0].name, "boxes": sizes[0].name}
        yield Vote("detection", NAMED, (text,), facts, whole=True)
    for end in net.ends:
        shape = end.shape or ()
        pixel_map = net.map(end)
        if pixel_map is not None and pixel_map.ratio <= 1 / 4 and end.is_a(CONVOLUTION):
            yield Vote("detection", FITS, (f"output {shown(end.value)}: boxes of each cell fit",), {"output": end.name})
        elif len(shape) == 3 and 5 in (*shape[1:], 6) and _grids(net, end):
            yield Vote("detection", FITS, (f"output {shown(end.value)}: rows of boxes fit",), {"output": end.name})
        elif net.vector(end) is not None and end.is_a(CONVOLUTION) and end.layer is not None and _grids(net, end):
            yield Vote(
                "detection",
                FITS,
                (f"output {shown(end.value)} is a flat map: boxes of each cell fit",),
                {"output": end.name},
            )


def _grids(net: Network, end: End) -> bool:
    """Return True if an output is computed from a map of more than one cell, without a further layer."""
    grid = _map_of(net, end.value)
    return grid is not None and _number(grid[0] * grid[1]) > 1


def segmentation(net: Network) -> Iterator[Vote]:
    """A class for each pixel."""
    for end in net.ends:
        if end.is_choice:
            yield from _labelled(net, end)
        pixel_map = net.map(end)
        if pixel_map is None or pixel_map.ratio > 1:
            continue
        named = words(end.name)
        explained, facts = frozenset({end.name}), _facts(pixel_map)
        size = f"output {shown(end.value)} has {_size(pixel_map.ratio)} of the image {shown(pixel_map.image.value)}"
        many = isinstance(pixel_map.channels, int) and pixel_map.channels > 1
        if end.is_softmax and end.axis == pixel_map.axis and many and not _is_points(pixel_map):
            text = f"{size} and ends in {end.op} over its {pixel_map.channels} channels"
            yield Vote("segmentation", BUILT, (text,), facts, explained)
        elif named & MASKS and not named & HEATS:
            text = f"{size}, and {quoted(named & MASKS)} in its name"
            yield Vote("segmentation", NAMED, (text,), facts, explained)
        elif end.is_a(RESAMPLES) and many and pixel_map.ratio == 1 and pixel_map.channels not in (3, _ins(pixel_map)):
            text = f"{size}: {pixel_map.channels} channels, resized to the image at the end"
            yield Vote("segmentation", BUILT, (text,), facts, explained)
        elif end.is_sigmoid or end.is_convolution or end.is_a(RESAMPLES):
            yield Vote("segmentation", FITS, (f"{size}: scores of classes for each pixel fit",), facts)


def _labelled(net: Network, end: End) -> Iterator[Vote]:
    data = None if end.node is None else end.node.inputs[0]
    shape = info(data).shape
    if data is None or shape is None or len(shape) != 4 or end.axis not in (1, 3):
        return
    for image in net.images:
        pixel_map = net.map(End(data, shape, end.node, end.op, end.axis, None, (0, 1, 2, 3)))
        if pixel_map is not None and pixel_map.axis == end.axis and pixel_map.image is image:
            facts = {**_facts(pixel_map), "output": end.name, "activation": "argmax"}
            text = f"output {shown(end.value)} is the ArgMax over the channels of {shown(data)}"
            yield Vote("segmentation", BUILT, (text,), facts, frozenset({end.name}))


def keypoints(net: Network) -> Iterator[Vote]:
    """Places in an image: one map for each, or coordinates."""
    yield from _by_axis(net)
    for end in net.ends:
        shape, pixel_map, named = end.shape, net.map(end), words(end.name)
        explained = frozenset({end.name})
        facts = {"output": end.name, "axis": 1}
        if pixel_map is not None and pixel_map.ratio <= 1:
            facts = {**_facts(pixel_map), "points": pixel_map.channels if isinstance(pixel_map.channels, int) else None}
            if named & HEATS:
                text = f"output {shown(end.value)} is a map over the image, and {quoted(named & HEATS)} in its name"
                yield Vote("keypoints", NAMED, (text,), facts, explained)
            elif (end.is_sigmoid or end.is_a(CONVOLUTION, RECTIFIER)) and pixel_map.ratio < 1:
                yield Vote("keypoints", FITS, (f"output {shown(end.value)}: a heatmap for each point fits",), facts)
        elif net.images and shape is not None and len(shape) in (2, 3) and isinstance(shape[-1], int):
            pairs = len(shape) == 3 and shape[-1] in (2, 3) or len(shape) == 2 and shape[-1] >= 4 and shape[-1] % 2 == 0
            if pairs and named & POINTS:
                text = f"output {shown(end.value)} has coordinates, and {quoted(named & POINTS)} in its name"
                yield Vote("keypoints", NAMED, (text,), facts, explained)
            elif pairs and not end.is_softmax and (len(shape) == 3 or end.is_linear or end.is_sigmoid):
                yield Vote("keypoints", FITS, (f"output {shown(end.value)}: coordinates of points fit",), facts)


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
        if pixel_map is None:
            continue
        same = pixel_map.channels == _ins(pixel_map)
        explained = frozenset({end.name})
        facts = {"output": end.name, "axis": pixel_map.axis, "scale": pixel_map.ratio.numerator}
        size = f"output {shown(end.value)} has {_size(pixel_map.ratio)} of the image {shown(pixel_map.image.value)}"
        named = words(end.name)
        if pixel_map.ratio > 1 and pixel_map.channels in (1, 3) and same:
            how = next((op_of(node) for node in net.tail(end) if is_a(node, SHUFFLES)), "upsampling")
            yield Vote("image-to-image", BUILT, (f"{size}, and as many channels, by {how}",), facts, explained)
        elif pixel_map.ratio == 1 and same and _has_step(net):
            text = f"{size}, and as many channels, and another input is the step of a diffusion"
            yield Vote("image-to-image", BUILT, (text,), facts, explained)
        elif pixel_map.ratio == 1 and same and _is_residual(net, end, pixel_map.image):
            yield Vote(
                "image-to-image", BUILT, (f"{size}, and is added to it or subtracted from it",), facts, explained
            )
        elif (
            pixel_map.ratio == 1
            and pixel_map.channels in (3, *(1,) * same)
            and end.layer is not None
            and (end.op == TANH or same and _is_range(end))
        ):
            yield Vote("image-to-image", BUILT, (f"{size}, and ends in {end.op}, as pixels do",), facts, explained)
        elif pixel_map.ratio >= 1 and named & PICTURES:
            yield Vote(
                "image-to-image", NAMED, (f"{size}, and {quoted(named & PICTURES)} in its name",), facts, explained
            )
        elif pixel_map.ratio >= 1 and not end.is_softmax and (same or pixel_map.channels in (1, 3)):
            yield Vote("image-to-image", FITS, (f"{size}: an image fits",), facts)


def _has_step(net: Network) -> bool:
    """Return True if a further input is one number for each sample, called like the step of a diffusion."""
    return any((v.name or "").lower() in STEP and (info(v).rank or 0) <= 1 for v in net.inputs)


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


def _size(ratio: Fraction) -> str:
    return "the size" if ratio == 1 else f"{ratio} of the size" if ratio < 1 else f"{ratio} times the size"
