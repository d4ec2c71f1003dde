"""Files as onnxruntime's own tools write them: its graph optimiser, its quantisers; onnxruntime runs the same files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
import torch.nn.functional as F
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from torch import Tensor, nn

from tests.exported import exported
from tests.ops.harness import assert_same, run_model, run_onnxruntime


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.third, self.fc = nn.Conv2d(16, 8, 1), nn.Linear(16 + 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        x = F.relu(F.leaky_relu(self.second(x), 0.1) + x)
        x = torch.cat([torch.sigmoid(self.third(x)), x], 1)
        return self.fc(F.avg_pool2d(x, 2).mean((2, 3))).softmax(-1)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions": (Convolutions, (2, 3, 8, 8)),
    "encoder": (encoder, (2, 6, 32)),
}


class Samples(CalibrationDataReader):
    def __init__(self, feeds: dict[str, Any]) -> None:
        self.left = [feeds]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def optimised(source: Path, out: Path) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath, options.log_severity_level = str(out), 4
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", NETS)
def test_files_of_its_tools(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    torch.manual_seed(0)
    make, shape = NETS[name]
    x, plain = torch.randn(shape), tmp_path / "plain.onnx"
    onnx.save(exported(make().eval(), [x]), plain)
    feeds = {"i0": x.numpy()}
    dynamic, integers, pairs = (tmp_path / f"{kind}.onnx" for kind in ("dynamic", "integers", "pairs"))
    quantize_dynamic(plain, dynamic)
    quantize_static(plain, integers, Samples(feeds), quant_format=QuantFormat.QOperator)
    quantize_static(plain, pairs, Samples(feeds), quant_format=QuantFormat.QDQ)
    domains = set()
    for path in (plain, dynamic, integers, pairs):
        out = path.with_suffix(".optimised.onnx")
        optimised(path, out)
        for file in (path, out):
            model = onnx.load(file)
            domains |= {node.domain for node in model.graph.node}
            for made, expected in zip(run_model(model, feeds).outputs, run_onnxruntime(model, feeds), strict=True):
                assert_same(made, expected, rtol=1e-4, atol=1e-5)
    assert "com.microsoft" in domains
    assert np.isfinite(made).all()
