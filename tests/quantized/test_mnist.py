"""A network quantised to 4 bits, fine-tuned on MNIST: what the requantised file gets right in onnxruntime."""

from __future__ import annotations

import gzip
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen import Options, export, generate
from tests.conftest import SHARED
from tests.quantized.nets import pretrained

MNIST = SHARED / "data" / "mnist"
pytestmark = pytest.mark.skipif(not MNIST.is_dir(), reason="needs the MNIST images")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, stride=2), nn.Conv2d(6, 12, 5, stride=2)
        self.fc = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv2(F.relu(self.conv1(x)))).flatten(1))  # type: ignore[no-any-return]


def read(part: str, count: int) -> tuple[Tensor, Tensor]:
    with gzip.open(MNIST / f"{part}-images-idx3-ubyte.gz") as file:
        images = file.read(16 + 784 * count)[16:]
    with gzip.open(MNIST / f"{part}-labels-idx1-ubyte.gz") as file:
        labels = file.read(8 + count)[8:]
    pixels = torch.frombuffer(bytearray(images), dtype=torch.uint8).reshape(-1, 1, 28, 28)
    return pixels.float() / 255, torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()


def train(model: nn.Module, images: Tensor, labels: Tensor, rate: float, steps: int) -> None:
    optimizer, generator = torch.optim.Adam(model.parameters(), rate), torch.Generator().manual_seed(1)
    for _ in range(steps):
        batch = torch.randint(0, len(images), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()


def accuracy(path: Path, images: Tensor, labels: Tensor) -> float:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return float((session.run(None, {"x": images.numpy()})[0].argmax(1) == labels.numpy()).mean())


def quantised(model: nn.Module, images: Tensor, folder: Path) -> Path:
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Calibration:
        def __init__(self) -> None:
            self.feeds = iter([{"x": images[:64].numpy()}])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.feeds, None)

    logging.disable(logging.WARNING)
    axes = {"x": {0: "n"}}
    torch.onnx.export(
        model.eval(), (images[:1],), folder / "raw.onnx", input_names=["x"], dynamic_axes=axes, opset_version=17,
        dynamo=False,
    )  # fmt: skip
    quant_pre_process(folder / "raw.onnx", folder / "float.onnx", skip_symbolic_shape=True)
    q.quantize_static(folder / "float.onnx", folder / "int4.onnx", Calibration(), weight_type=q.QuantType.QInt4)
    return folder / "int4.onnx"


def test_a_quantised_file_gets_better(tmp_path: Path) -> None:
    (images, labels), (others, answers) = read("train", 12_000), read("t10k", 4_000)
    torch.manual_seed(0)
    net = Net()
    train(net, images, labels, 2e-3, 240)
    path, module, reached = quantised(net, images, tmp_path), tmp_path / "m.py", {}
    before = accuracy(path, others, answers)
    for mode in ("float", "qat"):
        generate(path, module, Options(quantized=mode), force=True)
        model = pretrained(module)
        train(model, images, labels, 1e-3, 130)
        report = export(module, path, model.eval(), tmp_path / f"{mode}.onnx")
        scales = [name for name in report.changed if name.endswith("_scale")]
        assert report.method == "written back" and len(report.changed) - len(scales) == 6
        assert len(scales) == (6 if mode == "float" else 0)  # floats outgrow the three weights; their biases follow
        reached[mode] = accuracy(tmp_path / f"{mode}.onnx", others, answers)
        with torch.no_grad():
            alike = float((model(others).argmax(1) == answers).float().mean())
        assert mode == "float" or abs(alike - reached[mode]) < 0.003
    assert reached["qat"] > before + 0.01 and reached["qat"] > reached["float"] > before - 0.005
    assert np.isfinite(list(reached.values())).all()
