"""Quantised graphs that quantisers seldom write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from onnxgen import Options, export, generate, load
from onnxgen.helpers.fake_quant import fake_quantize
from onnxgen.passes.quantized.pairs import least
from onnxgen.shapes import propagate
from tests.quantized.nets import pretrained, run

MODES = ["float", "qat", "qat-learned"]
RNG = np.random.default_rng(7)
WEIGHT = RNG.integers(-127, 128, (8, 5)).astype(np.int8)
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)


def file(path: Path, nodes: list[onnx.NodeProto], stored: dict[str, Any], x: int = TensorProto.FLOAT) -> Path:
    inputs = [helper.make_tensor_value_info("x", x, ["n", 8 if x == TensorProto.FLOAT else 3])]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), path)
    return path


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def untrained_is_the_same(path: Path, mode: str) -> nn.Module:
    module = path.with_suffix(".py")
    generate(path, module, Options(quantized=mode))
    report = export(module, path, out=path.with_name("same.onnx"), verify=False)
    assert report.method == "written back", report.why
    assert path.with_name("same.onnx").read_bytes() == path.read_bytes()
    return pretrained(module).eval()


def outputs(path: Path, model: nn.Module, x: Tensor) -> tuple[Any, Any]:
    with torch.no_grad():
        return model(x).numpy(), run(path, x)


@pytest.mark.parametrize("mode", MODES)
def test_integers_of_constant_nodes(mode: str, tmp_path: Path) -> None:
    value = numpy_helper.from_array(WEIGHT)
    nodes = [node("Constant", "", "w", value=value), node("DequantizeLinear", "w s", "d"), node("MatMul", "x d", "y")]
    nodes[0].ClearField("input")
    path = file(tmp_path / "m.onnx", nodes, {"s": np.float32(0.02)})
    got, expected = outputs(path, untrained_is_the_same(path, mode), X)
    assert np.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_scale_of_0_and_one_below(mode: str, tmp_path: Path) -> None:
    scales = np.array([0, 0.01, -0.02, 0.02, 0.01], np.float32)
    nodes = [node("DequantizeLinear", "w s", "d", axis=1), node("MatMul", "x d", "y")]
    path = file(tmp_path / "m.onnx", nodes, {"w": WEIGHT, "s": scales})
    model = untrained_is_the_same(path, mode)
    got, expected = outputs(path, model, X)
    assert np.allclose(got, expected, atol=1e-5)
    model(X).square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_a_tied_weight_has_a_tied_quantiser(mode: str, tmp_path: Path) -> None:
    """Also where its buffer was moved, and is no longer the very same tensor."""
    nodes = [
        node("DequantizeLinear", "e s", "d", axis=0), node("Gather", "d x", "g"),
        node("Transpose", "d", "t", perm=[1, 0]), node("MatMul", "g t", "y"),
    ]  # fmt: skip
    stored = {"e": RNG.integers(-127, 128, (10, 8)).astype(np.int8), "s": np.linspace(0.01, 0.02, 10, dtype=np.float32)}
    path, ids = file(tmp_path / "m.onnx", nodes, stored, TensorProto.INT64), torch.tensor([[1, 2, 3], [9, 0, 1]])
    model = untrained_is_the_same(path, mode)
    weight, *_ = model.parameters()
    with torch.no_grad():
        weight *= 0.4
    model = model.double().float()
    report = export(path.with_suffix(".py"), path, model, tmp_path / "tuned.onnx")
    assert (report.method, report.changed) == ("written back", ["e"])
    got, expected = outputs(tmp_path / "tuned.onnx", model, ids)
    assert np.allclose(got, expected, atol=1e-5) or mode == "float"


def test_a_scale_of_several_weights_stays(tmp_path: Path) -> None:
    """Learned for each it would come apart, and the file has it once."""
    nodes = [
        node("DequantizeLinear", "v s", "e"), node("DequantizeLinear", "w s", "d"), node("MatMul", "x e", "a"),
        node("MatMul", "a d", "y"),
    ]  # fmt: skip
    stored = {"v": RNG.integers(-127, 128, (8, 8)).astype(np.int8), "w": WEIGHT, "s": np.float32(0.02)}
    path = file(tmp_path / "m.onnx", nodes, stored)
    model = load(path, Options(quantized="qat-learned"))
    assert [name for name, _ in model.named_parameters() if name.endswith("scale")] == []
    report = generate(path, tmp_path / "m.py", Options(quantized="qat-learned")).report
    assert "not trained, since several tensors share the scale: s" in report.notes
    assert report.trainable["s"] == (False, "several tensors share the scale")
    fixed = generate(path, tmp_path / "fixed.py", Options(quantized="qat")).report
    assert not any("not trained" in note for note in fixed.notes)


@pytest.mark.parametrize("mode", MODES)
def test_a_type_that_does_not_saturate(mode: str, tmp_path: Path) -> None:
    nodes = [node("QuantizeLinear", "x s z", "q", saturate=0), node("DequantizeLinear", "q s z", "y")]
    stored = {"s": np.float32(0.003), "z": np.zeros((), ml_dtypes.float8_e4m3fn)}
    path = file(tmp_path / "m.onnx", nodes, stored)
    x = X.clamp(-1.2, 1.2) + 0.6 * (X.abs() > 1.2) * X.sign()  # none between the largest number and the next step
    got, expected = outputs(path, load(path, Options(quantized=mode)), x)
    assert np.isnan(expected).any() and np.allclose(got, expected, 1e-6, 0, equal_nan=True)


def test_halves_are_rounded_as_onnxruntime_does() -> None:
    """In float32: the quotient of two halves often lies on a tie where the true one does not."""
    x, scale = torch.linspace(-4, 3.7, 5001).half(), torch.tensor(0.03).half()
    expected = (x.float() / scale.float()).round().clamp(-128, 127) * scale.float()
    assert torch.equal(fake_quantize(x, scale, 0, -128, 127), expected.half())


@pytest.mark.parametrize("mode", MODES)
def test_floats_of_another_type_than_what_was_rounded(mode: str, tmp_path: Path) -> None:
    """Since opset 23 the scale may have another type than the input, and gives the result its own."""
    nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    path = file(tmp_path / "m.onnx", nodes, {"s": np.float32(0.25), "z": np.int8(0)}, TensorProto.FLOAT16)
    model = onnx.load(path)
    model.opset_import[0].version, model.ir_version = 23, 11
    onnx.save(model, path)
    x = torch.tensor([[0.25, -1.5, 3.0]]).half()
    made = load(path, Options(quantized=mode))(x)
    assert made.dtype == torch.float32 and torch.equal(made, x.float())


BOUNDED = """<ir_version: 8, opset_import: ["" : 17]> net (float[n] x) => (float[n] y)
    <float low = {-0.5}, float high = {0.75}, float three = {3}> {
    relu = Relu (x)  clip = Clip (x, low, high)  top = Clip (x, , high)  elu = Elu (x)  less = Elu <alpha = 0.25> (x)
    sum = Add (clip, three)  square = Mul (x, x)  scaled = Mul (relu, three)  either = Mul (clip, relu)
    part = Div (relu, three)  over = Div (clip, three)  most = Max (clip, elu, less)  y = Sigmoid (x) }"""
BOUNDS = {
    "x": -np.inf, "relu": 0.0, "clip": -0.5, "top": -np.inf, "elu": -1.0, "less": -0.25, "sum": 2.5, "square": 0.0,
    "scaled": 0.0, "either": -np.inf, "part": 0.0, "over": -np.inf, "most": -0.25, "y": 0.0,
}  # fmt: skip


def test_lower_bounds_of_what_operators_make() -> None:
    """A ReLU is written only where a value may be negative. No element lies below the bound."""
    proto = onnx.parser.parse_model(BOUNDED)
    model = ir.from_proto(proto)
    propagate(model.graph, Options())
    values = {v.name: v for v in (*model.graph.inputs, *(v for n in model.graph for v in n.outputs))}
    assert {name: least(values[name]) for name in BOUNDS} == BOUNDS
    names = [name for name in BOUNDS if name != "x"]
    made = ReferenceEvaluator(proto).run(names, {"x": np.linspace(-4, 4, 99, dtype=np.float32)})
    assert all(array.min() >= BOUNDS[name] for name, array in zip(names, made, strict=True))
