"""Fit the decoding of a detector to a head with another number of classes.

The constants that follow from the number of classes are found by what they do. A value behind the raw maps has its
classes along an axis (`heads.labels`). So its new size is known, and each size or position that a node is given. What
comes after boxes are chosen (NonMaxSuppression, TopK) has no such axis; there, numbers that are the number of classes
change. Then the new decoding must compute what the original one computes (`proof.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.errors import OnnxgenError
from onnxgen.export.places import Array
from onnxgen.export.proof import same_boxes
from onnxgen.export.shared import CannotWriteBack, drop_unused
from onnxgen.export.sizes import Sizes, numbers_of, position_of, title_of
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import ADDS, SCALES
from onnxgen.heads.labels import Axis, Labels, labels_of
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.reader.cut import cut_graph
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
        reached, found = set(self.tail.maps), []
        for node in self.sizes.graph({}):
            if any(value is not None and value.name in reached for value in node.inputs):
                reached |= {value.name or "" for value in node.outputs}
                found.append(node)
        return found

    def _fits(self, node: ir.Node) -> bool:
        """Correct a number that a node was given. Returns True if one was wrong."""
        before = self.before.get(node.outputs[0].name)
        if before is None:
            return False
        if "split" in before.attributes and (given := self._axis(before.inputs[0])) is not None:
            return self._split(node, before, given)
        for index, place, number in self._wanted(before):
            found = numbers_of(node, index)
            if place < len(found) and found[place] != number:
                self.sizes.set(node, index, place, number)
                return True
        return any(self._replaced(node, index, array) for index, array in self._arrays(before))

    def _wanted(self, node: ir.Node) -> Iterator[tuple[int, int, int]]:
        """Yield (input, place, number) of whole numbers that a node of the original must be given."""
        given = self._axis(node.inputs[0])
        made = self._axis(node.outputs[0])
        if node.op_type == "Split" and given is not None:
            yield from self._parts(node, given)
        elif node.op_type == "Slice" and given is not None:
            yield from self._bounds(node, given)
        elif node.op_type in SIZED and made is not None:
            index, size = SIZED[node.op_type], len(made.codes)
            numbers = numbers_of(node, index)
            place = made.axis + (len(numbers) - made.rank if node.op_type == "Expand" else 0)
            if 0 <= place < len(numbers) and numbers[place] == size:
                yield index, place, made.size
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
        proto = next(found for found in self.model.graph.node if node.outputs[0].name in found.output)
        attribute = next(found for found in proto.attribute if found.name == "split")
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
        given, made = self._axis(node.inputs[0]), self._axis(node.outputs[0])
        if node.op_type == "Gather" and given is not None:
            chosen = _stored(node.inputs[1])
            if chosen is not None and node.attributes.get_int("axis", 0) % given.rank == given.axis:
                yield 1, self._chosen(node, given, chosen)
            return
        for index, value in enumerate(node.inputs if made is not None and node.op_type not in SIZED else ()):
            array = _stored(value)
            axis = 0 if array is None or made is None else made.axis - made.rank + array.ndim
            if array is not None and made is not None and axis >= 0 and array.shape[axis] == len(made.codes) > 1:
                yield index, self._spread(node, made, array, axis)

    def _chosen(self, node: ir.Node, axis: Axis, chosen: Array) -> Array:
        """Return positions that are chosen of the axis of the classes."""
        rows, found, place = (chosen % len(axis.codes)).reshape(-1).tolist(), list[int](), 0
        while place < len(rows):
            count = 1 if axis.codes[rows[place]] < 0 else self.tail.classes
            start, stop = rows[place], rows[place] + count
            if rows[place : place + count] != list(range(start, stop)):
                raise CannotWriteBack(f"{title_of(node)} takes some of the {self.tail.classes} classes")
            found += range(self._moved(node, axis, start), self._moved(node, axis, stop))
            place += count
        return np.array(found, chosen.dtype).reshape(chosen.shape if chosen.ndim != 1 else -1)

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
    found = {}
    for level in tail.levels:
        for part in filter(None, (level.boxes, level.classes, level.objectness)):
            batch, _, *size = shapes.get(name := tail.maps[part.map]) or ("", 0, "", "")
            dims = [dim if isinstance(dim, int) else str(dim) for dim in (batch, part.step * len(level.anchors), *size)]
            found[name] = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, dims)
    return found


def _stored(value: ir.Value | None) -> Array | None:
    """Return the elements of a stored tensor or of a Constant; None if the value is computed."""
    if value is None or value.const_value is None:
        return None
    found: Array = value.const_value.numpy()
    return found
