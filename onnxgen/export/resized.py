"""Fit the sizes in a graph to resized weights of a head.

Shapes are inferred with the old weights and with the new ones. Where a node's input changed, a stored size that was the
old one becomes the new one. Declared shapes follow. All other nodes and tensors stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.export.shared import CannotWriteBack, drop_unused
from onnxgen.export.sizes import SIZES, Shapes, Sizes, numbers_of, position_of, title_of
from onnxgen.passes.batch.layout import placed
from onnxgen.passes.batch.stack import Stack
from onnxgen.reader.protos import inner_graphs, uses
from onnxgen.shapes.infer import STANDARD
from onnxgen.shapes.info import Shape, info


def fit_sizes(model: onnx.ModelProto, folder: Path, before: Shapes, classes: int) -> list[str]:
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
    def __init__(self, model: onnx.ModelProto, folder: Path, before: Shapes, classes: int) -> None:
        self.model, self.classes, self.used = model, classes, uses(model.graph)
        self.sizes = Sizes(model, folder, classes)
        graph = self.sizes.graph(before)
        self.before = _shapes(graph)
        self.behind = set(before)  # values that depend on the resized tensors
        for node in graph:
            if any(value is not None and value.name in self.behind for value in node.inputs):
                self.behind |= {value.name or "" for value in node.outputs}

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
        name = node.inputs[0].name or "" if node.inputs and node.inputs[0] is not None else ""
        index = SIZES.get(node.op_type, 0) if node.domain in STANDARD and name in self.behind else 0
        old, new, result = self.before.get(name), now.get(name), self.before.get(node.outputs[0].name or "")
        axes = [axis for axis, (a, b) in enumerate(zip(old or (), new or (), strict=False)) if a != b]
        numbers = numbers_of(node, index) if index else []
        if old is None or new is None or result is None or not numbers or not axes:
            return False
        size: Any = old[axes[0]]
        found = placed(old, Stack(axes[0]), result, size) if node.op_type == "Reshape" else [Stack(axes[0])]
        if len(axes) > 1 or not found:
            raise CannotWriteBack(f"{title_of(node)} splits the axis of the {self.classes} classes")
        position = position_of(node, len(old), found[0].axis, len(numbers))
        was, becomes = found[0].size(size), found[0].size(new[axes[0]])
        if position is None or numbers[position] != was or was == becomes or (was == 1 and node.op_type == "Expand"):
            return False  # it is -1, is computed from another size, or selects some classes
        self.sizes.set(node, index, position, becomes)
        return True

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


def _shapes(graph: ir.Graph) -> dict[str, Shape | None]:
    """Return the shapes of the values of a graph by name."""
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name or "": info(value).shape for value in values}
