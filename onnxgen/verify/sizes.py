"""Choose sizes for the dynamic dims of a graph's inputs, in the order in which they are tried.

Some networks take sizes only in steps, such as multiples of 32: the oracle is asked once (`steps`).
A network that halves its picture five times and adds what it enlarges again to what it kept refuses
most sizes, and the graph does not always say so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import recorded
from onnxgen.shapes.dims import evaluate, substitute, symbols
from onnxgen.verify.graph import Graph

Sizes = dict[str, int]
MAX_INPUT_ELEMENTS = 1 << 26  # elements of one input; larger ones are not tried
USUAL_CANDIDATES = 4  # number of candidates that runs begin with, in turn
SEARCH_SIZES = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 1)
MAX_SEARCH_ROWS = 5000  # combinations of these sizes that are tried
# Heights and widths of two images, and of a third, whose sizes are unrelated. Rounding shows between them: torch and
# onnxruntime enlarge 26 to 64 and shrink 100 to 30 differently, if they round at all.
UNRELATED = (26, 30, 64, 100, 82, 84)
# sizes of images, which the strides of most networks divide, and of sounds
SPATIAL_SIZES = (32, 64, 128, 224, 256, 512, 2048, 16000)


def need_named(fixed: Mapping[str, int], graph: Graph, path: Path) -> None:
    """Check that each fixed size belongs to a dim of the file. Raises `OnnxgenError`."""
    names = kinds_of(graph)
    unknown = sorted(fixed.keys() - names)
    if unknown:
        has = ", ".join(map(printable, names)) or "none"
        raise OnnxgenError(f"{path} has no dynamic dim {printable(unknown[0])} (it has: {has})")


def recorded_ranks(graph: Graph, metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a module was generated for, of the inputs whose rank the file leaves open (-1: any)."""
    signature = recorded(metadata)
    open_ranks = {name for name, _, facts in graph.inputs if facts.shape is None and facts.kind == "tensor"}
    return {
        port.name: tuple(dim if isinstance(dim, int) else -1 for dim in port.dims)
        for port in ([] if signature is None else signature.inputs)
        if port.name in open_ranks and port.dims is not None and port.kind == "tensor"
    }


def asked_sizes(
    graph: Graph, asked: Mapping[str, tuple[int, ...]], fixed: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes that a module was generated for (`--input-shape`), without the batch and what `fixed` gives."""
    shapes = {name: facts.shape for name, _, facts in graph.inputs if facts.shape is not None}
    chosen = {}
    for name, dims in asked.items():
        if len(shapes.get(name, ())) == len(dims):
            axes = enumerate(zip(shapes[name], dims))
            is_open = [
                axis and not isinstance(dim, int) and not symbols(dim).keys() & fixed.keys() for axis, (dim, _) in axes
            ]
            chosen[name] = tuple(size if free else -1 for free, size in zip(is_open, dims))
    return {name: dims for name, dims in chosen.items() if any(dim != -1 for dim in dims)}


def is_settled(graph: Graph) -> bool:
    """Return True if only the batch is open."""
    return all(kind == "batch" for kind in kinds_of(graph).values())


def sizes(graph: Graph, run: int, fixed: Mapping[str, int] | None = None) -> Iterator[Sizes]:
    """Yield sizes for the dynamic dims, by symbol, in the order in which a run tries them. `fixed`: given sizes.

    The first axis counts as the batch. The first candidates give different symbols different sizes, so that swapped
    axes show. Later ones are for graphs whose dims must be equal, or large. Sizes that contradict the graph's equations
    come last. So do sizes too small for a pool's window: onnxruntime shrinks the window, and torch raises.
    """
    kinds = kinds_of(graph)
    if not kinds:
        yield {}
        return
    settled = {name: size for name, size in (fixed or {}).items() if name in kinds}
    known = {name: substitute(dim, settled) for name, dim in graph.known.items()}
    graph = replace(graph, known={**known, **settled})
    seen: list[Sizes] = []
    for candidate in [*_related(graph, kinds, run), *(c | settled for c in _candidates(kinds, graph.training))]:
        if candidate not in seen and _bearable(graph, candidate):
            seen.append(candidate)
            yield candidate


def _related(graph: Graph, kinds: Mapping[str, str], run: int) -> list[Sizes]:
    """Return sizes by which known dims follow from the free ones; first those that fit, beginning with the run's."""
    free = {name: kind for name, kind in kinds.items() if name not in graph.known}
    related = [whole for c in _candidates(free, graph.training) if (whole := _completed(graph, c)) is not None]
    fitting = [c for c in related if _fits(graph, c)]
    if len(fitting) < USUAL_CANDIDATES:
        fitting += itertools.islice(_searched(graph, free), USUAL_CANDIDATES)
    first = min(run % USUAL_CANDIDATES, len(fitting))
    return [*fitting[first:USUAL_CANDIDATES], *fitting[:first], *fitting[USUAL_CANDIDATES:], *related]


def kinds_of(graph: Graph) -> dict[str, str]:
    """Return the kind of each symbol among the dims of the inputs."""
    kinds: dict[str, str] = {}
    for _, _, facts in graph.inputs:
        for axis, dim in enumerate(facts.shape or ()):
            kind = "batch" if axis == 0 else "spatial" if len(facts.shape or ()) >= 4 and axis >= 2 else "other"
            for name in symbols(dim):
                kinds[name] = "batch" if "batch" in (kind, kinds.get(name)) else kind
    for dim in graph.known.values():
        for name in symbols(dim):
            kinds.setdefault(name, "other")
    return kinds


def _candidates(kinds: Mapping[str, str], training: bool) -> Iterator[Sizes]:
    """Yield sizes by the kinds of symbols. The first `USUAL_CANDIDATES` are equally good."""
    # batch statistics of two examples show little, and PyTorch refuses a single one
    batches = (4, 7, 5, 4) if training else (2, 3, 1, 2)
    usual = [_spread(kinds, *sizes) for sizes in zip(batches, (8, 5, 16, 12), (8, 33, 64, 48), (0, 1, 0, 0))]
    spatial = [name for name, kind in kinds.items() if kind == "spatial"]
    if len(spatial) > 2:  # of more than one image
        usual[1] |= dict(zip(spatial, UNRELATED))
    yield from usual
    yield from (dict.fromkeys(kinds, size) for size in (1, 2, 4, 8))
    large = [(n, batch) for n in SPATIAL_SIZES for batch in (batches[0], 1)]
    yield from (_spread(kinds, batch, n, n, 0) for n, batch in large)
    others = [name for name, kind in kinds.items() if kind == "other"]
    if len(others) > 1:  # a state has the batch on a later axis, and a file need not say that it is the same
        yield from (_spread(kinds, batch, n, n, 0) | dict.fromkeys(others[1:], batch) for n, batch in large)


def _searched(graph: Graph, free: Mapping[str, str]) -> Iterator[Sizes]:
    """Yield all combinations of a few sizes that the graph's conditions allow, if there are few symbols."""
    for row in itertools.islice(itertools.product(SEARCH_SIZES, repeat=len(free)), MAX_SEARCH_ROWS):
        whole = _completed(graph, dict(zip(free, row)))
        if whole is not None and _fits(graph, whole):
            yield whole


def _completed(graph: Graph, candidate: Sizes) -> Sizes | None:
    """Return sizes for all symbols, given those of the free ones; None if one would be below 1."""
    try:
        whole = candidate | {name: evaluate(dim, candidate) for name, dim in graph.known.items()}
    except (KeyError, ArithmeticError):
        return None
    return whole if all(size >= 1 for size in whole.values()) else None


def _fits(graph: Graph, candidate: Sizes) -> bool:
    """Return True if all equations hold, and every pool's input is as large as its window, as far as that is known."""
    known = ((size, least) for size, least in graph.windows if candidate.keys() >= symbols(size).keys())
    holds = all(evaluate(size, candidate) >= least for size, least in known)
    return holds and all(e.holds(candidate) for e in graph.equations)


def _spread(kinds: Mapping[str, str], batch: int, other: int, spatial: int, step: int) -> Sizes:
    """Return a size for each symbol by its kind. Symbols of one kind get sizes that grow by `step`."""
    sizes = {"batch": batch, "other": other, "spatial": spatial}
    candidate: Sizes = {}
    for name, kind in kinds.items():
        candidate[name] = sizes[kind]
        sizes[kind] += step if kind != "batch" else 0
    return candidate


def _bearable(graph: Graph, candidate: Sizes) -> bool:
    shapes = [facts.shape or () for _, _, facts in graph.inputs]
    is_small = all(math.prod(evaluate(d, candidate) for d in shape) <= MAX_INPUT_ELEMENTS for shape in shapes)
    return is_small or all(isinstance(d, int) for shape in shapes for d in shape)


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
    names = [n for n, kind in kinds_of(graph).items() if kind != "batch" and n in taken.keys() - bound]
    asked = [n for n in names if any(r.get(n) != taken[n] for r in refused)]
    by_name: dict[str, int] = {}
    for name in asked[:MAX_NAMES]:
        step = 1
        while step <= MAX_STEP and taken[name] % step == 0 and not runs({**taken, name: taken[name] + step}):
            step *= 2
        if 1 < step <= MAX_STEP and taken[name] % step == 0:
            by_name[name] = step
    return by_name


def fit(sizes: Mapping[str, int], multiples: Mapping[str, int]) -> bool:
    """Return True if sizes are multiples of the steps."""
    return all(sizes.get(name, 0) % step == 0 for name, step in multiples.items())


def described(multiples: Mapping[str, int]) -> str:
    """Say what the sizes must be: `the sizes height, width must be multiples of 32`."""
    parts = []
    for step in sorted(set(multiples.values())):
        names = [printable(name) for name, s in multiples.items() if s == step]
        sizes = "the sizes" if len(names) > 1 else "the size"
        parts.append(f"{sizes} {', '.join(names)} must be {'multiples' if len(names) > 1 else 'a multiple'} of {step}")
    return "; ".join(parts)
