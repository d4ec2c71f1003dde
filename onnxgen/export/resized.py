"""Fit the sizes in a graph to resized weights of a head.

Shapes are inferred with the old weights and with the new ones. Where a node's input changed, a stored size that was the
old one becomes the new one. Declared shapes follow. All other nodes and tensors stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import Namer, printable
from onnxgen.export.places import Array, places
from onnxgen.export.shared import CannotWriteBack, declare, drop_unused, used_names
from onnxgen.options import Options
from onnxgen.passes.batch.layout import placed
from onnxgen.passes.batch.stack import Stack
from onnxgen.reader.protos import inner_graphs, uses, with_inner
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.info import Shape, info

SIZES = {"Reshape": 1, "Expand": 1, "Slice": 2, "Split": 1, "Resize": 3}  # by operator: the input that holds sizes
IN_ORDER = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Concat")  # keep the order of elements
_Shapes = Mapping[str, tuple[int, ...]]


def fit_sizes(model: onnx.ModelProto, folder: Path, before: _Shapes, classes: int) -> list[str]:
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
    def __init__(self, model: onnx.ModelProto, folder: Path, before: _Shapes, classes: int) -> None:
        self.model, self.folder, self.classes = model, folder, classes
        self.names, self.used = Namer(used_names(model.graph)), uses(model.graph)
        self.changed: list[str] = []
        graph = self._graph(before)
        self.before = _shapes(graph)
        self.behind = set(before)  # values that depend on the resized tensors
        for node in graph:
            if any(value is not None and value.name in self.behind for value in node.inputs):
                self.behind |= {value.name or "" for value in node.outputs}

    def run(self) -> list[str]:
        now = _shapes(graph := self._graph({}))
        while any(self._fits(node, now) for node in graph):  # one size a round: the next ones follow it
            now = _shapes(graph := self._graph({}))
        self._check(graph)
        self._declare(now)
        drop_unused(self.model.graph, self.used)
        return self.changed

    def _graph(self, before: _Shapes) -> ir.Graph:
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

    # ---- stored sizes ----

    def _fits(self, node: ir.Node, now: Mapping[str, Shape | None]) -> bool:
        """Correct a size that a node was given. Returns True if one was wrong."""
        name = node.inputs[0].name or "" if node.inputs and node.inputs[0] is not None else ""
        index = SIZES.get(node.op_type, 0) if node.domain in STANDARD and name in self.behind else 0
        old, new, result = self.before.get(name), now.get(name), self.before.get(node.outputs[0].name or "")
        axes = [axis for axis, (a, b) in enumerate(zip(old or (), new or (), strict=False)) if a != b]
        numbers = _numbers(node, index) if index else []
        if old is None or new is None or result is None or not numbers or not axes:
            return False
        size: Any = old[axes[0]]
        found = placed(old, Stack(axes[0]), result, size) if node.op_type == "Reshape" else [Stack(axes[0])]
        if len(axes) > 1 or not found:
            raise CannotWriteBack(f"{_title(node)} splits the axis of the {self.classes} classes")
        position = _position(node, len(old), found[0].axis, len(numbers))
        was, becomes = found[0].size(size), found[0].size(new[axes[0]])
        if position is None or numbers[position] != was or was == becomes or (was == 1 and node.op_type == "Expand"):
            return False  # it is -1, is computed from another size, or selects some classes
        self._set(node, index, position, becomes)
        return True

    def _set(self, node: ir.Node, index: int, position: int, size: Dim) -> None:
        """Write an element of an input: in the constant that it is, or that it is made of."""
        title, value = _title(node), node.inputs[index]
        while value is not None and len(value.uses()) == 1 and (maker := value.producer()) is not None:
            if maker.op_type not in IN_ORDER:
                break
            node, index = maker, 0
            while maker.op_type == "Concat" and position >= (count := len(_numbers(maker, index))):
                index, position = index + 1, position - count
            value = node.inputs[index]
        facts = info(value)
        if facts.constant is None or facts.dtype is None or not isinstance(size, int):
            raise CannotWriteBack(f"{title} computes a shape from the {self.classes} classes")
        array = np.array(facts.constant, facts.dtype.numpy())
        array.reshape(-1)[position] = size
        self._replace(node, index, array)

    def _replace(self, node: ir.Node, index: int, array: Array) -> None:
        """Replace a constant input. If other nodes use the constant too, the node gets a new one."""
        outputs = {value.name for value in node.outputs if value.name}
        user = next(n for n in self.model.graph.node if outputs & set(n.output))
        name = user.input[index]
        users = [i for other in with_inner(self.model.graph.node) for i in other.input if i == name]
        place = next((place for place in places(self.model) if place.name == name), None)
        if place is not None and place.tensor is not None and not place.is_external and len(users) == 1:
            place.write(array)
        else:
            name = user.input[index] = self.names.take(name)
            declare(self.model, onnx.numpy_helper.from_array(array, name))
        self.changed.append(name)

    # ---- declared sizes ----

    def _check(self, graph: ir.Graph) -> None:
        """Raise `CannotWriteBack` if a node can't take the new size, or if it can't be known."""
        for node in graph:
            for value in node.outputs:
                shapes = self.before.get(value.name or "") or (), info(value).shape or ()
                old, new = ([isinstance(dim, int) for dim in shape] for shape in shapes)
                if value.name in self.behind and old != new:
                    raise CannotWriteBack(f"{_title(node)} can't take another number than {self.classes}")
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


def _position(node: ir.Node, rank: int, axis: int, count: int) -> int | None:
    """Return the position of an axis among the sizes that a node was given, or None if it is not among them."""
    axes = list(range(count))
    if node.op_type == "Split":  # into parts of one axis
        axes = [node.attributes.get_int("axis", 0) % rank] if count == 1 else []
    elif node.op_type == "Slice" and len(node.inputs) > 3:
        axes = [found % rank for found in _numbers(node, 3) if isinstance(found, int)]
    elif node.op_type == "Resize" and "axes" in node.attributes:
        axes = [found % rank for found in node.attributes["axes"].as_ints()]
    axis += count - rank if node.op_type == "Expand" else 0
    return axes.index(axis) if axis in axes else None


def _numbers(node: ir.Node, index: int) -> list[Dim]:
    """Return the elements of an input; none if they are unknown."""
    data = info(node.inputs[index]).data if index < len(node.inputs) else None
    return [] if data is None else list(data.reshape(-1).tolist())


def _shapes(graph: ir.Graph) -> dict[str, Shape | None]:
    """Return the shapes of the values of a graph by name."""
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name or "": info(value).shape for value in values}


def _title(node: ir.Node) -> str:
    return f"{printable(node.op_type)} {printable(node.name or node.outputs[0].name or '')}"
