"""Files in QDQ form whose integers are kept: what is rounded is one module, and weights are state."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from torch import nn

from onnxgen.errors import WrongRewrite
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime
from tests.quantized.test_dynamic import convolutions, perturbed
from tests.support.exported import exported


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="relu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (convolutions, (2, 3, 9, 9)),
    "encoder": (encoder, (2, 5, 16)),
}


class Samples(CalibrationDataReader):
    def __init__(self, feeds: dict[str, Any]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Ran:
    ran = run_model(model, feeds)
    for made, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
        assert_same(made, expected, rtol=1e-5, atol=1e-6)
    return ran


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_a_network(name: str, by_channel: bool, tmp_path: Path) -> None:
    make, shape = NETS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    plain, out = tmp_path / "plain.onnx", tmp_path / "pairs.onnx"
    onnx.save(exported(perturbed(make()), [x]), plain)
    feeds = {"i0": x.numpy()}
    quantize_static(plain, out, Samples(feeds), quant_format=QuantFormat.QDQ, per_channel=by_channel)
    ran = check(onnx.load(out), feeds)
    classes = ran.source.partition("\nWEIGHTS = ")[0]
    assert "int8)" in classes and ".to(torch.int8)" not in classes and "constant(" not in classes
    blocks = [m for m in ran.model.modules() if hasattr(m, "conv1") or hasattr(m, "linear1")]
    first = name == "encoder"  # its first layer quantises the network's input
    assert len(blocks) == (2 if first else 3) and len({type(m) for m in blocks}) == 1 + first


def net(steps: list[Any], outputs: list[str], **stored: Any) -> onnx.ModelProto:
    nodes = [helper.make_node(op, inputs, made, **attributes) for op, inputs, made, attributes in steps]
    tensors = {"s": np.float32(0.05), "z": np.int8(3), "s2": np.float32(0.07), **stored}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 6])
    types = {"q": TensorProto.INT8}
    out = [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in outputs]
    kept = [numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items()]
    graph = helper.make_graph(nodes, "g", [x], out, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FEEDS = {"x": np.random.default_rng(0).normal(size=(2, 4, 6)).astype(np.float32) * 3}


def pair(x: str, y: str, scale: str = "s", back: str = "s", q: str = "") -> list[Any]:
    q = q or f"{y}_q"
    return [("QuantizeLinear", [x, scale, "z"], [q], {}), ("DequantizeLinear", [q, back, "z"], [y], {})]


def forward(ran: Ran) -> str:
    """The body of the network's `forward`."""
    return ran.source.partition("\nWEIGHTS = ")[0].rpartition("def forward(")[2]


def rounds(ran: Ran) -> int:
    return sum(type(m).__name__ == "FakeQuantize" for m in ran.model.modules())


@pytest.mark.parametrize("count", [1, 3, 9, 20])
def test_what_only_moves_is_rounded_once(count: int) -> None:
    """Of many moves, every ninth is rounded again: the checker of passes can follow so many."""
    steps = pair("x", "y0")
    for i in range(count):
        steps += [("Transpose", [f"y{i}"], [f"t{i}"], {"perm": [0, 2, 1]}), *pair(f"t{i}", f"y{i + 1}")]
    ran = check(net(steps, [f"y{count}"]), FEEDS)
    assert rounds(ran) == 1 and forward(ran).count("self.quant") <= 1 + count // 8, forward(ran)


@pytest.mark.parametrize("mode", ["qat", "qat-learned"])
def test_a_learned_scale_counts_one_rounding(mode: str, tmp_path: Path) -> None:
    """However far its result is moved: its gradient would be counted for each."""
    steps = pair("x", "y0")
    for i in range(20):
        steps += [("Transpose", [f"y{i}"], [f"t{i}"], {"perm": [0, 2, 1]}), *pair(f"t{i}", f"y{i + 1}")]
    onnx.save(net(steps, ["y20"]), tmp_path / "m.onnx")
    generate(tmp_path / "m.onnx", tmp_path / "m.py", Options(quantized=mode))
    text = (tmp_path / "m.py").read_text(encoding="utf-8").partition("\nWEIGHTS = ")[0]
    assert text.rpartition("def forward(")[2].count("self.quant") == 1, text


def test_what_is_computed_is_rounded_again() -> None:
    ran = check(net([*pair("x", "a"), ("Relu", ["a"], ["b"], {}), *pair("b", "c")], ["c"]), FEEDS)
    assert forward(ran).count("self.quant") == 2


def test_by_other_scales() -> None:
    """What is rounded by two scales is not one fake quantisation, and what is rounded by another scale is rounded."""
    ran = check(net(pair("x", "y", back="s2"), ["y"]), FEEDS)
    assert rounds(ran) == 0 and "int8" in forward(ran)
    ran = check(net([*pair("x", "y"), *pair("y", "w", "s2", "s2")], ["w"]), FEEDS)
    assert rounds(ran) == 2


def test_a_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the checks of any generation."""
    monkeypatch.setenv("ONNXGEN_PARANOID", "0")
    monkeypatch.setattr(importlib.import_module("onnxgen.passes.quantized.pairs"), "_belongs", lambda *_: True)
    with pytest.raises(WrongRewrite, match="the pass rounded changed 'y'"):
        run_model(net(pair("x", "y", back="s2"), ["y"]), FEEDS)


def test_integers_that_are_an_output_stay() -> None:
    model = net(pair("x", "y", q="q"), ["y", "q"])
    ran = run_model(model, FEEDS)
    for made, expected in zip(ran.outputs, run_onnxruntime(model, FEEDS), strict=True):
        np.testing.assert_array_equal(made, expected)
    assert "int8" in forward(ran)


def test_gradients_pass_as_if_nothing_was_rounded() -> None:
    steps = [("MatMul", ["x", "w"], ["a"], {}), *pair("a", "y")]
    weight = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    ran = check(net(steps, ["y"], w=weight), FEEDS)
    (parameter,) = ran.model.parameters()
    ran.model(torch.from_numpy(FEEDS["x"] * 0.1)).sum().backward()
    assert parameter.grad is not None and parameter.grad.abs().max() > 0
