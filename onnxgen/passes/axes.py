"""Refuse files that name an axis which the tensor does not have, as onnxruntime does.

Later stages count axes modulo the rank, so an axis out of range would silently become another one. Nodes in branches of
If are not checked against inferred ranks: an exporter writes both branches, and a branch that is never taken may not
fit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxgen.errors import CHECK, Problem, Problems
from onnxgen.graph.catalogue import known
from onnxgen.graph.nodes import LOOPS, opset_of, subgraphs, told
from onnxgen.options import Options
from onnxgen.passes.steps import input_at
from onnxgen.shapes.info import info

QUANTISERS = ("QuantizeLinear", "DequantizeLinear")


def axes(model: ir.Model, options: Options) -> None:
    """Check the axes of every standard node.

    Raises:
        OnnxgenError: nodes name axes that their inputs do not have; every such node is named.
    """
    problems = Problems()
    for node, in_branch in _nodes(model.graph):
        limit = None if in_branch else _limit(node)
        for axis in _axes(node):
            if limit is not None and not -limit <= axis < limit:
                problems.add(_problem(model, node, f"axis {axis} is out of range: the input has {limit} axes"))
            elif not -options.limits.rank <= axis < options.limits.rank:
                problems.add(_problem(model, node, f"axis {axis} is out of range for any tensor"))
    problems.raise_if_any()


def _nodes(graph: ir.Graph, in_branch: bool = False) -> Iterator[tuple[ir.Node, bool]]:
    """Yield every node, and True if it is in a branch of an If."""
    for node in graph:
        yield node, in_branch
        for inner in subgraphs(node):
            yield from _nodes(inner, in_branch or node.op_type not in LOOPS)


def _limit(node: ir.Node) -> int | None:
    """Return how many axes a node may name, or None if the rank is not known."""
    facts = info(input_at(node, 0))
    if facts.kind != "tensor" or facts.rank is None:
        return None
    if node.op_type in QUANTISERS and info(input_at(node, 1)).shape in (None, (), (1,)):
        return None  # one scale for the whole tensor: the axis has no meaning
    if node.op_type in ("Flatten", "OneHot"):
        return facts.rank + 1
    if node.op_type == "Unsqueeze":
        return facts.rank + len(_axes(node))
    return max(facts.rank, 1)


def _axes(node: ir.Node) -> list[int]:
    if node.domain not in ("", "ai.onnx"):
        return []
    found: list[int] = []
    for attribute in map(node.attributes.get, ("axis", "axes")):
        if attribute is not None and attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
            found += np.atleast_1d(np.asarray(attribute.value, np.int64)).tolist()
    place = known(node).axes
    data = None if place is None else info(input_at(node, place)).data
    return found + [int(d) for d in data.flat if isinstance(d, (int, np.integer))] if data is not None else found


def _problem(model: ir.Model, node: ir.Node, what: str) -> Problem:
    opset = opset_of(node, model)
    return Problem(what, told(node), node.op_type, opset, CHECK)
