"""Operators of onnxruntime (`com.microsoft`): inputs that their kernels do not check, and inputs that they refuse.

Their schemas infer little. Their kernels check only some inputs, and read out of bounds for others. So sizes that must
agree are made to agree, and integers that are counts or positions are drawn from their valid range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.operators import Operator
from onnxgen.paranoid.picture import Made
from onnxgen.paranoid.region import Untold
from onnxgen.shapes.dims import Dim, Sym, evaluate, symbols

MICROSOFT = "com.microsoft"
Array: TypeAlias = Any  # numpy says no more of most results
Shape = tuple[int, ...]
Dims = tuple[Dim, ...]
Rule = Callable[[Sequence[Shape | None], Array, np.random.Generator], Array]

# ---- sizes -----------------------------------------------------------------------------------------------------------

SHARED = {"MultiHeadAttention": 8, "DecoderMaskedMultiHeadAttention": 7}  # input with the used length of a cache


def agreed(
    known: Operator, shapes: Sequence[Dims | None], numbers: Mapping[str, int], numbers_of: Mapping[str, int], turn: int
) -> dict[str, int]:
    """Change numbers for named dims until the inputs of an operator fit together, as far as possible.

    Args:
        numbers_of: its integer attributes.
        turn: how many rows of numbers were tried: one-dimensional masks have another form each time.
    """
    op, found = known.name, dict(numbers)
    half = numbers_of.get("rotary_embedding_dim", 0) // 2
    letters: dict[str, int] = {"d": half} if half else {}
    axes = known.letters(numbers_of.get("layout", 0))
    _unify([pair for form, dims in zip(axes, shapes) for pair in _pairs(form, dims)], letters, found)
    heads, part = (numbers_of.get(name, 0) for name in ("num_heads", "rotary_embedding_dim"))
    if "Rotary" in op and heads and "d" in letters:  # rotary embedding applies to a part of each head, or all of it
        _unify(_pairs(["h"], (shapes[0] or ())[2:]), {"h": heads * 2 * (part or letters["d"])}, found)
    place = axes.index(["mask"]) if ["mask"] in axes else len(shapes)
    if place < len(shapes) and (dims := shapes[place]) is not None:
        batch, queries, past = (letters.get(letter, 0) for letter in "blp")
        keys = letters.get("k", queries)
        shared = SHARED.get(op, len(shapes))
        is_shared = shared < len(shapes) and shapes[shared] is not None
        letters["t"] = max(keys, (past + keys) // 2) if is_shared else past + keys
        letters["m"] = (batch, 2 * batch, 3 * batch + 2)[turn % 3 if op.lstrip("Q") == "Attention" else 0]
        _unify(_pairs({1: ["m"], 2: ["b", "t"], 3: ["b", "l", "t"]}.get(len(dims), []), dims), letters, found)
    return found


def _pairs(form: Sequence[str], dims: Dims | None) -> list[tuple[str, Dim]]:
    same = dims is not None and len(dims) == len(form)
    return [(letter, dim) for letter, dim in zip(form, dims or ()) if same and letter.isalpha()]


def _unify(pairs: list[tuple[str, Dim]], letters: dict[str, int], found: dict[str, int]) -> None:
    """Assign sizes to letters. Sizes that the file states come first; a name gets the size of its letter."""
    for letter, dim in sorted(pairs, key=lambda pair: isinstance(pair[1], Sym)):
        if not isinstance(dim, Sym):
            letters.setdefault(letter, dim)
        elif len(names := list(symbols(dim))) == 1:
            value = letters.setdefault(letter, evaluate(dim, found))
            if all(evaluate(dim, {names[0]: n}) == n for n in (2, 5)):
                found[names[0]] = value


# ---- elements --------------------------------------------------------------------------------------------------------


def _rows(table: int) -> Rule:
    """Make a rule for row indices of a table. An offset leaves enough rows for those counted from it."""

    def rule(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
        x, rows = shapes[0], (shapes[table] or (1,))[0]
        length = x[1 if len(x) == 3 else 2] if x is not None and len(x) > 2 and drawn.shape == (1,) else 1
        return rng.integers(0, max(1, rows - length + 1), drawn.shape)

    return rule


def _lengths(past: int) -> Rule:
    """Make a rule for the number of visible keys, their start, or the starts of unpadded rows."""

    def rule(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
        query, before = shapes[0], shapes[past] if past < len(shapes) else None
        if drawn.ndim != 1 or query is None:
            return drawn
        keys = query[1] if past in OWN_KEYS or shapes[1] is None else shapes[1][2 if len(shapes[1]) == 4 else 1]
        keys, batch = keys + (before[-2] if before is not None else 0), query[0]
        ends = rng.integers(1, keys + 1, batch)
        places = np.arange(batch + 1) * keys
        forms = {batch: [ends], 2 * batch: [ends, rng.integers(0, ends)], 3 * batch + 2: [ends, places, places]}
        return np.concatenate(forms[len(drawn)]) if len(drawn) in forms else drawn

    return rule


def _used(mask: int, past: int) -> Rule:
    """Make a rule for the used part of a cache: it leaves room for new keys, or matches a mask's length."""

    def rule(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
        key, cache, seen = shapes[1], shapes[past], shapes[mask]
        if key is None or cache is None:
            return drawn
        most = max(0, cache[2] - key[-2])
        length = seen[-1] - key[-2] if seen is not None and len(seen) > 1 else int(rng.integers(0, most + 1))
        return np.full(drawn.shape, min(most, max(0, length)))

    return rule


def _starts(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
    """Return the starts of consecutive sequences, and the end of the last. None is empty."""
    tokens, count = (shapes[0] or (0,))[0], len(drawn) - 1
    if not 1 <= count <= tokens:
        raise Untold("fewer tokens than sequences")
    return np.array([0, *sorted(rng.choice(np.arange(1, tokens), count - 1, replace=False)), tokens])


def _words(table: int) -> Rule:
    """Make a rule for letters of words, which may end early: rows of a table except the first, which means no
    letter.
    """

    def rule(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
        rows = (shapes[table] or (1,))[0]
        if rows < 2 or 0 in drawn.shape:
            raise Untold("no letters")
        lengths = rng.integers(1, drawn.shape[-1] + 1, (*drawn.shape[:-1], 1))
        return np.where(np.arange(drawn.shape[-1]) < lengths, rng.integers(1, rows, drawn.shape), 0)

    return rule


def _up_to(index: int, axis: int) -> Rule:
    """Make a rule for lengths of sequences, up to an input's size along an axis. None is empty."""

    def rule(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
        longest = (shapes[index] or (0,) * 3)[axis]
        return rng.integers(1, max(1, longest) + 1, drawn.shape)

    return rule


def _below(low: int, high: int) -> Rule:
    return lambda shapes, drawn, rng: rng.integers(low, high, drawn.shape)


def _scale(shapes: Sequence[Shape | None], drawn: Array, rng: np.random.Generator) -> Array:
    """Return a scale above 0 that saturates few of the results."""
    return rng.uniform(0.05, 0.15, drawn.shape)


def _scales(count: int) -> dict[int, Rule]:
    """Return rules for the scales and zero points of several operands, and of the result."""
    found: dict[int, Rule] = dict.fromkeys((*range(1, 3 * count, 3), 3 * count), _scale)
    return found


OWN_KEYS = (4, 8)  # inputs of Attention and QAttention with their caches, whose keys are those of the input
MEANINGS: dict[str, dict[int, Rule]] = {
    "Attention": {3: _lengths(4)},
    "QAttention": {3: _scale, 4: _scale, 5: _lengths(8)},
    "MultiHeadAttention": {4: _lengths(6), 8: _used(4, 6)},
    "DecoderMaskedMultiHeadAttention": {3: _lengths(5), 7: _used(3, 5)},
    "RotaryEmbedding": {1: _rows(2)},
    "MRotaryEmbedding": {1: _rows(2)},
    "EmbedLayerNormalization": {0: _rows(2), 1: _rows(4), 8: _rows(3)},
    "QEmbedLayerNormalization": {0: _rows(2), 1: _rows(4), **dict.fromkeys(range(8, 13), _scale)},
    **dict.fromkeys("QLinearAveragePool QLinearGlobalAveragePool QLinearLeakyRelu QLinearSigmoid".split(), _scales(1)),
    "QLinearReduceMean": _scales(1),
    "QLinearMul": _scales(2),
    "QLinearWhere": {2: _scale, 5: _scale, 7: _scale},
    "QLinearConcat": {0: _scale, **dict.fromkeys(range(3, 48, 3), _scale)},
    "QLinearConv": {1: _scale, 4: _scale, 6: _scale},
    "QGemm": {1: _scale, 4: _scale, 7: _scale},
    "QuantizeLinear": {1: _scale},
    "PackedAttention": {4: _starts},
    "PackedMultiHeadAttention": {5: _starts},
    "GatedDeltaNet": {3: _starts},
    "VarlenCausalConvWithState": {2: _starts, 5: _below(-1, 4)},
    "TorchEmbedding": {1: _rows(0)},
    "WordConvEmbedding": {0: _words(3)},
    "AttnLSTM": {4: _up_to(0, 0), 12: _up_to(11, 1)},
    "Trilu": {1: _below(-3, 4)},
    "Pad": {1: _below(0, 4)},
}


def rules(step: Made) -> Iterator[tuple[ir.Value, Rule]]:
    """Yield the inputs of a node that count, point somewhere, or are scales, with the rule for each."""
    for index, rule in MEANINGS.get(step.op, {}).items() if step.domain == MICROSOFT else ():
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
