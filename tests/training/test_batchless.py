"""Networks that take one sample are refused before training; those with a batch compute what a loop by hand does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import onnxgen
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.training import evaluate, fit, predict

QUIET: dict[str, Any] = {"epochs": 1, "show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}
WAY = "export it again with a batch axis in front"


class Features(nn.Module):
    """[3] to [2]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Pooled(nn.Module):
    """Frames [16, 80] to [2]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(80, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(0))


class Image(nn.Module):
    """[3, 8, 8] to [1, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x[None]).mean((2, 3)))


class Mixed(nn.Module):
    """Frames [16, 8] to [16, 2], each with what the others are."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc((x @ x.t()).softmax(1) @ x)


class Alone(Features):
    """[16, 3] to [16, 2], a row for each."""


class Whole(Features):
    """[n, 3] to one number."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).mean()


def generated(network: nn.Module, folder: Path, shape: tuple[int, ...], free: str = "") -> Path:
    torch.manual_seed(0)
    torch.onnx.export(
        network.eval(), (torch.zeros(shape),), folder / "net.onnx", input_names=["x"], output_names=["y"],
        dynamic_axes={"x": {0: free}} if free else None, opset_version=17, dynamo=False,
    )  # fmt: skip
    onnxgen.generate(folder / "net.onnx", folder / "net.py")
    return folder / "net.py"


def data(folder: Path, *shape: int, classes: int = 2) -> Path:
    """48 samples of a shape, each with a class."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, *shape)).astype(np.float32), rng.integers(0, classes, 48)
    np.savez(folder / "data.npz", x=x, y=y)
    return folder / "data.npz"


@pytest.mark.parametrize(
    ("network", "shape", "free"),
    [
        (Features, (3,), ""),
        (Pooled, (16, 80), ""),
        (Pooled, (16, 80), "time"),
        (Image, (3, 8, 8), ""),
        (Mixed, (16, 8), ""),
    ],
)
def test_data_with_whole_samples_is_refused(
    network: type[nn.Module], shape: tuple[int, ...], free: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, samples = generated(network(), tmp_path, shape, free), data(tmp_path, *shape)
    assert cli(["train", str(file), "--data", str(samples), "--out", str(tmp_path / "run"), "-q"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the network takes one sample: input 'x' is [") and said.count("\n") == 1
    assert WAY in said and not (tmp_path / "run").exists()
    for ask in (evaluate, predict):
        with pytest.raises(OnnxgenError, match="the network takes one sample"):
            ask(file, samples, device="cpu", workers=0)


@pytest.mark.parametrize(
    ("network", "shape", "free"),
    [(Pooled, (16, 80), ""), (Pooled, (16, 80), "time"), (Pooled, (16, 80), "batch"), (Whole, (4, 3), "n")],
)
@pytest.mark.parametrize("loss", ["auto", "mse"])
def test_rows_are_no_samples_of_a_network_that_joins_them(
    network: type[nn.Module], shape: tuple[int, ...], free: str, loss: str, tmp_path: Path
) -> None:
    """Two rows would make two numbers, as two samples with a number each do."""
    file, samples = generated(network(), tmp_path, shape, free), data(tmp_path, *shape[1:])
    with np.load(samples) as found:
        np.savez(samples, x=found["x"], y=found["y"] if loss == "auto" else found["y"].astype(np.float32))
    with pytest.raises(OnnxgenError, match="first axis of input 'x' .* is no batch -> " + WAY):
        fit(file, samples, out=tmp_path / "run", batch_size=16, loss=loss, **QUIET)
    with pytest.raises(OnnxgenError, match="takes one sample|no batch"):
        predict(file, samples, device="cpu", workers=0, batch_size=16)


def test_a_fixed_first_axis_of_rows_that_are_apart_is_a_batch(tmp_path: Path) -> None:
    file, samples = generated(Alone(), tmp_path, (16, 3)), data(tmp_path, 3)
    found = predict(file, samples, device="cpu", workers=0, batch_size=16)
    session, x = onnxruntime.InferenceSession(tmp_path / "net.onnx"), np.load(samples)["x"]
    by_hand = [session.run(None, {"x": np.repeat(row[None], 16, 0)})[0][0] for row in x]  # each row alone
    np.testing.assert_allclose(found, by_hand, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("network", "told"), [(Mixed, True), (Alone, False)])
def test_rows_that_see_each_other_are_told(
    network: type[nn.Module], told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = 8 if told else 3
    file, samples = generated(network(), tmp_path, (16, columns)), data(tmp_path, columns)
    fit(file, samples, out=tmp_path / "run", batch_size=16, **{**QUIET, "show": "lines"})
    said = capsys.readouterr().out
    assert (
        "depends on the others of its batch: is the first axis of input 'x' [16, 8] one of samples?" in said
    ) == told


class Normed(nn.Module):
    """[n, 3, 8, 8] to [n, 2], with a norm that has statistics, which a batch of one sample has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().mean((2, 3)))


def test_a_batch_of_one_sample_is_trained_by_summing_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice of the error makes the same steps as batches of 8 of the same network with a free batch."""
    (tmp_path / "one").mkdir(), (tmp_path / "free").mkdir()
    network = Features()
    one = generated(network, tmp_path / "one", (1, 3))
    free = generated(network, tmp_path / "free", (1, 3), "batch")
    samples = data(tmp_path, 3)
    words = ["train", str(one), "--data", str(samples), "--batch-size", "8", "-q", "--out"]
    assert cli([*words, str(tmp_path / "refused")]) == 2
    way = "--batch-size 1 --accumulate 8 (the same step, a sample at a time), or generate the model again with"
    assert f"fixes the batch at 1, but --batch-size is 8 -> {way}" in capsys.readouterr().err
    given = {**QUIET, "val": 0.0, "lr": 0.1, "optimizer": "sgd"}
    found = fit(one, samples, out=tmp_path / "a", batch_size=1, accumulate=8, **given)
    wanted = fit(free, samples, out=tmp_path / "b", batch_size=8, **given)
    for mine, theirs in zip(found.model.parameters(), wanted.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    assert found.history[-1]["step"] == wanted.history[-1]["step"] == 6


def test_norms_over_a_single_sample_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generated(Normed(), tmp_path, (1, 3, 8, 8))
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "normed.py", Options(restore_batchnorm=True))
    given = {**QUIET, "show": "lines", "batch_size": 1, "max_steps": 1}
    samples = data(tmp_path, 3, 8, 8)
    fit(tmp_path / "normed.py", samples, out=tmp_path / "a", **given)
    assert "each sample is a batch, by which 1 BatchNorm (bn) normalise it; " in capsys.readouterr().out
    fit(tmp_path / "normed.py", samples, out=tmp_path / "b", freeze=["bn"], **given)
    assert "each sample is a batch" not in capsys.readouterr().out
