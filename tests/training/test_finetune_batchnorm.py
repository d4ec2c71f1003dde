"""`calibrate_batchnorm` measures statistics, and the output in evaluation mode stays the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import onnxruntime
import pytest
import tomllib
import torch
from torch import nn

from onnxgen import OnnxgenError, Options
from onnxgen.pipeline import generate
from onnxgen.training import Settings, calibrate_batchnorm, fit, open_model
from onnxgen.training.data.opening import open_data
from onnxgen.training.finetune.batchnorm import norms_before
from tests.passes.test_restore_batchnorm import NETS, NORM, _assert_exported, exported
from tests.training.test_finetune import Tower, images, mnist, step
from tests.training.test_fit_options import CPU

__all__ = ["mnist"]  # a fixture


@pytest.mark.parametrize("name", ["resnet18", "cnn", "mobilenet", "audio_cnn", "video_cnn", "grouped", "called"])
def test_calibration_does_not_change_the_output(name: str, tmp_path: Path) -> None:
    """It is the same to 1e-5 in evaluation mode and in the exported file, and close in training mode."""
    path, _ = exported(name, "legacy", tmp_path)
    generated = generate(path, tmp_path / f"calibrated_{name}.py", Options(restore_batchnorm=True))
    model = open_model(tmp_path / f"calibrated_{name}.py").eval()
    restored = {n for n, m in model.named_modules() if isinstance(m, NORM) and not m.running_mean.any()}
    x = NETS[name].inputs(64)[0] * 0.5 + 0.2
    with torch.no_grad():
        before, wrong = model(x), copy.deepcopy(model).train()(x)
        report = calibrate_batchnorm(model, x.split(48))  # of unequal size
        after = model(x)
        trained = copy.deepcopy(model).train()(x)
    scale = before.abs().max()
    assert (after - before).abs().max() <= 1e-5 * scale
    assert {c.path for c in report} == restored and restored and all(c.values >= 64 for c in report)
    if name != "called":  # whose norm has one mean for two calls
        assert (trained - after).abs().max() < 0.1 * scale, "training starts where the folded network was"
    assert (trained - after).abs().max() < 0.5 * (wrong - before).abs().max()
    _assert_exported(path, generated.metadata["wayback"], model, (x,))


def test_measured_moments_match_all_data() -> None:
    norm = nn.BatchNorm2d(3)
    x = torch.randn(50, 3, 4, 4) * 7 + 100
    (report,) = calibrate_batchnorm(norm, [x[:7], x[7:30], x[30:]])
    flat = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(report.mean, flat.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.running_var, flat.var(1).float(), rtol=1e-5, atol=0)
    assert report.values == 50 * 16
    torch.testing.assert_close(norm.eval()(x), x / (1 + 1e-5) ** 0.5, rtol=1e-5, atol=1e-4)


def test_batches_in_the_forms_of_data_loaders() -> None:
    x = images(8)
    for batches in ([(x, torch.zeros(8))], [{"x": x, "label": torch.zeros(8)}], [[x]], x):
        model = nn.Sequential(Tower(3)) if batches is x else Tower(3)
        assert calibrate_batchnorm(model, batches)[0].values == 8 * 36


def test_calibration_with_data_as_for_fit(mnist: Callable[[], nn.Module], tmp_path: Path) -> None:
    """All samples of a file with labels are measured, normalised as for training."""
    x = images(70, 28).numpy()
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(70) % 10)
    by_path, by_hand = mnist(), mnist()
    report = calibrate_batchnorm(by_path, tmp_path / "data.npz", every=True)
    data = open_data(tmp_path / "data.npz", by_hand, Settings(), targets=False)
    assert data.train is not None and len(data.train) == 70 == report[1].values
    batch = data.train.take(range(70), 0)
    calibrate_batchnorm(by_hand, batch["x"], every=True)
    torch.testing.assert_close(by_path.norm1.running_var, by_hand.norm1.running_var)
    assert calibrate_batchnorm(mnist(), str(tmp_path / "data.npz"), every=True)[1].values == 70


class First(lightning.Callback):
    """Keeps what the network says in training mode before the first step."""

    said: torch.Tensor

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        with torch.no_grad():
            self.said = copy.deepcopy(pl_module.model).train()(self.x)

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x


@pytest.mark.parametrize("how", ["path", "module"])
def test_a_training_starts_where_the_folded_network_was(how: str, tmp_path: Path) -> None:
    """The oracle is onnxruntime. Weights from scratch are not measured, and keep the scale 1."""
    path, _ = exported("cnn", "legacy", tmp_path)
    file = tmp_path / "folded.py"
    generate(path, file, Options(restore_batchnorm=True))
    x = NETS["cnn"].inputs(48)[0] * 0.5 + 0.2
    session = onnxruntime.InferenceSession(path)
    expected = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    name = session.get_inputs()[0].name
    given = {"epochs": 1, "lr": 1e-6, "val": 0.0, "batch_size": 48, "normalize": "none", **CPU}
    data, first = {name: x, "y": torch.zeros(48, dtype=torch.int64)}, First(x)
    model: Any = file if how == "path" else open_model(file)
    fit(model, data, callbacks=[first], out=tmp_path / "run", **given)
    assert (first.said - expected).abs().max() < 0.1 * expected.abs().max()
    fresh = fit(file, data, from_scratch=True, out=tmp_path / "fresh", **given).model
    norms = [m for m in fresh.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all((norm.weight - 1).abs().max() < 1e-4 for norm in norms)


@pytest.mark.parametrize("number, frozen", [(40, True), (300, False)])
def test_a_recipe_freezes_norms_of_few_samples(number: int, frozen: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)  # the second epoch is the best one: in the first, the recipe trains the head alone
    model = Tower(3)
    step(model, images())
    data = {"x": images(number), "y": torch.arange(number) % 3}
    before = {n: b.clone() for n, b in model.named_buffers() if "running_mean" in n}
    given = {"recipe": "fine-tune", "lr": 1e-3, "epochs": 2, "val": 0.0, "normalize": "none", **CPU}
    result = fit(model, data, out=tmp_path / "run", **given)
    after = dict(result.model.named_buffers())
    assert all(torch.equal(after[name], value) for name, value in before.items()) == frozen
    config = tomllib.loads((result.out / "config.toml").read_text())
    assert bool(config.get("freeze")) == frozen


@pytest.mark.parametrize(
    "norm, depth, told", [(nn.Identity, 8, True), (nn.BatchNorm2d, 8, False), (nn.Identity, 7, False)]
)
def test_from_scratch_tells_of_norms_that_may_be_lost(
    norm: Callable[[int], nn.Module], depth: int, told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = [layer for n in range(depth) for layer in (nn.Conv2d(4 if n else 1, 4, 3, padding=1), norm(4))]
    model, data = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 2)), {"x": images(16), "y": torch.arange(16) % 2}
    for scratch in (False, True):
        given = {"from_scratch": scratch, "max_steps": 1, "val": 0.0, "normalize": "none", **CPU, "show": "lines"}
        fit(model, data, out=tmp_path / str(scratch), **given)
        said = (
            "none of the 8 convolutions has a norm, as if the export had folded BatchNorms" in capsys.readouterr().out
        )
        assert said == (told and scratch)


@pytest.mark.parametrize(
    "task, batch, recipe, said",
    [
        ("detection", 8, True, "the recipe froze 1 BatchNorm: batches of 8 are too small for them"),
        (
            "detection",
            8,
            False,
            "batches of 8 samples give 1 BatchNorm (0) noisy statistics; larger ones, or --freeze",
        ),
        ("detection", 16, True, ""),
        ("outputs", 8, True, ""),
    ],
)
def test_norms_of_a_detector_in_small_batches(task: str, batch: int, recipe: bool, said: str) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3))
    notes, frozen = norms_before(model, range(300), None, Settings(task=task, batch_size=batch), recipe)
    assert [note[: len(said)] for note in notes] == ([said] if said else [])
    froze = said.startswith("the recipe")
    assert frozen == (["0"] if froze else []) and model[0].weight.requires_grad != froze


def test_nothing_to_calibrate() -> None:
    model = Tower(3)
    with pytest.raises(OnnxgenError, match="at least one batch"):
        calibrate_batchnorm(model, [])
    with pytest.raises(OnnxgenError, match="the model fails on batch 2"):
        calibrate_batchnorm(model, [images(2), torch.zeros(2, 5, 8, 8)])
    step(model, images())
    with pytest.raises(OnnxgenError, match="--restore-batchnorm"):
        calibrate_batchnorm(model, [images(2)])
    assert len(calibrate_batchnorm(model, [images(8)], every=True)) == 5
