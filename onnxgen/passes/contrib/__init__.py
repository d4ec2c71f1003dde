"""Operators of onnxruntime, and those that the standard dropped, written out in the standard's operators.

onnxruntime's optimisers put one node (`com.microsoft.BiasGelu`) in the place of several. Here the several come back, so
that everything after knows the standard only: layers become modules, weights are found and trained, shapes are known.
A *body* is a function with the operator's signature that writes those nodes (`writer.py`); the other files of this
package have them by family. What has no standard spelling is an operator of `ops/` instead.
"""

from __future__ import annotations

import importlib
import pkgutil

import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.graph.annotations import REFUSED
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import find
from onnxgen.options import Options
from onnxgen.passes.contrib.nchwc import set_block
from onnxgen.passes.contrib.writer import BODIES, MICROSOFT, Refused, write
from onnxgen.shapes import propagate
from onnxgen.shapes.node_facts import NONSENSE

DEPTH = 8

# domains of which nothing can be said, and why
FOREIGN = {
    "ai.onnx.contrib": (
        "tokenizers and other operators of onnxruntime-extensions are out of scope: they work on text, not on tensors",
        "cut them off with --inputs and tokenize in Python, or write a plugin for them (docs/EXTENDING.md)",
    ),
}

SEARCH = (
    "the operator runs a decoder in a loop to search for text",
    "generate from the file of the decoder, and search in Python",
)
DEVICE = "the node holds a program compiled for one kind of device", "generate from the file before it was compiled"
BLOCKS = (
    "the layout of the blocks is not documented: the schema refers to a paper, and onnxruntime has no kernel",
    "generate from the file before it was quantised, or write a plugin for it (docs/EXTENDING.md)",
)
STATE = (
    "the operator changes a state in place, in memory that the caller owns",
    "generate from a file without this node, and keep the state in Python",
)
SERVING = (
    "the operator keeps a state of past calls, to pick what attention reads while a model is served",
    "generate from a file that was exported without a cache",
)
REFUSALS = {  # operators of onnxruntime that are programs of their own, or whose bytes nobody describes, and why
    **dict.fromkeys("BeamSearch WhisperBeamSearch GreedySearch Sampling".split(), SEARCH),
    **dict.fromkeys("EPContext Snpe".split(), DEVICE),
    **dict.fromkeys("ConvStateReplay GatedDeltaNetStateReplay SpeculativePrefixCommit".split(), STATE),
    **dict.fromkeys("SparseAttentionIndexer PackedSparseAttentionIndexer".split(), SERVING),
    **dict.fromkeys("QuantizeBFP DequantizeBFP".split(), BLOCKS),
}


def bodies() -> set[tuple[str, str]]:
    """(domain, name) of every operator that has a body."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return set(BODIES)


def contrib(model: ir.Model, options: Options) -> None:
    """Write out every such node; one that can't be stays, and `lower` says why it was refused."""
    known = bodies()
    for node in all_nodes(model.graph):
        if node.domain in FOREIGN:
            REFUSED.set(node, FOREIGN[node.domain])
        elif node.domain == MICROSOFT and node.op_type in REFUSALS:
            REFUSED.set(node, REFUSALS[node.op_type])
    for _ in range(DEPTH):  # what one node makes may be what another must know
        nodes = [n for n in all_nodes(model.graph) if (n.domain, n.op_type) in known and _is_ours(n, model)]
        if not nodes:
            return
        propagate(model.graph, options)
        set_block(model.graph, options.nchwc_block)
        if sum(map(_write, nodes)) == 0:
            return


def _write(node: ir.Node) -> bool:
    try:
        write(node)
    except Refused as refused:
        REFUSED.set(node, (refused.what, refused.help))
    except NONSENSE:
        REFUSED.set(node, ("the inputs and attributes contradict each other", WRITER))
    else:
        return True
    return False


def _is_ours(node: ir.Node, model: ir.Model) -> bool:
    opset = node.version or model.opset_imports.get(node.domain, 1)
    return find(node.domain, node.op_type, opset) is None
