"""Sizes that a network takes only in steps, such as multiples of 32, found by asking the oracle once.

A network that halves its picture five times and adds what it enlarges again to what it kept refuses most sizes, and
the graph does not always say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from onnxgen.common.names import printable
from onnxgen.shapes.dims import symbols
from onnxgen.verify.graph import Graph
from onnxgen.verify.sizes import Sizes, kinds_of

MAX_STEP = 64  # the largest step that is asked for
MAX_NAMES = 4  # of dims whose steps are asked for


def steps(graph: Graph, refused: Collection[Sizes], taken: Sizes, runs: Callable[[Sizes], bool]) -> dict[str, int]:
    """Return the step of each dim that has one, by name: sizes between two steps are refused.

    Args:
        refused: sizes that the oracle refused before it took others.
        taken: sizes that it took.
        runs: whether it takes sizes.
    """
    bound = graph.known.keys() | {name for dim in graph.known.values() for name in symbols(dim)}
    asked = [n for n, kind in kinds_of(graph).items() if kind != "batch" and n not in bound and n in taken]
    asked = [n for n in asked if any(r.get(n) != taken[n] for r in refused)]
    found: dict[str, int] = {}
    for name in asked[:MAX_NAMES]:
        step = 1
        while step <= MAX_STEP and taken[name] % step == 0 and not runs({**taken, name: taken[name] + step}):
            step *= 2
        if 1 < step <= MAX_STEP and taken[name] % step == 0:
            found[name] = step
    return found


def fit(sizes: Mapping[str, int], found: Mapping[str, int]) -> bool:
    """Return True if sizes are multiples of the steps."""
    return all(sizes.get(name, 0) % step == 0 for name, step in found.items())


def described(found: Mapping[str, int]) -> str:
    """Say what the sizes must be: `the sizes height, width must be multiples of 32`."""
    parts = []
    for step in sorted(set(found.values())):
        names = [printable(name) for name, s in found.items() if s == step]
        sizes = "the sizes" if len(names) > 1 else "the size"
        parts.append(f"{sizes} {', '.join(names)} must be {'multiples' if len(names) > 1 else 'a multiple'} of {step}")
    return "; ".join(parts)
