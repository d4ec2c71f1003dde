"""The nodes and tensors of an ONNX file, as the page shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

NAME_LENGTH = 1000  # characters of a node's name: so long that no two are one
LONGEST = 60  # characters of an attribute


@dataclass(frozen=True)
class NodeRow:
    """A node of the file: its place in the graph, and what it takes and makes, as text."""

    number: int
    name: str
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: str


@dataclass(frozen=True)
class TensorRow:
    """A stored tensor: dtype and shape as text, the module's key of it ("" if it has none), and if it is trained."""

    name: str
    described: str
    key: str
    trained: str
    why: str


def node_rows(model: ir.Model, options: Options) -> list[tuple[str, list[NodeRow]]]:
    """The nodes of a model that `reader.read` returned, in order, by the scope that they stand in."""
    propagate(model.graph, options)
    numbered = enumerate(all_nodes(model.graph))
    groups = groupby(numbered, key=lambda item: ".".join(SCOPE.get(item[1])))
    return [(scope, [_node(number, node) for number, node in nodes]) for scope, nodes in groups]


def tensor_rows(model: ir.Model, generated: Generated, keys: Mapping[str, Any]) -> list[TensorRow]:
    """The stored floats of a model. `keys`: the module's key of each, where it is one tensor as it is."""
    rows = []
    for value in stored_values(model.graph):
        name = value.name or ""
        trained, why = generated.report.trainable.get(name, (None, ""))
        key = keys.get(name, "")
        shown = "" if trained is None else "yes" if trained else "no"
        rows.append(TensorRow(printable(name), _value(value), key if isinstance(key, str) else "", shown, why))
    return rows


def _node(number: int, node: ir.Node) -> NodeRow:
    domain = "" if node.domain in ("", "ai.onnx") else f"{printable(node.domain)}."
    outputs = [f"{printable(v.name or '')} {_value(v)}".strip() for v in node.outputs if v.name]
    inputs = ["" if v is None else printable(v.name or "") for v in node.inputs]
    return NodeRow(
        number,
        printable(names_of(node)[0], NAME_LENGTH),
        domain + printable(node.op_type),
        inputs,
        outputs,
        ", ".join(_attributes(node)),
    )


def _attributes(node: ir.Node) -> Iterator[str]:
    for name, attribute in node.attributes.items():
        kind = attribute.type
        if kind in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            yield f"{printable(name)}=({kind.name.lower()})"
        else:
            yield f"{printable(name)}={printable(str(attribute.value), LONGEST)}"


def _value(value: ir.Value) -> str:
    """`float32 [1, 8]`, as far as it is known."""
    facts = info(value)
    dtype = "" if facts.dtype is None else str(facts.dtype).lower()
    dims = "" if facts.shape is None else f"[{', '.join(printable(str(d)) for d in facts.shape)}]"
    return f"{dtype} {dims}".strip()
