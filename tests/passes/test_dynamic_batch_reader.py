"""A reader of text lines whose file folds time and batch into one axis for its last layer, and fixes the batch at 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from onnxgen import Options, generate, verify
from onnxgen.cli import run
from tests.support.exported import exported
from tests.support.real import imported


class Reader(nn.Module):
    """Images [n, 1, 16, w] -> scores of 11 classes [(w + 7) // 8, n, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=8, padding=1)
        self.lstm = nn.LSTM(12, 5, bidirectional=True)
        self.fc = nn.Linear(10, 11)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(self.conv(x).permute(3, 0, 1, 2).flatten(2))
        steps, batch, width = x.shape
        found: Tensor = self.fc(x.view(steps * batch, width)).view(steps, batch, -1)
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    folder = tmp_path_factory.mktemp("reader")
    torch.manual_seed(0)
    net = Reader().eval()
    onnx.save(exported(net, [torch.zeros(1, 1, 16, 40)], "legacy-17", {0: {3: "width"}}), folder / "net.onnx")
    generate(folder / "net.onnx", folder / "net.py", Options(dynamic_batch=True))
    return folder, net


def test_the_split_needs_no_size_that_follows_from_the_others(place: tuple[Path, nn.Module]) -> None:
    folder, net = place
    text = (folder / "net.py").read_text()
    forward = text[text.index("def forward") : text.index("WEIGHTS =")]
    assert "num_classes=11" in text and ".unflatten(0, (-1, " in forward and "11" not in forward
    assert verify(folder / "net.onnx", folder / "net.py", runs=2).agrees
    module, x = imported(folder / "net.py"), torch.rand(3, 1, 16, 50)
    torch.testing.assert_close(module.Model.from_pretrained()(x), net(x))
    assert module.Model(num_classes=4)(x).shape == (7, 3, 4)


def test_its_free_batch_is_written_back(place: tuple[Path, nn.Module], capsys: pytest.CaptureFixture[str]) -> None:
    folder, net = place
    assert run(["export", str(folder / "net.py"), "-o", str(folder / "free.onnx")]) == 0
    assert "the batch is free, as in the module" in capsys.readouterr().out
    x = torch.rand(4, 1, 16, 33)
    session = onnxruntime.InferenceSession(folder / "free.onnx", providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(made, net(x).detach().numpy(), atol=1e-5)
