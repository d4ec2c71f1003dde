"""The proof that a decoding for another number of classes is the original one.

Both decode the same boxes, objects and first classes. The classes that only one of them has get logits so low that no
box is of them. So what is computed for each class must be the same, and boxes that are chosen must be the same ones.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from onnxgen.common.names import printable
from onnxgen.errors import one_line
from onnxgen.export.places import Array
from onnxgen.export.shared import CannotWriteBack
from onnxgen.heads.labels import Axis, channels_of_classes
from onnxgen.reader.cut import cut_graph
from onnxgen.record.tail import Tail

NEVER = -30.0  # the logit of a class that no box is of
RARE = 4.0  # subtracted from all other classes: few boxes are likely ones
CLOSE = 1e-5  # relative and absolute
Maps = dict[str, Array]


def same_boxes(
    original: onnx.ModelProto, fitted: onnx.ModelProto, tail: Tail, classes: int, axes: Mapping[str, Axis]
) -> None:
    """Compare what two graphs make of raw maps.

    Args:
        original: has the head `tail`.
        fitted: the same for so many classes.
        axes: of the classes in the values of the original.

    Raises:
        CannotWriteBack: they differ, or one of them can't be computed.
    """
    before, after = _maps(tail, classes)
    names = outputs_behind(original, tail.maps)
    both = computed(original, tail, names, before), computed(fitted, tail, names, after)
    for name, was, now in zip(names, *both):
        axis = axes.get(name)
        if axis is not None:
            wanted = (*was.shape[: axis.axis], axis.size, *was.shape[axis.axis + 1 :])
            fine = now.shape == wanted and _equal(*_shared(was, now, axis, min(tail.classes, classes)))
        else:
            fine = now.shape == was.shape and _equal(was, now)
        if not fine:
            raise CannotWriteBack(f"with {classes} classes it computes another {printable(name)}")


def _maps(tail: Tail, classes: int) -> tuple[Maps, Maps]:
    """Return raw maps of both heads, with the same boxes."""
    drawn, other = np.random.default_rng(0), tail.of_classes(classes)
    before, after = Maps(), Maps()
    for level, resized in zip(tail.levels, other.levels):
        for name in ("boxes", "objectness", "classes"):
            part, new = getattr(level, name), getattr(resized, name)
            if part is None:
                continue
            anchors, size = len(level.anchors), (level.height, level.width)
            pair = [
                (maps.setdefault(tail.maps[p.map], np.zeros((1, anchors * p.step, *size), np.float32)), p)
                for maps, p in ((before, part), (after, new))
            ]
            rows = drawn.standard_normal(
                (anchors, part.count if name != "classes" else max(part.count, new.count), *size)
            )
            for array, p in pair:
                array.reshape(anchors, p.step, *size)[:, p.first : p.first + p.count] = rows[:, : p.count]
    for maps, head in ((before, tail), (after, other)):
        for name, channel, number in channels_of_classes(head):
            maps[name][:, channel] = NEVER if number >= min(tail.classes, classes) else maps[name][:, channel] - RARE
    return before, after


def outputs_behind(model: onnx.ModelProto, maps: Sequence[str]) -> list[str]:
    """Return the outputs of a graph that depend on the raw maps."""
    reached = set(maps)
    for node in model.graph.node:
        if not reached.isdisjoint(node.input):
            reached.update(filter(None, node.output))
    return [value.name for value in model.graph.output if value.name in reached]


def computed(model: onnx.ModelProto, tail: Tail, names: Sequence[str], maps: Maps) -> list[Array]:
    """Return outputs for raw maps, which take the place of the layers before them."""
    part = onnx.ModelProto()
    part.CopyFrom(model)
    if {value.name for value in part.graph.input} != set(tail.maps):
        types = {n: onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, m.shape) for n, m in maps.items()}
        cut_graph(part.graph, (tail.maps, tuple(names)), types)
    stored = {tensor.name for tensor in part.graph.initializer}
    feeds: dict[str, Any] = {v.name: maps.get(v.name) for v in part.graph.input if v.name not in stored}
    for value in part.graph.input:
        if value.name in feeds and feeds[value.name] is None:  # an image that the decoding asks for its size, say
            feeds[value.name] = _zeros(value)
    try:
        return list(_run(part, names, feeds))
    except Exception as error:  # both raise errors of every kind
        raise CannotWriteBack(f"its decoding can't be computed ({one_line(error, 150)})") from None


def _zeros(value: onnx.ValueInfoProto) -> Array:
    dims = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
    return np.zeros(dims, onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _run(model: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, Array]) -> Sequence[Array]:
    if importlib.util.find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        found: Any = ReferenceEvaluator(model).run(list(names), dict(feeds))
        return list(found)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    made: Sequence[Array] = session.run(list(names), dict(feeds))
    return made


def _shared(was: Array, now: Array, axis: Axis, classes: int) -> tuple[Array, Array]:
    """Return what both values have: everything but the classes that only one of them has."""
    kept = np.sort(np.unique(axis.origins, return_index=True)[1])  # a class that is new stands for the last one
    kept = kept[axis.codes[axis.origins[kept]] < classes]
    return was.take(axis.origins[kept], axis.axis), now.take(kept, axis.axis)


def _equal(was: Array, now: Array) -> bool:
    if was.shape != now.shape or was.dtype != now.dtype:
        return False
    return bool(np.allclose(was, now, CLOSE, CLOSE, equal_nan=True) if was.dtype.kind == "f" else (was == now).all())
