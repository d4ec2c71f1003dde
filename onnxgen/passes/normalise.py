"""Vectors divided by their norms become `F.normalize` and `F.cosine_similarity`.

    x / max(norm(x), eps)                                           norms of order 1 or 2
    x * rsqrt(max(sum(x * x), eps ** 2))                            TensorFlow's l2_normalize
    sum(x / max(norm(x), eps) * y / max(norm(y), eps))              torch's cosine_similarity, decomposed

ONNX's LpNormalization has no eps. Reciprocals of roots that no norm has taken become torch's `rsqrt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir

from onnxgen.code.quote import shortest
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import own
from onnxgen.shapes.info import info


def _normalize(order: int, *spellings: str, eps: Callable[[float], float] = float) -> Idiom:
    """Make an idiom of `F.normalize`. `eps` computes epsilon from the number that the spelling binds."""

    def build(match: Match) -> ir.Node | None:
        least, axes = match.number("eps"), match.axes()
        if len(axes) != 1 or least <= 0 or not same_as(match):
            return None
        return own("Normalize", [match.tensor("x")], axis=axes[0], p=order, epsilon=eps(least))

    return Idiom(tuple(Pattern(s) for s in spellings), build)


def _cosine(match: Match) -> ir.Node | None:
    x, y, axes = match.tensor("x"), match.tensor("y"), match.axes()
    if info(x).rank is None or info(x).shape != info(y).shape or info(x).dtype != info(y).dtype:
        return None
    if axes != (int(match.number("axis")),):
        return None
    return own("CosineSimilarity", [x, y], axis=axes[0], epsilon=match.number("eps"))


def _rsqrt(match: Match) -> ir.Node | None:
    return own("Rsqrt", [match.tensor("x")]) if same_as(match) else None


HALF = "onnxgen_Normalize({}, axis=axis, p=2, epsilon=eps)"

TABLE = Table(
    [
        _normalize(
            2,
            "x / Clip(ReduceL2(x, axes), eps, inf)",
            "x / Clip(ReduceSum(x ** 2, axes) ** 0.5, eps, inf)",
            "x / Clip(ReduceSumSquare(x, axes) ** 0.5, eps, inf)",
        ),
        _normalize(
            2,
            "x / Clip(ReduceSum(x ** 2, axes), eps, inf) ** 0.5",
            "x / Clip(ReduceSumSquare(x, axes), eps, inf) ** 0.5",
            eps=lambda square: math.sqrt(shortest(square)),
        ),
        _normalize(1, "x / Clip(ReduceL1(x, axes), eps, inf)", "x / Clip(ReduceSum(Abs(x), axes), eps, inf)"),
        Idiom((Pattern(f"ReduceSum({HALF.format('x')} * {HALF.format('y')}, axes, 0)"),), _cosine),
    ]
)
ROOTS = Table([Idiom((Pattern("x ** -0.5"),), _rsqrt)])


def normalise(model: ir.Model, options: Options) -> None:
    """Rewrite every vector that is divided by its norm."""
    TABLE.rewrite(model)


def reciprocal_roots(model: ir.Model, options: Options) -> None:
    """Rewrite every reciprocal of a root."""
    ROOTS.rewrite(model)
