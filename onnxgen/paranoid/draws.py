"""Draw the inputs of both sides of a claim: sizes for named dims, and elements of tensors.

Operators of onnxruntime (`com.microsoft`) need care. Their schemas infer little. Their kernels
check only some inputs, and read out of bounds for others. So sizes that must agree are made to
agree, and integers that are counts or positions are drawn from their valid range. Which inputs are
scales of quantised tensors, and of which tensor each is, their names say.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from inspect import Parameter
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import COPIES
from onnxgen.graph.operators import NO_CARD, Operator, card, known
from onnxgen.paranoid.claims import Cone, Hopeless, Region, Untold
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.paranoid.single import NARROW
from onnxgen.shapes import ranges
from onnxgen.shapes.dims import Dim, Sym, evaluate, symbols
from onnxgen.shapes.info import UNKNOWN, Info, info

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
    pairs = []
    for name, place in places.items():
        tensor = "b" if name == "scales" else name.removesuffix(SCALE)
        candidates = [] if tensor == name else [places[n][0] for n in (tensor, f"{tensor}_quant") if n in places]
        if candidates:
            pairs.append((candidates[0], place[0]))
        elif name.endswith(SCALE) and tensor in RESULTS:
            pairs.append((-1, place[0]))
    rest = [p for p in card.parameters.values() if p.kind is Parameter.VAR_POSITIONAL]
    if rest and pairs:
        first = card.places[rest[0].name][0]
        pairs += [(i, i + 1) for i in range(first, first + 3 * MANY, 3)]
    return tuple(pairs)


MICROSOFT = "com.microsoft"
Dims = tuple[Dim, ...]

# ---- sizes -----------------------------------------------------------------------------------------------------------


def agreed(
    card: Operator, shapes: Sequence[Dims | None], numbers: Mapping[str, int], numbers_of: Mapping[str, int], turn: int
) -> dict[str, int]:
    """Change numbers for named dims until the inputs of an operator fit together, as far as possible.

    Args:
        numbers_of: its integer attributes.
        turn: how many rows of numbers were tried: one-dimensional masks have another form each time.
    """
    op, fitted = card.name, dict(numbers)
    half = numbers_of.get("rotary_embedding_dim", 0) // 2
    letters: dict[str, int] = {"d": half} if half else {}
    axes = card.letters(numbers_of.get("layout", 0))
    _unify([pair for form, dims in zip(axes, shapes) for pair in _pairs(form, dims)], letters, fitted)
    heads, part = (numbers_of.get(name, 0) for name in ("num_heads", "rotary_embedding_dim"))
    if "Rotary" in op and heads and "d" in letters:  # rotary embedding applies to a part of each head, or all of it
        _unify(_pairs(["h"], (shapes[0] or ())[2:]), {"h": heads * 2 * (part or letters["d"])}, fitted)
    place = axes.index(["mask"]) if ["mask"] in axes else len(shapes)
    if place < len(shapes) and (dims := shapes[place]) is not None:
        letters |= _mask_sizes(card, shapes, letters, turn)
        _unify(_pairs({1: ["m"], 2: ["b", "t"], 3: ["b", "l", "t"]}.get(len(dims), []), dims), letters, fitted)
    return fitted


def _mask_sizes(card: Operator, shapes: Sequence[Dims | None], letters: Mapping[str, int], turn: int) -> dict[str, int]:
    """Return the numbers of keys (t) and of elements of a one-dimensional mask (m)."""
    batch, queries, past = (letters.get(letter, 0) for letter in "blp")
    keys = letters.get("k", queries)
    shared = card.places.get("past_sequence_length", range(len(shapes), 0))[:1]  # the used length of a cache
    is_shared = any(i < len(shapes) and shapes[i] is not None for i in shared)
    form = turn % 3 if card.name.lstrip("Q") == "Attention" else 0
    total = max(keys, (past + keys) // 2) if is_shared else past + keys
    return {"t": total, "m": (batch, 2 * batch, 3 * batch + 2)[form]}


def _pairs(form: Sequence[str], dims: Dims | None) -> list[tuple[str, Dim]]:
    same = dims is not None and len(dims) == len(form)
    return [(letter, dim) for letter, dim in zip(form, dims or ()) if same and letter.isalpha()]


def _unify(pairs: list[tuple[str, Dim]], letters: dict[str, int], numbers: dict[str, int]) -> None:
    """Assign sizes to letters. Sizes that the file states come first; a name gets the size of its letter."""
    for letter, dim in sorted(pairs, key=lambda pair: isinstance(pair[1], Sym)):
        if not isinstance(dim, Sym):
            letters.setdefault(letter, dim)
        elif len(names := list(symbols(dim))) == 1:
            value = letters.setdefault(letter, evaluate(dim, numbers))
            if all(evaluate(dim, {names[0]: n}) == n for n in (2, 5)):
                numbers[names[0]] = value


# ---- elements --------------------------------------------------------------------------------------------------------


def _scale(shapes: Sequence[ranges.Sizes | None], drawn: ranges.Array, rng: np.random.Generator) -> ranges.Array:
    """Return a scale above 0 that saturates few of the results."""
    return rng.uniform(0.05, 0.15, drawn.shape)


def rules(step: Made) -> Iterator[tuple[ir.Value, ranges.Draw]]:
    """Yield the inputs of a node that count, point somewhere, or are scales, with the rule for each."""
    card = known(step.node) if step.domain == MICROSOFT else NO_CARD
    scales = dict.fromkeys((scale for _, scale in scaled(card)), _scale)
    for index, rule in {**scales, **card.rules.drawn}.items():
        if (value := step.input(index)) is not None:
            yield value, rule


# ---- what kernels do not take ----------------------------------------------------------------------------------------


def adapted(step: Made, inputs: list[Any]) -> list[Any]:
    """Return equivalent inputs for a kernel of onnxruntime's CPU provider that crashes on these or refuses them."""
    if step.op == "Attention" and len(inputs) > 1 and inputs[1] is not None and (len(inputs) < 3 or inputs[2] is None):
        return [*inputs[:2], np.zeros(inputs[1].shape[1:], inputs[1].dtype), *inputs[3:]]
    if step.op == "MultiHeadAttention":
        return _unpacked(inputs)
    return inputs


def _unpacked(inputs: list[Any]) -> list[Any]:
    """Split packed heads, [batch, length, heads, 2 or 3, size], into separate operands."""
    place = next((i for i in (0, 1) if i < len(inputs) and inputs[i] is not None and inputs[i].ndim == 5), None)
    if place is None:
        return inputs
    packed = inputs[place]
    parts = [packed[:, :, :, i].reshape(*packed.shape[:2], -1) for i in range(packed.shape[3])]
    return [*inputs[:place], *parts, *inputs[3:]]


WORDS = ("", "a", "b", "ab", "Zebra", "été", "b c", "10")
# rows of sizes for named dims, tried in order until a region ran on `ENOUGH_ROWS` of them
DRAWN_SIZES = ((3, 5, 4, 7, 6, 2), (2, 4, 3, 6, 5, 7), (1,), (4,), (16,), (17, 19, 23, 18), (2,))
ENOUGH_ROWS = 3
FEW_SIZES, ENOUGH_FEW = (*DRAWN_SIZES[:2], (33, 40, 36), (160,), (640,), (1,)), 3
STATED, WIDEST = 6, 128  # number and limit of sizes stated by the file, tried if no others were conclusive
MAX_DRAWN_ELEMENTS, FEW_DRAWN_ELEMENTS = 1_000_003, 2_003  # a larger tensor repeats them
MAX_KEPT_ELEMENTS = 1 << 18  # elements of a tensor that is drawn once for several regions


@dataclass(frozen=True)
class Style:
    """A way to draw elements.

    Attributes:
        scale: the size of floats.
        positive: floats are positive.
        even: floats are uniform up to `scale`. Kernels of `exp` round larger ones differently.
        zeros: the part of floats that are 0.
        integers: the range of integers.
        bytes: the range of 8-bit integers, if it is another one.
        filled: (n, x): the n-th drawn tensor, and every sixth after it, is filled with x.
    """

    name: str
    scale: float
    positive: bool = False
    even: bool = False
    zeros: float = 0.0
    integers: tuple[int, int] = (0, 2)
    bytes: tuple[int, int] | None = None
    filled: tuple[int, int] | None = None


STYLES = (
    Style("plain", 1.0),
    Style("positive", 1.0, positive=True, integers=(0, 4)),
    Style("small, with zeros", 1e-3, zeros=0.2, integers=(-3, 4)),
    Style("large", 25.0, even=True, integers=(-1000, 1001)),
)
# The last one shows an epsilon, which is lost beside numbers that are not small.
QUICK = tuple(replace(STYLES[i], name=f"{STYLES[i].name}, quick", integers=STYLES[0].integers) for i in (0, 3, 2))
EVERY = 6
# For tensors that hide the effect of others, as a mask of large numbers hides scores.
FILLED = tuple(Style(f"a tensor of {x}, {n}", 1.0, filled=(n, x)) for x in (0, 1) for n in range(EVERY))


def facts_of(picture: Picture, value: ir.Value) -> Info:
    """Return what was known of a value when the picture was taken, or else what is known now."""
    facts = picture.facts.get(value, UNKNOWN)
    return facts if facts.dtype is not None and facts.shape is not None else info(value)


def shape_counts(facts: Iterable[Info]) -> Counter[tuple[Dim, ...]]:
    """Return how many values have each shape. Those of unknown shape are left out."""
    return Counter(one.shape for one in facts if one.shape is not None)


def element_count(shapes: Mapping[tuple[Dim, ...], int], numbers: Mapping[str, int]) -> int:
    """Return the number of elements of several values. `shapes`: how many have each shape (`shape_counts`)."""
    total = 0
    for shape, count in shapes.items():
        with suppress(Untold):
            total += count * math.prod(_numbered(shape, numbers))
    return total


def sizes(region: Region, rows: Sequence[tuple[int, ...]] = DRAWN_SIZES) -> Iterator[dict[str, int]]:
    """Yield numbers for every named dim of a region, to be tried in turn. Dims that were numbers keep them.

    The first, of `rows`, are for any region, the rest for those of which nothing is told by then.
    """
    names: dict[str, None] = {}
    for cone in region.cones:
        for value in (*cone.cuts, *cone.constants):
            names.update(dict.fromkeys(_symbols(_dims(facts_of(cone.picture, value)))))
    _refuse_computed(region, names.keys() - region.fixed.keys())
    free = [name for name in names if name not in region.fixed]
    stated = _stated(region)
    for turn, row in enumerate((*rows, *_alone(stated)) if free else rows[:1]):
        if len(row) > 1:  # a size that the file states, too, hides which of both is meant
            row = tuple(n for n in row if n not in stated) or row
        numbers = {**{name: row[i % len(row)] for i, name in enumerate(free)}, **region.fixed}
        yield {**_fitting(region.before, numbers, turn), **region.fixed} if free else numbers


def _symbols(dims: Iterable[Dim]) -> Iterator[str]:
    return (name for dim in dims for name in symbols(dim))


def _dims(facts: Info) -> tuple[Dim, ...]:
    """Return the dims of a shape, and those that are elements."""
    is_of_dims = facts.data is not None and facts.data.dtype == object
    return (*(facts.shape or ()), *(facts.data.flat if facts.data is not None and is_of_dims else ()))


def _sizes_of(values: Iterable[tuple[Picture, ir.Value]]) -> set[str]:
    """Return the names of dims in the shapes of values."""
    return {name for place in values for name in _symbols(facts_of(*place).shape or ())}


def _refuse_computed(region: Region, names: Set[str]) -> None:
    """Raise `Untold` if one of these sizes is that of a value that the region computes, and of none that is drawn or
    that the network is given: only its elements say how large it is.
    """
    others = names - _sizes_of((cone.picture, v) for cone in region.cones for v in cone.cuts)
    if not others:
        return
    picture = region.before.picture
    inputs, _ = next(iter(picture.graphs.values()))
    others = others - _sizes_of((picture, value) for value in inputs)
    computed = _sizes_of((cone.picture, v) for cone in region.cones for step in cone.steps for v in step.outputs)
    if not others.isdisjoint(computed):
        raise Hopeless("a size that elements decide")


def few_sizes(region: Region) -> Iterator[dict[str, int]]:
    """Yield the first numbers for the named dims with which all drawn values have elements, some small, some large."""
    shapes = [facts.shape or () for facts in (facts_of(c.picture, v) for c in region.cones for v in c.cuts)]
    count = 0
    for numbers in sizes(region, FEW_SIZES):
        with suppress(Untold):
            if all(_number(dim, numbers) > 0 for shape in shapes for dim in shape):
                count += 1
                yield numbers
        if count == ENOUGH_FEW:
            return


def _stated(region: Region) -> dict[int, None]:
    """Return the sizes that the file states anywhere in a region."""
    values = [(cone, v) for cone in (region.before, region.after) for v in (*cone.cuts, *cone.constants)]
    return dict.fromkeys(d for cone, v in values for d in facts_of(cone.picture, v).shape or () if isinstance(d, int))


def _alone(stated: Iterable[int]) -> list[tuple[int]]:
    """Return rows of one size each, since a named dim may have to be one of those that are stated."""
    known = {row[0] for row in DRAWN_SIZES if len(row) == 1}
    return [(d,) for d in stated if d not in known and 1 < d <= WIDEST][:STATED]


def _fitting(cone: Cone, numbers: dict[str, int], turn: int) -> dict[str, int]:
    """Return numbers that recurrent operators and operators outside the standard accept together."""
    for step in cone.steps:
        known = card(step.domain, step.op)
        if known.rules.axes:
            shapes = [None if v is None else facts_of(cone.picture, v).shape for v in step.inputs]
            attributes = {name: a.value for name, a in step.attributes.items() if isinstance(a.value, int)}
            with suppress(KeyError, ArithmeticError):
                numbers = agreed(known, shapes, numbers, attributes, turn)
    return numbers


def shape_of(facts: Info, numbers: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape in numbers. Raises `Untold`."""
    if facts.shape is None:
        raise Untold("a value of unknown rank")
    return _numbered(facts.shape, numbers)


def _numbered(shape: tuple[Dim, ...], numbers: Mapping[str, int]) -> tuple[int, ...]:
    dims = tuple(_number(dim, numbers) for dim in shape)
    if any(n < 0 for n in dims):
        raise Untold("a size below 0")
    return dims


def _number(dim: Dim, numbers: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    try:
        return evaluate(dim, numbers)
    except (KeyError, ArithmeticError) as error:
        raise Untold(f"a size that has no number: {error}") from None


def elements(region: Region, numbers: Mapping[str, int], style: Style, wide: bool) -> dict[ir.Value, Any]:
    """Return an array for every key of a region. Raises `Untold`."""
    arrays: dict[ir.Value, Any] = {}
    for cone in region.cones:
        for value, key in cone.cuts.items():
            facts = facts_of(cone.picture, value)
            if key not in arrays:
                arrays[key] = drawn(facts, numbers, style, wide, len(arrays))
            elif cone is region.after and shape_of(facts, numbers) != arrays[key].shape:
                raise Untold("a value of two shapes")
    _mean(region.before, arrays, numbers, style)
    _copy(region, arrays)
    return arrays


def _copy(region: Region, arrays: dict[ir.Value, Any]) -> None:
    """Give copies that constant folding made the elements of their originals."""
    cones = region.before, region.after
    cuts = {value: key for cone in cones for value, key in cone.cuts.items() if value in cone.picture.stored}
    keys = {value.name or "": key for value, key in cuts.items()}
    for value, key in cuts.items():
        for copy in COPIES.get(value):
            if not copy.original:
                arrays[key][...] = 0
            elif copy.original in keys:
                original = arrays[keys[copy.original]].reshape(-1)
                arrays[key].reshape(-1)[copy.offset : copy.offset + original.size] = original


def _mean(cone: Cone, arrays: dict[ir.Value, Any], numbers: Mapping[str, int], style: Style) -> None:
    """Replace drawn values where integers count or point somewhere, or where scales are needed, by valid ones."""
    rng: np.random.Generator | None = None
    for step in cone.steps:
        for value, rule in rules(step):
            key = cone.cuts.get(value)
            if key is not None and facts_of(cone.picture, value).data is None:
                rng = rng or np.random.default_rng(zlib.crc32(style.name.encode()))
                shapes = [None if v is None else shape_of(facts_of(cone.picture, v), numbers) for v in step.inputs]
                if (valid := rule(shapes, arrays[key], rng)) is None:
                    raise Untold(f"no number is valid for {value.name}")
                arrays[key] = np.asarray(valid).astype(arrays[key].dtype)


def drawn(facts: Info, numbers: Mapping[str, int], style: Style, wide: bool, seed: int) -> Any:
    """Draw an array that fits the facts of a value. Raises `Untold`."""
    if facts.kind != "tensor" or facts.dtype is None:
        raise Untold(f"a {facts.kind} is given" if facts.kind != "tensor" else "a value of unknown type")
    shape = shape_of(facts, numbers)
    if facts.data is not None:
        known = [evaluate(d, numbers) if isinstance(d, Sym) else d for d in facts.data.flat]
        return np.array(known, facts.dtype.numpy()).reshape(shape)
    count = math.prod(shape)
    if style.filled is not None and seed % EVERY == style.filled[0] and facts.dtype != ir.DataType.STRING:
        flat = np.full(count, style.filled[1])
    elif style in QUICK:
        flat = _few(facts.dtype, style, seed)[:count]
    else:
        flat = (_again if count <= MAX_KEPT_ELEMENTS else _many)(facts.dtype, count, style, seed)
    array = np.resize(flat, count).reshape(shape)
    if facts.dtype == ir.DataType.STRING:
        return array
    dtype = np.dtype(np.float64) if wide and int(facts.dtype) in NARROW else facts.dtype.numpy()
    return array.astype(dtype, copy=False)  # `resize` has made a new one


@lru_cache(256)
def _few(dtype: ir.DataType, style: Style, seed: int) -> Any:
    return _many(dtype, FEW_DRAWN_ELEMENTS, style, seed)


@lru_cache(64)
def _again(dtype: ir.DataType, count: int, style: Style, seed: int) -> Any:
    """Return the same as `_many`: larger parts of the network are drawn what smaller ones were."""
    return _many(dtype, count, style, seed)


def _many(dtype: ir.DataType, count: int, style: Style, seed: int) -> Any:
    rng = np.random.default_rng(zlib.crc32(f"{style.name} {seed}".encode()))
    return _flat(dtype, min(count, MAX_DRAWN_ELEMENTS), style, rng)


def _flat(dtype: ir.DataType, count: int, style: Style, rng: np.random.Generator) -> Any:
    if dtype == ir.DataType.STRING:
        return np.array(WORDS, object)[rng.integers(0, len(WORDS), count)]
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_integer():
        low, high = style.integers
        if dtype.itemsize <= 1:
            low, high = style.bytes or style.integers
            low, high = max(-60 if dtype.is_signed() else 0, low), min(120, high)
        return rng.integers(low if dtype.is_signed() else max(0, low), high, count)
    flat = rng.uniform(-1, 1, count) if style.even else rng.standard_normal(count)
    flat = np.abs(flat) + 0.1 if style.positive else flat
    if style.zeros:
        flat[rng.random(count) < style.zeros] = 0
    return flat.astype(np.float32) * np.float32(style.scale)
