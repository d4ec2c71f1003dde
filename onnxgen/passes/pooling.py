"""The mean over all that lies behind the channels, its axes kept, becomes GlobalAveragePool.

So torch's dynamo exporter writes adaptive pooling to one element. Of images and volumes only: the mean over the last
axis of a sequence is more often a statistic.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import all_nodes, made_by
from onnxgen.options import Options
from onnxgen.passes.match import reduction
from onnxgen.passes.rewrite import replace
from onnxgen.shapes.info import info

POOLS = ("GlobalAveragePool", "GlobalMaxPool")


def pooling(model: ir.Model, options: Options) -> None:
    """Rewrite every such mean, and what drops the pooled axes: a Flatten to a person."""
    for node in all_nodes(model.graph):
        if node.op_type == "ReduceMean" and node.domain == "" and info(node.outputs[0]).dtype in FLOATS:
            found = reduction(node.outputs[0], "ReduceMean")
            rank = None if found is None else info(found.x).rank
            if found is not None and rank in (4, 5) and found.axes == tuple(range(2, rank)) and found.keepdims:
                replace(node, ir.Node("", "GlobalAveragePool", [found.x], version=1))
        elif node.op_type == "Squeeze" and node.domain == "" and info(node.outputs[0]).rank == 2:
            pool = made_by(node.inputs[0], *POOLS)
            shape = info(node.inputs[0]).shape or ()
            if pool is not None and info(node.outputs[0]).shape == shape[:2]:
                replace(node, ir.Node("", "Flatten", pool.outputs, [ir.AttrInt64("axis", 1)], version=13))
