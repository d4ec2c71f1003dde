"""Fit the decoding of a detector to a head with another number of classes.

The constants that follow from the number of classes are found by what they do. A value behind the raw maps has its
classes along an axis (`heads.labels`). So its new size is known, and each size or position that a node is given. What
comes after boxes are chosen (NonMaxSuppression, TopK) has no such axis; there, numbers that are the number of classes
change. Then the new decoding must compute what the original one computes (`same_boxes`).

The proof: both decode the same boxes, objects and first classes. The classes that only one of them has get logits so
low that no box is of them. So what is computed for each class must be the same, and boxes that are chosen must be the
same ones. By the same means it is found where a file has its boxes and scores: outputs, columns and layout.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.export.heads import Sizes, numbers_of, position_of, title_of
from onnxgen.export.places import Array, CannotWriteBack, drop_unused
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ADDS, SCALES
from onnxgen.heads.labels import Axis, Labels, channels_of_classes, labels_of
from onnxgen.heads.reading import ACCURACY, LAYOUTS
from onnxgen.heads.response import SEED, Grid, corners, scores, taken
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.inputs import cut_graph
from onnxgen.reader.protos import uses
from onnxgen.record.tail import Tail
from onnxgen.shapes.info import info

SIZED = {"Reshape": 1, "Expand": 1, "Tile": 1, "ConstantOfShape": 0}  # by operator: the input that holds sizes
COUNTED = ("Mod", "OneHot")  # may take the number of classes; with SIZED, sums and products


def fit_decoding(model: onnx.ModelProto, source: Path, options: Options, tail: Tail, classes: int) -> list[str]:
    """Fit the nodes behind raw maps that have the channels of another number of classes.

    Args:
        model: the whole network, or the part behind its raw maps; changed in place.
        source: the original file.
        options: the sizes of its inputs.
        tail: the head of the original.

    Returns:
        the names of the constants that changed.

    Raises:
        CannotWriteBack: the constants can't be found, or the decoding can't be computed; `model` is half changed.
    """
    try:
        labels = labels_of(read(source, options), tail, classes)
    except OnnxgenError as error:
        raise CannotWriteBack(error.problems[0].what) from None
    original = onnx.load(source)
    changed = _Fitting(model, original, source.parent, labels, tail, classes).run()
    same_boxes(original, model, tail, classes, labels.axes)
    return changed


def need_decoding(source: Path, options: Options, tail: Tail, classes: int) -> None:
    """Refuse a number of classes that the decoding of a file can't be fitted to.

    Raises:
        OnnxgenError: it can't.
    """
    model = onnx.load(source)
    try:
        before = Sizes(onnx.load(source), source.parent, tail.classes).graph({})
        cut_graph(model.graph, (tail.maps, ()), _types(before, tail.of_classes(classes)))
        fit_decoding(model, source, options, tail, classes)
    except CannotWriteBack as reason:
        what = f"{source} can't decode {classes} classes in place of {tail.classes}: {reason}"
        way = f"--replace-head {tail.classes} keeps the number; or export the network anew, for {classes} classes"
        raise OnnxgenError(what, help=way) from None


class _Fitting:
    """Fits a graph to the new axes of classes (see `fit_decoding`)."""

    def __init__(
        self,
        model: onnx.ModelProto,
        original: onnx.ModelProto,
        folder: Path,
        labels: Labels,
        tail: Tail,
        classes: int,
    ) -> None:
        self.model, self.labels, self.tail, self.classes = model, labels, tail, classes
        self.used, self.sizes = uses(model.graph), Sizes(model, folder, tail.classes)
        self.before = {node.outputs[0].name: node for node in Sizes(original, folder, tail.classes).graph({})}

    def run(self) -> list[str]:
        while any(self._fits(node) for node in self._behind()):  # one number a round: the next ones follow it
            pass
        self._declare()
        drop_unused(self.model.graph, self.used)
        return self.sizes.changed

    def _behind(self) -> list[ir.Node]:
        """Return the nodes that depend on the raw maps, with the shapes of their values."""
        reached, nodes = set(self.tail.maps), []
        for node in self.sizes.graph({}):
            if any(value is not None and value.name in reached for value in node.inputs):
                reached |= {value.name or "" for value in node.outputs}
                nodes.append(node)
        return nodes

    def _fits(self, node: ir.Node) -> bool:
        """Correct a number that a node was given. Returns True if one was wrong."""
        before = self.before.get(node.outputs[0].name)
        if before is None:
            return False
        if "split" in before.attributes and (axis := self._axis(before.inputs[0])) is not None:
            return self._split(node, before, axis)
        for index, place, number in self._wanted(before):
            numbers = numbers_of(node, index)
            if place < len(numbers) and numbers[place] != number:
                self.sizes.set(node, index, place, number)
                return True
        return any(self._replaced(node, index, array) for index, array in self._arrays(before))

    def _wanted(self, node: ir.Node) -> Iterator[tuple[int, int, int]]:
        """Yield (input, place, number) of whole numbers that a node of the original must be given."""
        input_axis = self._axis(node.inputs[0])
        output_axis = self._axis(node.outputs[0])
        if node.op_type == "Split" and input_axis is not None:
            yield from self._parts(node, input_axis)
        elif node.op_type == "Slice" and input_axis is not None:
            yield from self._bounds(node, input_axis)
        elif node.op_type in SIZED and output_axis is not None:
            index, size = SIZED[node.op_type], len(output_axis.codes)
            numbers = numbers_of(node, index)
            place = output_axis.axis + (len(numbers) - output_axis.rank if node.op_type == "Expand" else 0)
            if 0 <= place < len(numbers) and numbers[place] == size:
                yield index, place, output_axis.size
        elif self._may_count(node):
            for index in range(len(node.inputs)):
                numbers = numbers_of(node, index)
                yield from ((index, at, self.classes) for at, n in enumerate(numbers) if n == self.tail.classes)

    def _may_count(self, node: ir.Node) -> bool:
        """Return True if a node behind the maps may take the number of classes as a number."""
        kind = node.op_type in (*COUNTED, *SIZED) or is_a(node, ADDS, SCALES)
        return kind and self.labels.early.isdisjoint(str(v.name) for v in node.outputs)

    def _axis(self, value: ir.Value | None) -> Axis | None:
        return None if value is None else self.labels.axes.get(value.name or "")

    def _parts(self, node: ir.Node, axis: Axis) -> Iterator[tuple[int, int, int]]:
        """Yield the sizes of a Split's parts."""
        if node.attributes.get_int("axis", 0) % axis.rank != axis.axis:
            return
        numbers = numbers_of(node, 1) or list(node.attributes["split"].as_ints() if "split" in node.attributes else ())
        if not all(isinstance(number, int) for number in numbers) or sum(numbers) != len(axis.codes):
            raise CannotWriteBack(f"{title_of(node)} has no sizes of its parts, or none that are known")
        ends = np.cumsum([0, *numbers])
        for place, (start, stop) in enumerate(zip(ends, ends[1:])):
            yield 1, place, self._moved(node, axis, stop) - self._moved(node, axis, start)

    def _split(self, node: ir.Node, before: ir.Node, axis: Axis) -> bool:
        """Correct the attribute of a Split, as it was before opset 13."""
        sizes = [size for _, _, size in self._parts(before, axis)]
        if not sizes or list(node.attributes["split"].as_ints()) == sizes:
            return False
        proto = next(entry for entry in self.model.graph.node if node.outputs[0].name in entry.output)
        attribute = next(entry for entry in proto.attribute if entry.name == "split")
        attribute.CopyFrom(onnx.helper.make_attribute("split", sizes))
        self.sizes.changed.append(str(node.outputs[0].name))
        return True

    def _bounds(self, node: ir.Node, axis: Axis) -> Iterator[tuple[int, int, int]]:
        """Yield where a Slice begins and ends."""
        size = len(axis.codes)
        for index in (1, 2):
            numbers = numbers_of(node, index)
            place = position_of(node, axis.rank, axis.axis, len(numbers))
            if place is None or not numbers:
                continue
            number = numbers[place]
            if not isinstance(number, int):
                raise CannotWriteBack(f"{title_of(node)} computes where it cuts")
            if -size <= number <= size:  # others are cut off
                moved = self._moved(node, axis, number + size if number < 0 else number)
                yield index, place, moved - axis.size if number < 0 else moved

    def _moved(self, node: ir.Node, axis: Axis, place: int) -> int:
        moved = int(axis.moved[place])
        if moved < 0:
            raise CannotWriteBack(f"{title_of(node)} takes some of the {self.tail.classes} classes")
        return moved

    # ---- whole constants ----

    def _arrays(self, node: ir.Node) -> Iterator[tuple[int, Array]]:
        """Yield (input, array) of constants that have the axis of the classes, or choose positions of it."""
        input_axis, output_axis = self._axis(node.inputs[0]), self._axis(node.outputs[0])
        if node.op_type == "Gather" and input_axis is not None:
            chosen = _stored(node.inputs[1])
            if chosen is not None and node.attributes.get_int("axis", 0) % input_axis.rank == input_axis.axis:
                yield 1, self._chosen(node, input_axis, chosen)
            return
        for index, value in enumerate(node.inputs if output_axis is not None and node.op_type not in SIZED else ()):
            array = _stored(value)
            axis = 0 if array is None or output_axis is None else output_axis.axis - output_axis.rank + array.ndim
            if (
                array is not None
                and output_axis is not None
                and axis >= 0
                and array.shape[axis] == len(output_axis.codes) > 1
            ):
                yield index, self._spread(node, output_axis, array, axis)

    def _chosen(self, node: ir.Node, axis: Axis, chosen: Array) -> Array:
        """Return positions that are chosen of the axis of the classes."""
        rows, positions, place = (chosen % len(axis.codes)).reshape(-1).tolist(), list[int](), 0
        while place < len(rows):
            count = 1 if axis.codes[rows[place]] < 0 else self.tail.classes
            start, stop = rows[place], rows[place] + count
            if rows[place : place + count] != list(range(start, stop)):
                raise CannotWriteBack(f"{title_of(node)} takes some of the {self.tail.classes} classes")
            positions += range(self._moved(node, axis, start), self._moved(node, axis, stop))
            place += count
        return np.array(positions, chosen.dtype).reshape(chosen.shape if chosen.ndim != 1 else -1)

    def _spread(self, node: ir.Node, axis: Axis, array: Array, own: int) -> Array:
        """Return a constant that broadcasts along the classes, whose elements must be the same for all of them."""
        if not np.array_equal(array.take(axis.firsts, own), array):
            raise CannotWriteBack(f"{title_of(node)} has a number for each of the {self.tail.classes} classes")
        return array.take(axis.origins, own)

    def _replaced(self, node: ir.Node, index: int, array: Array) -> bool:
        now = _stored(node.inputs[index])
        if now is None or np.array_equal(now, array):
            return False
        self.sizes.replace(node, index, array)
        return True

    def _declare(self) -> None:
        """Declare the new sizes of values."""
        graph = self.model.graph
        stored = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
        for value in (*graph.input, *graph.output, *graph.value_info):
            axis, dims = self.labels.axes.get(value.name), value.type.tensor_type.shape.dim
            if axis is not None and len(dims) == axis.rank and dims[axis.axis].dim_value == len(axis.codes):
                dims[axis.axis].dim_value = axis.size
            for dim, size in zip(dims, stored.get(value.name, ())):  # a weight of the new head
                dim.dim_value = size


def _types(before: ir.Graph, tail: Tail) -> dict[str, onnx.TypeProto]:
    """Return the types of the raw maps of a head. Sizes are open that are open in the file: `before`."""
    shapes = {value.name: info(value).shape for node in before for value in node.outputs}
    types = {}
    for level in tail.levels:
        for part in filter(None, (level.boxes, level.classes, level.objectness)):
            batch, _, *size = shapes.get(name := tail.maps[part.map]) or ("", 0, "", "")
            dims = [dim if isinstance(dim, int) else str(dim) for dim in (batch, part.step * len(level.anchors), *size)]
            types[name] = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, dims)
    return types


def _stored(value: ir.Value | None) -> Array | None:
    """Return the elements of a stored tensor or of a Constant; None if the value is computed."""
    return None if value is None or value.const_value is None else np.asarray(value.const_value.numpy())


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
            count = part.count if name != "classes" else max(part.count, new.count)
            rows = drawn.standard_normal((anchors, count, *size))
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

        results: Any = ReferenceEvaluator(model).run(list(names), dict(feeds))
        return list(results)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: Sequence[Array] = session.run(list(names), dict(feeds))
    return outputs


def _shared(was: Array, now: Array, axis: Axis, classes: int) -> tuple[Array, Array]:
    """Return what both values have: everything but the classes that only one of them has."""
    kept = np.sort(np.unique(axis.origins, return_index=True)[1])  # a class that is new stands for the last one
    kept = kept[axis.codes[axis.origins[kept]] < classes]
    return was.take(axis.origins[kept], axis.axis), now.take(kept, axis.axis)


def _equal(was: Array, now: Array) -> bool:
    if was.shape != now.shape or was.dtype != now.dtype:
        return False
    return bool(np.allclose(was, now, CLOSE, CLOSE, equal_nan=True) if was.dtype.kind == "f" else (was == now).all())


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
    sizes = tuple((level.height, level.width) for level in tail.levels)
    grid = Grid(sizes, tuple(len(level.anchors) for level in tail.levels))
    for order in grid.orders():
        ordered = [(name, axis, table[order]) for name, axis, table in tables]
        boxes = _boxes(ordered, tail, raw) or _offsets(ordered, tail, raw, order)
        columns = _scores(ordered, tail, raw) if boxes else {}
        if columns:
            return {**boxes, **_of_classes(columns, tail.classes, classes)}
    return {}


def _drawn(tail: Tail) -> dict[str, Array]:
    """Return raw maps of one image."""
    drawn, maps = np.random.default_rng(SEED), dict[str, Array]()
    for level in tail.levels:
        for part in filter(None, (level.boxes, level.classes, level.objectness)):
            shape = (1, part.step * len(level.anchors), level.height, level.width)
            maps.setdefault(tail.maps[part.map], drawn.standard_normal(shape).astype(np.float32))
    return maps


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


def _of_classes(columns: dict[str, Any], before: int, after: int) -> dict[str, Any]:
    """Return the columns in a file with another number of classes."""
    place, objects = columns["scores"], columns["objects"]
    moved = dict(objects) if objects is not None else None
    if moved is not None and moved["output"] == place["output"] and moved["first"] > place["first"]:
        moved["first"] += after - before
    return {"scores": {**place, "count": after}, "objects": moved}
