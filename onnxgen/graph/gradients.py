"""The operators and inputs through which no gradient flows, with the reason, as cards say it (`flat`).

Every other floating-point input is differentiable. `tests/gradients` compares the gradients of all operators with
finite differences, and checks that cards are right, too. Inputs of text, integers and booleans have no derivatives,
so nothing is said of them. `docs/OPERATORS.md` prints the reasons.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxgen.graph.catalogue import card
from onnxgen.graph.traits import COMPARISON, RANDOM, SIZES

PIECEWISE_CONSTANT = "the operator is piecewise constant: its derivative is 0 wherever there is one"
INTEGERS = "the results are integers or booleans"
TEXT = "the input is text or an encoded image"
COUNTED = "the result depends on no floating-point input"
DRAWN = "the numbers are random and depend on no input"
BITS = "the operator reads the bits as another type, which is not smooth"
SETS_SIZE = "the input sets the size of the result, an integer"
REFUSED = "onnxgen refuses a node with this input"
TYPE = "only the type of the input counts"
SETS_GRID = "the input only sets the numbers to round to"
UNREAD = "nothing reads it"

_OF_KIND = {COMPARISON: INTEGERS, SIZES: INTEGERS, RANDOM: DRAWN}


def key(domain: str, name: str) -> str:
    """Return the name of an operator with its domain."""
    return f"{domain}.{name}" if domain not in ("", "ai.onnx") else name


def everywhere(domain: str, name: str) -> str | None:
    """Return why no gradient flows through an operator, whatever the input; None if one flows through some."""
    known = card(domain, name)
    of_kind = next((why for trait, why in _OF_KIND.items() if trait in known.traits), None)
    return known.rules.flat if isinstance(known.rules.flat, str) else of_kind


def by_input(domain: str, name: str) -> Mapping[str, str]:
    """Return why none flows through some inputs, by the schema's names."""
    flat = card(domain, name).rules.flat
    return flat if isinstance(flat, Mapping) else {}


def reason(domain: str, name: str, parameter: str | None = None) -> str | None:
    """Return why no gradient flows through an operator, or through one of its inputs; None if one does."""
    return everywhere(domain, name) or (None if parameter is None else by_input(domain, name).get(parameter))
