"""Rewrite operators of onnxruntime, and operators that the standard dropped, as standard operators.

onnxruntime's optimisers fuse several nodes into one, such as `com.microsoft.BiasGelu`. This pass undoes the fusion, so
that later passes see standard operators only: layers become modules, weights are found and trained, shapes are known.
A *body* is a function with the operator's signature that writes the standard nodes (`writer.py`). The other files hold
the bodies by family. An operator without a standard equivalent is implemented in `ops/` instead.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.graph.annotations import REFUSED
from onnxgen.graph.domains import owner
from onnxgen.graph.nodes import all_nodes, opset_of
from onnxgen.graph.operators import find
from onnxgen.options import Options
from onnxgen.passes.contrib.nchwc import set_block
from onnxgen.passes.contrib.writer import BODIES, MICROSOFT, Body, Refused, write
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


@cache
def bodies() -> frozenset[tuple[str, str]]:
    """Return (domain, name) of every operator that has a body."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return frozenset(BODIES)


def contrib(model: ir.Model, options: Options) -> None:
    """Rewrite every node that has a body. A node that cannot be rewritten stays, and `lower` reports the reason."""
    known = bodies()
    for node in all_nodes(model.graph):
        if (foreign := owner(node.domain, node.op_type)) is not None:
            REFUSED.set(node, foreign)
        elif node.domain == MICROSOFT and node.op_type in REFUSALS:
            REFUSED.set(node, REFUSALS[node.op_type])
    for _ in range(MAX_ROUNDS):  # shapes are inferred again after each round, for the bodies of the next
        nodes = [
            n
            for n in all_nodes(model.graph)
            if (n.domain, n.op_type) in known and find(n.domain, n.op_type, opset_of(n, model)) is None
        ]
        if not nodes:
            return
        propagate(model.graph, options)
        set_block(model.graph, options.nchwc_block)
        if sum(map(written, nodes)) == 0:
            return


def written(node: ir.Node, table: Mapping[tuple[str, str], Body] = BODIES) -> bool:
    """Rewrite a node. Return False if that was refused."""
    try:
        write(node, table)
    except Refused as refused:
        REFUSED.set(node, (refused.what, refused.help))
        return False
    except NONSENSE:
        REFUSED.set(node, ("the inputs and attributes contradict each other", WRITER))
        return False
    return True
