"""The masks of `nn.MultiheadAttention`: what is added to the scores, as `attn_mask` and `key_padding_mask`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.causal import causal
from onnxgen.passes.layouts import Positions, Sizes, arrangement, upwards
from onnxgen.passes.match import elements, uniform
from onnxgen.passes.steps import constant
from onnxgen.shapes.info import info

HIDES = -1e4  # a number as low hides a score as -inf does: BERT's
Full: TypeAlias = tuple[int, int, int, int]  # batch, heads, length, keys


@dataclass
class Masks:
    """The masks of one layer.

    Attributes:
        attention: [length, keys] or [batch * heads, length, keys]; truth values hide scores, numbers are added.
        padding: [batch, keys].
        may_empty: True unless it is known that no row loses all its keys.
    """

    attention: ir.Value | None = None
    padding: ir.Value | None = None
    may_empty: bool = False


def masks_of(added: Sequence[ir.Value], full: Full, sizes: Sizes, before: ir.Node) -> Masks | None:
    """Return what is added to scores of shape `full` ([batch, heads, length, keys]) as masks; None if it is not.

    `before`: the node before which a constant may be inserted.
    """
    found = Masks()
    for value in (part for total in added for part in _summands(total, full, sizes)):
        if uniform(value) == 0:
            continue
        kind, mask = _mask(value, full, sizes)
        mask = _flat(value, full, before) if mask is None else mask
        if mask is None or getattr(found, kind) is not None:
            return None
        setattr(found, kind, mask)
    given = [m for m in (found.attention, found.padding) if m is not None]
    found.may_empty = not (len(given) == 1 and _keeps_a_key(given[0]))
    conditions = [_condition(m) for m in given]
    if all(c is not None for c in conditions):  # torch takes masks of one type
        found.attention = None if found.attention is None else _condition(found.attention)
        found.padding = None if found.padding is None else _condition(found.padding)
    return found


def _summands(value: ir.Value, full: Full, sizes: Sizes) -> Iterator[ir.Value]:
    """Yield the masks that a value is the sum of, in the shape of the sum."""
    *_, total = upwards(value)
    node = made_by(total, "Add")
    parts = [] if node is None else [v for v in node.inputs if v is not None and info(v).rank in (3, 4)]
    is_whole = len(parts) == 2 and sizes.fit_heads(total, full)
    found = arrangement(value, total, sizes) if is_whole else None
    if found is None or not _covers(found, full, np.arange(math.prod(full)).reshape(full)):
        yield value
    else:
        yield from parts


def _mask(value: ir.Value, full: Full, sizes: Sizes) -> tuple[str, ir.Value | None]:
    """Return which mask a summand is, and the mask; its nearest form that torch's layer takes."""
    batch, heads, length, keys = full
    count = math.prod(full)
    kinds: list[tuple[str, tuple[int, ...], Positions]] = [
        ("padding", (batch, keys), np.arange(batch * keys).reshape(batch, 1, 1, keys)),
        ("attention", (length, keys), np.arange(length * keys).reshape(1, 1, length, keys)),
        ("attention", (batch * heads, length, keys), np.arange(count).reshape(full)),
    ]
    for origin in upwards(value):
        dims = info(origin).shape
        if dims is None or len(dims) not in (2, 3):
            continue
        for kind, shape, wanted in kinds:
            trial = Sizes(dict(sizes.numbers))
            if len(dims) != len(shape) or not all(trial.equate(d, n) for d, n in zip(dims, shape)):
                continue
            found = arrangement(value, origin, trial)
            if found is not None and _covers(found, full, wanted):
                sizes.numbers.update(trial.numbers)
                return kind, origin
    return "attention", None


def _flat(value: ir.Value, full: Full, before: ir.Node) -> ir.Value | None:
    """Return a constant [1, 1, length, keys], as which an exporter folds a mask, as [length, keys]."""
    array, dtype = elements(value), info(value).dtype
    if array is None or dtype is None or array.shape[-2:] != full[2:] or array.size != full[2] * full[3]:
        return None
    return constant(before, array.reshape(full[2:]), f"{value.name}.mask", dtype)


def _covers(found: Positions, full: Full, wanted: Positions) -> bool:
    """True if a mask of these positions gives each score the wanted one. It has rank 2 to 4 and may broadcast."""
    batch, heads, length, keys = full
    if found.ndim == 3:
        found = found.reshape(-1, heads, *found.shape[1:]) if len(found) == batch * heads else found[None]
    try:
        return bool((np.broadcast_to(found, full) == np.broadcast_to(wanted, full)).all())
    except ValueError:
        return False


def _condition(mask: ir.Value) -> ir.Value | None:
    """Return the condition of a mask that is -inf where it is true and 0 elsewhere."""
    node = made_by(mask, "Where")
    if node is None or node.inputs[0] is None or info(node.inputs[0]).shape != info(mask).shape:
        return None
    return node.inputs[0] if (uniform(node.inputs[1]), uniform(node.inputs[2])) == (-math.inf, 0.0) else None


def _keeps_a_key(mask: ir.Value) -> bool:
    """True if each row of an attention mask surely has a key that is not hidden."""
    array, triangle = elements(mask), causal(mask)
    if array is not None and array.dtype.kind == "f":
        return bool((array.astype(np.float64) > -math.inf).any(axis=-1).all())
    return triangle is not None and triangle.inside == 0


def only_hides(mask: ir.Value | None) -> bool:
    """True if a mask keeps each score as it is or hides it, and leaves each row a key.

    `nn.TransformerEncoderLayer` without gradients takes the numbers of its mask for truth values.
    """
    if mask is None or info(mask).dtype == ir.DataType.BOOL:
        return True
    array, triangle = elements(mask), causal(mask)
    if array is None:
        return triangle is not None and triangle.inside == 0 and triangle.outside <= HIDES
    kept = array == 0
    return bool((kept | (array.astype(np.float64) <= HIDES)).all() and kept.any(axis=-1).all())
