"""Softmax, logsumexp and vectors divided by their norms, in every spelling that exporters write."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.idioms import function_of, hold, points, spelled, text_of

NUMBERS = (
    "float eps = {0.000001}, float[1] eps1 = {0.000001}, float square = {0.0001}, float one = {1}, float two = {2}, "
    "float half = {0.5}, float big = {20}, int64[3] full = {2, 2, 4}, float minus = {-0.5}"
)


# (name, the graph, what forward must say, which is also the function that it must compute)
SPELLINGS = [
    ("softmax", "e = Exp(x) s = ReduceSum<axes = [1]>(e) y = Div(e, s)", "F.softmax(x, dim=1)"),
    (
        "softmax, the maximum off",
        "m = ReduceMax<axes = [1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum<axes = [-2]>(e) y = Div(e, s)",
        "F.softmax(x, dim=1)",
    ),
    (
        "softmax, by Reciprocal",
        "m = ReduceMax<axes = [1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum<axes = [1]>(e) r = Reciprocal(s) "
        "y = Mul(r, e)",
        "F.softmax(x, dim=1)",
    ),
    (
        "softmax, computed twice",
        "m = ReduceMax<axes = [1]>(x) d = Sub(x, m) e = Exp(d) c = Sub(x, m) f = Exp(c) s = ReduceSum<axes = [1]>(f) "
        "y = Div(e, s)",
        "F.softmax(x, dim=1)",
    ),
    (
        "softmax, torch's legacy exporter before opset 13",
        "t = Transpose<perm = [0, 2, 1]>(x) s = Softmax<axis = 2>(t) y = Transpose<perm = [0, 2, 1]>(s)",
        "F.softmax(x, dim=1)",
    ),
    ("log softmax", "e = Exp(x) s = ReduceSum<axes = [2]>(e) l = Log(s) y = Sub(x, l)", "F.log_softmax(x, dim=-1)"),
    (
        "log softmax, the maximum off",
        "m = ReduceMax<axes = [-1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum<axes = [2]>(e) l = Log(s) y = Sub(d, l)",
        "F.log_softmax(x, dim=-1)",
    ),
    ("log softmax by ReduceLogSumExp", "l = ReduceLogSumExp<axes = [2]>(x) y = Sub(x, l)", "F.log_softmax(x, dim=-1)"),
    (
        "log softmax, transposed",
        "t = Transpose<perm = [0, 2, 1]>(x) s = LogSoftmax<axis = -1>(t) y = Transpose<perm = [0, 2, 1]>(s)",
        "F.log_softmax(x, dim=1)",
    ),
    ("logsumexp", "e = Exp(x) s = ReduceSum<axes = [1]>(e) y = Log(s)", "x.logsumexp(dim=1, keepdim=True)"),
    ("logsumexp by ReduceLogSum", "e = Exp(x) y = ReduceLogSum<axes = [1]>(e)", "x.logsumexp(dim=1, keepdim=True)"),
    (
        "logsumexp, the maximum apart",
        "m = ReduceMax<axes = [1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum<axes = [1]>(e) l = Log(s) y = Add(l, m)",
        "x.logsumexp(dim=1, keepdim=True)",
    ),
    (
        "logsumexp that keeps no axis",
        "e = Exp(x) s = ReduceSum<axes = [1], keepdims = 0>(e) y = Log(s)",
        "x.logsumexp(dim=1)",
    ),
    (
        "normalize, both of torch's exporters",
        "n = ReduceL2<axes = [-1]>(x) c = Clip(n, eps) e = Expand(c, full) y = Div(x, e)",
        "F.normalize(x, dim=-1, eps=1e-6)",
    ),
    (
        "normalize by Max",
        "n = ReduceL2<axes = [-1]>(x) c = Max(n, eps1) y = Div(x, c)",
        "F.normalize(x, dim=-1, eps=1e-6)",
    ),
    (
        "normalize by a root",
        "q = Mul(x, x) s = ReduceSum<axes = [-1]>(q) n = Sqrt(s) c = Clip(n, eps) y = Div(x, c)",
        "F.normalize(x, dim=-1, eps=1e-6)",
    ),
    (
        "normalize by powers",
        "q = Pow(x, two) s = ReduceSum<axes = [-1]>(q) n = Pow(s, half) c = Clip(n, eps) y = Div(x, c)",
        "F.normalize(x, dim=-1, eps=1e-6)",
    ),
    (
        "normalize by ReduceSumSquare",
        "s = ReduceSumSquare<axes = [-1]>(x) n = Sqrt(s) c = Max(eps, n) r = Reciprocal(c) y = Mul(r, x)",
        "F.normalize(x, dim=-1, eps=1e-6)",
    ),
    (
        "normalize, TensorFlow",
        "q = Mul(x, x) s = ReduceSum<axes = [1]>(q) c = Max(s, square) n = Sqrt(c) r = Reciprocal(n) y = Mul(x, r)",
        "F.normalize(x, eps=0.01)",
    ),
    (
        "normalize of order 1",
        "n = ReduceL1<axes = [1]>(x) c = Clip(n, eps) e = Expand(c, full) y = Div(x, e)",
        "F.normalize(x, p=1, eps=1e-6)",
    ),
    (
        "cosine similarity, torch's dynamo exporter",
        "z = Tanh(x) n = ReduceL2<axes = [1]>(x) c = Clip(n, eps) a = Div(x, c) m = ReduceL2<axes = [1]>(z) "
        "d = Clip(m, eps) b = Div(z, d) p = Mul(a, b) y = ReduceSum<axes = [1], keepdims = 0>(p)",
        "F.cosine_similarity(x, torch.tanh(x), eps=1e-6)",
    ),
    ("rsqrt", "a = Abs(x) b = Add(a, one) s = Sqrt(b) y = Div(one, s)", "torch.rsqrt(torch.abs(x) + 1)"),
    (
        "rsqrt by Reciprocal",
        "a = Abs(x) b = Add(a, one) s = Sqrt(b) y = Reciprocal(s)",
        "torch.rsqrt(torch.abs(x) + 1)",
    ),
    ("rsqrt by Pow", "a = Abs(x) b = Add(a, one) y = Pow(b, minus)", "torch.rsqrt(torch.abs(x) + 1)"),
]


@pytest.mark.parametrize("text, wanted", [s[1:] for s in SPELLINGS], ids=[s[0] for s in SPELLINGS])
def test_spelled_out(text: str, wanted: str) -> None:
    # opset 12: the last that has the axes of ReduceSum as an attribute
    hold(spelled(text, NUMBERS, opset=12), f"return {wanted}", function_of(wanted), atol=1e-5)


def test_the_axes_may_be_an_input() -> None:
    text = "m = ReduceMax(x, axes) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, axes) y = Div(e, s)"
    hold(
        spelled(text, "int64[1] axes = {1}", opset=18),
        "return F.softmax(x, dim=1)",
        function_of("F.softmax(x, dim=1)"),
        atol=1e-5,
    )


# (name, the graph, what forward must not say)
NEARLY = [
    ("softmax over two axes", "e = Exp(x) s = ReduceSum<axes = [1, 2]>(e) y = Div(e, s)", "softmax"),
    ("softmax that drops the axis", "e = Exp(x) s = ReduceSum<axes = [0], keepdims = 0>(e) y = Div(e, s)", "softmax"),
    ("softmax over the mean", "e = Exp(x) s = ReduceMean<axes = [1]>(e) y = Div(e, s)", "softmax"),
    ("softmax of another sum", "e = Exp(x) t = Tanh(e) s = ReduceSum<axes = [1]>(t) y = Div(e, s)", "softmax"),
    ("softmax whose exp is used", "e = Exp(x) s = ReduceSum<axes = [1]>(e) q = Div(e, s) y = Add(q, e)", "softmax"),
    (
        "softmax transposed elsewhere",
        "t = Transpose<perm = [2, 1, 0]>(x) s = Softmax<axis = 2>(t) y = Transpose<perm = [1, 2, 0]>(s)",
        "softmax(x,",
    ),
    (
        "logsumexp with the minimum apart",
        "m = ReduceMin<axes = [1]>(x) d = Sub(x, m) e = Exp(d) s = ReduceSum<axes = [1]>(e) l = Log(s) y = Add(l, m)",
        "x.logsumexp",
    ),
    ("normalize with eps added", "n = ReduceL2<axes = [1]>(x) c = Add(n, eps) y = Div(x, c)", "normalize"),
    ("normalize without eps", "n = ReduceL2<axes = [1]>(x) y = Div(x, n)", "normalize"),
    ("normalize of another", "z = Tanh(x) n = ReduceL2<axes = [1]>(x) c = Clip(n, eps) y = Div(z, c)", "normalize"),
    ("normalize over two axes", "n = ReduceL2<axes = [1, 2]>(x) c = Clip(n, eps) y = Div(x, c)", "normalize"),
    ("normalize with a bound above", "n = ReduceL2<axes = [1]>(x) c = Clip(n, eps, big) y = Div(x, c)", "normalize"),
    (
        "cosine similarity of two axes",
        "z = Tanh(x) n = ReduceL2<axes = [1]>(x) c = Clip(n, eps) a = Div(x, c) m = ReduceL2<axes = [2]>(z) "
        "d = Clip(m, eps) b = Div(z, d) p = Mul(a, b) y = ReduceSum<axes = [1], keepdims = 0>(p)",
        "cosine",
    ),
    (  # the product is bounded, not each of them: another number for short vectors
        "cosine similarity, torch's legacy exporter",
        "z = Tanh(x) p = Mul(x, z) s = ReduceSum<axes = [1]>(p) a = Mul(x, x) b = ReduceSum<axes = [1]>(a) "
        "c = Mul(z, z) d = ReduceSum<axes = [1]>(c) m = Mul(b, d) r = Sqrt(m) n = Max(r, eps) y = Div(s, n)",
        "cosine",
    ),
]


@pytest.mark.parametrize("text, unwanted", [s[1:] for s in NEARLY], ids=[s[0] for s in NEARLY])
def test_nearly(text: str, unwanted: str) -> None:
    model = spelled(text, NUMBERS, opset=12, shape="2, 2, 2")
    assert unwanted not in " ".join(hold(model, "", x=points(model) / 8).forward.split())


def test_short_vectors() -> None:
    """What eps is for: zeros, and vectors shorter than it."""
    model = spelled("n = ReduceL2<axes = [-1]>(x) c = Clip(n, eps) y = Div(x, c)", NUMBERS)
    x = np.zeros((2, 2, 4), "float32")
    x[0, 0], x[1, 1, 2] = 1e-8, 3e-6
    hold(model, "return F.normalize(", function_of("F.normalize(x, dim=-1, eps=1e-6)"), x)


def test_an_expand_that_is_needed_stays() -> None:
    stored = "float[4] v = {1, 2, 3, 4}, int64[3] full = {2, 2, 4}, int64[4] more = {3, 2, 2, 4}"
    assert "expand" not in text_of(spelled("e = Expand(v, full) y = Add(x, e)", stored))
    assert "expand" in text_of(spelled("e = Expand(x, more) y = Add(x, e)", stored))
    assert "expand" in text_of(spelled("e = Expand(x, more) y = Add(e, e)", stored))
