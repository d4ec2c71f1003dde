"""Operators of onnxruntime (`com.microsoft`): inputs that their kernels do not check, and inputs that they refuse.

Their schemas infer little. Their kernels check only some inputs, and read out of bounds for others. So sizes that must
agree are made to agree, and integers that are counts or positions are drawn from their valid range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.catalogue import NO_CARD, known
from onnxgen.graph.operators import Operator
from onnxgen.paranoid.picture import Made
from onnxgen.paranoid.scales import scaled
from onnxgen.shapes import drawn as valid
from onnxgen.shapes.dims import Dim, Sym, evaluate, symbols

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
    op, found = card.name, dict(numbers)
    half = numbers_of.get("rotary_embedding_dim", 0) // 2
    letters: dict[str, int] = {"d": half} if half else {}
    axes = card.letters(numbers_of.get("layout", 0))
    _unify([pair for form, dims in zip(axes, shapes) for pair in _pairs(form, dims)], letters, found)
    heads, part = (numbers_of.get(name, 0) for name in ("num_heads", "rotary_embedding_dim"))
    if "Rotary" in op and heads and "d" in letters:  # rotary embedding applies to a part of each head, or all of it
        _unify(_pairs(["h"], (shapes[0] or ())[2:]), {"h": heads * 2 * (part or letters["d"])}, found)
    place = axes.index(["mask"]) if ["mask"] in axes else len(shapes)
    if place < len(shapes) and (dims := shapes[place]) is not None:
        batch, queries, past = (letters.get(letter, 0) for letter in "blp")
        keys = letters.get("k", queries)
        shared = card.places.get("past_sequence_length", range(len(shapes), 0))[:1]  # the used length of a cache
        is_shared = any(i < len(shapes) and shapes[i] is not None for i in shared)
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


def _scale(shapes: Sequence[valid.Shape | None], drawn: valid.Array, rng: np.random.Generator) -> valid.Array:
    """Return a scale above 0 that saturates few of the results."""
    return rng.uniform(0.05, 0.15, drawn.shape)


def rules(step: Made) -> Iterator[tuple[ir.Value, valid.Rule]]:
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
