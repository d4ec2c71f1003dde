"""Blocks of a nameless network: repeated chains in the graph become scopes, named by role.

Where a file says nothing of where its nodes were written, the graph itself does: what repeats was a class. The stages:
vertices (`flow`), regions between a fork and the node where its paths meet (`regions`), a sequence of labelled tokens
(`tokens`), runs and other repetitions in it (`repeats`, `chains`), and paths for them (`scopes`, `roles`). Each is near
linear. Nothing here changes what is computed: a scope that can't be a module is dissolved later, as any other.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import CLASSES, SCOPE
from onnxgen.options import Options
from onnxgen.scopes.flow import Flow
from onnxgen.scopes.regions import find_regions
from onnxgen.scopes.repeats import Arranger
from onnxgen.scopes.scopes import Writer, set_scope
from onnxgen.scopes.tokens import Tokenizer


def find_blocks(model: ir.Model, options: Options) -> None:
    """Set the scopes of nodes that have none, and the names of their classes (`SCOPE`, `CLASSES`).

    A network most of whose layers have a scope is left as it is.
    """
    if options.flat:
        return
    flow = Flow(model.graph)
    named = {i for i, node in enumerate(flow.nodes) if SCOPE.get(node)}
    layers = [i for i, weighs in enumerate(flow.weighs) if weighs]
    if 2 * sum(i in named for i in layers) > len(layers) or len(layers) < 4:
        return
    tokenizer = Tokenizer(flow, named)
    arranger = Arranger(tokenizer)
    tokens = arranger.arrange(tokenizer.sequence(range(len(flow.nodes)), find_regions(flow)))
    taken = {SCOPE.get(flow.nodes[i])[0] for i in named}
    Writer(flow, arranger, taken).sequence(tokens, ())  # what is a block inside of one is so inside of all, but
    writer = Writer(flow, arranger, taken)  # that is known only when all were looked at
    writer.sequence(tokens, ())
    CLASSES.set(model, {**CLASSES.get(model), **writer.classes})
    _place_fixed(flow)


def _place_fixed(flow: Flow) -> None:
    """What is computed of stored tensors alone belongs where it is used."""
    for node in reversed(flow.fixed):
        if SCOPE.get(node):
            continue
        places = [SCOPE.get(u.node) for o in node.outputs for u in o.uses()]
        shared = min(places, key=len, default=())
        while any(place[: len(shared)] != shared for place in places):
            shared = shared[:-1]
        set_scope(node, tuple(shared))
