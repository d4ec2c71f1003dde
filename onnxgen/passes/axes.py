"""Axes that a tensor does not have: such a file is refused, as onnxruntime refuses it.

Every later stage counts axes modulo the rank; an axis out of range would quietly become another one. Branches of If are
left alone: an exporter writes both, and the one that is never taken need not fit the ranks that are found.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxgen.errors import CHECK, Problem, Problems
from onnxgen.graph.catalogue import known
from onnxgen.graph.nodes import told
from onnxgen.options import Options
from onnxgen.shapes.info import Info, info

NAMES = ("axis", "axes")
BODIES = ("Loop", "Scan")
ONE_SCALE = ("QuantizeLinear", "DequantizeLinear")  # where one scale is for the whole tensor, axis means nothing


def axes(model: ir.Model, options: Options) -> None:
    """Refuse a model in which an operator of the standard names an axis that its input does not have.

    Raises:
        OnnxgenError: it does; every such node is named.
    """
    problems = Problems()
    for node, certain in _nodes(model.graph):
        limit = _rank(node) if certain else None
        for axis in _axes(node):
            if limit is not None and not -limit <= axis < limit:
                problems.add(_problem(model, node, f"axis {axis} is out of range: the input has {limit} axes"))
            elif not -options.limits.rank <= axis < options.limits.rank:
                problems.add(_problem(model, node, f"axis {axis} is out of range for any tensor"))
    problems.raise_if_any()


def _nodes(graph: ir.Graph, certain: bool = True) -> Iterator[tuple[ir.Node, bool]]:
    """Every node, and whether it is outside all branches."""
    for node in graph:
        yield node, certain
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield from _nodes(attribute.as_graph(), certain and node.op_type in BODIES)


def _rank(node: ir.Node) -> int | None:
    """How many axes may be named, if that is sure."""
    facts = _facts(node, 0)
    if facts.kind != "tensor" or facts.rank is None:
        return None
    if node.op_type in ONE_SCALE and _facts(node, 1).shape in (None, (), (1,)):
        return None
    if node.op_type in ("Flatten", "OneHot"):
        return facts.rank + 1
    if node.op_type == "Unsqueeze":
        return facts.rank + len(_axes(node))
    return max(facts.rank, 1)


def _axes(node: ir.Node) -> list[int]:
    if node.domain not in ("", "ai.onnx"):
        return []
    found: list[int] = []
    for name in NAMES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
            found += np.atleast_1d(np.asarray(attribute.value, np.int64)).tolist()
    place = known(node).axes
    data = None if place is None else _facts(node, place).data
    return found + [int(d) for d in data.flat if isinstance(d, (int, np.integer))] if data is not None else found


def _facts(node: ir.Node, i: int) -> Info:
    value = node.inputs[i] if 0 <= i < len(node.inputs) else None
    return Info() if value is None else info(value)


def _problem(model: ir.Model, node: ir.Node, what: str) -> Problem:
    opset = node.version or model.graph.opset_imports.get(node.domain, 1)
    return Problem(what, told(node), node.op_type, opset, CHECK)
