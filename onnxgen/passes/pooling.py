"""The mean over all axes behind the channels, with `keepdims`, becomes GlobalAveragePool.

Torch's dynamo exporter writes adaptive pooling to one element like this. The pass only rewrites images and volumes: the
mean over the last axis of a sequence is more often a statistic.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.element_types import FLOATS
from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import reduction, standard_nodes
from onnxgen.passes.rewrite import replace
from onnxgen.shapes.info import info


def pooling(model: ir.Model, options: Options) -> None:
    """Rewrite every such mean; a Squeeze that removes the pooled axes becomes Flatten, as a person would write it."""
    for node in standard_nodes(model, "ReduceMean", "Squeeze"):
        facts = info(node.outputs[0])
        if node.op_type == "ReduceMean":
            found = reduction(node.outputs[0], "ReduceMean") if facts.dtype in FLOATS else None
            rank = None if found is None else info(found.x).rank
            if found is not None and rank in (4, 5) and found.axes == tuple(range(2, rank)) and found.keepdims:
                replace(node, ir.node("GlobalAveragePool", [found.x], version=1))
        elif made_by(node.inputs[0], "GlobalAveragePool", "GlobalMaxPool") and facts.rank == 2:
            if facts.shape == (info(node.inputs[0]).shape or ())[:2]:
                replace(node, ir.node("Flatten", [node.inputs[0]], {"axis": 1}, version=13))
