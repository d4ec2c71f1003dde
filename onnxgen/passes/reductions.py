"""Reductions as a person writes them, statistics, and vectors divided by their norms.

    Unsqueeze(ReduceMax(x, axes, keepdims=0), axes)   is   ReduceMax(x, axes, keepdims=1)
    ReduceMax(Squeeze(x, 1), 1, keepdims=1)           is   ReduceMax(x, 2, keepdims=0)
    ReduceMax(ReduceMax(x, 3), 2)                     is   ReduceMax(x, (2, 3))
    Cast(ReduceMin(Cast(x, INT32)), BOOL)             is   ReduceMin(x) of truth values: `x.all()`
    ReduceSum(x, axes) * (1 / n)                      is   ReduceMean(x, axes), n: elements of a sum

TensorFlow and JAX drop the axes and add them again, and write a mean as a sum. Sums of sums stay: they are rounded in
another order. `deviation` writes torch's `var` and `std`, which are unbiased:

    mean((x - mean(x)) ** 2) * n / (n - 1)            n: the number of elements that are averaged

The variance divided by n is left alone: it is more often a step of a norm that was written out. `normalise` writes
`F.normalize` and `F.cosine_similarity`, since ONNX's LpNormalization has no eps:

    x / max(norm(x), eps)                                  norms of order 1 or 2
    x * rsqrt(max(sum(x * x), eps ** 2))                   TensorFlow's l2_normalize
    sum(x / max(norm(x), eps) * y / max(norm(y), eps))     torch's cosine_similarity, decomposed

Reciprocals of roots that no norm has taken become torch's `rsqrt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from onnxgen.code.quote import shortest
from onnxgen.graph.nodes import all_nodes
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import Reduction, ints, is_close, maker, reduction, shape_of, source_of, standard_nodes
from onnxgen.passes.pattern import Idiom, Match, Pattern, Table, same_as
from onnxgen.passes.rewrite import known_ints, only_user, own, replace, together
from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import Shape, info

EXTREMES = ("ReduceMax", "ReduceMin")
FEWEST = 3  # elements of a mean: half of a sum of two is as often a half of a sum


def reductions(model: ir.Model, options: Options) -> None:
    """Rewrite every such reduction."""
    for node in standard_nodes(model, *EXTREMES):
        _join(node)
    for node in all_nodes(model.graph):
        if node.graph is not None and is_a(node, RESHAPE):
            _keep_axes(node)
    for node in all_nodes(model.graph):
        if node.graph is not None and node.domain == "" and node.op_type.startswith("Reduce"):
            _over_ones(node)
    for node in standard_nodes(model, "Cast"):
        _of_truth(node)
    MEANS.rewrite(model)


def _before(node: ir.Node, op_type: str | None = None) -> tuple[ir.Node, Reduction] | None:
    """Return the reduction that makes a node's input for it alone, in one scope with it."""
    before = maker(node.inputs[0]) if node.inputs else None
    if before is None or before.domain != "" or only_user(before.outputs[0]) is not node:
        return None
    if not before.op_type.startswith("Reduce") or op_type not in (None, before.op_type) or not together((before, node)):
        return None
    reduced = reduction(before.outputs[0], before.op_type)
    return None if reduced is None else (before, reduced)


def _keep_axes(node: ir.Node) -> None:
    """Replace a Reshape that only adds the axes again which a reduction has dropped."""
    before = _before(node)
    if before is None or before[1].keepdims:
        return
    dropped, reduced = before
    kept = tuple(1 if i in reduced.axes else dim for i, dim in enumerate(shape_of(reduced.x)))
    if kept == info(node.outputs[0]).shape:
        attributes = [a for name, a in dropped.attributes.items() if name != "keepdims"]
        attributes.append(ir.AttrInt64("keepdims", 1))
        replace(node, ir.Node("", dropped.op_type, dropped.inputs, attributes, version=dropped.version), dropped)


def _over_ones(node: ir.Node) -> None:
    """Take the axes of one element that a Reshape drops for those that the reduction keeps."""
    reduced, reshape = reduction(node.outputs[0], node.op_type), maker(node.inputs[0])
    if reduced is None or not reduced.keepdims or reshape is None or not is_a(reshape, RESHAPE):
        return
    x, before, after = reshape.inputs[0], shape_of(reshape.inputs[0]), shape_of(reduced.x)
    theirs, ours = map(_wide, (before, after))
    if [*theirs.values()] != [*ours.values()] or not {*reduced.axes} <= ours.keys():
        return
    place = dict(zip(ours, theirs))
    axes = [place[axis] for axis in reduced.axes]
    left = tuple(dim for i, dim in enumerate(before) if i not in axes)
    if left == info(node.outputs[0]).shape and only_user(reduced.x) is node and together((reshape, node)):
        replace(node, ir.node(node.op_type, [x, known_ints(axes)], {"keepdims": 0}, version=max(18, node.version or 0)))


def _wide(shape: Shape) -> dict[int, Dim]:
    return {axis: dim for axis, dim in enumerate(shape) if dim != 1}


def _join(node: ir.Node) -> None:
    """Replace the maximum of a maximum along other axes."""
    before, outer = _before(node, node.op_type), reduction(node.outputs[0], node.op_type)
    if before is None or outer is None or outer.keepdims != before[1].keepdims:
        return
    first, inner = before
    left = [axis for axis in range(info(inner.x).rank or 0) if inner.keepdims or axis not in inner.axes]
    axes = sorted({*inner.axes, *(left[axis] for axis in outer.axes)})
    keepdims = {"keepdims": int(outer.keepdims)}
    replace(node, ir.node(node.op_type, [inner.x, known_ints(axes)], keepdims, version=20), first)


def _of_truth(node: ir.Node) -> None:
    """Take the maximum or minimum of truth values themselves.

    The greatest of no numbers is the lowest number, which is true, but none of no truth values is.
    """
    before = _before(node)
    if before is None or info(node.outputs[0]).dtype != ir.DataType.BOOL or before[0].op_type not in EXTREMES:
        return
    extreme, reduced = before
    truth, sizes = source_of(reduced.x, "Cast"), [shape_of(reduced.x)[axis] for axis in reduced.axes]
    if info(truth).dtype != ir.DataType.BOOL:
        return
    if extreme.op_type == "ReduceMin" or all(isinstance(size, int) and size > 0 for size in sizes):
        inputs = [truth, *_axes_of(extreme)]
        replace(node, ir.node(extreme.op_type, inputs, {"keepdims": int(reduced.keepdims)}, version=20), extreme)


def _axes_of(node: ir.Node) -> list[ir.Value]:
    """Return the axes of a reduction as the file has them, none for all."""
    axes = ints(node, "axes", 1)
    return [known_ints(axes)] if axes else []


def _mean(match: Match) -> ir.Node | None:
    """Build the mean. In half precision a sum may overflow where the mean does not: it stays."""
    x, ratio, keepdims = match.tensor("x"), match.number("ratio"), int(match.number("keep"))
    dtype, count = info(x).dtype, _count(match)
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or not isinstance(count, int) or count < FEWEST:
        return None
    kind = dtype.numpy().type
    if kind(ratio) != kind(1 / count) or not _has_own_rank(match, keepdims):
        return None
    (total,) = (node for node in match.inside if node.op_type == "ReduceSum")
    return ir.node("ReduceMean", [x, *_axes_of(total)], {"keepdims": keepdims}, version=18)


def _count(match: Match) -> Dim:
    """Return the number of elements of which one is made."""
    shape = shape_of(match.tensor("x"))
    return product(shape[axis] for axis in match.axes())


def _has_own_rank(match: Match, keepdims: int) -> bool:
    """True unless a factor of one element, which has a higher rank, adds axes to the result."""
    dropped = 0 if keepdims else len(match.axes())
    return info(match.root.outputs[0]).rank == (info(match.tensor("x")).rank or 0) - dropped


MEANS = Table([Idiom((Pattern("ratio * ReduceSum(x, axes, keep)"),), _mean)])


MEAN = "ReduceMean((x - ReduceMean(x, axes)) ** 2, axes, keep)"
STATIC, DYNAMIC = f"ratio * {MEAN}", f"n * {MEAN} / (n - 1)"


def _build(op_type: str, match: Match) -> ir.Node | None:
    x, keepdims, count = match.tensor("x"), int(match.number("keep")), _count(match)
    if "n" in match.bound:
        data = info(source_of(match.tensor("n"), "Cast")).data
        if data is None or data.size != 1 or data.flat[0] != count:
            return None
    elif not isinstance(count, int) or count < 2 or not is_close(match.number("ratio"), count / (count - 1), x):
        return None
    return own(op_type, [x], axes=match.axes(), keepdims=keepdims) if _has_own_rank(match, keepdims) else None


DEVIATION_IDIOMS = Table(
    [
        Idiom(tuple(Pattern(f"({v}) ** 0.5") for v in (STATIC, DYNAMIC)), partial(_build, "Deviation")),
        Idiom((Pattern(STATIC), Pattern(DYNAMIC)), partial(_build, "Variance")),
    ]
)


def deviation(model: ir.Model, options: Options) -> None:
    """Rewrite every unbiased variance and deviation."""
    DEVIATION_IDIOMS.rewrite(model, users_first=True)


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

NORMALISE_IDIOMS = Table(
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
    NORMALISE_IDIOMS.rewrite(model)


def reciprocal_roots(model: ir.Model, options: Options) -> None:
    """Rewrite every reciprocal of a root."""
    ROOTS.rewrite(model)
