"""Look up, by node, the facts that an operator's function declares with `@op(...)`.

The operators' modules are imported at the first lookup, not before: they import the modules that look facts up.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import onnx_ir as ir

from onnxgen.graph.operators import Operator, of_plugins, operators, written_out
from onnxgen.graph.traits import BROADCASTS, Trait

Positions = Collection[int]


@dataclass(frozen=True)
class Known:
    """Facts of one operator, as its newest function declares them.

    Attributes:
        traits: the kinds of operator that it is.
        data: positions of the inputs that the outputs' elements come from.
        matrix: position of the input that makes the operator a layer if it is a stored tensor; None if none does.
        weights: positions of the inputs whose stored tensors are weights.
        still: positions of the inputs that carry no gradient, or none that training should follow.
        chosen: positions of the inputs that a person chooses, such as exponents and bounds.
        least: a lower bound of the first output's elements; None if none is known.
        axes: position of the input that names axes; None if none does.
    """

    traits: frozenset[Trait] = frozenset()
    data: Positions = range(1)
    matrix: int | None = None
    weights: Positions = ()
    still: Positions = ()
    chosen: Positions = ()
    least: float | None = None
    axes: int | None = None


UNKNOWN = Known()
NO_CARD = Operator("", "", 0, lambda b: None)


def known(node: ir.Node) -> Known:
    """Return the declared facts of a node's operator; empty ones if the operator is not registered."""
    return of(node.domain, node.op_type) or _of_plugins(node) or UNKNOWN


def of(domain: str, name: str) -> Known | None:
    """Return the declared facts of one of onnxgen's own operators, or None."""
    return _own().get((domain, name))


def card(domain: str, name: str) -> Operator:
    """Return all that onnxgen knows of an operator of its own; an empty card if it has none of that name."""
    return _cards().get(("" if domain == "ai.onnx" else domain, name), NO_CARD)


def is_a(node: ir.Node, *traits: Trait) -> bool:
    """Return True if a node's operator has one of these traits."""
    return not known(node).traits.isdisjoint(traits)


@cache
def having(*traits: Trait) -> frozenset[str]:
    """Return the names of onnxgen's own operators, of any domain, that have one of these traits."""
    return frozenset(name for (_, name), facts in _own().items() if not facts.traits.isdisjoint(traits))


@cache
def _cards() -> dict[tuple[str, str], Operator]:
    return {key: versions[-1] for key, versions in {**written_out(), **operators()}.items()}


@cache
def _own() -> dict[tuple[str, str], Known]:
    return {key: _facts(versions[-1]) for key, versions in operators().items()}


def _of_plugins(node: ir.Node) -> Known | None:
    operator = of_plugins(node.domain, node.op_type, node.version or 1)
    return None if operator is None else _facts(operator)


@cache
def _facts(operator: Operator) -> Known:
    inputs = [p for p in operator.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    places = {p.name: range(i, sys.maxsize if p.kind is p.VAR_POSITIONAL else i + 1) for i, p in enumerate(inputs)}

    def positions(names: str) -> Positions:
        found = [places[name] for name in names.split()]
        return found[0] if len(found) == 1 else [i for each in found for i in each]

    flat = operator.rules.flat
    unmoved = flat if isinstance(flat, Mapping) else ()
    still = dict.fromkeys([*operator.still.split(), *(name for name in unmoved if name in places)])
    return Known(
        operator.traits,
        data=positions(operator.data) if operator.data else range(sys.maxsize if BROADCASTS in operator.traits else 1),
        matrix=places[operator.matrix][0] if operator.matrix else None,
        weights=positions(operator.weights),
        still=positions(" ".join(still)),
        chosen=positions(operator.chosen),
        least=operator.least,
        axes=next((places[name][0] for name in ("axes", "axis") if name in places), None),
    )
