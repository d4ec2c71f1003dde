"""`--quantized float`: the network that was quantised, as ordinary layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onnxgen import OnnxgenError, Options, load, verify
from onnxgen.pipeline import build
from tests.quantized.nets import CASES, checked_before, example, generated, original, pretrained, quantised, rms, run

FLOAT = Options(quantized="float")


@pytest.mark.parametrize("case", CASES)
def test_what_a_file_was_quantised_from(case: str, files: Path) -> None:
    """Each weight is the original's to half a step, and the outputs are nearer to the original than the file's are."""
    path, net = quantised(case, files), case.partition("-")[0]
    model, before = pretrained(generated(case, FLOAT, files)).eval(), original(net)
    weights = {key: value for key, value in before.state_dict().items() if not key.startswith("bn1")}
    found = model.state_dict()
    assert found.keys() == weights.keys()
    for key, value in weights.items():
        if net == "cnn" and key.startswith("conv1"):
            continue  # a norm was folded in
        # half of the widest step that there can be; a whole one of 4 bits, whose largest number is 7, the least -8
        limit = value.abs().max() / (7 if "nbits" in case else 2 * 127)
        assert (found[key] - value).abs().max() <= limit * 1.01, key
    x = example(net, 77, 32)
    with torch.no_grad():
        expected, got = before(x).numpy(), model(x).numpy()
    assert rms(got - expected) <= 1.01 * rms(run(path, x) - expected)
    with checked_before():
        assert verify(path, model, options=FLOAT, runs=1).agrees


def source(path: Path) -> str:
    return build(path, FLOAT, path.with_suffix(".py")).source


def test_it_reads_as_the_original_did(files: Path) -> None:
    text = source(quantised("cnn-QOperator-s8s8-channels", files))
    assert "widths[1], widths[1], kernel_size=3, padding=1, groups=widths[1]" in text
    assert "x = F.relu(self.conv2(x))" in text and "round" not in text
    text = source(quantised("transformer-QDQ-u8s8", files))
    assert "F.scaled_dot_product_attention(q, k, v)" in text and "F.gelu(self.up(" in text
    assert "self.blocks = nn.Sequential(*[Block(dim, num_heads) for _ in range(num_blocks)])" in text


@pytest.mark.parametrize("case", ["cnn-QDQ-u8s8", "mlp-QOperator-u8u8", "transformer-dynamic-s8", "transformer-nbits"])
def test_it_learns(case: str, files: Path) -> None:
    model, x = load(quantised(case, files), FLOAT), example(case.partition("-")[0], 5, 16)
    assert all(p.requires_grad for p in model.parameters())
    target = torch.randint(0, 10, (16,), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        y = model(x)
        loss = nn.functional.cross_entropy(y[:, 0] if y.ndim == 3 else y, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(OnnxgenError, match="must be one of keep, .*, not 'int8'"):
        Options(quantized="int8")


def model_of(nodes: list[onnx.NodeProto], x: list[int], y: int, **stored: np.ndarray) -> onnx.ModelProto:  # type: ignore[type-arg]
    return helper.make_model(
        helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
            [helper.make_tensor_value_info("y", y, None)],
            [numpy_helper.from_array(value, name) for name, value in stored.items()],
        ),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )  # fmt: skip


def test_an_output_of_integers_is_floats(tmp_path: Path) -> None:
    """No gradient would pass otherwise; what integers stand for is compared."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("MaxPool", ["q"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "shape"], ["y"]),
    ]
    stored = {"s": np.float32(0.05), "z": np.uint8(128), "shape": np.array([2, -1])}
    path = tmp_path / "m.onnx"
    onnx.save(model_of(nodes, [2, 3, 4, 4], TensorProto.UINT8, **stored), path)
    model, x = load(path, FLOAT), torch.rand(2, 3, 4, 4)
    assert torch.equal(model(x), nn.functional.max_pool2d(x, 2).flatten(1))
    assert verify(path, model, options=FLOAT).agrees
    (output,) = verify(path, model, options=FLOAT).runs[0].outputs
    assert output.got.startswith("float32")


def test_what_has_no_form_in_floats_is_said(tmp_path: Path) -> None:
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s", "", "order"], ["y"], domain="com.microsoft", name="mm", K=32, N=4, bits=4,
        block_size=16,
    )  # fmt: skip
    stored = {"w": np.zeros((4, 2, 8), np.uint8), "s": np.ones(8, np.float32), "order": np.zeros(32, np.int32)}
    path = tmp_path / "m.onnx"
    onnx.save(model_of([node], [2, 32], TensorProto.FLOAT, **stored), path)
    with pytest.raises(OnnxgenError, match=r"node mm \(com.microsoft.MatMulNBits\): .*g_idx.* -> .*--quantized keep"):
        load(path, FLOAT)
