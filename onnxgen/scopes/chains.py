"""Residual blocks without the residual: a block that changes the size does not add its input to its result."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from onnxgen.scopes.tokens import Token, joined

_MAX_BODIES = 16  # different residual bodies that are searched for


@dataclass
class Body:
    """The part of a residual region before the addition: its layers, and the soft tokens around them."""

    label: Hashable
    layers: list[Hashable]
    leading: list[Hashable]
    trailing: list[Hashable]


def wrap_chains(tokens: list[Token], exits: Callable[[list[Token]], int], known: dict[Hashable, Body]) -> list[Token]:
    """Replace chains that equal the body of a residual region by tokens with the region's label.

    The first such chain of a network often lacks the layer that widens (MobileNet's first block). `known`: the bodies
    that were seen before, to which those of these tokens are added. They count within branches, as in a CSP block.
    """
    seen = _bodies(tokens)
    known.update(seen)
    bodies = known if any(token.kind.startswith("concat") for token in tokens) else seen
    for body in sorted(bodies.values(), key=lambda b: -len(b.layers))[:_MAX_BODIES]:
        made: list[Token] = []
        rest = list(tokens)
        while rest:
            following = made[-1].label if made else None
            size = _match(rest, body.layers, body)
            if not size and following == body.label and len(body.layers) > 2:
                size = _match(rest, body.layers[1:], body)
            window = rest[len(rest) - size :]
            if size and exits(window) == 1:
                made.append(joined("chain", body.label, window, -1))
                del rest[len(rest) - size :]
            else:
                made.append(rest.pop())
        tokens = made[::-1]
    return tokens


def _bodies(tokens: list[Token]) -> dict[Hashable, Body]:
    found: dict[Hashable, Body] = {}
    for token in tokens:
        if token.kind != "add" or not token.is_region or token.label in found:
            continue
        parts = [p for p in token.parts[:-1] if p not in token.skip]
        at = [i for i, p in enumerate(parts) if p.is_layer]
        if len(at) > 1 and all(p.is_plain and (p.is_soft or p.is_layer) for p in parts):
            leading = [p.label for p in parts[: at[0]]]
            trailing = [p.label for p in parts[at[-1] + 1 :]]
            found[token.label] = Body(token.label, [parts[i].label for i in at], leading, trailing)
    return found


def _match(tokens: list[Token], layers: list[Hashable], body: Body) -> int:
    """Return how many of the last tokens are such a chain; 0 if there is none."""
    at = len(tokens)
    for label in reversed(body.trailing):
        at -= at > 0 and tokens[at - 1].label == label
    for n, label in enumerate(reversed(layers)):
        while n and at > 0 and tokens[at - 1].is_soft:
            at -= 1
        if at == 0 or tokens[at - 1].label != label:
            return 0
        at -= 1
    for label in reversed(body.leading):
        at -= at > 0 and tokens[at - 1].label == label
    return len(tokens) - at
