"""Normalisation layers in every spelling that exporters write, and what nearly is one."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.exported import held
from tests.support.idioms import hold, points, spelled, text_of
from tests.zoo.norms import ChannelLayerNorm

WEIGHT, BIAS = [0.5, 2.0, -1.0, 1.5], [0.25, -0.5, 1.0, 3.0]
NUMBERS = (
    "float eps = {0.001}, float two = {2}, float half = {0.5}, float minus = {-0.5}, float one = {1}, float n = {4}, "
    "float less = {3}, int64[3] groups = {0, 2, -1}, int64[4] deep = {0, 2, 2, -1}, int64[4] back = {2, 4, 2, 2}"
)


def stored(*shape: int, weight: str = "norm.weight", bias: str = "norm.bias") -> str:
    """A scale and a bias of four elements."""
    dims = ", ".join(map(str, shape))
    numbers = [", ".join(map(str, v)) for v in (WEIGHT, BIAS)]
    return f'float[{dims}] "{weight}" = {{{numbers[0]}}}, float[{dims}] "{bias}" = {{{numbers[1]}}}, {NUMBERS}'


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(WEIGHT), torch.tensor(BIAS)


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (4,), *weights(), eps=1e-3)


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (4,), weights()[0], eps=1e-3)


def channels_first(x: torch.Tensor) -> torch.Tensor:
    return layer_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def instance_norm(x: torch.Tensor) -> torch.Tensor:
    return F.instance_norm(x, None, None, *weights(), eps=1e-3)


def group_norm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 2, *weights(), eps=1e-3)


def centred(axes: str) -> str:
    return f"m = ReduceMean<axes = {axes}>(x) d = Sub(x, m) "


def spread(axes: str, square: str = "q = Mul(d, d) ") -> str:
    return square + f"v = ReduceMean<axes = {axes}>(q) e = Add(v, eps) "


AFFINE = 'h = Mul(z, "norm.weight") y = Add(h, "norm.bias")'
LAYER_NORMS = {
    "torch's legacy exporter": spread("[-1]", "q = Pow(d, two) ") + "s = Sqrt(e) z = Div(d, s) " + AFFINE,
    "the square by Mul, the root's reciprocal": spread("[2]") + "s = Sqrt(e) r = Reciprocal(s) z = Mul(r, d) " + AFFINE,
    "1 / root": spread("[2]") + "s = Sqrt(e) r = Div(one, s) z = Mul(d, r) " + AFFINE,
    "eps first, bias first": "q = Mul(d, d) v = ReduceMean<axes = [-1]>(q) e = Add(eps, v) s = Sqrt(e) z = Div(d, s) "
    'h = Mul("norm.weight", z) y = Add("norm.bias", h)',
    "by powers": "q = Pow(d, two) v = ReduceMean<axes = [2]>(q) e = Add(v, eps) s = Pow(e, half) z = Div(d, s) "
    + AFFINE,
    "by one power": spread("[2]") + "s = Pow(e, minus) z = Mul(d, s) " + AFFINE,
    "the scale on the root": spread("[2]") + 's = Sqrt(e) r = Reciprocal(s) w = Mul(r, "norm.weight") h = Mul(d, w) '
    'y = Add(h, "norm.bias")',
    "the difference twice": "c = Sub(x, m) q = Mul(c, c) v = ReduceMean<axes = [2]>(q) e = Add(v, eps) s = Sqrt(e) "
    "z = Div(d, s) " + AFFINE,
    "TensorFlow": spread("[2]") + 's = Sqrt(e) r = Reciprocal(s) w = Mul(r, "norm.weight") a = Mul(x, w) b = Mul(m, w) '
    'c = Sub("norm.bias", b) y = Add(a, c)',
    "TensorFlow, the mean negative": spread("[2]") + 's = Sqrt(e) r = Reciprocal(s) w = Mul(r, "norm.weight") '
    'a = Mul(x, w) g = Neg(m) b = Mul(g, w) c = Add("norm.bias", b) y = Add(a, c)',
}


@pytest.mark.parametrize("text", LAYER_NORMS.values(), ids=LAYER_NORMS)
def test_layer_norm(text: str) -> None:
    """As `nn.LayerNorm`, with the file's names in its state dict; the axes may be counted from either end."""
    ran = hold(spelled(centred("[-1]") + text, stored(4)), "return self.norm(x)", layer_norm, atol=1e-4)
    assert "nn.LayerNorm(4, eps=" in ran.source
    assert list(ran.model.state_dict()) == ["norm.weight", "norm.bias"]


def test_layer_norm_with_fewer_weights() -> None:
    head = centred("[-1]") + spread("[-1]") + "s = Sqrt(e) "
    ran = hold(
        spelled(head + 'z = Div(d, s) y = Mul(z, "norm.weight")', stored(4)),
        "return self.norm(x)",
        lambda x: F.layer_norm(x, (4,), weights()[0], eps=1e-3),
        atol=1e-4,
    )
    assert "bias=False" in ran.source
    plain = spelled(head + "y = Div(d, s)", stored(4))
    hold(plain, "return F.layer_norm(x, (4,), eps=0.001)", lambda x: F.layer_norm(x, (4,), eps=1e-3), atol=1e-4)
    last = stored(1, 1, 4)
    hold(spelled(head + f"z = Div(d, s) {AFFINE}", last), "return self.norm(x)", layer_norm, atol=1e-4)


def test_layer_norm_over_several_axes() -> None:
    text = centred("[1, 2]") + spread("[2, 1]") + "s = Sqrt(e) z = Div(d, s) " + AFFINE
    model = spelled(text, stored(2, 2), shape="3, 2, 2")
    wanted = [w.reshape(2, 2) for w in weights()]
    ran = hold(model, "return self.norm(x)", lambda x: F.layer_norm(x, (2, 2), *wanted, eps=1e-3), atol=1e-4)
    assert "nn.LayerNorm((2, 2)" in ran.source


class Around(nn.Module):
    def __init__(self, inner: nn.Module, channels: int) -> None:
        super().__init__()
        self.conv, self.inner = nn.Conv2d(channels, 4, 1), inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.inner(self.conv(x)))


def test_layer_norm_of_channels_in_any_depth() -> None:
    """The weights are parameters of the module that has the Transposes, however deep it is."""
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    ran = held(Around(Around(ChannelLayerNorm(4), 4), 3), [x], "legacy-17-train")  # which folds no weight
    assert "(4,), self.weight, self.bias" in " ".join(ran.source.split()), ran.source


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1)])
def test_layer_norm_of_channels(shape: tuple[int, ...]) -> None:
    """ConvNeXt's, over the channels of images: a module that has the Transposes, too."""
    text = centred("[1]") + spread("[1]", "q = Pow(d, two) ") + "s = Sqrt(e) z = Div(d, s) "
    text += 'h = Mul("norm.weight", z) y = Add(h, "norm.bias")'
    model = spelled(text, stored(*shape), shape="2, 4, 2, 3")
    ran = hold(model, "return self.norm(x)", channels_first, atol=1e-4)
    body = " ".join(ran.source.split())
    assert "F.layer_norm(x.permute(0, 2, 3, 1), (4,), self.weight, self.bias, eps=0.001)" in body
    assert "return x.permute(0, 3, 1, 2)" in body
    assert {key: tuple(value.shape) for key, value in ran.model.state_dict().items()} == {
        "norm.weight": (4,),
        "norm.bias": (4,),
    }


RMS_NORMS = {
    "Llama, torch's legacy exporter": "q = Pow(x, two) v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) s = Sqrt(e) "
    'r = Div(one, s) z = Mul(x, r) y = Mul("norm.weight", z)',
    "Llama, torch's dynamo exporter": "q = Pow(x, two) v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) s = Sqrt(e) "
    'r = Reciprocal(s) z = Mul(x, r) y = Mul("norm.weight", z)',
    "by Mul and Div": "q = Mul(x, x) v = ReduceMean<axes = [2]>(q) e = Add(eps, v) s = Sqrt(e) z = Div(x, s) "
    'y = Mul(z, "norm.weight")',
    "the scale on the root": "q = Mul(x, x) v = ReduceMean<axes = [2]>(q) e = Add(eps, v) s = Pow(e, minus) "
    'w = Mul(s, "norm.weight") y = Mul(x, w)',
}


@pytest.mark.parametrize("text", RMS_NORMS.values(), ids=RMS_NORMS)
def test_rms_norm(text: str) -> None:
    ran = hold(spelled(text, stored(4)), "return self.norm(x)", rms_norm, atol=1e-4)
    assert "nn.RMSNorm(4, eps=" in ran.source and list(ran.model.state_dict()) == ["norm.weight"]


def test_rms_norm_with_another_scale() -> None:
    head = "q = Mul(x, x) v = ReduceMean<axes = [2]>(q) e = Add(eps, v) s = Sqrt(e) "
    plain = spelled(head + "y = Div(x, s)", stored(4))
    hold(plain, "return F.rms_norm(x, (4,), eps=0.001)", lambda x: F.rms_norm(x, (4,), eps=1e-3), atol=1e-4)
    gemma = spelled(head + 'z = Div(x, s) w = Add("norm.weight", one) y = Mul(z, w)', stored(4))
    wanted = "return F.rms_norm(x, (4,), self.norm(), eps=0.001)"  # whose one weight it is that is added to
    hold(gemma, wanted, lambda x: F.rms_norm(x, (4,), weights()[0] + 1, eps=1e-3), atol=1e-4)


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1)])
def test_rms_norm_of_channels(shape: tuple[int, ...]) -> None:
    text = "q = Mul(x, x) v = ReduceMean<axes = [1]>(q) e = Add(eps, v) s = Sqrt(e) z = Div(x, s) "
    model = spelled(text + 'y = Mul(z, "norm.weight")', stored(*shape), shape="2, 4, 2, 4")
    ran = hold(model, "return self.norm(x)", lambda x: rms_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), atol=1e-4)
    assert "F.rms_norm(x.permute(0, 2, 3, 1), (4,), self.weight, eps=0.001)" in " ".join(ran.source.split())
    assert {key: tuple(value.shape) for key, value in ran.model.state_dict().items()} == {"norm.weight": (4,)}


def test_rms_norm_of_half_precision_is_computed_in_float32() -> None:
    text = (
        "f = Cast<to = 1>(x) q = Pow(f, two) v = ReduceMean<axes = [-1]>(q) e = Add(v, eps) s = Sqrt(e) "
        'r = Div(one, s) z = Mul(f, r) c = Cast<to = 10>(z) y = Mul("norm.weight", c)'
    )
    half = NUMBERS + ', float16[4] "norm.weight" = {14336, 16384, 15360, 15872}'  # 0.5, 2, 1, 1.5 as their bits
    model = spelled(text, half, kind="float16")
    hold(model, "return self.norm(x)", None, points(model) / 8)


INSTANCE = centred("[2, 3]") + spread("[2, 3]") + "s = Sqrt(e) "


def test_instance_norm() -> None:
    model = spelled(INSTANCE + "z = Div(d, s) " + AFFINE, stored(4, 1, 1), shape="2, 4, 2, 2")
    ran = hold(model, "return self.norm(x)", instance_norm, atol=1e-4)
    assert "nn.InstanceNorm2d(4, eps=" in ran.source
    plain = spelled(INSTANCE + "y = Div(d, s)", NUMBERS, shape="2, 4, 2, 2")
    hold(plain, "return F.instance_norm(x, eps=0.001)", lambda x: F.instance_norm(x, eps=1e-3), atol=1e-4)
    flat = centred("[2]") + spread("[2]") + "s = Sqrt(e) z = Div(d, s) " + AFFINE
    model = spelled(flat, stored(4, 1), shape="2, 4, 3")
    assert "nn.InstanceNorm1d(4" in hold(model, "return self.norm(x)", instance_norm, atol=1e-4).source


BEFORE = "r = Reshape(x, groups) m = ReduceMean<axes = [2]>(r) d = Sub(r, m) "
GROUP_NORMS = {
    "of three axes": BEFORE + spread("[2]") + "s = Sqrt(e) g = Div(d, s) z = Reshape(g, back) ",
    "of four axes": BEFORE.replace("groups", "deep").replace("[2]", "[2, 3]")
    + spread("[2, 3]")
    + "s = Sqrt(e) g = Div(d, s) z = Reshape(g, back) ",
    "torch's exporters": "r = Reshape(x, groups) g = InstanceNormalization<epsilon = 0.001>(r, ones, zeros) "
    "z = Reshape(g, back) ",
}
PLAIN = ", float[2] ones = {1, 1}, float[2] zeros = {0, 0}, float[1, 1, 1] one3 = {1}, float[1, 1, 1] zero3 = {0}"


@pytest.mark.parametrize("text", GROUP_NORMS.values(), ids=GROUP_NORMS)
def test_group_norm(text: str) -> None:
    model = spelled(text + AFFINE, stored(4, 1, 1) + PLAIN, shape="2, 4, 2, 2")
    ran = hold(model, "return self.norm(x)", group_norm, atol=1e-4)
    assert "nn.GroupNorm(2, 4, eps=" in ran.source
    model = spelled(text + "h = Mul(z, one3) y = Add(h, zero3)", NUMBERS + PLAIN, shape="2, 4, 2, 2")
    hold(model, "return F.group_norm(x, 2, eps=0.001)", lambda x: F.group_norm(x, 2, eps=1e-3), atol=1e-4)
    model = spelled(text + "y = Relu(z)", NUMBERS + PLAIN, shape="2, 4, 2, 2")
    hold(model, "F.group_norm(x, 2, eps=0.001)", lambda x: F.relu(F.group_norm(x, 2, eps=1e-3)), atol=1e-4)


# (name, the graph, the scale's shape, what forward must not say)
NEARLY: list[tuple[str, str]] = [
    (
        "a deviation plus eps",
        centred("[2]")
        + "q = Mul(d, d) v = ReduceMean<axes = [2]>(q) s = Sqrt(v) e = Add(s, eps) z = Div(d, e) "
        + AFFINE,
    ),
    (
        "the unbiased variance",
        centred("[2]") + "q = Mul(d, d) a = ReduceMean<axes = [2]>(q) b = Mul(a, n) v = Div(b, less) e = Add(v, eps) "
        "s = Sqrt(e) z = Div(d, s) " + AFFINE,
    ),
    (
        "the mean over one axis, the variance over two",
        centred("[2]") + spread("[1, 2]") + "s = Sqrt(e) y = Div(d, s)",
    ),
    ("over the first axis", centred("[0]") + spread("[0]") + "s = Sqrt(e) y = Div(d, s)"),
    ("the axes dropped", "m = ReduceMean<axes = [0], keepdims = 0>(x) d = Sub(x, m) y = Tanh(d)"),
    ("no eps", centred("[2]") + "q = Mul(d, d) v = ReduceMean<axes = [2]>(q) s = Sqrt(v) y = Div(d, s)"),
    (
        "a centred value that is used",
        centred("[2]") + spread("[2]") + "s = Sqrt(e) z = Div(d, s) y = Add(z, d)",
    ),
    (
        "the square of another",
        centred("[2]")
        + "c = Tanh(d) q = Mul(c, d) v = ReduceMean<axes = [2]>(q) e = Add(v, eps) s = Sqrt(e) y = Div(d, s)",
    ),
]


@pytest.mark.parametrize("text", [s[1] for s in NEARLY], ids=[s[0] for s in NEARLY])
def test_nearly(text: str) -> None:
    source = hold(spelled(text, stored(4)), "", atol=1e-4).source
    assert not re.search("[lL]ayer_?[nN]orm|[iI]nstance_?[nN]orm", source)


def test_a_scale_of_another_axis_stays_outside() -> None:
    text = centred("[2]") + spread("[2]") + "s = Sqrt(e) z = Div(d, s) " + AFFINE
    model = spelled(text, stored(4, 1), shape="2, 4, 4")  # [4, 1] is each row's own: that of an instance norm
    assert "nn.InstanceNorm1d(4" in hold(model, "return self.norm(x)", instance_norm, atol=1e-4).source
    model = spelled(text, stored(2, 2, 1, 1), shape="2, 2, 4")
    assert "self.norm(F.layer_norm(x, (4,), eps=0.001))" in text_of(model)


def test_groups_over_the_batch_are_no_group_norm() -> None:
    text = "r = Reshape(x, one) g = InstanceNormalization(r, ones, zeros) z = Reshape(g, back) y = Relu(z)"
    constants = "int64[3] one = {1, 8, -1}, int64[4] back = {2, 4, 2, 2}, float[8] ones = {1,1,1,1,1,1,1,1}, "
    model = spelled(text, constants + "float[8] zeros = {0,0,0,0,0,0,0,0}", shape="2, 4, 2, 2")
    assert "group_norm" not in hold(model, "", atol=1e-4).forward


SAMPLE = "m = ReduceMean<axes = [2]>(x) d = Sub(x, m) q = Mul(d, d) a = ReduceMean<axes = [2]>(q) "
COUNTED = "k = Shape(x) g = Gather(k, at) p = ReduceProd<keepdims = 0>(g) c = Cast<to = 1>(p) f = Sub(c, one) "
DIVIDED = "b = Mul(a, c) y = Div(b, f)"
STATISTICS = {
    "variance": ("b = Mul(a, n) y = Div(b, less)", "return x.var(dim=-1, keepdim=True)", torch.var),
    "deviation": ("b = Mul(a, n) v = Div(b, less) y = Sqrt(v)", "return x.std(dim=-1, keepdim=True)", torch.std),
    "torch's legacy exporter": (
        COUNTED + DIVIDED,
        "return x.var(dim=-1, keepdim=True)",
        torch.var,
    ),
}
AT = ", int64[1] at = {2}, int64[1] first = {1}"


@pytest.mark.parametrize("text, wanted, original", STATISTICS.values(), ids=STATISTICS)
def test_variance_of_a_sample(text: str, wanted: str, original: Callable[..., torch.Tensor]) -> None:
    hold(spelled(SAMPLE + text, NUMBERS + AT), wanted, lambda x: original(x, -1, keepdim=True), atol=1e-4)


def test_a_variance_of_any_size() -> None:
    model = spelled(SAMPLE + COUNTED + DIVIDED, NUMBERS + AT, shape="2, N, L")
    hold(model, "return x.var(dim=-1, keepdim=True)", lambda x: x.var(-1, keepdim=True), atol=1e-4)
    other = COUNTED.replace("at)", "first)")  # another axis's size
    assert "x.var(" not in text_of(spelled(SAMPLE + other + DIVIDED, NUMBERS + AT, shape="2, N, L"))
    assert "x.var(" not in text_of(spelled(SAMPLE + "b = Mul(a, less) y = Div(b, two)", NUMBERS))
    assert "x.var(" not in text_of(spelled(SAMPLE + "y = Sqrt(a)", NUMBERS))


def test_stored_statistics_stay_spelled_out() -> None:
    """A batch norm that is written out is frozen: `nn.BatchNorm2d` would follow the batch while it is trained."""
    text = 's = Sub(x, "bn.running_mean") a = Add("bn.running_var", eps) r = Sqrt(a) z = Div(s, r) ' + AFFINE
    statistics = ", ".join(f'float[4, 1, 1] "bn.running_{n}" = {{1, 2, 3, 4}}' for n in ("mean", "var"))
    model = spelled(text, f"{stored(4, 1, 1)}, {statistics}", shape="2, 4, 2, 2")
    assert "atchNorm" not in hold(model, "", atol=1e-4).source
