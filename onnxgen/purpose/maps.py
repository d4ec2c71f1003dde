"""Rules for outputs over the pixels of an image: segmentation, keypoints, images."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import ADDS, CONVOLUTION, RECTIFIER, RESAMPLES, SHUFFLES
from onnxgen.passes.match import scalar
from onnxgen.purpose.ends import End, behind
from onnxgen.purpose.found import BUILT, FITS, NAMED, Vote
from onnxgen.purpose.network import Image, Map, Network, quoted, ratio, shown, words
from onnxgen.purpose.operators import CLIP, TANH, op_of
from onnxgen.purpose.vocabulary import HEATS, MASKS, PICTURES, POINTS, STEP
from onnxgen.shapes.info import info


def segmentation(net: Network) -> Iterator[Vote]:
    """A class for each pixel."""
    for end in net.ends:
        if end.is_choice:
            yield from _labelled(net, end)
        found = net.map(end)
        if found is None or found.ratio > 1:
            continue
        named = words(end.name)
        explained, facts = frozenset({end.name}), _facts(found)
        size = f"output {shown(end.value)} has {_size(found.ratio)} of the image {shown(found.image.value)}"
        many = isinstance(found.channels, int) and found.channels > 1
        if end.is_softmax and end.axis == found.axis and many and not _is_points(found):
            text = f"{size} and ends in {end.op} over its {found.channels} channels"
            yield Vote("segmentation", BUILT, (text,), facts, explained)
        elif named & MASKS and not named & HEATS:
            text = f"{size}, and {quoted(named & MASKS)} in its name"
            yield Vote("segmentation", NAMED, (text,), facts, explained)
        elif end.is_a(RESAMPLES) and many and found.ratio == 1 and found.channels not in (3, _ins(found)):
            text = f"{size}: {found.channels} channels, resized to the image at the end"
            yield Vote("segmentation", BUILT, (text,), facts, explained)
        elif end.is_sigmoid or end.is_convolution or end.is_a(RESAMPLES):
            yield Vote("segmentation", FITS, (f"{size}: scores of classes for each pixel fit",), facts)


def _labelled(net: Network, end: End) -> Iterator[Vote]:
    data = None if end.node is None else end.node.inputs[0]
    shape = info(data).shape
    if data is None or shape is None or len(shape) != 4 or end.axis not in (1, 3):
        return
    for image in net.images:
        found = net.map(End(data, shape, end.node, end.op, end.axis, None, (0, 1, 2, 3)))
        if found is not None and found.axis == end.axis and found.image is image:
            facts = {**_facts(found), "output": end.name, "activation": "argmax"}
            text = f"output {shown(end.value)} is the ArgMax over the channels of {shown(data)}"
            yield Vote("segmentation", BUILT, (text,), facts, frozenset({end.name}))


def keypoints(net: Network) -> Iterator[Vote]:
    """Places in an image: one map for each, or coordinates."""
    yield from _by_axis(net)
    for end in net.ends:
        shape, found, named = end.shape, net.map(end), words(end.name)
        explained = frozenset({end.name})
        facts = {"output": end.name, "axis": 1}
        if found is not None and found.ratio <= 1:
            facts = {**_facts(found), "points": found.channels if isinstance(found.channels, int) else None}
            if named & HEATS:
                text = f"output {shown(end.value)} is a map over the image, and {quoted(named & HEATS)} in its name"
                yield Vote("keypoints", NAMED, (text,), facts, explained)
            elif (end.is_sigmoid or end.is_a(CONVOLUTION, RECTIFIER)) and found.ratio < 1:
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
        found = net.map(end)
        if found is None:
            continue
        same = found.channels == _ins(found)
        explained = frozenset({end.name})
        facts = {"output": end.name, "axis": found.axis, "scale": found.ratio.numerator}
        size = f"output {shown(end.value)} has {_size(found.ratio)} of the image {shown(found.image.value)}"
        named = words(end.name)
        if found.ratio > 1 and found.channels in (1, 3) and same:
            how = next((op_of(node) for node in net.tail(end) if is_a(node, SHUFFLES)), "upsampling")
            yield Vote("image-to-image", BUILT, (f"{size}, and as many channels, by {how}",), facts, explained)
        elif found.ratio == 1 and same and _has_step(net):
            text = f"{size}, and as many channels, and another input is the step of a diffusion"
            yield Vote("image-to-image", BUILT, (text,), facts, explained)
        elif found.ratio == 1 and same and _is_residual(net, end, found.image):
            yield Vote(
                "image-to-image", BUILT, (f"{size}, and is added to it or subtracted from it",), facts, explained
            )
        elif (
            found.ratio == 1
            and found.channels in (3, *(1,) * same)
            and end.layer is not None
            and (end.op == TANH or same and _is_range(end))
        ):
            yield Vote("image-to-image", BUILT, (f"{size}, and ends in {end.op}, as pixels do",), facts, explained)
        elif found.ratio >= 1 and named & PICTURES:
            yield Vote(
                "image-to-image", NAMED, (f"{size}, and {quoted(named & PICTURES)} in its name",), facts, explained
            )
        elif found.ratio >= 1 and not end.is_softmax and (same or found.channels in (1, 3)):
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
    given = [scalar(value) for value in node.inputs[1:3]]
    return (given if node.inputs[1:] else limits) in ([0.0, 1.0], [0.0, 255.0], [-1.0, 1.0])


def _ins(found: Map) -> object:
    return found.image.channels


def _is_points(found: Map) -> bool:
    """Return True for the cells of SuperPoint (arXiv 1712.07629): 8 x 8 pixels and one for no point."""
    return found.channels == 65 and found.ratio == Fraction(1, 8)


def _facts(found: Map) -> dict[str, object]:
    facts: dict[str, object] = {"output": found.end.name, "axis": found.axis, "stride": found.ratio.denominator}
    facts |= {"classes": found.channels} if isinstance(found.channels, int) else {}
    return facts | {"activation": "sigmoid" if found.end.is_sigmoid else found.end.softmax}


def _size(ratio: Fraction) -> str:
    return "the size" if ratio == 1 else f"{ratio} of the size" if ratio < 1 else f"{ratio} times the size"
