"""Look up, by node, the facts that an operator's function declares with `@op(...)`.

The operators' modules are imported at the first lookup, not before: they import the modules that look facts up. Bodies
of fused operators and the bundled plugin are imported when an operator is none of `onnxgen.ops`.
"""

from __future__ import annotations

from functools import cache

import onnx_ir as ir

from onnxgen.graph.operators import Operator, bundled, of_plugins, with_functions, written_out
from onnxgen.graph.traits import Trait

NO_CARD = Operator("", "", 0, lambda b: None)


def known(node: ir.Node) -> Operator:
    """Return the card of a node's operator; an empty one if it is not registered."""
    found = card(node.domain, node.op_type)
    return found if found.name else of_plugins(node.domain, node.op_type, node.version or 1) or found


def card(domain: str, name: str) -> Operator:
    """Return all that onnxgen knows of an operator of its own; an empty card if it has none of that name."""
    key = "" if domain == "ai.onnx" else domain, name
    return _cards().get(key) or _others().get(key, NO_CARD)


def is_a(node: ir.Node, *traits: Trait) -> bool:
    """Return True if a node's operator has one of these traits."""
    return not known(node).traits.isdisjoint(traits)


@cache
def having(*traits: Trait) -> frozenset[str]:
    """Return the names of the operators of `onnxgen.ops`, of any domain, that have one of these traits."""
    return frozenset(name for (_, name), said in _cards().items() if not said.traits.isdisjoint(traits))


@cache
def having_all(*traits: Trait) -> frozenset[str]:
    """Return the names of the operators of `onnxgen.ops`, of any domain, that have all of these traits."""
    return frozenset[str].intersection(*map(having, traits))


@cache
def _cards() -> dict[tuple[str, str], Operator]:
    return {key: versions[-1] for key, versions in with_functions().items()}


@cache
def _others() -> dict[tuple[str, str], Operator]:
    return {key: versions[-1] for key, versions in {**written_out(), **bundled()}.items()}
