"""Quantised files that other people made, in all three modes: generated, compared, trained and written back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from onnxgen import Options, export, generate, verify
from tests.conftest import SHARED
from tests.quantized.nets import pretrained
from tests.quantized.test_way_back import tensors

MODELS = SHARED / "models"
# how many tensors of integers each has that are weights
FILES = {
    "burn/ops/matmulinteger_ranks.onnx": 0,
    "ort/conv_qdq_s8s8_perchannel.onnx": 2,
    "ort/dynamic_quantize_matmul_uint8_bias.onnx": 0,
    "ort/float8/te.cast_fp8_1_fp32.onnx": 0,
    "ort/transform/fusion/constant_folding_qdq_node_unit.graph_output.qdq_contrib.onnx": 0,
    "ort/transform/runtime_optimization/qdq_convs.onnx": 6,
    "tract/qsigmoid_1.onnx": 0,
    "tract/qtdnn_10x5_101_i32_biases.onnx": 2,
}
SATURATED = {"ort/transform/runtime_optimization/qdq_convs.onnx"}  # to the same number whatever comes in
pytestmark = pytest.mark.skipif(not MODELS.is_dir(), reason="needs the shared models")


@pytest.mark.parametrize("mode", ["keep", "float", "qat", "qat-learned"])
@pytest.mark.parametrize("name", FILES)
def test_of_a_real_file(name: str, mode: str, tmp_path: Path) -> None:
    path, module, options = MODELS / name, tmp_path / "m.py", Options(quantized=mode)
    generate(path, module, options)
    found = verify(path, module, options=options)
    assert not found.differs and bool(found.untold) == (mode != "keep" and name in SATURATED)
    out = tmp_path / "back.onnx"
    report = export(module, path, out=out, verify=False)
    assert report.method == "written back" and not report.changed
    assert onnx.load(out) == onnx.load(path)
    model = pretrained(module)
    parameters = [p for n, p in model.named_parameters() if not n.endswith("scale")]
    integers = {k for k, v in tensors(path).items() if v.dtype.kind in "iu" and v.ndim and v.size > 1}
    if mode != "keep" and FILES[name]:
        assert len(parameters) >= FILES[name]
        _train(model, parameters, path)
        report = export(module, path, model.eval(), out)
        assert report.method == "written back" and len(integers & set(report.changed)) >= 1
        onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])


def _train(model: torch.nn.Module, parameters: list[Any], path: Path) -> None:
    """Towards what other weights make of an input; the loss falls."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for value in onnx.load(path).graph.input:
        tensor = value.type.tensor_type
        dims = [d.dim_value if d.dim_value > 0 else 8 for d in tensor.shape.dim]
        is_float = tensor.elem_type == onnx.TensorProto.FLOAT
        inputs.append(torch.rand(dims, generator=generator) if is_float else torch.randint(0, 9, dims).byte())

    def outputs() -> torch.Tensor:
        made = model(*inputs)
        return torch.cat([y.flatten() for y in (made if isinstance(made, tuple) else (made,))])

    with torch.no_grad():
        kept = [p.clone() for p in parameters]
        for p in parameters:
            p.mul_(0.7)
        target = outputs()
        for p, before in zip(parameters, kept):
            p.copy_(before)
    losses = []
    for _ in range(12):
        loss = (outputs() - target).square().mean()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(parameters, gradients):  # larger or smaller: what the scales can hold
                p.mul_(1 - 0.02 * float(torch.sign((g * p).sum())) if g is not None else 1)
    if losses[0] > 0:
        assert min(losses[1:]) < losses[0]
    else:  # the file saturates all there is
        with torch.no_grad():
            for p in parameters:
                p.mul_(0.9)
