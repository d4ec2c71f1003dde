"""What is not in a module that is a part of its network (`--inputs`, `--outputs`): those nodes keep their weights."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from onnxgen.export.places import places
from onnxgen.reader.cut import cut_graph
from onnxgen.reader.protos import with_inner
from onnxgen.record.way_back import Cut


class Rest:
    """The nodes that are not in the module, as far as they share stored tensors with it.

    Exporters store equal vectors once, such as the biases of layers before training. So a shared vector keeps its value
    for the rest. A shared matrix or kernel is one layer in two places: the rest follows it, and its bias too.

    Args:
        model: the protobuf, whose node inputs `separate` changes.
        cut: the part of the graph that the module is; None for all of it.
        names: the stored tensors that the module has.

    Attributes:
        follows: the tensors that the rest has with the module, and that change for both.
    """

    def __init__(self, model: onnx.ModelProto, cut: Cut | None, names: Collection[str]) -> None:
        self.follows = set[str]()
        self._users: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
        if cut is None:
            return
        ranks = {place.name: len(place.tensor.dims) for place in places(model) if place.tensor is not None}
        sources = {name: name for name in names}
        for node in model.graph.node:
            if node.op_type == "Identity" and node.input[0] in sources:
                sources[node.output[0]] = sources[node.input[0]]
        for node in with_inner(_outside(model.graph, cut)):
            found = {i: sources[name] for i, name in enumerate(node.input) if name in sources}
            if node.op_type == "Identity":
                continue
            if any(ranks.get(name, 2) > 1 for name in found.values()):
                self.follows.update(found.values())
                continue
            for index, name in found.items():
                self._users.setdefault(name, []).append((node, index))

    def shares(self, name: str) -> bool:
        """Return True if the rest must keep a tensor as it is."""
        return name in self._users

    def separate(self, name: str, new: str) -> None:
        """Make the rest use the stored tensor `new` instead."""
        for node, index in self._users.pop(name):
            node.input[index] = new


def _outside(graph: onnx.GraphProto, cut: Cut) -> list[onnx.NodeProto]:
    """Return the nodes that are not in a part of the graph."""
    part = onnx.GraphProto(node=graph.node, input=graph.input, output=graph.output)
    part.initializer.extend(onnx.TensorProto(name=tensor.name) for tensor in graph.initializer)
    cut_graph(part, cut, {})
    inside = {output for node in part.node for output in node.output if output}
    return [node for node in graph.node if inside.isdisjoint(node.output)]
