"""Activations, logarithms and softmax spelled out in elementary operators become the operators of their names.

GELU: Hendrycks & Gimpel 2016, arXiv 1606.08415. Swish (SiLU): Ramachandran et al. 2017, arXiv 1710.05941; with a factor
of 1.702 it is the quick GELU. Mish: Misra 2019, arXiv 1908.08681. HardSwish: Howard et al. 2019, arXiv 1905.02244. In
floating point a spelling may overflow where the function does not: from 89 on `log(1 + exp(x))` is inf, softplus x.

Softmax, its logarithm and logsumexp may also stand between two Transposes:

    exp(x - max(x)) / sum(exp(x - max(x)))     with the maximum or without, by Div or Reciprocal
    m + log(sum(exp(x - m)))                   m = max(x), or nothing at all

The maximum cancels out of the result and of its gradient. Without it a spelling overflows where the function does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import is_close, standard_nodes
from onnxgen.passes.pattern import Idiom, Match, Pattern, Table, same_as
from onnxgen.passes.rewrite import only_user, own, replace
from onnxgen.shapes.info import info

POSITIVE = "(Greater(x, 0) | GreaterOrEqual(x, 0) | Less(0, x) | LessOrEqual(0, x))"
NEGATIVE = "(Less(x, 0) | LessOrEqual(x, 0) | Greater(0, x) | GreaterOrEqual(0, x))"


def _to(
    op_type: str,
    version: int,
    *spellings: str,
    attributes: dict[str, float | str] | None = None,
    bound: tuple[str, ...] = (),
    guard: Callable[[Match], bool] = lambda match: True,
    domain: str = "",
    inputs: str = "x",
    **constants: float,
) -> Idiom:
    """Make an idiom whose result has the shape and type of `x`. Attributes are given, or bound by the spelling.

    `inputs`: the tensors that the node takes, each one letter.
    """

    def build(match: Match) -> ir.Node | None:
        if not same_as(match) or not guard(match):
            return None
        values = {**(attributes or {}), **{name: match.number(name) for name in bound}}
        is_double = info(match.tensor("x")).dtype == ir.DataType.DOUBLE
        if is_double and any(isinstance(v, float) and float(np.float32(v)) != v for v in values.values()):
            return None  # attributes are float32
        tensors = [match.tensor(name) for name in inputs]
        return ir.node(op_type, tensors, values, domain=domain, version=version)

    return Idiom(tuple(Pattern(s, numbers=constants) for s in spellings), build)


def _gelu(approximate: str, *spellings: str) -> Idiom:
    root, tanh = math.sqrt(0.5), math.sqrt(2 / math.pi)
    return _to(
        "Gelu", 20, *spellings, attributes={"approximate": approximate}, root=root, tanh=tanh, cube=tanh * 0.044715
    )


def _clamp(match: Match) -> ir.Node | None:
    """Build Clip with its bounds as attributes, as up to opset 10. A single Clip stays."""
    low, high = match.number("low"), match.number("high")
    if match.root.op_type == "Clip" and len(match.inside) == 1 or not -math.inf < low < high < math.inf:
        return None
    return ir.node("Clip", [match.tensor("x")], {"min": low, "max": high}, version=6) if same_as(match) else None


def _glu(match: Match) -> ir.Node | None:
    """Build Glu of both halves of one Split that nothing else uses (Dauphin et al. 2017, arXiv 1612.08083)."""
    a, b = match.tensor("a"), match.tensor("b")
    split = made_by(a, "Split")
    if split is None or list(split.outputs) != [a, b] or any(v.is_graph_output() or len(v.uses()) > 1 for v in (a, b)):
        return None
    x, first, second = split.inputs[0], info(a).shape, info(b).shape
    axis = split.attributes.get_int("axis", 0)
    if x is None or not first or not second or first[axis] != second[axis]:
        return None
    return own("Glu", [x], axis=axis % len(first))


def _softplus(match: Match) -> ir.Node | None:
    """Build `softplus(beta * x) / beta`, also if x is returned where `beta * x` is above a threshold."""
    x, beta = match.tensor("x"), match.number("beta")
    one = beta * match.number("inverse")
    if beta <= 0 or not is_close(one, 1.0, x) or not _is_linear_past(match) or not same_as(match):
        return None
    return own("Softplus", [x], beta=beta)


def _is_linear_past(match: Match) -> bool:
    """True if softplus equals x above the threshold: from 20 on in float32, from 40 on in float64."""
    wide = info(match.tensor("x")).dtype == ir.DataType.DOUBLE
    return "threshold" not in match.bound or match.number("threshold") >= (40 if wide else 20)


def _is_selu(match: Match) -> bool:
    x, alpha, gamma = match.tensor("x"), match.number("alpha"), match.number("gamma")
    return is_close(alpha, 1.6732632423543772, x) and is_close(gamma, 1.0507009873554805, x)


def _is_logarithm(base: int, match: Match) -> bool:
    """True if `log(x)` is divided by that of the base, to the last bits: then the result differs by a few of them."""
    dtype = info(match.tensor("x")).dtype
    if dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return False  # a half rounds the logarithm before it is divided
    return math.isclose(match.number("per") * math.log(base), 1, rel_tol=2 * float(np.finfo(dtype.numpy()).eps))


# An idiom that is part of another comes before it; of two with the same last operator, the more special one is first.
TABLE = Table(
    [
        Idiom((Pattern("Clip(x, low, high)"),), _clamp),
        _gelu("none", "0.5 * x * (1 + Erf(root * x))", "x * (0.5 + 0.5 * Erf(root * x))"),
        _gelu(
            "tanh",
            "0.5 * x * (1 + Tanh(tanh * (x + 0.044715 * x ** 3)))",
            "0.5 * x * (1 + Tanh(tanh * x * (1 + 0.044715 * x ** 2)))",
            "0.5 * x * (1 + Tanh(tanh * x + cube * x ** 3))",
        ),
        _to("Sigmoid", 13, "1 / (1 + Exp(-x))"),
        _to("Swish", 24, "x * Sigmoid(x)", "x / (1 + Exp(-x))"),
        _to("Swish", 24, "x * Sigmoid(alpha * x)", bound=("alpha",), guard=lambda match: match.number("alpha") > 0),
        _to("Softplus", 22, "Log(1 + Exp(x))", "Relu(x) + Softplus(-Abs(x))"),
        _to("Softplus", 22, "Where(Greater(x, threshold), x, Softplus(x))", guard=_is_linear_past),
        Idiom(
            (
                Pattern("inverse * Softplus(beta * x)"),
                Pattern("Where(Greater(y, threshold), x, inverse * Softplus(y))", {"y": "beta * x"}),
            ),
            _softplus,
        ),
        _to("LogSigmoid", 1, "Log(Sigmoid(x))", "-Softplus(-x)", domain=DOMAIN),
        _to("Log10", 1, "per * Log(x)", domain=DOMAIN, guard=partial(_is_logarithm, 10)),
        _to("Log2", 1, "per * Log(x)", domain=DOMAIN, guard=partial(_is_logarithm, 2)),
        _to("Mish", 18, "x * Tanh(Softplus(x))"),
        _to("HardSigmoid", 22, "Clip(x + 3, 0, 6) / 6", "Clip(x / 6 + 0.5, 0, 1)", attributes={"alpha": 1 / 6}),
        _to("HardSwish", 14, "x * Clip(x + 3, 0, 6) / 6", "x * Clip(x / 6 + 0.5, 0, 1)"),
        _to("HardSwish", 14, "x * HardSigmoid(x, alpha=sixth)", sixth=1 / 6),
        _to("LeakyRelu", 16, "Max(x, alpha * x)", bound=("alpha",), guard=lambda match: 0 < match.number("alpha") < 1),
        _to(
            "LeakyRelu",
            16,
            "Relu(x) - alpha * Relu(-x)",
            f"Where({POSITIVE}, x, alpha * x)",
            f"Where({NEGATIVE}, alpha * x, x)",
            bound=("alpha",),
        ),
        _to(
            "PRelu",
            16,
            "Relu(x) - a * Relu(-x)",
            "Relu(x) + 0.5 * a * (x - Abs(x))",
            f"Where({POSITIVE}, x, a * x)",
            f"Where({NEGATIVE}, a * x, x)",
            inputs="xa",
        ),
        _to("Elu", 22, f"Where({POSITIVE}, x, Exp(x) - 1)", "Relu(x) + Exp(Clip(x, -inf, 0)) - 1"),
        _to(
            "Elu",
            22,
            f"Where({POSITIVE}, x, alpha * (Exp(x) - 1))",
            f"Where({NEGATIVE}, alpha * (Exp(x) - 1), x)",
            "Relu(x) + alpha * (Exp(Clip(x, -inf, 0)) - 1)",
            bound=("alpha",),
        ),
        _to("Selu", 22, "gamma * Elu(x, alpha=alpha)", bound=("alpha", "gamma"), guard=_is_selu),
        _to("Softsign", 22, "x / (1 + Abs(x))"),
        Idiom((Pattern("a * Sigmoid(b)"),), _glu),
    ]
)


def activations(model: ir.Model, options: Options) -> None:
    """Rewrite every activation that is spelled out."""
    TABLE.rewrite(model)


SHIFTED = "x - ReduceMax(x, axes)"


def _along(op_type: str, *patterns: Pattern) -> Idiom:
    """Make an idiom of a function of `x` along the only axis that is reduced."""

    def build(match: Match) -> ir.Node | None:
        if len(match.axes()) != 1 or not same_as(match):
            return None
        return ir.node(op_type, [match.tensor("x")], {"axis": match.axes()[0]}, version=13)

    return Idiom(patterns, build)


def _logsumexp(match: Match) -> ir.Node:
    keepdims = int(match.number("keep"))
    return ir.node("ReduceLogSumExp", [match.tensor("x")], {"axes": match.axes(), "keepdims": keepdims}, version=13)


SOFTMAX_IDIOMS = Table(
    [
        _along(
            "Softmax",
            Pattern("Exp(d) / ReduceSum(Exp(d), axes)", {"d": SHIFTED}),
            Pattern(f"Exp({SHIFTED}) / ReduceSum(Exp({SHIFTED}), axes)"),
            Pattern("Exp(x) / ReduceSum(Exp(x), axes)"),
        ),
        Idiom(
            (
                Pattern(f"ReduceMax(x, axes, keep) + Log(ReduceSum(Exp({SHIFTED}), axes, keep))"),
                Pattern(f"ReduceMax(x, axes, keep) + ReduceLogSumExp({SHIFTED}, axes, keep)"),
                Pattern("Log(ReduceSum(Exp(x), axes, keep))"),
                Pattern("ReduceLogSum(Exp(x), axes, keep)"),
            ),
            _logsumexp,
        ),
        _along(
            "LogSoftmax",
            Pattern("d - ReduceLogSumExp(d, axes)", {"d": SHIFTED}),
            Pattern(f"{SHIFTED} - ReduceLogSumExp({SHIFTED}, axes)"),
            Pattern("x - ReduceLogSumExp(x, axes)"),
        ),
    ]
)


def softmax(model: ir.Model, options: Options) -> None:
    """Rewrite every such spelling, and the softmax of a transposed tensor that is transposed back."""
    SOFTMAX_IDIOMS.rewrite(model)
    for node in standard_nodes(model, "Softmax", "LogSoftmax"):
        _remove_transposes(node)


def _remove_transposes(node: ir.Node) -> None:
    """Remove the Transposes around a softmax over another axis than the last.

    Before opset 13 these operators work on the last axis, so torch's legacy exporter swaps the other axis with it.
    """
    before, after = made_by(node.inputs[0], "Transpose"), only_user(node.outputs[0], "Transpose")
    rank, axis = info(node.inputs[0]).rank, node.attributes.get_int("axis", None)
    if before is None or after is None or only_user(before.outputs[0]) is not node:
        return
    there, back = (list(n.attributes.get_ints("perm", ())) for n in (before, after))
    if not rank or axis is None or axis % rank != rank - 1 or not there:
        return
    if sorted(there) == sorted(back) == list(range(rank)) == [there[p] for p in back]:
        replace(after, ir.node(node.op_type, [before.inputs[0]], {"axis": there[-1]}, version=13), origin=node)
