"""Another number of classes for the head of a detector: new layers of classes, all others stay.

`detector_of` finds the generated module of a detector in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.sidecar import metadata_of, space_of
from onnxgen.record.tail import Channels, Level, Tail
from onnxgen.surgery.head import layers_of_maps
from onnxgen.surgery.ports import example_for, signature_of
from onnxgen.surgery.replacing import put_rows
from onnxgen.training.data.samples import Data
from onnxgen.training.goals.detection.loss import COLUMN
from onnxgen.training.original import files_of

if TYPE_CHECKING:
    from onnxgen.training.goals.detection.ready import Detector


PRIOR = 0.01  # probability of each class in the beginning, and ...
DEVIATION = 0.01  # ... of the weights: those of RetinaNet (Lin et al., 1708.02002)


def fit_head(
    model: nn.Module, data: Data, classes: int | None, fresh: bool = False
) -> tuple[tuple[str, ...], list[str]]:
    """Give a detector a new head for so many classes, in place; by default for those that the data names.

    `fresh`: all weights of the model are drawn anew, so its biases begin like those of a new head.

    Returns:
        the paths of the new layers, and notes; nothing if the head has the classes of the data.

    Raises:
        OnnxgenError: the whole graph could not decode boxes of so many classes, or the head can't be replaced.
    """
    from onnxgen.export.decoding import need_decoding  # imported here: it reads graphs

    if COLUMN not in data.first.fields:
        what = f"--task detection trains boxes, and {data.name} has none"
        raise OnnxgenError(what, help="name boxes of COCO, YOLO or VOC")
    detector = detector_of(model)
    detector.refuse_whole()
    ports = signature_of(model).outputs
    places = [next(n for n, port in enumerate(ports) if port.name == name) for name in detector.tail.maps]
    tail = tail_of_model(detector.tail, [ports[place].dims or () for place in places])
    named = len(data.first.fields[COLUMN].classes) if COLUMN in data.named else tail.classes
    notes = _unnamed(data, tail, classes)
    if fresh:
        begin_fresh(model, tail, places)
    if classes is None and named == tail.classes:
        return (), notes
    wanted = classes or named
    need_decoding(detector.onnx, detector.options, detector.tail, wanted)
    paths = replace_classes(model, tail, places, wanted)
    return paths, [*notes, f"a new head for {wanted} classes, in place of {tail.classes}: {', '.join(paths)}"]


def _unnamed(data: Data, tail: Tail, classes: int | None) -> list[str]:
    """Return a note of what the classes are and are called, if the data numbers them and has no names."""
    if COLUMN in data.named:
        return []
    names = data.first.fields[COLUMN].classes
    whose = f"the first {len(names)} of the model's {tail.classes}, " if classes is None else ""
    own = ", for a head of their own" if classes is None else ""
    way = f"name them with --classes, in data.yaml (names) or classes.txt{own}"
    return [f"{data.name} has no names of its classes: they are {whose}called {listed(names)} -> {way}"]


def class_layers(model: nn.Module) -> tuple[str, ...]:
    """Return the paths of the layers that compute the classes of a detector: its head for `--head-lr`, `--head-first`.

    Raises:
        OnnxgenError: see `layers_of_maps` and `detector_of`.
    """
    names = [port.name for port in signature_of(model).outputs]
    tail = detector_of(model).tail
    layers = layers_of_maps(model, example_for(model), [names.index(tail.maps[n.classes.map]) for n in tail.levels])
    return tuple(dict.fromkeys(path for layer in layers for path in (layer.head.path, *layer.head.also)))


def tail_of_model(tail: Tail, shapes: Sequence[Sequence[Any]]) -> Tail:
    """Return the tail with the number of classes that a model has.

    Args:
        shapes: of its raw maps, in the order of `Tail.maps`.

    Raises:
        OnnxgenError: the maps do not have the channels of the head with any number of classes.
    """
    level = tail.levels[0]
    more, rest = divmod(shapes[level.classes.map][1], len(level.anchors))
    fitted = tail.of_classes(tail.classes + more - level.classes.step)
    wrong = [n for n, channels in channels_of(fitted).items() if shapes[n][1] != channels]
    if rest or wrong or fitted.classes < 1:
        what = f"the raw maps have {', '.join(str(shape[1]) for shape in shapes)} channels, and the head of the file"
        has = ", ".join(map(str, channels_of(tail).values()))
        raise OnnxgenError(f"{what} has {has}", help="change only the number of classes")
    return fitted


def channels_of(tail: Tail) -> dict[int, int]:
    """Return the number of channels of each raw map, by its index."""
    parts = [(level, p) for level in tail.levels for p in (level.boxes, level.classes, level.objectness) if p]
    return {part.map: part.step * len(level.anchors) for level, part in sorted(parts, key=lambda pair: pair[1].map)}


def replace_classes(model: nn.Module, tail: Tail, places: Sequence[int], classes: int) -> tuple[str, ...]:
    """Give the head of a detector another number of classes, in place.

    Weights of classes are drawn from a normal distribution, and biases give each class a small probability. Channels of
    boxes and objects in the same layer stay. A background is new, too.

    Args:
        tail: the head as it is.
        places: the output of each raw map.

    Returns:
        the paths of the layers.

    Raises:
        OnnxgenError: a layer was not found, or its weight is also used for something else.
    """
    levels = tail.levels
    layers = layers_of_maps(model, example_for(model), [places[level.classes.map] for level in levels])
    wanted = tail.of_classes(classes)
    done = set[tuple[int, str]]()
    for level, after, layer in zip(levels, wanted.levels, layers):
        weight = layer.parts[0].owner
        if (id(weight.module), weight.name) in done:  # levels share the layer
            continue
        done.add((id(weight.module), weight.name))
        kept = _kept(level.classes, after.classes, len(level.anchors))
        tensors = put_rows(layer, after.classes.step * len(level.anchors), kept, _drawn)
        fills = [part.fill for part in layer.parts]
        for fill in ("bias", "zeros"):
            if fill in fills:
                _begin(tensors[fills.index(fill)], after, wanted.background)
                break
    return tuple(dict.fromkeys(layer.head.path for layer in layers))


def _drawn(weight: Tensor) -> None:
    nn.init.normal_(weight, 0.0, DEVIATION)


def _kept(before: Channels, after: Channels, anchors: int) -> dict[int, int]:
    """Return the old row of each new row that is of no class."""
    rows = {}
    for anchor in range(anchors):
        for row in range(before.step):
            if not before.first <= row < before.first + before.count:
                moved = row + (after.count - before.count if row >= before.first else 0)
                rows[anchor * after.step + moved] = anchor * before.step + row
    return rows


@torch.no_grad()
def begin_fresh(model: nn.Module, tail: Tail, places: Sequence[int]) -> None:
    """Let each class and each object of a head of fresh weights begin with a small probability, in place.

    Most points have no object. With biases near 0 the first steps would learn nothing but that.
    """
    parts = [(level, part) for level in tail.levels for part in (level.classes, level.objectness) if part]
    layers = layers_of_maps(model, example_for(model), [places[part.map] for _, part in parts])
    for (level, part), layer in zip(parts, layers):
        owner = next((p.owner for fill in ("bias", "zeros") for p in layer.parts if p.fill == fill), None)
        if owner is None or (tail.background and part == level.classes):
            continue
        for anchor in range(len(level.anchors)):
            start = anchor * part.step + part.first
            getattr(owner.module, owner.name).flatten()[start : start + part.count] = -math.log((1 - PRIOR) / PRIOR)


@torch.no_grad()
def _begin(bias: Tensor, level: Level, background: bool) -> None:
    """Set biases: of classes to the logarithm of their odds, of a background to 0."""
    part = level.classes
    for anchor in range(len(level.anchors)):
        start = anchor * part.step + part.first
        bias.flatten()[start : start + part.count] = -math.log((1 - PRIOR) / PRIOR)
        if background:
            bias.flatten()[start] = 0.0


def detector_of(model: nn.Module, size: str = "auto") -> Detector:
    """Return what is known of a detector. `size`: see `detector_at`.

    Raises `OnnxgenError` if the model is of no generated file, its ONNX file is not there, or it is no detector that
    can be read.
    """
    from onnxgen.training.goals.detection.ready import detector_at  # imported here: it imports the pipeline

    module, onnx_file = files_of(model)
    detector = detector_at(module, metadata_of(space_of(model)), size, onnx_file)
    names = [port.name for port in signature_of(model).outputs]  # some may have been added by hand
    return replace(detector, missing=tuple(name for name in detector.tail.maps if name not in names))
