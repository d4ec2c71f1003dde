"""`--quantized qat`: what the quantised file computes, in floats that gradients pass."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onnxgen import OnnxgenError, Options, export, generate, load, verify
from onnxgen.helpers import fake_quant
from onnxgen.pipeline import build
from tests.quantized.nets import CASES, checked_before, example, generated, pretrained, quantised, run
from tests.quantized.test_way_back import tensors

QAT, LEARNED = Options(quantized="qat"), Options(quantized="qat-learned")
FEW = [
    "cnn-QDQ-s8s8-channels",
    "mlp-QOperator-u8u8",
    "mlp-dynamic-s8",
    "transformer-QOperator-u8s8",
    "transformer-nbits",
]


@pytest.mark.parametrize("case", CASES)
def test_it_computes_what_the_file_does(case: str, files: Path) -> None:
    """Where a sum lies between two integers it may be rounded to either: one element of a hundred, by few steps."""
    path, x = quantised(case, files), example(case.partition("-")[0], 77, 32)
    model = pretrained(generated(case, QAT, files)).eval()
    with torch.no_grad():
        expected, got = run(path, x), model(x).numpy()
    step = (expected.max() - expected.min()) / 255
    off = np.abs(got - expected)
    assert (off > 1e-3 * step).mean() <= 0.02 and off.max() <= 3 * step
    with checked_before():
        assert verify(path, model, options=QAT, runs=1).agrees


@pytest.mark.parametrize("options", [QAT, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("case", FEW)
def test_it_learns_and_goes_back(case: str, options: Options, files: Path, tmp_path: Path) -> None:
    """Trained and written back, the file computes what the module does; untrained it is the same file."""
    path, module = quantised(case, files), generated(case, options, files)
    assert not export(module, path, out=tmp_path / "same.onnx", verify=False).changed
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    model, x = pretrained(module), example(case.partition("-")[0], 5, 16)
    scales = [name for name, _ in model.named_parameters() if name.endswith("scale")]
    assert bool(scales) == (options is LEARNED)
    target = torch.randint(0, 10, (16,), generator=torch.Generator().manual_seed(0))
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[name.endswith("scale")].append(parameter)
    optimizer = torch.optim.Adam([{"params": groups[False]}, {"params": groups[True], "lr": 1e-5}], 2e-3)
    losses = []
    for _ in range(25):
        y = model(x)
        loss = nn.functional.cross_entropy(y[:, 0] if y.ndim == 3 else y, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    report = export(module, path, model.eval(), tmp_path / "tuned.onnx")
    assert report.method == "written back" and report.verified is not None
    old, new = tensors(path), tensors(tmp_path / "tuned.onnx")
    moved = {name for name in report.changed if old[name].size == 1 and old[name].dtype == np.float32}
    assert bool(moved) == (options is LEARNED) or "channels" in case or "nbits" in case
    with torch.no_grad():
        expected, got = model(x).numpy(), run(tmp_path / "tuned.onnx", x)
    step = (got.max() - got.min()) / 255
    off = np.abs(got - expected)
    # onnxruntime rounds products of two operands elsewhere: that shows where scales are no longer those it chose
    assert (off > 0.5 * step).mean() < 0.05 or ("QOperator" in case and scales and off.max() <= 4 * step)
    assert old.keys() == new.keys()


def test_a_layer_of_its_own_and_named_as_it_was(files: Path) -> None:
    path = quantised("cnn-QOperator-s8s8-channels", files)
    text = build(path, QAT, path.with_suffix(".py")).source
    assert "self.conv2 = QuantizedConv2d(" in text and "quantize=FakeQuantize(16, 1, 1, 1)" in text
    keys = load(path, QAT).state_dict()
    assert {"conv1.weight", "conv1.bias", "conv1.quantize.scale", "quant1.scale"} <= keys.keys()


@pytest.mark.parametrize("dtype, low, high", [(torch.qint8, -128, 127), (torch.quint8, 0, 255)])
def test_fake_quantize_is_torchs(dtype: torch.dtype, low: int, high: int) -> None:
    """Values and gradients, those of saturated elements, too; by torch's own functions, away from ties."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, generator=generator).mul(6).requires_grad_()
    zero = 3 if low else 100
    made = fake_quant.fake_quantize(x, torch.tensor(0.05), zero, low, high)
    (gradient,) = torch.autograd.grad(made.square().sum(), x)
    expected = torch.fake_quantize_per_tensor_affine(x, 0.05, zero, low, high)
    (wanted,) = torch.autograd.grad(expected.square().sum(), x)
    assert torch.allclose(made, expected, atol=1e-6) and torch.allclose(gradient, wanted, atol=1e-5)
    assert (wanted == 0).any() and (wanted != 0).any()
    stored = torch.quantize_per_tensor(x.detach(), 0.05, zero, dtype).dequantize()
    assert torch.allclose(made, stored, atol=1e-6)


def test_a_learned_scale_has_lsqs_gradient() -> None:
    """Equation 3 of the paper, times 1 / sqrt(N * Qp), for the sum of squares."""
    x = torch.randn(300, generator=torch.Generator().manual_seed(2)) * 4
    scale = torch.tensor(0.05, requires_grad=True)
    fake_quant.fake_quantize(x, scale, 0, -128, 127).square().sum().backward()
    v = x.double().numpy() / 0.05
    by_scale = np.where(v <= -128, -128, np.where(v >= 127, 127, np.rint(v) - v))
    expected = (2 * np.rint(v.clip(-128, 127)) * 0.05 * by_scale).sum() / np.sqrt(300 * 128)
    assert scale.grad is not None and scale.grad.item() == pytest.approx(expected, rel=1e-4)


def test_a_scale_that_training_made_negative_is_refused(files: Path, tmp_path: Path) -> None:
    path, module = quantised("mlp-QDQ-u8s8", files), tmp_path / "m.py"
    generate(path, module, LEARNED)
    model = pretrained(module)
    with torch.no_grad():
        model.get_parameter("fc1.quantize.scale").neg_()
    with pytest.raises(OnnxgenError, match="fc1.weight_quantized .*a trained scale is not positive"):
        export(module, path, model, tmp_path / "back.onnx", verify=False)


def test_the_scale_of_a_bias_stays_the_product_of_those_of_input_and_weight(files: Path, tmp_path: Path) -> None:
    """onnxruntime adds the integers of the bias to those of the product."""
    path, module = quantised("mlp-QDQ-u8s8", files), tmp_path / "m.py"
    generate(path, module, LEARNED)
    model = pretrained(module)
    with torch.no_grad():
        model.get_parameter("fc1.quantize.scale").mul_(1.5)
    export(module, path, model, tmp_path / "back.onnx", verify=False)
    old, new = tensors(path), tensors(tmp_path / "back.onnx")
    made = {n.output[0]: n for n in onnx.load(path).graph.node if n.op_type == "DequantizeLinear"}
    (layer,) = (n for n in onnx.load(path).graph.node if n.op_type == "Gemm" and "fc1" in n.input[1])
    x, weight, bias = (made[name].input[1] for name in layer.input)
    assert new[weight] == np.float32(1.5) * old[weight] and np.allclose(new[bias], new[x] * new[weight], 1e-6, 0)
    assert not np.allclose(new[bias], old[bias])


def test_it_compiles(files: Path) -> None:
    model, x = load(quantised("mlp-QOperator-u8u8", files), QAT).eval(), example("mlp", 3)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), model(x))
