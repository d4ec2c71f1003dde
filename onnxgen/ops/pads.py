"""Padding of convolutions and pools: ONNX pads each side on its own, torch's modules pad both sides alike."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

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
    """Begin and end padding of each spatial axis: as given, or as `auto_pad` computes it (Conv-1 text).

    SAME_*: the output has `ceil(size / stride)` elements; over a dynamic size with a stride the padding is an
    expression of that size.
    """
    n = len(kernel)
    if auto_pad in ("NOTSET", "VALID", ""):
        given = pads if pads and auto_pad != "VALID" else [0] * 2 * n
        return list(given[:n]), list(given[n:])
    begins: list[Dim] = []
    ends: list[Dim] = []
    for i in range(n):
        effective = (kernel[i] - 1) * dilations[i] + 1
        total: Dim = effective - 1
        if strides[i] != 1:
            if X.shape is None:
                raise b.error("auto_pad needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
            size = X.shape[i + 2]
            wanted = (size + strides[i] - 1) // strides[i]
            total = (wanted - 1) * strides[i] + effective - size
            total = max(0, total) if isinstance(total, int) else dim_max(0, total)
        half = total // 2
        upper = auto_pad == "SAME_UPPER"
        begins.append(half if upper else total - half)
        ends.append(total - half if upper else half)
    return begins, ends


def padded(
    b: Builder, X: Arg | ast.expr, pads: tuple[list[Dim], list[Dim]], value: Any = None
) -> tuple[ast.expr | Arg, list[int]]:
    """The input, and the padding that the module does itself: none if `F.pad` had to come before."""
    begins, ends = pads
    if begins == ends and all(isinstance(p, int) and p >= 0 for p in begins):
        return X, [p for p in begins if not isinstance(p, Sym)]
    sides = [v for begin, end in zip(reversed(begins), reversed(ends)) for v in (begin, end)]
    options = {} if value is None else {"value": value}
    return b.call("F.pad", X, tuple(sides), **options), [0] * len(begins)
