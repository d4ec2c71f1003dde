"""Which inputs of an operator are scales of quantised tensors, and of which tensor each is, by their names."""

from __future__ import annotations

from functools import cache
from inspect import Parameter

from onnxgen.graph.operators import Operator

SCALE = "_scale"
RESULTS = ("y", "c", "z")  # ONNX's names of results
MANY = 32  # tensors of an operator with any number of them


@cache
def scaled(card: Operator) -> tuple[tuple[int, int], ...]:
    """Return the positions of quantised tensors and their scales in an operator's inputs; -1 is the first output.

    `x_scale` is that of `x` or `x_quant`, or of the result if no input has that name. An operator with any number of
    tensors takes each with its scale and zero point.
    """
    places = {name.lower(): place for name, place in card.places.items()}
    found = []
    for name, place in places.items():
        tensor = "b" if name == "scales" else name.removesuffix(SCALE)
        of = next((places[n][0] for n in (tensor, f"{tensor}_quant") if n in places and n != name), None)
        if of is not None and tensor != name or name.endswith(SCALE) and tensor in RESULTS:
            found.append((-1 if of is None else of, place[0]))
    rest = [p for p in card.parameters.values() if p.kind is Parameter.VAR_POSITIONAL]
    if rest and found:
        first = card.places[rest[0].name][0]
        found += [(i, i + 1) for i in range(first, first + 3 * MANY, 3)]
    return tuple(found)
