"""Slices of one tensor after another, each along axes of its own, are one: `x[:, :, :n][..., :n]` is `x[:, :, :n, :n]`.

Exporters write a Slice for each axis that is indexed.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.options import Options
from onnxgen.passes.match import made_by
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import known_ints
from onnxgen.propagate.dims import Dim, Sym
from onnxgen.propagate.info import info

Bounds = dict[int, tuple[Dim, Dim, Dim]]  # axis: start, end, step


def slices(model: ir.Model, options: Options) -> None:
    """Merge every Slice into the one that its input comes from, where that serves it alone."""
    for node in list(model.graph.all_nodes()):
        inner = made_by(node.inputs[0], "Slice") if node.op_type == "Slice" and node.domain == "" else None
        if inner is None or only_user(inner.outputs[0]) is not node or inner.graph is not node.graph:
            continue
        first, second = _bounds(inner), _bounds(node)
        if first is not None and second is not None and not first.keys() & second.keys():
            merged = {**first, **second}
            columns = [known_ints([bounds[i] for bounds in merged.values()]) for i in range(3)]
            inputs = [inner.inputs[0], columns[0], columns[1], known_ints(list(merged)), columns[2]]
            replace(node, ir.Node("", "Slice", inputs, version=13), origin=node)


def _bounds(node: ir.Node) -> Bounds | None:
    """What a Slice with known bounds takes of each axis it names."""
    rank, starts = info(node.inputs[0]).rank, _dims(node, 1, "starts", [])
    if rank is None or not starts:
        return None
    ends = _dims(node, 2, "ends", [])
    axes = _dims(node, 3, "axes", list(range(len(starts))))
    steps = _dims(node, 4, "steps", [1] * len(starts))
    if ends is None or axes is None or steps is None or not all(isinstance(axis, int) for axis in axes):
        return None
    bounds = {int(axis) % rank: each for axis, *each in zip(axes, starts, ends, steps) if isinstance(axis, int)}
    return {axis: (a, b, c) for axis, (a, b, c) in bounds.items()} if len(bounds) == len(starts) else None


def _dims(node: ir.Node, index: int, name: str, default: list[Dim]) -> list[Dim] | None:
    """A list of dims that is an attribute (before opset 10) or an input; None if it is not known."""
    if name in node.attributes:
        return [int(i) for i in node.attributes[name].value]
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return default
    data = info(value).data
    return None if data is None else [d if isinstance(d, Sym) else int(d) for d in data.reshape(-1)]
