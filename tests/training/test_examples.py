"""The report's pictures of samples."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from onnxgen.training.data.images import Frame, ToInput
from onnxgen.training.fit import fit
from onnxgen.training.goals.goal import Shown
from onnxgen.training.goals.language import Tokens
from onnxgen.training.report import examples
from onnxgen.training.report.examples import COLUMNS, GAP, SIDE, coloured, pixels


class Maps(nn.Module):
    """A map of two classes from a gray image: class 1 where it is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x)
        return found


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def test_a_map_is_drawn_beside_its_image_and_target(tmp_path: Path) -> None:
    x = np.zeros((20, 8, 8), np.uint8)
    x[:, :, 4:] = 255
    y = (x > 0).astype(np.int64)
    found = fit(Maps(), {"x": x, "y": y}, epochs=1, lr=1.0, out=tmp_path / "run", show="nothing", normalize="0,1")
    assert "val_mean_iou" in found.history[0]
    drawn = picture((tmp_path / "run" / "examples.png").read_bytes())
    assert drawn.size[0] > 3 * SIDE, "three panels"
    at = [drawn.getpixel((GAP + panel * (SIDE + 2) + side, 40)) for panel in (0, 1) for side in (30, 120)]
    assert at[0] == (0, 0, 0) and at[1] == (255, 255, 255), "the image"
    assert at[2] != at[3] and at[2] == coloured(torch.tensor([[0, 1]])).getpixel((0, 0)), "the target's two classes"


def test_a_table_has_no_pictures(tmp_path: Path) -> None:
    data = {"x": np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32), "y": np.arange(20) % 2}
    fit(nn.Linear(3, 2), data, epochs=1, out=tmp_path / "run", show="nothing")
    assert not (tmp_path / "run" / "examples.png").exists()
    assert "<h2>Examples" not in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    "step",
    [
        ToInput("HW", 255.0, Frame(1, 5, 4, "CHW"), ((0.3,), (0.2,))),
        ToInput("HWC", 255.0, Frame(3, 5, 4, "HWC"), ((0.1, 0.2, 0.3), (0.5, 0.6, 0.7))),
        ToInput("HW", 16.0, Frame(1, 5, 4, "flat"), None),
        ToInput("HW", 255.0, Frame(1, 5, 4, "HW"), None, dtype=torch.uint8),
    ],
)
def test_preparing_is_undone(step: ToInput) -> None:
    shape = (2, 5, 4, 3) if step.axes == "HWC" else (2, 5, 4)
    stored = torch.randint(0, int(step.white) + 1, shape)
    made = pixels(step(stored, [0, 1], 0), step)
    expected = (stored.float() / step.white * 255).round().to(torch.uint8).reshape(2, 5, 4, -1)
    assert np.array_equal(made, expected.numpy())


def test_text_boxes_and_points_are_drawn() -> None:
    image = np.full((20, 20, 3), 128, np.uint8)
    boxes = (torch.tensor([[0.1, 0.1, 0.5, 0.5]]), torch.tensor([[0.5, 0.5, 0.9, 0.9]]))
    points = (torch.tensor([[0.8, 0.2]]), torch.zeros(0, 2))
    tile = examples._tile(image, Shown("a" * 300, "\u4e2d\x1b[31m", True, boxes=boxes, points=points))
    blue, red = (43, 108, 176), (196, 55, 44)
    assert tile.getpixel((15, 40)) == blue and tile.getpixel((135, 100)) == red
    assert tile.getpixel((123, 30)) == blue, "the point"
    plain = examples._tile(image, Shown("a", "b", None))
    assert replace(Shown(), right=False) != Shown() and plain.size[1] == SIDE + 2 * 16 + 2
    assert examples._grid([plain] * (COLUMNS + 1))[:4] == b"\x89PNG"


def test_without_transformers_there_are_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional: the report of a language model goes without what it writes."""
    monkeypatch.setattr(examples, "find_spec", lambda name: None)
    plan = Mock(objectives=[Mock(spec=Tokens, shift=True)])
    assert examples.texts(plan, nn.Linear(1, 1)) == []
