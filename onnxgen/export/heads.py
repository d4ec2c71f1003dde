"""A head with another number of classes, in the original graph: its tensors, and sizes.

`replace_head` resizes tensors of the state dict on one axis each, that of the classes. The weight provenance says which
axis of an ONNX tensor that is: it moves elements, and so it can also move the number of each element's class.

To fit the sizes in the graph, shapes are inferred with the old weights and with the new ones. Where a node's input
changed, a stored size that was the old one becomes the new one. Declared shapes follow. All other nodes and tensors
stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import Namer, printable
from onnxgen.export.places import Array, CannotWriteBack, declare, drop_unused, places, used_names
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import JOINS, RESHAPE, SAME
from onnxgen.options import Options
from onnxgen.passes.batch.layout import placed
from onnxgen.passes.batch.stack import Stack
from onnxgen.reader.protos import inner_graphs, uses, with_inner
from onnxgen.record.way_back import parts
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.info import Shape, info
from onnxgen.weights.provenance import rebuild

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Head:
    """A head with another number of classes than the file has.

    Attributes:
        axes: the axis of the classes of each resized tensor, by state-dict key.
        sizes: of this axis, in the file and now. The head of a detector may have several: with the channels of boxes
            and anchors.
    """

    axes: Mapping[str, int]
    sizes: Mapping[str, tuple[int, int]]

    @classmethod
    def between(cls, generated: Shapes, current: Shapes) -> Head | None:
        """Return the head if shapes of a state dict differ in one axis of each tensor; else None."""
        if generated.keys() != current.keys() or any(len(generated[key]) != len(current[key]) for key in current):
            return None
        axes: dict[str, int] = {}
        sizes: list[tuple[str, tuple[int, int]]] = []
        for key, shape in current.items():
            for axis, pair in enumerate(zip(generated[key], shape, strict=True)):
                if pair[0] != pair[1]:
                    axes[key] = axis
                    sizes.append((key, pair))
        is_head = sizes and len(sizes) == len(axes) and not any(0 in pair for _, pair in sizes)
        return cls(axes, dict(sizes)) if is_head else None

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return the sizes that changed, in the file and now, each once."""
        return [*dict.fromkeys(self.sizes.values())]

    @property
    def told(self) -> str:
        """Return what changed, for a message."""
        changes = " and ".join(f"from {old} to {new}" for old, new in self.pairs)
        return f"only {'one size was' if len(self.pairs) == 1 else 'these sizes were'} changed, {changes}"

    def has(self, entries: Any) -> bool:
        """Return True if a tensor with this record (see `provenance.way_back`) holds elements of the head."""
        return any(part["key"] in self.axes for part in parts(entries))

    def resized(self, tensors: Mapping[str, Any], name: str, get: Callable[[str], Array], before: Array) -> Array:
        """Return the ONNX tensor `name` with the new number of classes.

        Args:
            tensors: the weight record.
            get: the state-dict tensor of a key.
            before: the tensor in the file.

        Raises:
            CannotWriteBack: the classes are not an axis of the tensor.
        """
        old, new = self._sizes(tensors[name])
        blocks = []
        for first in range(0, new, old):  # as many classes at a time as the file has, the last one repeated
            rows = np.minimum(np.arange(first, first + old), new - 1)
            some = {key: get(key).take(rows, axis) for key, axis in self.axes.items() if self.sizes[key] == (old, new)}
            blocks.append(rebuild(tensors, name, lambda key, some=some: some[key] if key in some else get(key), before))  # type: ignore[misc]
        axis = self._axis(tensors[name], get, before)
        if axis is None:
            raise CannotWriteBack(f"the {old} classes are no axis of {printable(name)}")
        return np.concatenate(blocks, axis).take(np.arange(new), axis)

    def _sizes(self, entry: Any) -> tuple[int, int]:
        """Return the sizes of the parts that are of the head."""
        pairs = {self.sizes[part["key"]] for part in parts(entry) if part["key"] in self.axes}
        if len(pairs) > 1:
            raise CannotWriteBack("one tensor of the file holds layers of several sizes")
        return pairs.pop()

    def _axis(self, entry: Any, get: Callable[[str], Array], before: Array) -> int | None:
        """Return the axis of an ONNX tensor that the classes are. Several fit only if they all have size 1."""

        old = self._sizes(entry)[0]

        def numbers(key: str) -> Array:
            """Return a state-dict tensor of the old size that has in each element the number of its class, or -1."""
            own = self.axes.get(key)
            shape = [old if axis == own else size for axis, size in enumerate(get(key).shape)]
            return np.zeros(shape) + (-1.0 if own is None else np.indices(shape, sparse=True)[own])

        if not isinstance(entry, str):  # a norm that is folded in computes, for each class alone
            plain = [{key: value for key, value in part.items() if key != "fold"} for part in entry["parts"]]
            entry = {**entry, "parts": plain}
        classes = rebuild({"": entry}, "", numbers, np.full(before.shape, -1.0))
        sized = [axis for axis, size in enumerate(classes.shape) if size == old]
        fitting = [axis for axis in sized if np.all(np.moveaxis(classes, axis, -1) == np.arange(old))]
        own = next(self.axes[part["key"]] for part in parts(entry) if part["key"] in self.axes)
        return own if own in fitting else next(iter(fitting), None)


def fit_sizes(model: onnx.ModelProto, folder: Path, before: ValueShapes, classes: int) -> list[str]:
    """Fit a graph's sizes to resized tensors.

    Args:
        model: has the resized tensors already; changed in place.
        folder: the folder of its external data.
        before: the former shapes of these tensors, by name.
        classes: the size that changed.

    Returns:
        the names of the constants with sizes that changed.

    Raises:
        CannotWriteBack: a node can't take the new size; `model` is then half changed.
    """
    return _Fitting(model, folder, before, classes).run()


class _Fitting:
    def __init__(self, model: onnx.ModelProto, folder: Path, before: ValueShapes, classes: int) -> None:
        self.model, self.classes, self.used = model, classes, uses(model.graph)
        self.sizes = Sizes(model, folder, classes)
        graph = self.sizes.graph(before)
        self.before = _shapes(graph)
        self.behind = set(before)  # values that depend on the resized tensors
        for node in graph:
            if any(value is not None and value.name in self.behind for value in node.inputs):
                self.behind |= set(map(_name, node.outputs))

    def run(self) -> list[str]:
        now = _shapes(graph := self.sizes.graph({}))
        while any(self._fits(node, now) for node in graph):  # one size a round: the next ones follow it
            now = _shapes(graph := self.sizes.graph({}))
        self._check(graph)
        self._declare(now)
        drop_unused(self.model.graph, self.used)
        return self.sizes.changed

    # ---- stored sizes ----

    def _fits(self, node: ir.Node, now: Mapping[str, Shape | None]) -> bool:
        """Correct a size that a node was given. Returns True if one was wrong."""
        name = _name(next(iter(node.inputs), None))
        index = SIZES.get(node.op_type, 0) if node.domain in STANDARD and name in self.behind else 0
        old, new, result = self.before.get(name), now.get(name), self.before.get(_name(node.outputs[0]))
        numbers = numbers_of(node, index) if index else []
        if old is None or new is None or result is None or not numbers or not (axes := _differing(old, new)):
            return False
        stack = self._placed(node, old, axes, result)
        position = position_of(node, len(old), stack.axis, len(numbers))
        size: Any = old[axes[0]]
        was, becomes = stack.size(size), stack.size(new[axes[0]])
        if position is None or numbers[position] != was or was == becomes or (was == 1 and node.op_type == "Expand"):
            return False  # it is -1, is computed from another size, or selects some classes
        self.sizes.set(node, index, position, becomes)
        return True

    def _placed(self, node: ir.Node, old: Shape, axes: list[int], result: Shape) -> Stack:
        """Return where a node has the axis of the classes, which must be the only one that changed."""
        size: Any = old[axes[0]]
        stacks = placed(old, Stack(axes[0]), result, size) if node.op_type == "Reshape" else [Stack(axes[0])]
        if len(axes) > 1 or not stacks:
            raise CannotWriteBack(f"{title_of(node)} splits the axis of the {self.classes} classes")
        return stacks[0]

    # ---- declared sizes ----

    def _check(self, graph: ir.Graph) -> None:
        """Raise `CannotWriteBack` if a node can't take the new size, or if it can't be known."""
        for node in graph:
            for value in node.outputs:
                shapes = self.before.get(value.name or "") or (), info(value).shape or ()
                old, new = ([isinstance(dim, int) for dim in shape] for shape in shapes)
                if value.name in self.behind and old != new:
                    raise CannotWriteBack(f"{title_of(node)} can't take another number than {self.classes}")
        for proto in self.model.graph.node:
            if any(uses(inner) & self.behind for inner in inner_graphs(proto)):
                raise CannotWriteBack(f"a subgraph of {printable(proto.op_type)} uses the {self.classes} classes")

    def _declare(self, now: Mapping[str, Shape | None]) -> None:
        """Declare the new sizes of values."""
        graph = self.model.graph
        for value in (*graph.input, *graph.output, *graph.value_info):
            shapes = (self.before.get(value.name) or (), now.get(value.name) or ())
            for dim, old, new in zip(value.type.tensor_type.shape.dim, *shapes, strict=False):
                if value.name in self.behind and dim.dim_value == self.classes and not isinstance(old, int):
                    raise CannotWriteBack(f"it is not known which size of {printable(value.name)} is the classes")
                if old != new and isinstance(new, int):
                    dim.dim_value = new


def _name(value: ir.Value | None) -> str:
    return "" if value is None else value.name or ""


def _differing(old: Shape, new: Shape) -> list[int]:
    """Return the axes whose sizes differ."""
    return [axis for axis, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]


def _shapes(graph: ir.Graph) -> dict[str, Shape | None]:
    """Return the shapes of the values of a graph by name."""
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name or "": info(value).shape for value in values}


SIZES = {"Reshape": 1, "Expand": 1, "Slice": 2, "Split": 1, "Resize": 3}  # by operator: the input that holds sizes
ValueShapes = Mapping[str, tuple[int, ...]]


class Sizes:
    """Reads and writes the sizes that a graph stores.

    Args:
        model: changed in place.
        folder: of its external data.
        classes: the size that changes, for messages.

    Attributes:
        changed: names of the constants that were changed.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path, classes: int) -> None:
        self.model, self.folder, self.classes = model, folder, classes
        self.names = Namer(used_names(model.graph))
        self.changed: list[str] = []

    def graph(self, before: ValueShapes) -> ir.Graph:
        """Return the graph with the shapes of its values. `before`: shapes that stored tensors have instead."""
        try:
            graph = ir.serde.deserialize_model(self.model).graph
        except Exception as error:  # onnx_ir cannot read some forms, such as types of maps
            raise CannotWriteBack("onnx_ir can't read the file") from error
        ir.external_data.set_base_dir(graph, self.folder)
        graph.sort()
        stored = dict(graph.initializers) | {n.outputs[0].name or "": n.outputs[0] for n in graph if not n.inputs}
        for name, shape in before.items():
            if name not in stored:
                raise CannotWriteBack(f"{printable(name)} is in a subgraph")
            value, node = stored[name], stored[name].producer()
            value.const_value = ir.tensor(np.zeros(shape, (value.dtype or ir.DataType.FLOAT).numpy()), name=name)
            if node is not None:
                node.attributes.clear()
                node.attributes.add(ir.AttrTensor("value", value.const_value))
        propagate(graph, Options())
        return graph

    def set(self, node: ir.Node, index: int, position: int, size: Dim) -> None:
        """Write an element of an input: in the constant that it is, or that it is made of.

        If other nodes use what such a constant becomes a part of, the node gets a copy of the node that makes it, and
        the element is written in the next round.
        """
        title, value = title_of(node), node.inputs[index]
        while value is not None and (maker := value.producer()) is not None:
            is_shared = len(value.uses()) > 1
            if not is_a(maker, RESHAPE, SAME, JOINS) or (is_shared and info(value).constant is not None):
                break  # another order of the elements; or the node gets a constant of its own
            if is_shared:
                self._copy_maker(node, index)
                return
            node, index = maker, 0
            while is_a(maker, JOINS) and position >= (count := len(numbers_of(maker, index))):
                index, position = index + 1, position - count
            value = node.inputs[index]
        facts = info(value)
        if facts.constant is None or facts.dtype is None or not isinstance(size, int):
            raise CannotWriteBack(f"{title} computes a shape from the {self.classes} classes")
        array = np.array(facts.constant, facts.dtype.numpy())
        array.reshape(-1)[position] = size
        self.replace(node, index, array)

    def replace(self, node: ir.Node, index: int, array: Array) -> None:
        """Replace a constant input. If other nodes use the constant too, the node gets a new one."""
        user = self._proto(node)
        name = user.input[index]
        users = [i for other in with_inner(self.model.graph.node) for i in other.input if i == name]
        place = next((place for place in places(self.model) if place.name == name), None)
        is_own = place is not None and place.tensor is not None and not place.is_external and len(users) == 1
        if place is not None and is_own and place.resize(array.shape):
            place.write(array)
        else:
            name = user.input[index] = self.names.take(name)
            declare(self.model, onnx.numpy_helper.from_array(array, name))
        self.changed.append(name)

    def _proto(self, node: ir.Node) -> onnx.NodeProto:
        outputs = {value.name for value in node.outputs if value.name}
        proto: onnx.NodeProto = next(n for n in self.model.graph.node if outputs & set(n.output))
        return proto

    def _copy_maker(self, node: ir.Node, index: int) -> None:
        """Give a node a copy of the node that makes an input."""
        user, nodes = self._proto(node), self.model.graph.node
        place, maker = next((n, other) for n, other in enumerate(nodes) if user.input[index] in other.output)
        copy = onnx.NodeProto()
        copy.CopyFrom(maker)
        copy.ClearField("name")  # of nodes, no two may be equal
        copy.output[0] = self.names.take(maker.output[0])
        nodes.insert(place, copy)
        user.input[index] = copy.output[0]


def position_of(node: ir.Node, rank: int, axis: int, count: int) -> int | None:
    """Return the position of an axis among the sizes that a node was given, or None if it is not among them."""
    axes = list(range(count))
    if node.op_type == "Split":  # into parts of one axis
        axes = [node.attributes.get_int("axis", 0) % rank] if count == 1 else []
    elif node.op_type == "Slice" and len(node.inputs) > 3:
        axes = [number % rank for number in numbers_of(node, 3) if isinstance(number, int)]
    elif "axes" in node.attributes:  # of a Resize
        axes = [number % rank for number in node.attributes["axes"].as_ints()]
    axis += count - rank if node.op_type == "Expand" else 0
    return axes.index(axis) if axis in axes else None


def numbers_of(node: ir.Node, index: int) -> list[Dim]:
    """Return the elements of an input; none if they are unknown."""
    data = info(node.inputs[index]).data if index < len(node.inputs) else None
    return [] if data is None else list(data.reshape(-1).tolist())


def title_of(node: ir.Node) -> str:
    return f"{printable(node.op_type)} {printable(node.name or node.outputs[0].name or '')}"
