"""Which element of one value each element of another is, for chains of nodes that only arrange elements.

Sizes that the file leaves open get numbers: a different prime for each name, so that no two axes are equal by chance.
Then the arrangement is an array of positions, and two arrangements are compared as arrays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import VIEW
from onnxgen.passes.slices import piece
from onnxgen.shapes.dims import Dim, Sym, Symbol, evaluate, symbols
from onnxgen.shapes.info import info

Positions: TypeAlias = np.ndarray[Any, Any]
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37)
MAX_CHAIN = 24  # nodes
MAX_ELEMENTS = 2**24  # of a value whose elements are followed


@dataclass
class Sizes:
    """A number for each named dim that was met so far."""

    numbers: dict[str, int] = field(default_factory=dict)

    def name(self, dims: Iterable[Dim]) -> None:
        """Give every new name in these dims a number of its own."""
        for dim in dims:
            for name in symbols(dim):
                if name not in self.numbers:
                    free = [p for p in PRIMES if p not in self.numbers.values()]
                    self.numbers[name] = free[0] if free else PRIMES[-1] + 2 * len(self.numbers)

    def of(self, dim: Dim) -> int | None:
        """Return the number that a dim is, or None if it has a name that was not met."""
        try:
            return evaluate(dim, self.numbers)
        except KeyError:
            return None

    def equate(self, dim: Dim, number: int) -> bool:
        """Let a dim be this number if it is a new name. Returns True if the dim is the number now."""
        if isinstance(dim, Sym) and self.of(dim) is None:
            (monomial, coefficient), *rest = dim.terms
            atom, power = monomial[0] if len(monomial) == 1 else (None, 0)
            if not rest and coefficient == 1 and power == 1 and isinstance(atom, Symbol):
                self.numbers[atom.name] = number
        return self.of(dim) == number

    def fit_heads(self, value: ir.Value, shape: tuple[int, int, int, int]) -> bool:
        """True if a value has this shape, perhaps with its first two axes merged. New names get their numbers."""
        dims = info(value).shape or ()
        wanted = shape if len(dims) == 4 else (shape[0] * shape[1], *shape[2:])
        return len(dims) == len(wanted) and all(self.equate(d, n) for d, n in zip(dims, wanted))

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value in numbers, or None if a dim is not known."""
        dims = info(value).shape
        sizes = [self.of(d) for d in dims or ()]
        known = [n for n in sizes if n is not None]
        return tuple(known) if dims is not None and len(known) == len(sizes) else None


def source(node: ir.Node) -> ir.Value | None:
    """Return the value whose elements a node only arranges or cuts, else None."""
    if node.domain == DOMAIN:
        return node.inputs[0] if node.op_type == "Unbind" else None
    if is_a(node, VIEW) or node.op_type == "Expand":
        return node.inputs[0]
    return node.inputs[0] if node.op_type in ("Split", "Slice") and piece(node.outputs[0]) is not None else None


def upwards(value: ir.Value) -> Iterator[ir.Value]:
    """Yield a value and then the values that it is an arrangement of, the nearest first."""
    for _ in range(MAX_CHAIN):
        yield value
        node = value.producer()
        above = None if node is None else source(node)
        if above is None:
            return
        value = above


def arrangement(value: ir.Value, origin: ir.Value, sizes: Sizes) -> Positions | None:
    """Return the position in `origin` of each element of `value`; None if a chain of nodes does not show it."""
    chain: list[ir.Value] = []
    for view in upwards(value):
        if view is origin:
            break
        chain.append(view)
    else:
        return None
    shape = sizes.shape(origin)
    count = 0 if shape is None else math.prod(shape)
    if shape is None or count > MAX_ELEMENTS:
        return None
    positions: Positions | None = np.arange(count, dtype=np.int32).reshape(shape)
    for view in reversed(chain):
        node = view.producer()
        positions = None if positions is None or node is None else _arranged(view, node, positions, sizes)
    return positions


def _arranged(value: ir.Value, node: ir.Node, x: Positions, sizes: Sizes) -> Positions | None:
    if node.op_type == "Unbind":
        at = next(i for i, output in enumerate(node.outputs) if output is value)
        taken: Positions = x.take(at, node.attributes["axis"].as_int())
        return taken
    if made_by(value, "Transpose"):
        perm = node.attributes.get_ints("perm", range(x.ndim)[::-1])
        return x.transpose(perm) if sorted(perm) == list(range(x.ndim)) else None
    if node.op_type in ("Split", "Slice"):
        part = piece(value)
        return None if part is None else x.take(range(part.start, part.end), part.axis)
    if node.op_type == "Identity":
        return x
    shape = sizes.shape(value)
    if shape is None:
        return None
    if node.op_type != "Expand":
        return x.reshape(shape) if x.size == math.prod(shape) else None
    try:
        expanded: Positions = np.broadcast_to(x, shape)
    except ValueError:
        return None
    return expanded
