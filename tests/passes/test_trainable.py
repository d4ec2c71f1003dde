"""Which stored tensors are trained: by the place that a tensor stands in, and not by a name that says nothing of it.

Files of exporters other than PyTorch's name constants as they name weights (`helper.constant.3`). The first exponent
that is trained ends training: its derivative is NaN where the base is negative.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser

from onnxgen import generate
from onnxgen.graph.annotations import TRAINABLE
from onnxgen.options import Options
from onnxgen.pipeline import read_and_simplify
from onnxgen.runtime.load import from_pretrained, imported
from tests.ops.harness import assert_same, run_onnxruntime
from tests.support.real import run

draw = np.random.default_rng(0)


def written(path: Path, nodes: str, tensors: dict[str, Any], producer: str = "") -> onnx.ModelProto:
    """A 1x1 convolution of a map x into a, and then `nodes`, which compute y."""
    text = f"""<ir_version: 8, opset_import: ["" : 13], producer_name: "{producer}">
    net (float[N, 4, 6, 6] x) => (float[N, C, H, W] y) {{ a = Conv (x, "conv2d_0.w_0") {nodes} }}"""
    model = parser.parse_model(text)
    tensors = {"conv2d_0.w_0": draw.standard_normal((4, 4, 1, 1)), **tensors}
    for name, array in tensors.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    onnx.save(model, path)
    return model


def decided(path: Path) -> dict[str, tuple[bool, str]]:
    """The decision on each initializer that is still there."""
    found = read_and_simplify(path, Options(paranoid=True)).graph.initializers
    return {name: TRAINABLE.get(value) for name, value in found.items()}


@pytest.mark.parametrize(
    ("node", "number", "trained"),
    [
        ('y = Pow (a, "helper.constant.0")', 2.0, False),
        ('y = Pow (a, "helper.constant.0")', 2.8341067, False),
        ('y = Pow (a, "helper.constant.0")', [[[2.8341067]], [[3.1]], [[2.2]], [[1.7]]], False),
        ('y = Clip (a, "helper.constant.0")', 0.0, False),
        ('y = Clip (a, "helper.constant.0")', -3.1415123, False),
        ('y = Mul (a, "helper.constant.0")', 0.8, False),  # the scale of a Dropout that is not in the file
        ('y = Div (a, "helper.constant.0")', 6.0, False),
        ('b = ReduceMean (a) c = Add (b, "helper.constant.0") y = Sqrt (c)', 1e-5, False),
        ('y = Mul (a, "helper.constant.0")', 32**-0.25, False),
        ('y = Mul (a, "blocks.3.alpha")', 1.3841065, True),
        ('y = Mul (a, "blocks.3.weight")', 1.0, True),
        ('y = Mul (a, "blocks.3.alpha")', 1.0, True),  # a constant would do nothing: it is a parameter that begins
        ('y = Add (a, "blocks.3.alpha")', 1.0, False),
        ('y = Add (a, "helper.constant.0")', 0.0, False),
    ],
)
def test_a_number_is_trained_by_its_place(node: str, number: Any, trained: bool, tmp_path: Path) -> None:
    name = node.split('"')[1]
    written(tmp_path / "net.onnx", node, {name: number})
    assert decided(tmp_path / "net.onnx").get(name, (False,))[0] is trained


def test_what_pytorch_recorded_is_trained(tmp_path: Path) -> None:
    written(tmp_path / "net.onnx", 'c = Relu (a) y = Pow (c, "gem.p")', {"gem.p": 3.0}, "pytorch")
    assert decided(tmp_path / "net.onnx")["gem.p"][0]
    written(tmp_path / "net.onnx", 'c = Relu (a) y = Pow (c, "gem.p")', {"gem.p": 2.8341067})
    assert not decided(tmp_path / "net.onnx")["gem.p"][0]
    generated = generate(tmp_path / "net.onnx", tmp_path / "net.py")
    assert "not trained: gem.p, an exponent or a bound" in " ".join(generated.report.notes)
    generated = generate(tmp_path / "net.onnx", tmp_path / "net.py", Options(trainable="gem"))
    assert not any("gem.p" in note for note in generated.report.notes)


def test_gradients_are_finite_where_a_file_names_its_constants(tmp_path: Path) -> None:
    """A LayerNorm and a hard swish, as Paddle's exporters write them."""
    nodes = """
    m = ReduceMean <axes = [1]> (a) d = Sub (a, m) s = Pow (d, "helper.constant.0") v = ReduceMean <axes = [1]> (s)
    e = Add (v, "helper.constant.1") r = Sqrt (e) n = Div (d, r) g = Mul (n, "layer_norm_0.w_0")
    p = Add (g, "helper.constant.2") c = Clip (p, "helper.constant.3", "helper.constant.4")
    h = Mul (g, c) y = Div (h, "helper.constant.4")"""
    numbers = dict(zip((f"helper.constant.{i}" for i in range(5)), (2.0, 1e-5, 3.0, 0.0, 6.0)))
    model = written(tmp_path / "net.onnx", nodes, {**numbers, "layer_norm_0.w_0": draw.standard_normal((4, 1, 1))})
    feeds = {"x": draw.standard_normal((2, 4, 6, 6)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    made.outputs[0].sum().backward()
    gradients = [p.grad for p in made.model.parameters()]
    assert sorted(p.numel() for p in made.model.parameters() if p.requires_grad) == [4, 16]
    assert all(g is not None and bool(torch.isfinite(g).all()) for g in gradients)


def test_a_batchnorm_that_is_spelled_out(tmp_path: Path) -> None:
    """Its statistics are not trained, whatever their names: a variance below 0 has no root."""
    nodes = """d = Sub (a, "bn.w_1_deepcopy_3") e = Add ("bn.w_2_deepcopy_4", eps) q = Sqrt (e) n = Div (d, q)
    g = Mul (n, "s") y = Add (g, "b")"""
    sizes = dict.fromkeys(("bn.w_1_deepcopy_3", "bn.w_2_deepcopy_4", "s", "b"), (4, 1, 1))
    tensors = {name: np.abs(draw.standard_normal(size)) for name, size in sizes.items()}
    model = written(tmp_path / "net.onnx", nodes, {**tensors, "eps": 1e-5})
    found = decided(tmp_path / "net.onnx")
    assert found["s"][0] and found["b"][0]
    assert not any(found.get(name, (False,))[0] for name in ("bn.w_1_deepcopy_3", "bn.w_2_deepcopy_4"))
    feeds = {"x": draw.standard_normal((2, 4, 6, 6)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    assert sorted(p.numel() for p in made.model.parameters() if p.requires_grad) == [4, 4, 16]


def test_layers_whose_tensors_are_copied(tmp_path: Path) -> None:
    """Paddle's newer exporter gives tensors by Identity, with names that say nothing."""
    nodes = """k = Identity ("conv2d_12.w_0_deepcopy_57") c = Conv (a, k) s = Identity ("bn.w_0_deepcopy_5")
    b = Identity ("bn.b_0_deepcopy_6") m = Identity ("bn.w_1_deepcopy_3") v = Identity ("bn.w_2_deepcopy_4")
    y = BatchNormalization (c, s, b, m, v)"""
    tensors = {name.split('"')[0]: np.abs(draw.standard_normal(4)) for name in nodes.split('("bn.')[1:]}
    tensors = {f"bn.{name}": array for name, array in tensors.items()}
    tensors["conv2d_12.w_0_deepcopy_57"] = draw.standard_normal((4, 4, 1, 1))
    model = written(tmp_path / "net.onnx", nodes, tensors)
    feeds = {"x": draw.standard_normal((2, 4, 6, 6)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    assert [type(m).__name__ for m in made.model.children()] == ["Conv2d", "Conv2d", "BatchNorm2d"]


@pytest.mark.parametrize("way", ["as it is", "reshaped", "transposed"])
def test_the_bias_of_one_channel(way: str, tmp_path: Path) -> None:
    """One number that is added to a convolution is its bias, if it has no other."""
    kernel = draw.standard_normal((4, 1, 2, 2) if way == "transposed" else (1, 4, 2, 2))
    layer = "ConvTranspose" if way == "transposed" else "Conv"
    bias = 'f = Constant <value_ints = [1, -1, 1, 1]> () e = Reshape ("b_0", f)' if way == "reshaped" else ""
    nodes = f'{bias} c = {layer} (a, "w_0") y = Add (c, {"e" if bias else "b_0"})'
    model = written(tmp_path / "net.onnx", nodes, {"w_0": kernel, "b_0": [0.1308304] if bias else [[[[0.1308304]]]]})
    feeds = {"x": draw.standard_normal((2, 4, 6, 6)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    assert decided(tmp_path / "net.onnx")["b_0"] == (True, "the bias of a product with a weight")
    assert [p.item() for name, p in made.model.named_parameters() if name.endswith("bias")] == [np.float32(0.1308304)]


@pytest.mark.parametrize("number", [3.0, 0.5])
def test_what_is_added_to_one_channel_may_be_a_constant(number: float, tmp_path: Path) -> None:
    nodes = 'c = Conv (a, "w_0") d = Add (c, "three") y = Sigmoid (d)'
    written(tmp_path / "net.onnx", nodes, {"w_0": draw.standard_normal((1, 4, 1, 1)), "three": number})
    assert not decided(tmp_path / "net.onnx").get("three", (False,))[0]


SCALED = "z = MatMul (s, w) y = Add (z, bias)"
NUMBERS = {"mean": (3,), "inverse": (3,), "variance": (3,), "w0": (3, 3), "w": (3, 2), "bias": (2,), "places": (5, 3)}
SCALERS = [
    ("c = Sub (x, mean) s = Mul (c, inverse)", "mean inverse", ""),
    ("c = Sub (x, mean) s = Div (c, inverse)", "mean inverse", ""),
    ("c = Mul (x, inverse) s = Add (c, mean)", "mean inverse", ""),
    ("c = Add (mean, x) d = Mul (inverse, c) s = Clip (d, low, high)", "mean inverse", ""),
    ("f = Cast <to=1> (x) c = Sub (f, mean) s = Mul (c, inverse)", "mean inverse", ""),
    ("t = Identity (x) c = Sub (t, mean) r = Reciprocal (inverse) s = Mul (c, r)", "mean inverse", ""),
    ("c = Sub (x, mean) e = Sqrt (variance) s = Div (c, e)", "mean variance", ""),
    ("s = ai.onnx.ml.Scaler <offset = [0.5, 1.7, 2.9], scale = [1.1, 0.3, 2.2]> (x)", "s:offset s:scale", ""),
    # Layers of the network, although they are affine.
    ("m = MatMul (x, w0) c = Mul (m, inverse) s = Add (c, mean)", "", "w0 inverse mean"),
    ("r = Relu (x) c = Mul (r, inverse) s = Add (c, mean)", "", "inverse mean"),
    ("r = Tanh (x) c = Sub (r, mean) s = Mul (c, inverse)", "", "inverse mean"),
    ("s = Add (x, places)", "", "places"),
]


def scaled(nodes: str, path: Path, shape: str = "n, 3") -> None:
    """Write a network with an input x and weights as drawn; its exporter records nothing."""
    text = f"""<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    net (float[{shape}] x) => (y) {{ {nodes} }}"""
    model = parser.parse_model(text)
    for name, size in NUMBERS.items():
        if name in text:
            array = (np.abs(draw.standard_normal(size)) + 0.1).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    for name, bound in {"low": -5.0, "high": 5.0}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.float32(bound), name))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    onnx.save(model, path)


@pytest.mark.parametrize(("nodes", "frozen", "trained"), SCALERS)
def test_the_scaler_of_an_input_is_not_trained(nodes: str, frozen: str, trained: str, tmp_path: Path) -> None:
    scaled(f"{nodes} {SCALED}", tmp_path / "net.onnx", "n, 5, 3" if "places" in nodes else "n, 3")
    found = decided(tmp_path / "net.onnx")
    assert all(found[name][0] for name in ("w", "bias", *trained.split()))
    assert all(found[name] == (False, "the mean or standard deviation of the input") for name in frozen.split())


@pytest.mark.parametrize("name", ["encoder/first.weight", "onnx::first.weight", "a b;first.bias", "0/first.weight"])
def test_a_name_that_ends_as_that_of_a_parameter_tells_one(name: str, tmp_path: Path) -> None:
    """Whatever a tool has put before it; else it would be taken for the mean of the input."""
    scaled(f"s = Add (x, mean) {SCALED}", tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    (mean,) = (tensor for tensor in model.graph.initializer if tensor.name == "mean")
    mean.name = model.graph.node[0].input[1] = name
    onnx.save(model, tmp_path / "net.onnx")
    assert decided(tmp_path / "net.onnx")[name][0]
    assert "11 parameters" in generate(tmp_path / "net.onnx", tmp_path / "net.py").source


def test_a_fresh_norm_of_a_merged_network_keeps_its_parameters(tmp_path: Path) -> None:
    """Merging puts a prefix before names; PyTorch's exporter names no norm's weight so that has none."""
    text = """<ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
    net (float[n, 3] x) => (float[n, 3] y) <float[3] "enc/norm.weight" = {1, 1, 1}, float[3] "onnx::4" = {1, 1, 1}>
    { z = LayerNormalization (x, "enc/norm.weight") t = Tanh (z) y = LayerNormalization (t, "onnx::4") }"""
    onnx.save(parser.parse_model(text), tmp_path / "net.onnx")
    found = decided(tmp_path / "net.onnx")
    assert found["enc/norm.weight"][0] and not found["onnx::4"][0]
    assert "3 parameters" in generate(tmp_path / "net.onnx", tmp_path / "net.py").source


@pytest.mark.parametrize("nodes", ["c = Mul (x, inverse) y = ReduceSum (c)", "c = Mul (x, inverse) y = Add (c, mean)"])
def test_weights_without_a_layer_behind_them_are_trained(nodes: str, tmp_path: Path) -> None:
    """A linear model may be a product and a sum."""
    scaled(nodes, tmp_path / "net.onnx")
    assert decided(tmp_path / "net.onnx")["inverse"][0]


def test_a_training_leaves_the_scaler_of_a_policy(tmp_path: Path) -> None:
    """The oracle is a loop of torch over the layer alone, with the observations as numpy scales them."""
    scaled(f"c = Sub (x, mean) d = Mul (c, inverse) s = Clip (d, low, high) {SCALED}", tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    stored = onnx.load(tmp_path / "net.onnx").graph.initializer
    tensors = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in stored}
    x, y = torch.randn(32, 3), torch.randn(32, 2)
    scaled_x = ((x - tensors["mean"]) * tensors["inverse"]).clamp(-5, 5)
    w, bias = tensors["w"].requires_grad_(), tensors["bias"].requires_grad_()
    with imported(tmp_path / "net.py") as file:
        model = from_pretrained(file, tmp_path / "net.py").train()
    ours, theirs = torch.optim.SGD(model.parameters(), 0.1), torch.optim.SGD([w, bias], 0.1)
    for _ in range(5):
        for optimizer, made in ((ours, lambda: model(x)), (theirs, lambda: scaled_x @ w + bias)):
            optimizer.zero_grad()
            (made() - y).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model(x), scaled_x @ w + bias, rtol=1e-5, atol=1e-5)
