"""What every idiom pass does to the graph: ask who uses a value, and put one node in the place of several."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxgen.graph.annotations import SCOPE, STANDS_FOR
from onnxgen.shapes.info import info, set_info


def only_user(value: ir.Value) -> ir.Node | None:
    """The one node that uses a value, if it is used once and is no graph output."""
    # onnx_ir's own dict, where there is one: `uses()` copies it, and a value that every node reads is asked by each
    uses = getattr(value, "_uses", None)
    uses = value.uses() if uses is None else uses
    return next(iter(uses)).node if len(uses) == 1 and not value.is_graph_output() else None


def replace(last: ir.Node, new: ir.Node, origin: ir.Node | None = None) -> None:
    """Put `new` in the place of `last`, the final node of an idiom; what only served the idiom is dropped.

    The new node takes the outputs' names and facts of `last`, and the scope of `origin` (default: of `last`).
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
    """Let a new node stand in the same scope, if that is known."""
    SCOPE.copy(node, new)


def names_of(node: ir.Node) -> tuple[str, ...]:
    """What the file calls the nodes that this one stands for; one without a name is called by what it makes."""
    return STANDS_FOR.get(node) or ((node.name or (node.outputs[0].name if node.outputs else "") or node.op_type),)


def together(nodes: Iterable[ir.Node]) -> bool:
    """Whether nodes are of one graph, and of one scope as far as theirs are known."""
    nodes = list(nodes)
    return len({n.graph for n in nodes}) <= 1 and len({SCOPE.get(n) for n in nodes if SCOPE.has(n)}) <= 1


def drop(node: ir.Node) -> list[ir.Node]:
    """Remove a node that nothing uses any more, and then its producers that only served it; returns all of them."""
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
