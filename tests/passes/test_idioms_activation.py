"""Activations in every spelling that exporters write, and graphs that nearly are one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.idioms import function_of, hold, points, spelled, text_of

NUMBERS = (
    "float half = {0.5}, float one = {1}, float two = {2}, float three = {3}, float six = {6}, float zero = {0}, "
    "float sixth = {0.16666667}, float root2 = {1.41421354}, float root = {0.707106769}, float cube = {0.044715}, "
    "float tanh = {0.797884583}, float quick = {1.702}, float slope = {0.1}, float minus = {-1}, float twenty = {20}, "
    "float ten = {2.302585}, float per_ten = {0.43429446}, float per_two = {1.442695}, float rough = {2.3026}, "
    "float least = {-2}, float selu = {1.05070102}, float curve = {1.67326319}, float[1] two1 = {2}"
)


# (name, the graph, what forward must say, which is also the function that it must compute)
SPELLINGS = [
    (
        "gelu, torch's legacy exporter",
        "a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)",
        "F.gelu(x)",
    ),
    (
        "gelu, torch's dynamo exporter",
        "a = Div(x, root2) b = Erf(a) c = Add(b, one) d = Mul(half, c) y = Mul(x, d)",
        "F.gelu(x)",
    ),
    ("gelu, TensorFlow", "h = Mul(half, x) a = Mul(root, x) b = Erf(a) c = Add(one, b) y = Mul(h, c)", "F.gelu(x)"),
    (
        "gelu, the distribution alone",
        "a = Mul(x, root) b = Erf(a) h = Mul(b, half) c = Add(h, half) y = Mul(c, x)",
        "F.gelu(x)",
    ),
    (
        "tanh gelu, torch's legacy exporter",
        "a = Mul(x, x) b = Mul(x, a) c = Mul(cube, b) d = Add(x, c) e = Mul(tanh, d) f = Tanh(e) g = Add(one, f) "
        "h = Mul(x, g) y = Mul(half, h)",
        "F.gelu(x, approximate='tanh')",
    ),
    (
        "tanh gelu, torch's dynamo exporter",
        "b = Pow(x, three) c = Mul(cube, b) d = Add(x, c) e = Mul(tanh, d) f = Tanh(e) g = Add(f, one) "
        "h = Mul(half, g) y = Mul(x, h)",
        "F.gelu(x, approximate='tanh')",
    ),
    (
        "tanh gelu, x taken out of the bracket",
        "a = Mul(x, x) c = Mul(cube, a) d = Add(one, c) e = Mul(x, tanh) g = Mul(e, d) f = Tanh(g) i = Add(one, f) "
        "h = Mul(half, i) y = Mul(x, h)",
        "F.gelu(x, approximate='tanh')",
    ),
    ("quick gelu", "a = Mul(x, quick) s = Sigmoid(a) y = Mul(x, s)", "x * torch.sigmoid(1.702 * x)"),
    ("quick gelu, swapped", "a = Mul(quick, x) s = Sigmoid(a) y = Mul(s, x)", "x * torch.sigmoid(1.702 * x)"),
    ("silu", "s = Sigmoid(x) y = Mul(x, s)", "F.silu(x)"),
    ("silu, swapped", "s = Sigmoid(x) y = Mul(s, x)", "F.silu(x)"),
    ("silu by Exp", "n = Neg(x) e = Exp(n) d = Add(e, one) y = Div(x, d)", "F.silu(x)"),
    (
        "silu by Exp and Reciprocal",
        "n = Mul(x, minus) e = Exp(n) d = Add(one, e) r = Reciprocal(d) y = Mul(r, x)",
        "F.silu(x)",
    ),
    ("sigmoid by Exp", "n = Neg(x) e = Exp(n) d = Add(one, e) y = Div(one, d)", "torch.sigmoid(x)"),
    ("log10", "e = Exp(x) l = Log(e) y = Div(l, ten)", "torch.log10(torch.exp(x))"),
    ("log10, by a product", "e = Exp(x) l = Log(e) y = Mul(per_ten, l)", "torch.log10(torch.exp(x))"),
    ("log2", "e = Exp(x) l = Log(e) y = Mul(l, per_two)", "torch.log2(torch.exp(x))"),
    ("mish", "s = Softplus(x) t = Tanh(s) y = Mul(x, t)", "F.mish(x)"),
    ("mish by Exp and Log", "e = Exp(x) a = Add(e, one) l = Log(a) t = Tanh(l) y = Mul(t, x)", "F.mish(x)"),
    ("softplus by Exp and Log", "e = Exp(x) a = Add(one, e) y = Log(a)", "F.softplus(x)"),
    (
        "softplus, stable",
        "a = Abs(x) n = Neg(a) e = Exp(n) p = Add(e, one) l = Log(p) r = Relu(x) y = Add(r, l)",
        "F.softplus(x)",
    ),
    ("softplus, torch's dynamo exporter", "s = Softplus(x) g = Greater(x, twenty) y = Where(g, x, s)", "F.softplus(x)"),
    (
        "softplus with beta, torch's legacy exporter",
        "a = Mul(x, two) s = Softplus(a) y = Div(s, two)",
        "F.softplus(x, beta=2)",
    ),
    (
        "softplus with beta, torch's dynamo exporter",
        "a = Mul(x, two) s = Softplus(a) d = Div(s, two) g = Greater(a, twenty) y = Where(g, x, d)",
        "F.softplus(x, beta=2)",
    ),
    ("logsigmoid by Softplus", "n = Neg(x) s = Softplus(n) y = Neg(s)", "F.logsigmoid(x)"),
    ("relu6 by Relu and Min", "r = Relu(x) y = Min(r, six)", "F.relu6(x)"),
    ("relu6 by Max and Min", "r = Max(zero, x) y = Min(six, r)", "F.relu6(x)"),
    ("relu6 by Min and Max", "r = Min(x, six) y = Max(r, zero)", "F.relu6(x)"),
    ("hardtanh", "r = Max(x, least) y = Min(r, one)", "x.clamp(-2, 1)"),
    ("hardsigmoid by Clip and Div", "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)", "F.hardsigmoid(x)"),
    ("hardsigmoid by Clip to 1", "a = Mul(x, sixth) b = Add(a, half) y = Clip(b, zero, one)", "F.hardsigmoid(x)"),
    ("hardswish, torch's legacy exporter", "s = HardSigmoid<alpha = 0.16666667>(x) y = Mul(x, s)", "F.hardswish(x)"),
    (
        "hardswish, x * relu6(x + 3) / 6",
        "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)",
        "F.hardswish(x)",
    ),
    (
        "hardswish, x * (relu6(x + 3) / 6)",
        "a = Add(three, x) c = Clip(a, zero, six) m = Div(c, six) y = Mul(x, m)",
        "F.hardswish(x)",
    ),
    (
        "hardswish, TensorFlow",
        "a = Add(x, three) r = Relu(a) c = Min(r, six) m = Mul(c, sixth) y = Mul(m, x)",
        "F.hardswish(x)",
    ),
    (
        "hardswish, (x / 6) * relu6(x + 3)",
        "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, sixth) y = Mul(m, c)",
        "F.hardswish(x)",
    ),
    ("leaky relu by Max", "a = Mul(x, slope) y = Max(x, a)", "F.leaky_relu(x, 0.1)"),
    ("leaky relu by Where", "a = Mul(slope, x) c = Greater(x, zero) y = Where(c, x, a)", "F.leaky_relu(x, 0.1)"),
    ("leaky relu by Less", "a = Mul(slope, x) c = Less(x, zero) y = Where(c, a, x)", "F.leaky_relu(x, 0.1)"),
    (
        "leaky relu by two Relu",
        "p = Relu(x) n = Neg(x) r = Relu(n) m = Mul(slope, r) y = Sub(p, m)",
        "F.leaky_relu(x, 0.1)",
    ),
    (
        "elu by Where",
        "e = Exp(x) s = Sub(e, one) m = Mul(s, half) c = Greater(x, zero) y = Where(c, x, m)",
        "F.elu(x, alpha=0.5)",
    ),
    ("elu by Relu", "r = Relu(x) m = Min(x, zero) e = Exp(m) s = Sub(e, one) y = Add(r, s)", "F.elu(x)"),
    (
        "selu",
        "e = Exp(x) s = Sub(e, one) m = Mul(s, curve) c = Less(zero, x) w = Where(c, x, m) y = Mul(w, selu)",
        "F.selu(x)",
    ),
    ("softsign", "a = Abs(x) b = Add(one, a) y = Div(x, b)", "F.softsign(x)"),
    ("glu", "a, b = Split<axis = 1>(x) s = Sigmoid(b) y = Mul(a, s)", "F.glu(x, dim=1)"),
    ("glu over the last", "a, b = Split<axis = -1>(x) s = Sigmoid(b) y = Mul(s, a)", "F.glu(x)"),
]


@pytest.mark.parametrize("text, wanted", [s[1:] for s in SPELLINGS], ids=[s[0] for s in SPELLINGS])
def test_spelled_out(text: str, wanted: str) -> None:
    hold(spelled(text, NUMBERS), f"return {wanted}", function_of(wanted), atol=1e-5)


# what is not the function that it looks like: (name, the graph, what forward must not say)
NEARLY = [
    ("gelu of a wrong root", "a = Div(x, two) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)", "gelu"),
    ("gelu without its half", "a = Div(x, root2) b = Erf(a) c = Add(b, one) y = Mul(x, c)", "gelu"),
    ("a logarithm of another base", "e = Exp(x) l = Log(e) y = Div(l, rough)", "log10"),
    ("a logarithm used elsewhere", "e = Exp(x) l = Log(e) d = Div(l, ten) y = Add(d, l)", "log10"),
    ("silu of two tensors", "s = Sigmoid(x) t = Tanh(x) y = Mul(t, s)", "silu"),
    ("silu whose sigmoid is used", "s = Sigmoid(x) m = Mul(x, s) y = Add(m, s)", "silu"),
    ("silu of what falls", "n = Mul(x, least) s = Sigmoid(n) y = Mul(x, s)", "silu"),
    ("sigmoid over two", "n = Neg(x) e = Exp(n) d = Add(two, e) y = Div(one, d)", "sigmoid"),
    ("sigmoid of the wrong sign", "e = Exp(x) d = Add(one, e) y = Div(one, d)", "sigmoid(x)"),
    ("mish of a relu", "s = Relu(x) t = Tanh(s) y = Mul(x, t)", "mish"),
    ("softplus of 2 + exp", "e = Exp(x) a = Add(two, e) y = Log(a)", "softplus"),
    ("softplus cut at 2", "s = Softplus(x) g = Greater(x, two) y = Where(g, x, s)", "return F.softplus"),
    ("softplus scaled by another", "a = Mul(x, two) s = Softplus(a) y = Div(s, three)", "beta"),
    ("relu6 of crossed bounds", "r = Max(x, six) y = Min(r, zero)", "relu6"),
    ("hardswish over 3", "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, three)", "hardswish"),
    ("hardswish from 2", "a = Add(x, two) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)", "hardswish"),
    ("hardswish of another slope", "s = HardSigmoid<alpha = 0.2>(x) y = Mul(x, s)", "hardswish"),
    ("leaky relu steeper than 1", "a = Mul(x, two) y = Max(x, a)", "leaky"),
    ("leaky relu the wrong way round", "a = Mul(x, slope) c = Less(x, zero) y = Where(c, x, a)", "leaky"),
    ("leaky relu cut at 1", "a = Mul(x, slope) c = Greater(x, one) y = Where(c, x, a)", "leaky"),
    ("leaky relu that broadcasts", "a = Mul(x, slope) p = Unsqueeze(a, axes) y = Max(x, p)", "leaky"),
    ("elu of exp + 1", "e = Exp(x) s = Add(e, one) c = Greater(x, zero) y = Where(c, x, s)", "elu"),
    ("softsign without the absolute", "b = Add(one, x) y = Div(x, b)", "softsign"),
    ("glu of unequal parts", "a, b = Split<axis = 2>(x, parts) s = Sigmoid(b) y = Mul(a, s)", "glu"),
    ("glu whose gate comes first", "a, b = Split<axis = 1>(x) s = Sigmoid(a) y = Mul(b, s)", "glu"),
    ("glu whose half is used", "a, b = Split<axis = 1>(x) s = Sigmoid(b) m = Mul(a, s) y = Add(m, b)", "glu"),
    ("silu that a constant broadcasts", "m = Mul(x, deep) s = Sigmoid(m) y = Mul(x, s)", "silu"),
]
MORE = ", int64[1] axes = {0}, int64[2] parts = {3, 1}, float[1, 1, 1, 1] deep = {1}"


@pytest.mark.parametrize("text, unwanted", [s[1:] for s in NEARLY], ids=[s[0] for s in NEARLY])
def test_nearly(text: str, unwanted: str) -> None:
    assert unwanted not in text_of(spelled(text, NUMBERS + MORE))


def test_a_value_that_is_an_output_is_computed() -> None:
    assert "silu" not in text_of(spelled("s = Sigmoid(x) y = Mul(x, s)", outputs="s"))


def test_a_trained_factor_is_none_of_the_formula() -> None:
    model = spelled('a = Mul(x, "act.beta") s = Sigmoid(a) y = Mul(x, s)', 'float[1] "act.beta" = {1}')
    assert "sigmoid" in text_of(model)


def test_a_clamp_of_one_step_stays() -> None:
    assert "x.clamp(-2, 1)" in text_of(spelled("y = Clip(x, least, one)", NUMBERS))
    assert "x.clamp(min=0)" in text_of(spelled("y = Max(x, zero)", NUMBERS))
    assert "F.relu(x)" in text_of(spelled("y = Relu(x)", NUMBERS))


PRELU = [
    "p = Relu(x) n = Neg(x) r = Relu(n) m = Mul(w, r) y = Sub(p, m)",
    "p = Relu(x) n = Neg(x) r = Relu(n) v = Neg(w) m = Mul(v, r) y = Add(p, m)",
    "p = Relu(x) a = Abs(x) s = Sub(x, a) m = Mul(w, s) h = Mul(m, half) y = Add(p, h)",
    "m = Mul(x, w) c = Greater(x, zero) y = Where(c, x, m)",
]


@pytest.mark.parametrize("text", PRELU)
def test_prelu_is_a_layer(text: str) -> None:
    """Keras, MXNet and others spell it; the slope stays what is trained."""
    model = spelled(text.replace("w", '"act.weight"'), NUMBERS + ', float[2, 1] "act.weight" = {0.25, 0.5}')
    ran = hold(model, "return self.act(x)", lambda x: F.prelu(x, torch.tensor([0.25, 0.5])))
    assert "nn.PReLU(2)" in ran.source and list(ran.model.state_dict()) == ["act.weight"]


def test_logsigmoid() -> None:
    """Both exporters write the logarithm of a sigmoid, which float32 rounds to 0 far out: -inf, where torch's is x."""
    model = spelled("s = Sigmoid(x) y = Log(s)")
    hold(model, "return F.logsigmoid(x)", F.logsigmoid, points(model) / 8)


def test_a_logarithm_to_the_last_bits() -> None:
    """Over all of float32, and where there is none; a half rounds in between, so it stays as it is."""
    x = np.geomspace(1e-38, 3e38, 4000, dtype="float32")
    x[:6] = 0, -1, np.inf, np.nan, 1, 1.0000001
    hold(spelled("l = Log(x) y = Div(l, ten)", NUMBERS, "4000"), "torch.log10(x)", x=x, rtol=4e-7, atol=0)
    hold(spelled("l = Log(x) y = Mul(per_two, l)", NUMBERS, "4000"), "torch.log2(x)", x=x, rtol=4e-7, atol=0)
    half = spelled("l = Log(x) y = Div(l, ten)", "float16 ten = {16539}", kind="float16")
    assert "log10" not in text_of(half)
    double = spelled("l = Log(x) y = Div(l, ten)", "double ten = {2.302585}", kind="double")  # to float32's bits alone
    assert "log10" not in text_of(double)


# (type, 3, 6): ONNX's text syntax has half precision's numbers as their bits
@pytest.mark.parametrize("kind, three, six", [("double", 3, 6), ("float16", 0x4200, 0x4600)])
def test_in_other_precisions(kind: str, three: int, six: int) -> None:
    text = "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)"
    numbers = f"{kind} zero = {{0}}, {kind} three = {{{three}}}, {kind} six = {{{six}}}"
    hold(spelled(text, numbers, kind=kind), "return F.hardswish(x)", F.hardswish)


def test_a_double_that_float32_has_not_stays() -> None:
    numbers = "double slope = {0.1}"
    assert "leaky" not in text_of(spelled("a = Mul(x, slope) y = Max(x, a)", numbers, kind="double"))
    numbers = "double slope = {0.125}"
    assert "F.leaky_relu(x, 0.125)" in text_of(spelled("a = Mul(x, slope) y = Max(x, a)", numbers, kind="double"))


def test_the_file_s_opset_does_not_matter() -> None:
    hold(spelled("s = Sigmoid(x) y = Mul(x, s)", opset=9), "return F.silu(x)", F.silu)
    text = "a = Add(x, three) c = Clip<min = 0.0, max = 6.0>(a) m = Mul(x, c) y = Div(m, six)"
    hold(spelled(text, NUMBERS, opset=9), "return F.hardswish(x)", F.hardswish)


def test_swiglu_and_geglu_stay_readable() -> None:
    stored = 'float[4, 4] "gate.weight" = {' + ",".join(f"{i / 100}" for i in range(16)) + "}, "
    stored += 'float[4, 4] "up.weight" = {' + ",".join(f"{i / 100}" for i in range(16)) + "}, " + NUMBERS
    gates = 'g = MatMul(x, "gate.weight") u = MatMul(x, "up.weight") '
    # stored as [in, out], these are parameters of their own
    swiglu = text_of(spelled(gates + "s = Sigmoid(g) a = Mul(g, s) y = Mul(a, u)", stored))
    assert "F.silu(" in swiglu and "sigmoid" not in swiglu
    gelu = "a = Div(g, root2) b = Erf(a) c = Add(b, one) d = Mul(g, c) e = Mul(d, half) y = Mul(u, e)"
    assert "F.gelu(" in text_of(spelled(gates + gelu, stored))


# (the graph of x and y = what is left of it, what forward must say)
NEUTRAL = [
    ("m = Mul(x, one) y = Tanh(m)", "return torch.tanh(x)"),
    ("m = Mul(one, x) d = Div(m, one) y = Tanh(d)", "return torch.tanh(x)"),
    ("a = Add(zero, x) s = Sub(a, zero) y = Tanh(s)", "return torch.tanh(x)"),
    ("p = Pow(x, one) y = Tanh(p)", "return torch.tanh(x)"),
    ("g = Greater(x, zero) a = And(yes, g) o = Or(a, no) y = Where(o, x, one)", "torch.where(x > 0, x, 1.0)"),
    ("s = Sub(zero, x) y = Tanh(s)", "torch.tanh(0 - x)"),
    ("d = Div(one, x) y = Tanh(d)", "torch.tanh(1 / x)"),
    ("m = Mul(x, deep) y = Tanh(m)", "torch.tanh(x * "),
    ("m = Mul(x, two) y = Tanh(m)", "torch.tanh(2 * x)"),
    ('m = Mul(x, "a.scale") y = Tanh(m)', "x * self.scale"),
]


@pytest.mark.parametrize("text, wanted", NEUTRAL, ids=[n[0] for n in NEUTRAL])
def test_what_changes_nothing_is_dropped(text: str, wanted: str) -> None:
    truth = ", bool yes = {1}, bool no = {0}, " + 'float[1] "a.scale" = {1}'
    assert wanted in text_of(spelled(text, NUMBERS + MORE + truth))
