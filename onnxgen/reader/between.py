"""Nodes that say nothing of where they were written stand where their neighbours do.

Rewriting tools add nodes without metadata in the middle of a module. Left to the root, one such node would tear the
module in two: a way would lead out of it and back in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

Scope = tuple[str, ...]


def place_between(nodes: Sequence[ir.Node], silent: set[ir.Node]) -> None:
    """Set `node.meta["scope"]` of the silent nodes to what the scopes before and after them have in common."""
    before: dict[ir.Node, Scope] = {}
    after: dict[ir.Node, Scope] = {}
    for found, order in ((before, nodes), (after, nodes[::-1])):
        for node in order:
            if node in silent:
                common = _common(_scopes(_producers(node) if found is before else _users(node), found, silent))
                if common is not None:
                    found[node] = common
    for node in silent:
        if node in before and node in after:
            node.meta["scope"] = _common([before[node], after[node]])


def _producers(node: ir.Node) -> Iterable[ir.Node | None]:
    """None stands for an input of the graph."""
    for value in node.inputs:
        if value is not None and not value.is_initializer():
            producer = value.producer()
            if producer is None or producer.op_type != "Constant":
                yield producer


def _users(node: ir.Node) -> Iterable[ir.Node | None]:
    """None stands for an output of the graph."""
    for output in node.outputs:
        yield from (use.node for use in output.uses())
        if output.is_graph_output():
            yield None


def _scopes(nodes: Iterable[ir.Node | None], found: dict[ir.Node, Scope], silent: set[ir.Node]) -> list[Scope]:
    scopes: list[Scope] = []
    for node in nodes:
        if node is None:
            scopes.append(())
        elif node not in silent:
            scopes.append(node.meta["scope"])
        elif node in found:
            scopes.append(found[node])
    return scopes


def _common(scopes: list[Scope]) -> Scope | None:
    """The longest path that all have in common; None of nothing."""
    if not scopes:
        return None
    first, last = min(scopes), max(scopes)
    n = 0
    while n < min(len(first), len(last)) and first[n] == last[n]:
        n += 1
    return first[:n]
