"""Other data than that of the training, to `evaluate`: it is never augmented, and samples that were seen are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from onnxgen.training import evaluate, fit, load, open_model
from onnxgen.training.data import open_data
from onnxgen.training.data.prepared import unaugmented
from onnxgen.training.settings import Settings
from samples.tasks.scenes import draw_scenes, write_masks, write_yolo
from tests.training.small import network
from tests.training.test_data_placed import convolution
from tests.training.test_goals_images import Net

SIDE = 8
Kind = Callable[[Path], tuple[torch.nn.Module, Path]]
QUICK: dict[str, Any] = {"workers": 0, "device": "cpu", "loggers": (), "max_steps": 1, "show": "nothing"}


def picture(seed: int) -> Image.Image:
    """Colours that any augmentation changes, brighter with the seed's class."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(60 * (seed % 3), 256, (SIDE, SIDE, 3), dtype=np.uint8))


def folder(root: Path, seeds: range) -> Path:
    """Folders of three classes."""
    for seed in seeds:
        (root / "abc"[seed % 3]).mkdir(parents=True, exist_ok=True)
        picture(seed).save(root / "abc"[seed % 3] / f"{seed}.png")
    return root


def photos(path: Path) -> torch.nn.Module:
    return network(path, x=("float32", ["n", 3, SIDE, SIDE]))


@pytest.mark.parametrize("part", ["", "train"])
def test_other_data_is_not_augmented(part: str, tmp_path: Path) -> None:
    """It may have a training part alone, as folders of classes do. The oracle is torch, by hand."""
    model = photos(tmp_path)
    fit(model, folder(tmp_path / "data", range(18)), augment="light,noise,erase", normalize="0,1",
        out=tmp_path / "run", **QUICK)  # fmt: skip
    folder(tmp_path / "other" / part, range(100, 130))
    trained, losses = open_model(tmp_path / "run").eval(), []
    for seed in range(100, 130):
        x = torch.from_numpy(np.asarray(picture(seed)).copy()).permute(2, 0, 1)[None] / 255
        with torch.no_grad():
            losses.append(F.cross_entropy(trained(x), torch.tensor([seed % 3])).item())
    found = load(tmp_path / "run", device="cpu").evaluate(tmp_path / "other", part=part or None)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def boxes(path: Path) -> tuple[torch.nn.Module, Path]:
    return network(path, x=("float32", ["n", 3, SIDE, SIDE])), write_yolo(path / "data", {"train": draw_scenes(9)})


def masks(path: Path) -> tuple[torch.nn.Module, Path]:
    return convolution(path, 24, 32), write_masks(path / "data", {"train": draw_scenes(9)})


def pairs(path: Path) -> tuple[torch.nn.Module, Path]:
    for name in ("input", "target"):
        (path / "data" / name).mkdir(parents=True)
        for seed in range(9):
            picture(seed).save(path / "data" / name / f"{seed}.png")
    return Net(ins=3, outs=3), path / "data"


def anchors(path: Path) -> tuple[torch.nn.Module, Path]:
    for name in ("anchor", "positive"):
        (path / "data" / name).mkdir(parents=True)
        for seed in range(9):
            picture(seed).save(path / "data" / name / f"{seed}.png")
    return photos(path), path / "data"


TASKS = {boxes: "detection", masks: "auto", pairs: "image-to-image", anchors: "embedding"}


@pytest.mark.parametrize("kind", TASKS)
def test_what_was_opened_for_a_training_is_measured_without_augmentation(kind: Kind, tmp_path: Path) -> None:
    model, path = kind(tmp_path)
    settings = Settings(augment="flip,crop", normalize="0,1", val=0, task=TASKS[kind])
    drawn = open_data(path, model, settings).train
    plain = open_data(path, model, replace(settings, augment="none")).train
    assert drawn is not None and plain is not None
    augmented, measured, wanted = (samples.take(range(9), 3) for samples in (drawn, unaugmented(drawn), plain))
    for name in wanted:
        assert torch.equal(measured[name], wanted[name])
        assert torch.equal(augmented[name], wanted[name]) == (name in ("pair", "role"))


def test_data_that_was_opened_for_a_training_is_not_augmented(tmp_path: Path) -> None:
    model, path, losses = photos(tmp_path), folder(tmp_path / "data", range(18)), []
    for augment in ("light,noise,erase", "none"):
        opened = open_data(path, model, Settings(augment=augment, normalize="0,1"))
        losses.append(evaluate(model, opened, part="train", device="cpu", workers=0))
    assert losses[0] == losses[1]
