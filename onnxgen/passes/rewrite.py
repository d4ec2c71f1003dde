"""Graph edits that all passes need: find the users of a value, replace several nodes by one, remove nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE, STANDS_FOR
from onnxgen.graph.domains import DOMAIN
from onnxgen.shapes.info import info, set_info


def only_user(value: ir.Value, *op_types: str) -> ir.Node | None:
    """Return the node that uses a value if the value is used once and is not a graph output, else None.

    If `op_types` are given, the node must also be a standard operator of one of them.
    """
    # onnx_ir's own dict, where there is one: `uses()` copies it, which is slow for a value that every node reads
    uses = getattr(value, "_uses", None)
    uses = value.uses() if uses is None else uses
    if len(uses) != 1 or value.is_graph_output():
        return None
    node: ir.Node = next(iter(uses)).node
    return node if not op_types or (node.domain == "" and node.op_type in op_types) else None


def own(op_type: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Node:
    """Make a node of one of onnxgen's own operators."""
    return ir.node(op_type, inputs, attributes, domain=DOMAIN, num_outputs=outputs, version=1)


def replace(last: ir.Node, new: ir.Node, origin: ir.Node | None = None) -> None:
    """Put `new` in the place of `last`, the final node of an idiom, and remove the nodes that only served the idiom.

    The new node takes the names and facts of the outputs of `last`, and the scope of `origin` (by default `last`).
    """
    origin = origin or last
    graph = last.graph
    assert graph is not None
    new.name = origin.name
    beside(new, origin if SCOPE.has(origin) else last)
    graph.insert_before(last, new)
    for old, fresh in zip(last.outputs, new.outputs):
        fresh.name, fresh.shape, fresh.type = old.name, old.shape, old.type
        set_info(fresh, info(old))
        ir.convenience.replace_all_uses_with(old, fresh, replace_graph_outputs=True)
    gone = [node for node in drop(last) if node.op_type != "Constant"]
    STANDS_FOR.set(new, tuple(dict.fromkeys(name for node in reversed(gone) for name in names_of(node))))


def beside(new: ir.Node, node: ir.Node) -> None:
    """Put a new node in the scope of another one, if that has a scope."""
    SCOPE.copy(node, new)


def names_of(node: ir.Node) -> tuple[str, ...]:
    """Return the file's names of the nodes that this one replaces; a nameless node has that of its first output."""
    return STANDS_FOR.get(node) or ((node.name or (node.outputs[0].name if node.outputs else "") or node.op_type),)


def together(nodes: Iterable[ir.Node]) -> bool:
    """True if nodes are in one graph, and those with a scope in one scope."""
    nodes = list(nodes)
    return len({n.graph for n in nodes}) <= 1 and len({SCOPE.get(n) for n in nodes if SCOPE.has(n)}) <= 1


def drop(node: ir.Node) -> list[ir.Node]:
    """Remove a node if nothing uses it, then its producers that only served it. Returns all removed nodes."""
    gone: list[ir.Node] = []
    pending = [node]
    while pending:
        node = pending.pop()
        if node.graph is None or any(o.uses() or o.is_graph_output() for o in node.outputs):
            continue
        producers = [p for i in node.inputs if i is not None and (p := i.producer()) is not None]
        node.graph.remove(node, safe=True)
        gone.append(node)
        pending.extend(producers)
    return gone
