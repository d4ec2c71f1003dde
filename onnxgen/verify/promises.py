"""Sizes that a file calls by one name, where onnxruntime also takes different ones.

A name such as `batch` is the file's promise that dims are equal, and the source may rely on it: it reads a size from
whichever input is at hand. onnxruntime does not hold inputs to the promise. So sizes that break it are tried, too. What
the module does then is no fault, but a person who relies on such inputs must know.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import TYPE_CHECKING

from onnxgen.common.names import printable
from onnxgen.shapes.dims import Dim, symbol, symbols
from onnxgen.verify import feeds as drawing
from onnxgen.verify.graph import Graph
from onnxgen.verify.limits import TimedOut
from onnxgen.verify.oracle import Answer, Onnxruntime, Refused
from onnxgen.verify.report import Gradients

if TYPE_CHECKING:
    from torch import nn

    from onnxgen.verify.check import Check

MAX_TRIES = 12  # combinations of places that are tried for one name
MAX_SECONDS = 5.0  # time for all names
OTHER = "\0other"  # the name of the second size, which no file has
Place = tuple[int, int]  # number and axis of an input


def relied_on(check: Check, network: nn.Module, given: Answer) -> list[str]:
    """Return a line for each name of several dims that the module needs to be equal, and onnxruntime does not."""
    graph, found = check.graph, list[str]()
    is_plain = graph.is_standard and not graph.random and check.freed is None and check.approximation is None
    if not is_plain or not isinstance(given.oracle, Onnxruntime):
        return []
    end = time.monotonic() + MAX_SECONDS
    for name, places in _places(graph).items():
        if name not in given.sizes or name in check.sizes:
            continue
        for moved in islice(_parts(places), MAX_TRIES):
            if time.monotonic() > end:
                return found
            if why := _breaks(check, network, given, name, moved):
                found.append(_line(graph, name, places, moved, why))
                break
    return found


def _places(graph: Graph) -> dict[str, list[Place]]:
    """Return where the inputs have each name that several dims bear."""
    found: dict[str, list[Place]] = {}
    for number, (_, _, facts) in enumerate(graph.inputs):
        for axis, dim in enumerate(facts.shape or () if facts.kind == "tensor" else ()):
            if (name := _name(dim)) is not None:
                found.setdefault(name, []).append((number, axis))
    return {name: places for name, places in found.items() if len(places) > 1}


def _name(dim: Dim) -> str | None:
    if isinstance(dim, int):
        return None
    return next((name for name in symbols(dim) if symbol(name) == dim), None)


def _parts(places: list[Place]) -> Iterator[frozenset[Place]]:
    """Yield sets of places that get another size: single ones first. The first place keeps its size."""
    for count in range(1, len(places)):
        yield from map(frozenset, combinations(places[1:], count))


def _breaks(check: Check, network: nn.Module, given: Answer, name: str, moved: frozenset[Place]) -> str:
    """Return what the module does with sizes that onnxruntime takes; "" if it computes the same."""
    inputs = []
    for number, (port, kind, facts) in enumerate(check.graph.inputs):
        dims = [symbol(OTHER) if (number, axis) in moved else dim for axis, dim in enumerate(facts.shape or ())]
        inputs.append((port, kind, facts if facts.shape is None else replace(facts, shape=tuple(dims))))
    sizes = {**given.sizes, OTHER: given.sizes[name] + 1}
    feeds = drawing.draw(replace(check.graph, inputs=inputs), sizes, drawing.SPREADS[0], given.seed)
    started = time.monotonic()
    try:
        outputs = given.oracle.run(feeds)
    except Refused:
        return ""
    other = Answer(given.sizes, given.seed, feeds, given.oracle, outputs, time.monotonic() - started)
    return _difference(check, network, other, given.sizes[name])


def _difference(check: Check, network: nn.Module, other: Answer, size: int) -> str:
    notes, coarse, limit = list(check.notes), dict(check.coarse), check.only_reference
    try:
        run = check.run(network, other, None, Gradients())
    except TimedOut:
        return ""
    finally:
        check.notes[:], check.coarse, check.only_reference = notes, coarse, limit
    sizes = f"with {size} and {size + 1}"
    return "" if run.agrees else f"{sizes} the module fails" if run.error else f"{sizes} it computes something else"


def _line(graph: Graph, name: str, places: list[Place], moved: frozenset[Place], why: str) -> str:
    first = next(place for place in places if place not in moved)
    told = [f"axis {axis} of {printable(graph.inputs[number][0])}" for number, axis in (first, *sorted(moved))]
    return (
        f"the file calls the sizes of {', '.join(told[:-1])} and {told[-1]} by one name, {printable(name)}, "
        f"and the source relies on it: onnxruntime also takes different ones, and {why}"
    )
