"""The nodes and tensors of an ONNX file, as rows of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from onnxgen.passes.rewrite import names_of
from onnxgen.passes.trainable import stored_values
from onnxgen.shapes import propagate
from onnxgen.shapes.info import info

MAX_NAME_CHARACTERS = 1000  # of a node's name: long, so that different names stay different
MAX_ATTRIBUTE_CHARACTERS = 60
MAX_LANES = 24  # of the drawing


@dataclass(frozen=True)
class NodeRow:
    """A node of the file: its number in the graph, its inputs and outputs as text, and its line of the drawing."""

    number: int
    name: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: str
    lanes: str


@dataclass(frozen=True)
class TensorRow:
    """A stored tensor: dtype and shape as text, its state-dict key ("" if it has none), and if it is trained."""

    name: str
    described: str
    key: str
    trained: str
    why: str


def node_rows(model: ir.Model, options: Options) -> list[tuple[str, list[NodeRow]]]:
    """Return the nodes of a model from `reader.read`, in order, grouped by scope."""
    propagate(model.graph, options)
    nodes = list(all_nodes(model.graph))
    numbered = enumerate(zip(nodes, lanes_of(model.graph, nodes)))
    groups = groupby(numbered, key=lambda item: ".".join(SCOPE.get(item[1][0])))
    return [(scope, [_node(number, *drawn) for number, drawn in group]) for scope, group in groups]


def lanes_of(graph: ir.Graph, nodes: Sequence[ir.Node]) -> Iterator[str]:
    """Yield a line for each node, which together draw the graph: a column for each value that is computed and awaited.

    A node is at the column of its result: ●. It takes values that others await, too (┤), and that end here (┘).
    """
    numbers = {node: number for number, node in enumerate(nodes)}

    @cache
    def end(value: ir.Value) -> int:
        last = max((numbers.get(use.node, -1) for use in value.uses()), default=-1)
        return len(nodes) if value.is_graph_output() else last

    live: list[ir.Value | None] = [value for value in graph.inputs if end(value) >= 0]
    for number, node in enumerate(nodes):
        drawn = [" " if value is None else "│" for value in live]
        for place, value in enumerate(live):
            if value is not None and value in node.inputs:
                drawn[place] = "┤" if end(value) > number else "┘"
            live[place] = value if value is not None and end(value) > number else None
        for value in node.outputs:
            if end(value) > number:
                place = live.index(None) if None in live else len(live)
                live[place : place + 1], drawn[place : place + 1] = [value], ["●"]
        yield "".join(drawn[:MAX_LANES]).rstrip() + "+" * (len(drawn) > MAX_LANES)


def tensor_rows(model: ir.Model, generated: Generated, keys: Mapping[str, Any]) -> list[TensorRow]:
    """Return the stored float tensors of a model. `keys`: the state-dict key of each that is one tensor unchanged."""
    rows = []
    for value in stored_values(model.graph):
        name = value.name or ""
        trained, why = generated.report.trainable.get(name, (None, ""))
        key = keys.get(name, "")
        shown = "" if trained is None else "yes" if trained else "no"
        rows.append(TensorRow(printable(name), _value(value), key if isinstance(key, str) else "", shown, why))
    return rows


def _node(number: int, node: ir.Node, lanes: str) -> NodeRow:
    domain = "" if node.domain in ("", "ai.onnx") else f"{printable(node.domain)}."
    outputs = [f"{printable(v.name or '')} {_value(v)}".strip() for v in node.outputs if v.name]
    inputs = ["" if v is None else printable(v.name or "") for v in node.inputs]
    return NodeRow(
        number,
        printable(names_of(node)[0], MAX_NAME_CHARACTERS),
        domain + printable(node.op_type),
        inputs,
        outputs,
        ", ".join(_attributes(node)),
        lanes,
    )


def _attributes(node: ir.Node) -> Iterator[str]:
    for name, attribute in node.attributes.items():
        kind = attribute.type
        if kind in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            yield f"{printable(name)}=({kind.name.lower()})"
        else:
            yield f"{printable(name)}={printable(str(attribute.value), MAX_ATTRIBUTE_CHARACTERS)}"


def _value(value: ir.Value) -> str:
    """Return the known dtype and shape: `float32 [1, 8]`."""
    facts = info(value)
    dtype = "" if facts.dtype is None else str(facts.dtype).lower()
    dims = "" if facts.shape is None else f"[{', '.join(printable(str(d)) for d in facts.shape)}]"
    return f"{dtype} {dims}".strip()
