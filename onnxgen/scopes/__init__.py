"""Module paths of nodes: from names in the file, or else from chains that repeat in the graph.

`find_blocks` is for files without names. Goes in: a graph. Comes out: scopes for the nodes of repeated chains, named by
their role. The stages: vertices, and regions between a fork and the node where its paths meet (`regions`), a sequence
of labelled tokens (`tokens`), repetitions in it (`repeats`), and their module paths (`scopes`). Each takes nearly
linear time. Results never change: a scope that cannot be a module is dissolved later.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.common.names import ModulePath, common_scope
from onnxgen.graph.annotations import CLASSES, FOUND_CLASSES, SCOPE
from onnxgen.options import Options
from onnxgen.scopes.origin import users
from onnxgen.scopes.regions import Flow, find_regions
from onnxgen.scopes.repeats import Arranger
from onnxgen.scopes.scopes import Writer, set_scope, write_branches
from onnxgen.scopes.tokens import Tokenizer

FEW = 4  # layers in which no block can repeat


def find_blocks(model: ir.Model, options: Options) -> None:
    """Set the scopes of nodes that have none, and the names of their classes (`SCOPE`, `CLASSES`).

    Does nothing if only a few layers have no scope: they are the root's own.
    """
    if options.flat:
        return
    branches = write_branches(model.graph, {SCOPE.get(node)[0] for node in model.graph if SCOPE.get(node)}, FEW)
    _add_classes(model, branches)
    flow = Flow(model.graph)
    named = {i for i, node in enumerate(flow.nodes) if SCOPE.get(node)}
    if sum(weighs and i not in named for i, weighs in enumerate(flow.weighs)) < FEW:
        return
    tokenizer = Tokenizer(flow, named)
    arranger = Arranger(tokenizer)
    tokens = arranger.arrange(tokenizer.sequence(range(len(flow.nodes)), find_regions(flow)))
    taken = {SCOPE.get(flow.nodes[i])[0] for i in named}
    Writer(flow, arranger, taken).sequence(tokens, ())  # the second pass knows all blocks that are inside of others
    writer = Writer(flow, arranger, taken)
    writer.sequence(tokens, ())
    _add_classes(model, writer.classes)
    for node in reversed(flow.fixed):  # nodes that only compute with stored tensors belong to their users
        if not SCOPE.get(node):
            set_scope(node, common_scope(map(SCOPE.get, users(node))) or ())


def _add_classes(model: ir.Model, classes: dict[ModulePath, str]) -> None:
    CLASSES.set(model, {**CLASSES.get(model), **classes})
    FOUND_CLASSES.set(model, frozenset((*FOUND_CLASSES.get(model), *classes)))
