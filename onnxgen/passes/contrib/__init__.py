"""Rewrite operators that have a body as others: those of onnxruntime, and those that the standard dropped.

onnxruntime's optimisers fuse several nodes into one, such as `com.microsoft.BiasGelu`. This pass undoes the fusion, so
that later passes see standard operators only: layers become modules, weights are found and trained, shapes are known.
A *body* is a function with the operator's signature that writes the standard nodes (`writer.py`). Bodies come from
plugins, such as `onnxgen.microsoft`, and from `dropped.py`. `parts.py` is what bodies share.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.errors import WRITER, OnnxgenError, Problem
from onnxgen.graph.annotations import REFUSED
from onnxgen.graph.domains import owner
from onnxgen.graph.nodes import all_nodes, opset_of, told
from onnxgen.graph.operators import Operator, body_of, key
from onnxgen.options import Options
from onnxgen.passes.contrib.writer import Body, Refused, write
from onnxgen.plugins.loading import why
from onnxgen.shapes import propagate
from onnxgen.shapes.info import NONSENSE

MAX_ROUNDS = 8  # a body may write nodes that have bodies

# operators of onnxruntime that are whole programs, or have an undocumented format: the reason and the way out
_REFUSALS = {
    "BeamSearch WhisperBeamSearch GreedySearch Sampling": (
        "the operator runs a decoder in a loop to search for text",
        "generate from the file of the decoder, and search in Python",
    ),
    "EPContext Snpe": (
        "the node holds a program compiled for one kind of device",
        "generate from the file before it was compiled",
    ),
    "ConvStateReplay GatedDeltaNetStateReplay SpeculativePrefixCommit": (
        "the operator changes a state in place, in memory that the caller owns",
        "generate from a file without this node, and keep the state in Python",
    ),
    "SparseAttentionIndexer PackedSparseAttentionIndexer": (
        "the operator keeps a state of past calls, to pick what attention reads while a model is served",
        "generate from a file that was exported without a cache",
    ),
    "QuantizeBFP DequantizeBFP": (
        "the layout of the blocks is not documented: the schema refers to a paper, and onnxruntime has no kernel",
        "generate from the file before it was quantised, or write a plugin for it (docs/EXTENDING.md)",
    ),
}
REFUSALS = {name: reason for names, reason in _REFUSALS.items() for name in names.split()}


def contrib(model: ir.Model, options: Options) -> None:
    """Rewrite every node that has a body. A node that cannot be rewritten stays, and `lower` reports the reason."""
    for node in all_nodes(model.graph):
        if (foreign := owner(node.domain, node.op_type)) is not None:
            REFUSED.set(node, foreign)
        elif node.domain == "com.microsoft" and node.op_type in REFUSALS:
            REFUSED.set(node, REFUSALS[node.op_type])
    for _ in range(MAX_ROUNDS):  # shapes are inferred again after each round, for the bodies of the next
        nodes = [
            (node, known)
            for node in all_nodes(model.graph)
            if (known := body_of(node.domain, node.op_type, opset_of(node, model))) is not None
        ]
        if not nodes:
            return
        propagate(model.graph, options)
        if sum(_written(node, known, model, options) for node, known in nodes) == 0:
            return


def _written(node: ir.Node, operator: Operator, model: ir.Model, options: Options) -> bool:
    """As `written`. Raises `OnnxgenError` if the body of a plugin fails."""
    if operator.plugin is None:
        return written(node, operator.function, model, options)
    try:
        write(node, operator.function, model, options)
    except Refused as refused:
        REFUSED.set(node, (refused.what, refused.help))
        return False
    except Exception as error:
        what = printable(f"plugin {operator.plugin.name}: the body fails: {why(error)}", 400)
        raise OnnxgenError(Problem(what, told(node), printable(key(*operator.key[:2])), node.version)) from error
    return True


def written(node: ir.Node, body: Body, model: ir.Model, options: Options) -> bool:
    """Rewrite a node. Return False if that was refused."""
    try:
        write(node, body, model, options)
    except Refused as refused:
        REFUSED.set(node, (refused.what, refused.help))
        return False
    except NONSENSE:
        REFUSED.set(node, ("the inputs and attributes contradict each other", WRITER))
        return False
    return True
