"""Draw seeded inputs for a graph, by dtype and by how their elements are used.

Some are like those that networks are trained on: pictures with strokes and edges, and sounds of
tones. To a detector, noise shows nothing: its output is the same everywhere, and a wrong module's
is, too. A little noise is in both kinds, so that no two elements are equal by chance.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.shapes.dims import Dim, evaluate
from onnxgen.shapes.info import Info
from onnxgen.verify.graph import Graph, Role
from onnxgen.verify.sizes import Sizes

MIN_SIDE, MIN_LENGTH = 8, 256  # of pictures and of sounds
CHANNELS = (1, 3, 4)
STROKES = 8
NOISE = 0.02  # its standard deviation; pictures and sounds have about 1
Array = NDArray[np.float64]


def natural(rng: np.random.Generator, shape: tuple[int, ...]) -> Array | None:
    """Return a picture (from 0 to 1) or a sound (from -1 to 1) of a shape; None if the shape is of neither."""
    if len(shape) == 4:
        last = shape[1] not in CHANNELS and shape[3] in CHANNELS
        sides = shape[1:3] if last else shape[2:]
        if min(sides) < MIN_SIDE:
            return None
        batch, channels = shape[0], shape[3] if last else shape[1]
        pictures = np.zeros((batch, channels, *sides))
        for picture in pictures:
            picture[:] = _picture(rng, channels, *sides)
        return np.moveaxis(pictures, 1, 3) if last else pictures
    length = max(shape, default=0)
    if len(shape) in (1, 2, 3) and length >= MIN_LENGTH and shape.index(length) > 0 and math.prod(shape[1:]) == length:
        return np.concatenate([_sound(rng, length) for _ in range(shape[0])]).reshape(shape) if shape[0] else None
    return None


def _picture(rng: np.random.Generator, channels: int, height: int, width: int) -> Array:
    """Draw a smooth background with a box, and dark or bright strokes in rows, like letters."""
    y, x = np.mgrid[0:height, 0:width]
    angle, waves = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 1.0)
    slope = (x * np.cos(angle) / width + y * np.sin(angle) / height) * waves * np.pi
    canvas: Array = 0.5 + 0.25 * np.sin(slope + rng.uniform(0, 6, (channels, 1, 1)))
    top, left = int(rng.integers(0, height // 2)), int(rng.integers(0, width // 2))
    inside = canvas[:, top : top + height // 2, left : left + width // 2]
    inside[:] = 0.5 * inside + 0.5 * rng.uniform(0, 1, (channels, 1, 1))
    ink, thick = rng.integers(0, 2), max(1, height // 32)
    line, base = max(4, height // 8), int(rng.integers(0, height))
    for i in range(STROKES):
        at = int((i + rng.uniform(0, 0.5)) * width / STROKES)
        rows = slice(max(0, base - line), base + line)
        canvas[:, rows, at : at + thick] = ink
        if rng.random() < 0.7:  # a bar across, as letters have
            bar = max(0, min(height - thick, base + int(rng.integers(-line, line))))
            canvas[:, bar : bar + thick, at : at + width // (STROKES + 2)] = ink
    return np.asarray(np.clip(0.1 + 0.8 * canvas + NOISE * rng.standard_normal(canvas.shape), 0, 1))


def _sound(rng: np.random.Generator, length: int) -> Array:
    """Draw a few tones that swell and fade, in noise."""
    time = np.arange(length)
    wave = NOISE * rng.standard_normal(length)
    for _ in range(4):
        pitch = math.exp(rng.uniform(math.log(0.005), math.log(0.25)))  # cycles per sample
        middle, wide = rng.uniform(0, length), rng.uniform(0.1, 0.5) * length
        swell = np.exp(-(((time - middle) / wide) ** 2))
        wave += rng.uniform(0.05, 0.22) * swell * np.sin(2 * np.pi * pitch * time + rng.uniform(0, 6))
    return np.asarray(np.clip(wave, -1, 1))


MAX_NUDGE_ULPS = 4.0  # largest change by `nudged`, in units in the last place
SPREADS = ("plain", "wide", "faint")  # distributions, in turn, for inputs that accept any value
FAINT_DEVIATION = 0.05  # standard deviation of faint numbers, which do not saturate gates and softmax
# The standard deviation of numbers that fill a range, as a part of its width: three deviations reach its ends. Uniform
# numbers are drawn from its inner half. Over all of it they would vary more than real data, and later layers saturate.
FILLS = {"plain": 1 / 6, "faint": 1 / 24}
# Pictures and sounds, else normal numbers, by a factor and after a shift; tried if outputs hardly depend on the others.
LOUDER = {"centred": (4.0, 0.5), "bytes": (255.0, 0.0), "loud": (16.0, 0.0)}
CAUTIOUS = ("masks", "small", "ones", "zeros")  # tried if the oracle refuses the others
UNRANKED = ((2, 3), (4,), (2, 3, 4), (), (1, 3, 8, 8))  # shapes tried for inputs of unknown rank
WORDS = ("a", "b", "cat", "dog", "", "Z9", "naïve")


def spreads(run: int) -> tuple[str, ...]:
    """Return the distributions of values for a run, in the order to try if the oracle refuses some."""
    first = SPREADS[run % len(SPREADS)]
    return (first, *(s for s in SPREADS if s != first), *CAUTIOUS)


def is_unranked(graph: Graph) -> bool:
    """Return True if the graph leaves the rank of an input open."""
    return any(facts.shape is None and graph.roles[name].shape is None for name, _, facts in graph.inputs)


def draw(
    graph: Graph,
    candidate: Sizes,
    spread: str,
    seed: int,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    unranked: int = 0,
) -> dict[str, Any]:
    """Draw one value for each input: an array, a list of arrays for a sequence, None for an absent optional.

    The result depends only on the arguments: each input has a generator seeded by its name and `seed`.

    Args:
        ranges: the smallest and largest number, for float inputs that must fill a range.
        unranked: index into `UNRANKED` of the shape of inputs of unknown rank, relative to the seed.
    """
    feeds: dict[str, Any] = {}
    for name, _, facts in graph.inputs:
        rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
        shape = tuple(evaluate(d, candidate) for d in _shape(facts.shape, graph.roles[name].shape, seed + unranked))
        dtype = facts.dtype or ir.DataType.FLOAT
        if facts.kind in ("map", "maps"):
            maps = [_map(rng, facts, graph.roles[name], spread) for _ in range(3 if facts.kind == "maps" else 1)]
            feeds[name] = maps if facts.kind == "maps" else maps[0]
        elif facts.kind == "sequence":
            feeds[name] = [_array(rng, shape, dtype, Role(), candidate, spread) for _ in range(3)]
        elif facts.kind == "optional" and seed % 2:
            feeds[name] = None
        else:
            feeds[name] = _array(rng, shape, dtype, graph.roles[name], candidate, spread, seed)
            if ranges and dtype.is_floating_point() and spread in SPREADS:
                feeds[name] = _filling(rng, *ranges.get(name, (0.0, 0.0)), spread, feeds[name])
    return feeds


def _filling(rng: np.random.Generator, low: float, high: float, spread: str, like: NDArray[Any]) -> NDArray[Any]:
    """Draw numbers from a whole range, from its inner half (wide), or from near its middle (faint).

    Returns `like`, which has their shape and type, if the range is empty or endless.
    """
    middle, width = (low + high) / 2, high - low
    if not 0 < width < math.inf:
        return like
    if spread == "wide":
        drawn = rng.uniform(middle - width / 4, middle + width / 4, like.shape)
    else:
        drawn = middle + FILLS[spread] * width * rng.standard_normal(like.shape)
    return np.asarray(np.clip(drawn, low, high)).astype(like.dtype)


def _map(rng: np.random.Generator, facts: Info, role: Role, spread: str) -> dict[Any, Any]:
    """Draw a dict with most of the keys that the graph looks up, and one other key."""
    other: Any = "?" if facts.key == ir.DataType.STRING else 99
    keys = [key for key in role.keys if rng.random() < 0.8] + [other]
    if facts.dtype == ir.DataType.STRING:
        return {key: str(int(rng.integers(0, 9))) for key in keys}
    return dict(zip(keys, _array(rng, (len(keys),), facts.dtype or ir.DataType.FLOAT, Role(), {}, spread).tolist()))


def _shape(shape: tuple[Dim, ...] | None, taken: tuple[int, ...] | None, number: int) -> tuple[Dim, ...]:
    """Return a shape for an input of unknown rank: one that an operator accepts, or one of several to try."""
    shape = taken if shape is None else shape
    return shape if shape is not None else UNRANKED[number % len(UNRANKED)]


def _array(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: ir.DataType,
    role: Role,
    candidate: Sizes,
    spread: str,
    turn: int = 0,
) -> NDArray[Any]:
    if role.mode:
        return np.zeros(shape, dtype.numpy())
    if dtype == ir.DataType.STRING:
        words = [w for w in role.categories if isinstance(w, str)] or WORDS
        return np.array([words[i] for i in rng.integers(0, len(words), math.prod(shape))], object).reshape(shape)
    drawn = _by_meaning(rng, shape, role, candidate)
    if drawn is None:
        drawn = _by_spread(rng, shape, dtype, role, candidate, spread, turn)
    return np.asarray(drawn).astype(dtype.numpy())


def _by_meaning(rng: np.random.Generator, shape: tuple[int, ...], role: Role, candidate: Sizes) -> NDArray[Any] | None:
    """Draw integers of which only some mean anything: categories, the sizes of a Reshape or a Split, a mask."""
    if numbers := [n for n in role.categories if isinstance(n, int)]:
        return np.asarray(rng.choice(numbers, shape))
    if role.reshapes is not None and len(shape) == 1 and shape[0]:
        return _new_shape(shape[0], role.reshapes)
    if role.parts is not None and len(shape) == 1 and shape[0]:
        return _parts(rng, shape[0], sum(_known([role.parts], candidate)))
    return np.ones(shape) if role.counted else None


def _by_spread(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: ir.DataType,
    role: Role,
    candidate: Sizes,
    spread: str,
    turn: int,
) -> NDArray[Any]:
    if spread in ("ones", "zeros"):
        return np.full(shape, int(spread == "ones"))
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if role.compared and math.prod(shape) == 1 and spread in SPREADS and dtype.is_integer():
        # one number that selects a branch: the constants it is compared with, and others, in turn
        return np.full(shape, role.compared[turn % len(role.compared)])
    low, high = _range(dtype, role, candidate, spread)
    if role.distinct is not None:
        return _distinct(rng, shape, role.distinct, high)
    is_real = dtype.is_floating_point() or dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
    if role.indexes or role.size or not is_real:
        return np.asarray(rng.integers(low, high, shape))
    return _numbers(rng, shape, dtype, spread)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: ir.DataType, spread: str) -> NDArray[Any]:
    """Draw real or complex numbers."""
    drawn = rng.random(shape) if spread in ("wide", "small") else rng.standard_normal(shape)
    if (like := natural(rng, shape) if spread == "wide" or spread in LOUDER else None) is not None:
        drawn = like
    factor, shift = {"faint": (FAINT_DEVIATION, 0.0), **LOUDER}.get(spread, (1.0, 0.0))
    drawn = factor * (drawn - shift)
    return np.asarray(drawn + 1j * rng.standard_normal(shape) if dtype.name.startswith("COMPLEX") else drawn)


def _new_shape(count: int, rank: int) -> NDArray[Any]:
    """Return a target shape for Reshape that fits any input of a rank: its sizes (0), one axis (-1) or added axes."""
    if count > rank:
        return np.array([0] * rank + [1] * (count - rank))
    return np.array([0] * (count - 1) + [-1])


def _parts(rng: np.random.Generator, count: int, total: int) -> NDArray[Any]:
    """Return sizes that sum up to the whole, in `count` parts. None is empty if there is enough for all."""
    least = 1 if total >= count else 0
    cuts = np.sort(rng.integers(0, total - least * count + 1, count - 1))
    return np.diff(np.array([0, *cuts, total - least * count])) + least


def _range(dtype: ir.DataType, role: Role, candidate: Sizes, spread: str) -> tuple[int, int]:
    """Return the range of integers to draw from, with the end excluded."""
    least = max(_known(role.least, candidate), default=0)
    if role.indexes:
        bound = min(_known(role.bounds, candidate), default=4)
        return least, max(least + 1, {"plain": bound, "wide": bound // 2, "faint": bound}.get(spread, 1))
    low, high = _unbounded(dtype, role, spread)
    return (max(low, least), max(high, least + 1)) if role.least else (low, high)


def _unbounded(dtype: ir.DataType, role: Role, spread: str) -> tuple[int, int]:
    if role.size:
        return (-1, 0) if spread == "masks" else (1, 2 if spread == "small" else 4)
    if spread in ("masks", "small"):
        return 0, 2
    if dtype in (ir.DataType.UINT8, ir.DataType.INT8):
        return (0, 256) if dtype == ir.DataType.UINT8 else (-128, 128)
    signed = dtype.name.startswith("INT")
    if dtype.bitwidth < 8:
        return (-(1 << dtype.bitwidth - 1), 1 << dtype.bitwidth - 1) if signed else (0, 1 << dtype.bitwidth)
    return (-8, 9) if signed and spread == "wide" else (0, 4)


def _distinct(rng: np.random.Generator, shape: tuple[int, ...], axes: tuple[int, int], below: int) -> NDArray[Any]:
    """Draw integers that are distinct along some axes, if the range has enough of them."""
    first, last = axes
    rows, count = shape[:first] + shape[last:], math.prod(shape[first:last])
    of = max(below, count)
    drawn = np.array([rng.permutation(of)[:count] % max(below, 1) for _ in range(math.prod(rows))])
    drawn = drawn.reshape(*rows, *shape[first:last])
    return np.moveaxis(drawn, range(len(rows), len(shape)), range(first, last))


def _known(bounds: list[Dim], candidate: Sizes) -> list[int]:
    numbers = []
    for bound in bounds:
        with suppress(Exception):
            numbers.append(evaluate(bound, candidate))
    return numbers


def nudged(feeds: Mapping[str, Any], precision: float, seed: int) -> dict[str, Any]:
    """Change every floating point number by a few units in its last place, up or down."""
    rng = np.random.default_rng(seed)

    def nudge(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype == object or value.dtype.kind in "biuUS":
            return value
        factor = 1.0 + MAX_NUDGE_ULPS * precision * rng.uniform(-1.0, 1.0, value.shape)
        wide = np.complex128 if value.dtype.kind == "c" else np.float64
        return (value.astype(wide) * factor).astype(value.dtype)

    return {name: nudge(value) for name, value in feeds.items()}
