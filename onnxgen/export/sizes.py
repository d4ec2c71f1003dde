"""Stored sizes of a protobuf: the graph with its shapes, and the constants that sizes are read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import Namer, printable
from onnxgen.export.places import Array, places
from onnxgen.export.shared import CannotWriteBack, declare, used_names
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import JOINS, RESHAPE, SAME
from onnxgen.options import Options
from onnxgen.reader.protos import with_inner
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info

SIZES = {"Reshape": 1, "Expand": 1, "Slice": 2, "Split": 1, "Resize": 3}  # by operator: the input that holds sizes
Shapes = Mapping[str, tuple[int, ...]]


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

    def graph(self, before: Shapes) -> ir.Graph:
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
        found: onnx.NodeProto = next(n for n in self.model.graph.node if outputs & set(n.output))
        return found

    def _copy_maker(self, node: ir.Node, index: int) -> None:
        """Give a node a copy of the node that makes an input."""
        user, nodes = self._proto(node), self.model.graph.node
        place, maker = next((n, found) for n, found in enumerate(nodes) if user.input[index] in found.output)
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
        axes = [found % rank for found in numbers_of(node, 3) if isinstance(found, int)]
    elif "axes" in node.attributes:  # of a Resize
        axes = [found % rank for found in node.attributes["axes"].as_ints()]
    axis += count - rank if node.op_type == "Expand" else 0
    return axes.index(axis) if axis in axes else None


def numbers_of(node: ir.Node, index: int) -> list[Dim]:
    """Return the elements of an input; none if they are unknown."""
    data = info(node.inputs[index]).data if index < len(node.inputs) else None
    return [] if data is None else list(data.reshape(-1).tolist())


def title_of(node: ir.Node) -> str:
    return f"{printable(node.op_type)} {printable(node.name or node.outputs[0].name or '')}"
