"""Equal nodes compute one value.

PyTorch's exporters write a value once. Others write what a loop's body needs again at each place: the next index of
PaddlePaddle's decoders, three times in each turn. Only inner graphs are changed so: in the main graph a block that is
written out again is a block of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE, is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import all_nodes, has_subgraphs
from onnxgen.graph.traits import RANDOM
from onnxgen.options import Options
from onnxgen.passes.rewrite import drop
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored


def equal_nodes(model: ir.Model, options: Options) -> None:
    """Merge equal nodes of every inner graph that compute with more than stored tensors.

    What is made of stored tensors alone may be two parameters: one that an exporter stored once, and named twice.
    """

    def may(node: ir.Node) -> bool:
        moves = any(value is not None and stored(value) is None and info(value).data is None for value in node.inputs)
        return node.graph is not model.graph and moves and not is_a(node, RANDOM)

    merge_equal(model, may)


def merge_equal(model: ir.Model, may: Callable[[ir.Node], bool], kept: Collection[ir.Value] = ()) -> None:
    """Let one node stand for all equal ones of a scope. `may`: the nodes it is about; `kept`: values that stay."""
    first: dict[tuple[object, ...], ir.Value] = {}
    for node in all_nodes(model.graph):
        made = node.outputs[0] if len(node.outputs) == 1 else None
        if made is None or has_subgraphs(node) or not may(node) or made in kept or made.is_graph_output():
            continue
        told = tuple(sorted((name, _said(a)) for name, a in node.attributes.items()))
        what = (node.op_type, node.domain, node.version, node.overload)
        key = (*what, *map(_given, node.inputs), told, node.graph, SCOPE.get(node))
        if node.inputs and first.setdefault(key, made) is not made:
            made.replace_all_uses_with(first[key])
            drop(node)


def _said(attribute: ir.Attr) -> str:
    """Return a text that only equal attributes have: the text of a long tensor leaves numbers out."""
    value = attribute.value
    if not isinstance(value, ir.TensorProtocol):
        return f"{attribute.type} {value}"
    return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"


def _given(value: ir.Value | None) -> object:
    """Return what an input is: sizes, or one number that is not trained, if they are known."""
    facts = info(value)
    if facts.data is not None:
        return (facts.dtype, tuple(facts.data.shape), *facts.data.reshape(-1).tolist())
    constant = None if value is None or is_trained(value) else facts.constant
    if constant is None or constant.size != 1:
        return value
    return (facts.dtype, constant.shape, constant.tobytes())
