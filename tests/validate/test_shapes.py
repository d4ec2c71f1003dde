"""The tensors that a layer is said to register are those that PyTorch's registers."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from torch import nn

from onnxgen import Options, pipeline
from onnxgen.errors import WrongTranslation
from onnxgen.validate.stored import registered

LAYERS = [
    "nn.Linear(3, 4)", "nn.Linear(3, 4, bias=False)", "nn.Conv1d(4, 6, 3, groups=2)", "nn.Conv2d(4, 6, (3, 2))",
    "nn.Conv3d(4, 6, 3, 2, 1, bias=False)", "nn.ConvTranspose2d(4, 6, (3, 2), groups=2)", "nn.BatchNorm2d(4)",
    "nn.BatchNorm1d(4, affine=False)", "nn.InstanceNorm2d(4)", "nn.InstanceNorm3d(4, affine=True)",
    "nn.GroupNorm(2, 4)", "nn.GroupNorm(2, 4, affine=False)", "nn.LayerNorm(4)", "nn.LayerNorm((4, 2), bias=False)",
    "nn.LayerNorm([4, 2], elementwise_affine=False)", "nn.RMSNorm(4, eps=1e-6)", "nn.Embedding(5, 3)",
    "nn.Embedding(5, 3, padding_idx=0)", "nn.PReLU()", "nn.PReLU(4)", "nn.LSTM(3, 4)",
    "nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)", "nn.GRU(3, 4, bias=False)",
    *(f"nn.utils.parametrizations.{text}" for text in (
        "weight_norm(nn.Linear(3, 4))", "weight_norm(nn.Linear(3, 4, bias=False), dim=1)",
        "weight_norm(nn.Conv2d(4, 6, 3), dim=None)", "weight_norm(nn.ConvTranspose1d(4, 6, 3))",
    )),
    "nn.RNN(3, 4, nonlinearity='relu')", "nn.LSTMCell(3, 4)", "nn.GRUCell(3, 4, bias=False)", "nn.RNNCell(3, 4)",
]  # fmt: skip


@pytest.mark.parametrize("text", LAYERS)
def test_they_are_pytorchs(text: str) -> None:
    layer = eval(text, {"nn": nn})
    state = {key: tuple(value.shape) for key, value in layer.state_dict().items() if key != "num_batches_tracked"}
    assert registered(ast.parse(text, mode="eval").body) == state


@pytest.mark.parametrize("text", ["nn.Linear(n, 4)", "nn.ReLU()", "Block(3)", "x"])
def test_of_others_nothing_is_said(text: str) -> None:
    assert registered(ast.parse(text, mode="eval").body) == {}


def test_a_weight_of_another_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = "net (float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) { a = Conv (x, w) y = Add (a, b) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]>\n{graph}')
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4, 1, 1))):
        model.graph.initializer.append(numpy_helper.from_array(np.random.rand(*shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    pipeline.build(tmp_path / "net.onnx", Options(), tmp_path / "net.py")
    monkeypatch.setattr(sys.modules["onnxgen.passes.convolutions"], "flattened", lambda value, *_: value)
    with pytest.raises(WrongTranslation, match="bias is of shape"):
        pipeline.build(tmp_path / "net.onnx", Options(), tmp_path / "net.py")
