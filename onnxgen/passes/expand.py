"""Write out what a node stands for: an If becomes the branch it takes, an operator its body.

The condition of the If is known, or decided by what is behind it (`shapes.decided`). Bodies are those of
`passes.standard`. They replace operators of the standard where no function takes the call. Most of these have no
function at all. Attention has one that takes a call in its plain form only (`@op(takes=...)`); its body leaves
Attention in that form.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import all_nodes, opset_of
from onnxgen.graph.operators import find
from onnxgen.options import Options
from onnxgen.passes.contrib import written
from onnxgen.passes.rewrite import constant, drop, replace_uses
from onnxgen.passes.standard import STANDARD_BODIES
from onnxgen.shapes import propagate
from onnxgen.shapes.decided import BRANCHES, choice_of, choosing, decided
from onnxgen.shapes.info import info


def decide(model: ir.Model, options: Options) -> None:
    """Make a constant of every condition that has one value in all runs which return something."""
    decisions = decided(model.graph, options)
    for node in choosing(model.graph):
        condition = node.inputs[0]
        if condition in decisions:
            elements = np.full((1,) * (info(condition).rank or 0), decisions[condition])
            node.replace_input_with(0, constant(node, elements, f"{condition.name}.decided", ir.DataType.BOOL))
    if decisions:
        propagate(model.graph, options)


def taken(model: ir.Model, options: Options) -> None:
    """Replace every If whose condition is known by the nodes of the branch."""
    inlined = [_inline(node) for node in choosing(model.graph)]
    if any(inlined):
        propagate(model.graph, options)


def _inline(node: ir.Node) -> bool:
    """Put the nodes of the branch that is taken in the place of the If. Returns False if it stays."""
    graph, choice = node.graph, choice_of(node)
    if graph is None or choice is None:
        return False
    branch = node.attributes[BRANCHES[choice]].as_graph()
    results = list(branch.outputs)
    named = [new for old, new in zip(node.outputs, results) if old.is_graph_output()]
    if len({*named}) < len(named) or any(new.producer() not in branch for new in named):
        return False  # an output of the graph that is something else, too
    branch.outputs.clear()
    for name, value in list(branch.initializers.items()):
        del branch.initializers[name]
        graph.initializers[name] = value
    for inner in list(branch):
        branch.remove(inner)
        graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results):
        replace_uses(old, new)
    drop(node)
    return True


MAX_NESTING = 4  # of bodies in bodies: FlexAttention writes Attention


def expand(model: ir.Model, options: Options) -> None:
    """Replace every such node by its body, and propagate types and dims through the new nodes.

    A node whose body refuses it stays, and `lower` reports the reason.
    """
    for _ in range(MAX_NESTING):
        nodes = [node for node in all_nodes(model.graph) if _has_body(node, opset_of(node, model))]
        if sum(written(n, STANDARD_BODIES[n.domain, n.op_type], model, options) for n in nodes) == 0:
            return
        propagate(model.graph, options)


def _has_body(node: ir.Node, version: int) -> bool:
    operator = find(node.domain, node.op_type, version)
    return (node.domain, node.op_type) in STANDARD_BODIES and (operator is None or not operator.takes(node))
