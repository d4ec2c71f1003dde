"""Slices of one tensor after another, each along axes of its own, are one: `x[:, :, :n][..., :n]` is `x[:, :, :n, :n]`.

Exporters write a Slice for each axis that is indexed.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.cuts import cuts
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import known_ints


def slices(model: ir.Model, options: Options) -> None:
    """Merge every Slice into the one that its input comes from, where that serves it alone."""
    for node in all_nodes(model.graph):
        inner = made_by(node.inputs[0], "Slice") if node.op_type == "Slice" and node.domain == "" else None
        if inner is None or only_user(inner.outputs[0]) is not node or inner.graph is not node.graph:
            continue
        first, second = cuts(inner), cuts(node)
        merged = [*first, *second] if first and second else []
        if merged and len({cut.axis for cut in merged}) == len(merged):
            columns = ([getattr(cut, key) for cut in merged] for key in ("start", "end", "axis", "step"))
            inputs = [inner.inputs[0], *map(known_ints, columns)]
            replace(node, ir.Node("", "Slice", inputs, version=13), origin=node)
