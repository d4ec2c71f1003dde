"""Padding of convolutions and pools: ONNX pads each side on its own, torch's modules pad both sides alike."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from onnxgen.errors import FIX_SHAPE
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.shapes.dims import Dim, Sym, dim_max


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
