"""Layers whose input is quantised at run time, as onnxruntime's `quantize_dynamic` writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic
from torch import Tensor, nn

from onnxgen.code.copied import helper_names
from onnxgen.options import Options
from onnxgen.pipeline import generate
from onnxgen.training import open_model
from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime
from tests.support.exported import exported


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.fc = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0])


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, (1, 3), padding=(0, 1), groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.conv2(F.relu(self.conv1(x))))


def convolutions() -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), *[Block(8) for _ in range(3)], head)


def perceptron() -> nn.Module:
    return nn.Sequential(
        *[layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh())], nn.Linear(8, 3, bias=False)
    )


def signal() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 6, 3, dilation=2, bias=False), nn.ReLU(), nn.Conv1d(6, 6, 3, padding=1))


def perturbed(model: nn.Module) -> nn.Module:
    """Exporters store equal tensors once."""
    torch.manual_seed(3)
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return model.eval()


LAYERS = ("MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM")
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (convolutions, (2, 3, 9, 9)),
    "perceptron": (perceptron, (5, 8)),
    "signal": (signal, (2, 4, 12)),
    "recurrent": (Recurrent, (1, 5, 4)),
}


def quantised(name: str, folder: Path, **options: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    make, shape = NETS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    onnx.save(exported(perturbed(make()), [x]), folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "dynamic.onnx", **options)
    return onnx.load(folder / "dynamic.onnx"), {"i0": x.numpy()}


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Ran:
    ran = run_model(model, feeds)
    assert_same(ran.outputs[0], run_onnxruntime(model, feeds)[0], rtol=1e-5, atol=1e-6)
    return ran


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_layers_are_modules(name: str, by_column: bool, tmp_path: Path) -> None:
    model, feeds = quantised(name, tmp_path, per_channel=by_column)
    ran = check(model, feeds)
    classes = ran.source.partition("\nWEIGHTS = ")[0]
    assert "dynamic_quantize" not in classes and "constant(" not in classes
    layers = sum(node.op_type in LAYERS for node in model.graph.node)
    made = [m for m in ran.model.modules() if type(m).__name__.startswith("Dynamic")]
    assert len(made) == layers > 0
    if name != "recurrent":  # whose two layers were one module
        assert {key for key, m in ran.model.named_modules() if m in made} <= {
            k for k, _ in NETS[name][0]().named_modules()
        }


def test_copies_of_a_block_are_one_class(tmp_path: Path) -> None:
    classes = check(*quantised("convolutions", tmp_path)).source.partition("\nWEIGHTS = ")[0]
    found = set(re.findall(r"^class (\w+)", classes, re.MULTILINE)) - helper_names()
    assert len(found) == 2, classes


def test_a_bias_is_trained_where_a_gradient_reaches_it(tmp_path: Path) -> None:
    """Behind another quantised layer there is none."""
    model = check(*quantised("convolutions", tmp_path)).model
    assert [name for name, _ in model.named_parameters()] == ["4.2.bias"]


def old(**changes: Any) -> onnx.ModelProto:
    """As older quantisers write it: the bias is rounded down to integers. `changes`: attributes of the convolution."""
    rng = np.random.default_rng(0)
    stored = {
        "w": rng.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8), "wz": np.uint8(119), "ws": np.float32(0.0123),
        "b": rng.normal(size=4).astype(np.float32) * 9, "shape": np.array([1, -1, 1, 1], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Div", ["b", "scale"], ["quotient"]),
        helper.make_node("Floor", ["quotient"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["whole"], to=TensorProto.INT32),
        helper.make_node("Reshape", ["whole", "shape"], ["spread"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["total"], **{"pads": [1] * 4, **changes}),
        helper.make_node("Add", ["total", "spread"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale2"]),
        helper.make_node("Mul", ["float", "scale2"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w_"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("changes", "is_module"),
    [({}, True), ({"strides": [2, 1]}, True), ({"pads": [0, 1, 1, 1]}, False), ({"auto_pad": "SAME_LOWER"}, False)],
)
def test_a_bias_that_is_rounded_down(changes: dict[str, Any], is_module: bool) -> None:
    model = old(**changes)
    if "auto_pad" in changes:
        model.graph.node[6].attribute.pop()  # pads
    feeds = {"x": np.random.default_rng(1).normal(size=(2, 3, 8, 7)).astype(np.float32)}
    assert ("rounded=True" in check(model, feeds).source) == is_module


def test_scales_and_zero_points_of_columns_or_of_all() -> None:
    """A layer has both of one kind; else a function is given the tensors."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 8)).astype(np.float32)
    scales = np.float32(0.02), rng.uniform(0.01, 0.05, 4).astype(np.float32)
    zeros = np.uint8(119), rng.integers(100, 150, 4).astype(np.uint8)
    for scale, zero in ((s, z) for s in scales for z in zeros):
        stored = {
            "w": rng.integers(0, 256, (8, 4)).astype(np.uint8), "ws": scale, "wz": zero,
            "b": rng.normal(size=4).astype(np.float32),
        }  # fmt: skip
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["total"]),
            helper.make_node("Cast", ["total"], ["float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["s", "ws"], ["scale"]),
            helper.make_node("Mul", ["float", "scale"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["y"]),
        ]
        tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
        given, made = (
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["n", 8]), ("y", None))
        )
        graph = helper.make_graph(nodes, "g", [given], [made], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        ran = check(model, {"x": x})
        is_layer = np.ndim(scale) == np.ndim(zero)
        assert ("class DynamicLinear" in ran.source) == is_layer


@pytest.mark.parametrize("name", ["ws", "b"])
def test_what_is_computed_is_no_layer(name: str) -> None:
    """A scale or bias that is an input of the network."""
    model, feeds = old(), {"x": np.random.default_rng(1).normal(size=(2, 3, 8, 7)).astype(np.float32)}
    tensor = next(t for t in model.graph.initializer if t.name == name)
    model.graph.initializer.remove(tensor)
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(tensor.dims)))
    assert "class Dynamic" not in check(model, {**feeds, name: numpy_helper.to_array(tensor)}).source


def test_a_sum_of_integers_that_is_used_twice_is_no_layer() -> None:
    model = old()
    model.graph.output.append(helper.make_tensor_value_info("total", TensorProto.INT32, None))
    feeds = {"x": np.random.default_rng(1).normal(size=(1, 3, 5, 5)).astype(np.float32)}
    ran = run_model(model, feeds)
    for made, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
        assert_same(made, expected, rtol=1e-5, atol=1e-6)
    assert "class Dynamic" not in ran.source


@pytest.mark.parametrize("name", ["convolutions", "perceptron"])
def test_with_another_dtype_results_have_it(name: str, tmp_path: Path) -> None:
    """Sums and scales are float32 inside."""
    model, feeds = quantised(name, tmp_path)
    generate(tmp_path / "dynamic.onnx", tmp_path / "m.py", Options(dtype="bfloat16"))
    made = open_model(tmp_path / "m.py")(torch.from_numpy(feeds["i0"]).bfloat16())
    assert made.dtype == torch.bfloat16
    assert_same(made.detach().float().numpy(), run_onnxruntime(model, feeds)[0], rtol=0.1, atol=0.05)
