"""Pad and CenterCropPad; and the padding of convolutions and pools, which torch's modules pad equally on both sides."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from onnxgen.code.quote import OMIT, literal, unless
from onnxgen.errors import CHECK, FIX_SHAPE
from onnxgen.graph.operators import op
from onnxgen.graph.traits import FILLS
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.rules import rules
from onnxgen.shapes import ranges
from onnxgen.shapes.dims import Dim, Sym, dim_max

MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@op(
    "Pad", renames={"paddings": "pads", "value": "constant_value"}, traits=[FILLS], data="data constant_value",
    still="pads constant_value axes", **rules("pad"))  # fmt: skip
def pad(
    b: Builder,
    data: Arg,
    pads: Arg,
    constant_value: Arg | None = None,
    axes: Arg | None = None,
    *,
    mode: str = "constant",
) -> ast.expr:
    """`F.pad`, whose modes other than "constant" pad only spatial axes of floats."""
    if mode not in ("constant", *MODES):
        raise b.error(f"attribute 'mode' must be constant, reflect, edge or wrap, not {mode!r}", CHECK)
    value = _value(b, constant_value) if mode == "constant" else OMIT
    known, chosen = pads.ints, None if axes is None else axes.ints
    if known is None or (axes is not None and chosen is None) or data.rank is None:
        return b.call(
            "pad_axes", data, pads.as_ints(), axes=OMIT if axes is None else axes.as_ints(),
            mode=unless(mode, "constant"), value=value,
        )  # fmt: skip
    rank = data.rank
    positions = list(range(rank)) if chosen is None else [a % rank for a in chosen if isinstance(a, int)]
    sides: dict[int, tuple[Dim, Dim]] = {
        axis: (begin, end)
        for axis, begin, end in zip(positions, known[: len(positions)], known[len(positions) :])
        if begin != 0 or end != 0
    }
    if not sides:
        return data.expr
    if isinstance(value, Arg):
        return b.call("pad_with", data, _from_last(sides, rank, min(sides)), value)
    if mode == "constant":
        return b.call("F.pad", data, _from_last(sides, rank, min(sides)), value=value)
    first = _spatial(data, sides, mode)
    if first is not None:
        return b.call("F.pad", data, _from_last(sides, rank, first), mode=MODES[mode])
    order = sorted(sides)
    flat = [*(sides[a][0] for a in order), *(sides[a][1] for a in order)]
    return b.call("pad_axes", data, tuple(flat), axes=tuple(order), mode=mode)


def _value(b: Builder, constant_value: Arg | None) -> Any:
    """Return the value to pad with: a Python number if it is known, else the tensor."""
    if constant_value is None:
        return OMIT
    scalar = constant_value.scalar
    if isinstance(scalar, int) and int(float(scalar)) != scalar:  # torch converts the number to a float
        return constant_value
    if scalar == 0:
        return OMIT
    return constant_value if constant_value.number is None else constant_value.number


def _from_last(sides: dict[int, tuple[Dim, Dim]], rank: int, first: int) -> tuple[Dim, ...]:
    """Return begin and end of each axis from the last back to `first`, as `F.pad` takes them."""
    return tuple(p for axis in range(rank - 1, first - 1, -1) for p in sides.get(axis, (0, 0)))


def _spatial(data: Arg, sides: dict[int, tuple[Dim, Dim]], mode: str) -> int | None:
    """Return the first of the axes that `F.pad` can pad in this mode (the last 1 to 3, after one or two others)."""
    rank, shape = data.known_rank, data.shape or ()
    first = 2 if min(sides) >= 2 else 1
    if not data.is_float or min(sides) < first or not 1 <= rank - first <= 3:
        return None
    for axis, pair in sides.items():
        size = shape[axis]
        if not all(isinstance(p, int) and p >= 0 for p in pair):
            return None
        most = max(p for p in pair if isinstance(p, int))
        # with a dynamic size, F.pad itself raises an error where "reflect" is impossible, but not for "circular"
        if isinstance(size, int):
            limit = {"reflect": size - 1, "edge": most if size > 0 else -1, "wrap": size}[mode]
            if most > limit:
                return None
        elif mode == "wrap":
            return None
    return first


@op("CenterCropPad", traits=[FILLS], ranges=ranges.pad)
def center_crop_pad(b: Builder, input_data: Arg, shape: Arg, *, axes: list[int] | None = None) -> ast.expr:
    given = OMIT if axes is None else literal(tuple(axes))
    return b.call("center_crop_pad", input_data, shape.as_ints(), given)


def resolve_pads(
    b: Builder,
    X: Arg,
    auto_pad: str,
    pads: list[int] | None,
    kernel: Sequence[Dim],
    strides: list[int],
    dilations: list[int],
) -> tuple[list[Dim], list[Dim]]:
    """Return the begin and end padding of each spatial axis: as given, or as `auto_pad` computes it (Conv-1 text).

    SAME_*: the output has `ceil(size / stride)` elements. With a stride over a dynamic size, the padding is an
    expression of that size.
    """
    n = len(kernel)
    if auto_pad in ("NOTSET", "VALID", ""):
        given = pads if pads and auto_pad != "VALID" else [0] * 2 * n
        return list(given[:n]), list(given[n:])
    totals: list[Dim] = []
    for i in range(n):
        effective = (kernel[i] - 1) * dilations[i] + 1
        total: Dim = effective - 1
        if strides[i] != 1:
            if X.shape is None:
                raise b.error("auto_pad needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
            size = X.shape[i + 2]
            wanted = (size + strides[i] - 1) // strides[i]
            total = dim_max(0, (wanted - 1) * strides[i] + effective - size)
        totals.append(total)
    return halved(totals, auto_pad)


def halved(totals: list[Dim], auto_pad: str) -> tuple[list[Dim], list[Dim]]:
    """Divide padding between both ends: for SAME_UPPER an odd element goes to the end, else to the begin."""
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def padded(b: Builder, X: Arg | ast.expr, pads: tuple[list[Dim], list[Dim]]) -> tuple[ast.expr | Arg, list[int]]:
    """Return the input and the padding that the module does itself, which is none if `F.pad` has to come before it."""
    begins, ends = pads
    if begins == ends and all(isinstance(p, int) and p >= 0 for p in begins):
        return X, [p for p in begins if not isinstance(p, Sym)]
    return b.call("F.pad", X, f_pad(begins, ends)), [0] * len(begins)


def f_pad(begins: Sequence[Dim], ends: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return begins and ends as `F.pad` takes them: last axis first."""
    return tuple(v for pair in zip(reversed(begins), reversed(ends)) for v in pair)
