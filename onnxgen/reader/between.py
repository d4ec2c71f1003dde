"""Nodes that say nothing of where they were written stand where their neighbours do.

Rewriting tools add nodes without metadata in the middle of a module, and PyTorch before 1.13 wrote no paths at all: only
parameters have names. Left to the root, such nodes would tear the module in two: a way would lead out of it and back in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onnxgen.stored import stored

Scope = tuple[str, ...]


def place_between(nodes: Sequence[ir.Node], silent: set[ir.Node], homes: set[Scope]) -> None:
    """Set `node.meta["scope"]` of the silent nodes to what the scopes before and after them have in common.

    What comes from the graph's inputs only stands with its users, unless a nameless layer is among it.

    Args:
        nodes: in topological order.
        homes: the modules that have parameters. Of these, a layer (a module with none inside) is no place for others.
    """
    before: dict[ir.Node, Scope] = {}
    after: dict[ir.Node, Scope] = {}
    for found, order in ((before, nodes), (after, nodes[::-1])):
        for node in order:
            if node in silent:
                common = _common(_scopes(_producers(node) if found is before else _users(node), found, silent))
                if common is not None or _is_layer(node):
                    found[node] = common or ()
    scopes = {node.meta["scope"] for node in nodes if node not in silent}
    lists = {s[:i] for s in scopes for i in range(len(s)) if s[i].isdigit()} - homes
    layers = homes - {home[:i] for home in homes for i in range(len(home))}
    for node in silent:
        sides = [found[node] for found in (before, after) if node in found]
        scope = _common(sides)
        if scope is not None and node in after:
            node.meta["scope"] = _with_code(scope, lists, layers if len(sides) == 1 else set())


def _with_code(scope: Scope, lists: set[Scope], layers: set[Scope]) -> Scope:
    """The innermost module around that has a forward of its own for this."""
    if scope in layers:
        scope = scope[:-1]
    while scope in lists and scope:
        scope = scope[:-1]
    return scope


def _is_layer(node: ir.Node) -> bool:
    tensors = (stored(value) for value in node.inputs)
    return any(t is not None and len(t.shape) > 1 and t.dtype.is_floating_point() for t in tensors)


def _producers(node: ir.Node) -> Iterable[ir.Node]:
    for value in node.inputs:
        producer = None if value is None else value.producer()
        if producer is not None and producer.op_type != "Constant":
            yield producer


def _users(node: ir.Node) -> Iterable[ir.Node]:
    return (use.node for output in node.outputs for use in output.uses())


def _scopes(nodes: Iterable[ir.Node], found: dict[ir.Node, Scope], silent: set[ir.Node]) -> list[Scope]:
    scopes: list[Scope] = []
    for node in nodes:
        if node not in silent:
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
