"""The report's pictures of samples."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image, ImageColor
from torch import Tensor, nn

from onnxgen.training.data.images import Frame, ToInput
from onnxgen.training.fit import fit
from onnxgen.training.goals.goal import Shown
from onnxgen.training.goals.language import Tokens
from onnxgen.training.report import plots
from onnxgen.training.report.plots import COLUMNS, GAP, SIDE, coloured, pixels


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


class Lines(nn.Module):
    """Images [n, 1, 4, 6] -> log-probabilities of four classes [n, 6, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(x[:, 0].transpose(1, 2)).log_softmax(2)
        return found


@pytest.mark.parametrize("named", [True, False])
def test_lines_of_text_are_drawn_with_what_is_read(
    named: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[Shown] = []
    monkeypatch.setattr(plots, "_tile", lambda image, shown: told.append(shown) or Image.new("RGB", (9, 9)))
    x = np.random.default_rng(0).integers(0, 256, (20, 4, 6), np.uint8)
    words = np.array(["ab", "c"] * 10) if named else np.array([[1, 2], [3, -1]] * 10)
    more: dict[str, Any] = {"normalize": "0,1", "val": 0.5, "show": "nothing"} | ({} if named else {"blank": 0})
    model = fit(Lines(), {"x": x, "y": words}, task="ctc", epochs=1, out=tmp_path, **more).model
    assert (tmp_path / "examples.png").exists()
    assert {one.truth for one in told} == ({"ab", "c"} if named else {"1 2", "3"})
    best = [row.argmax(1) for row in model(torch.from_numpy(x[:, None]).float() / 255).detach()]
    read = [[i for i in torch.unique_consecutive(row).tolist() if i] for row in best]
    assert {one.said for one in told} <= {
        "".join("abc"[i - 1] for i in ids) if named else " ".join(map(str, ids)) for ids in read
    }
    assert all(one.right == (one.truth == one.said) for one in told)


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
    tile = plots._tile(image, Shown("a" * 300, "\u4e2d\x1b[31m", True, boxes=boxes, points=points))
    blue, red = (43, 108, 176), (196, 55, 44)
    assert tile.getpixel((15, 40)) == blue and tile.getpixel((135, 100)) == red
    assert tile.getpixel((123, 30)) == blue, "the point"
    plain = plots._tile(image, Shown("a", "b", None))
    assert replace(Shown(), right=False) != Shown() and plain.size[1] == SIDE + 2 * 16 + 2
    grid = picture(plots._grid([("first", [plain] * (COLUMNS + 1)), ("", [plain])]))
    assert grid.size == (COLUMNS * (plain.width + GAP) + GAP, 3 * (plain.height + GAP) + GAP + 16 + GAP)


@pytest.mark.parametrize("colour", ["white", "black", plots.TRUTH, plots.WRONG, "#808080"])
def test_boxes_are_visible_on_any_picture(colour: str) -> None:
    """Their line differs from what is beside it by a third of the range of a channel at least."""
    image = np.array(Image.new("RGB", (60, 60), colour))
    tile = plots._tile(image, Shown(boxes=(torch.tensor([[0.2, 0.2, 0.8, 0.8]]), torch.zeros(0, 4))))
    row = np.asarray(tile)[SIDE // 2, : SIDE // 2].astype(int)
    assert np.abs(np.diff(row, axis=0)).max() > 85
    line = row[np.abs(row - np.array(ImageColor.getrgb(plots.TRUTH))).sum(1) == 0]
    assert len(line) >= 2 and np.abs(row - 255).sum(1).min() == 0, "its colour, and white beside it"


class Bright(nn.Module):
    """Scores of two classes: the second one the higher, the brighter the image is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(8.0))

    def forward(self, x: Tensor) -> Tensor:
        found = self.scale * (x.mean((1, 2, 3)) - 0.5)
        return torch.stack((-found, found), 1)


def test_the_largest_losses_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 images, brighter from each to the next, those that are labelled in a wrong way are the worst mistakes."""
    x = np.broadcast_to(np.arange(0, 240, 4, dtype=np.uint8)[:, None, None, None], (60, 1, 6, 6)).copy()
    y = (x[:, 0, 0, 0] > 120).astype(np.int64)
    wrong = [3, 10, 50]
    y[wrong] = 1 - y[wrong]
    groups = list[tuple[str, list[tuple[int, bool | None]]]]()
    monkeypatch.setattr(plots, "_tile", lambda image, shown: (round(int(image[0, 0, 0]) / 4), shown.right))
    monkeypatch.setattr(plots, "_grid", lambda found: groups.extend(found))
    given = {"epochs": 1, "lr": 1e-9, "val": 0, "workers": 0, "show": "nothing", "normalize": "0,1"}
    fit(Bright(), {"x": x, "y": y}, out=tmp_path / "run", **given)
    (worst, first), (right, others) = groups
    losses = F.cross_entropy(Bright()(torch.from_numpy(x) / 255), torch.from_numpy(y), reduction="none")
    assert [place for place, _ in first] == losses.argsort(descending=True)[:8].tolist()
    assert {place for place, _ in first[:3]} == {*wrong} and not any(good for _, good in first[:3])
    assert (worst, right) == ("the largest losses of 60 samples", "right ones")
    assert len(others) == 8 and all(good for _, good in others)


def test_without_transformers_there_are_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is optional: the report of a language model goes without what it writes."""
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    plan = Mock(objectives=[Mock(spec=Tokens, shift=True)])
    assert plots.texts(plan, nn.Linear(1, 1)) == []
