"""The training samples, each on a little data. The figures in their READMEs come from complete runs."""

from __future__ import annotations

import gzip
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from onnxgen.cli import run
from onnxgen.training import open_model
from onnxgen.training.runs.record import read_record
from samples.captcha import draw as captchas
from samples.captcha import train as captcha
from samples.fashion import train as fashion
from samples.fully_connected import train as fully_connected
from samples.mnist import train as mnist
from samples.tasks import make as tasks
from samples.text import train as text
from tests.conftest import ROOT
from tests.training.conftest import Sample


def little(name: str, shared: Path, folder: Path, train: int, test: int) -> Path:
    """Write the first images of a real set as idx files."""
    folder.mkdir()
    for part, count in (("train", train), ("t10k", test)):
        for kind in ("images-idx3", "labels-idx1"):
            begin, each = (16, 28 * 28) if kind == "images-idx3" else (8, 1)
            with gzip.open(shared / "data" / name / f"{part}-{kind}-ubyte.gz") as file:
                made = bytearray(file.read(begin + count * each))
            made[4:8] = count.to_bytes(4, "big")
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(made, 1))
    return folder


def values(path: Path) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def nodes(path: Path) -> list[Any]:
    return list(onnx.load(path).graph.node)


@pytest.mark.slow
def test_mnist(sample: Sample, shared: Path, tmp_path: Path) -> None:
    """Both trained files are the same graph with other values, and onnxruntime agrees with PyTorch."""
    data = little("mnist", shared, tmp_path / "data", 1500, 200)
    rows = sample(mnist, "--data", data, "--epochs", "4", "--out", tmp_path / "out")[1:]
    assert [row[0] for row in rows] == ["as it came", "trained from scratch", "fine-tuned"]
    assert all(row[1] == row[2] and row[3] == "200 of 200" for row in rows)
    came, scratch, tuned = (float(row[1].rstrip("%")) for row in rows)
    assert came > 97 and tuned > 95 and scratch > 50  # 10 by chance
    original = values(mnist.ONNX)
    for name in ("scratch", "tuned"):
        assert nodes(tmp_path / "out" / f"{name}.onnx") == nodes(mnist.ONNX)
        written = values(tmp_path / "out" / f"{name}.onnx")
        is_new = not np.array_equal(written["conv1.weight"], original["conv1.weight"])
        assert is_new or (name == "tuned" and tuned == came)  # no epoch was better than the file


def test_fully_connected(sample: Sample, shared: Path, tmp_path: Path) -> None:
    data = little("mnist", shared, tmp_path / "data", 3000, 300)
    _, before, after = sample(fully_connected, "--data", data, "--epochs", "2", "--out", tmp_path)
    assert before[0] == "untrained" and before[1] == before[2]
    assert after[0] == "trained" and after[1] == after[2] and after[3] == "300 of 300"
    assert float(after[1].rstrip("%")) > 60 > 30 > float(before[1].rstrip("%"))


@pytest.mark.parametrize("module", [mnist, fully_connected, fashion])
def test_samples_without_data_tell_what_to_do(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        module.main()
    assert stop.value.code == 2 and not (tmp_path / "out").exists()
    assert f"in {tmp_path}: give their folder with --data" in capsys.readouterr().err


def test_captchas_depend_only_on_the_seed(tmp_path: Path) -> None:
    pictures, answers = captchas.draw(6, 1)
    again = captchas.cached(6, 1, tmp_path / "drawn.npz")
    read = captchas.cached(6, 1, tmp_path / "drawn.npz")
    other = captchas.cached(6, 2, tmp_path / "drawn.npz")  # drawn anew
    assert all(np.array_equal(a, b) and np.array_equal(a, c) for a, b, c in zip((pictures, answers), again, read))
    assert not np.array_equal(pictures, other[0]) and not np.array_equal(answers, other[1])
    assert pictures.shape == (6, 24, 56, 3) and pictures.std() > 10


def test_captchas_are_read_character_by_character() -> None:
    target = torch.eye(36)[torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])].flatten(1)
    scores = target.clone()
    scores[0, 35] = 9.0  # the first character is taken for Z
    assert captcha.read(target).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert captcha.accuracies(target, target) == (1.0, 1.0)
    assert captcha.accuracies(scores, target) == (7 / 8, 1 / 2)


@pytest.mark.slow
def test_captcha(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss falls, and the exported file computes the same as the best weights; the network is a thin ResNet-18."""
    monkeypatch.setattr(captcha, "export", partial(captcha.export, width=16))
    rows = sample(captcha, "--count", "32", "--epochs", "8", "--out", tmp_path)[1:]
    assert len(rows) == 4 and rows[0][1:] == rows[1][1:] and rows[2][1:] == rows[3][1:]
    metrics = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert {"val_character_accuracy", "val_captcha_accuracy"} <= set(metrics[0].split(","))
    column = metrics[0].split(",").index("train_loss")
    first, *_, last = (float(line.split(",")[column]) for line in metrics[1:])
    assert last < 0.8 * first
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")

    pictures = captcha.scaled(captcha.data(32, 0, tmp_path)["test"]["captcha"])
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    best = open_model(tmp_path / "model.py", tmp_path / "run" / "best.safetensors").eval()
    with torch.inference_mode():
        ours = best(torch.from_numpy(pictures)).numpy()
    np.testing.assert_allclose(session.run(None, {"captcha": pictures})[0], ours, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the data of all tasks."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tasks, "export", lambda folder: None)  # each test exports its own network
        tasks.make(folder := tmp_path_factory.mktemp("tasks"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.INPUTS)
def test_tasks(name: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training on the page makes less than half of the errors of the answer that is right most often."""
    tasks.export(made, [name])
    monkeypatch.chdir(made)
    page = (ROOT / "samples" / "tasks" / "README.md").read_text(encoding="utf-8")
    (command,) = (line for line in page.splitlines() if line.startswith(f"onnxgen train {name}.py "))
    assert run([f"{name}.onnx", "-q"]) == 0 and run([*command.split()[1:], "--workers", "0", "-q"]) == 0
    test, often = read_record(Path("runs", f"{name}-1")).result["test"], 1 / 3
    if name == "progress":
        y = np.loadtxt("progress.csv", delimiter=",", skiprows=1)[:, -1]
        assert test["test_loss"] < 0.7 * y.var()  # of the mean squared error of the mean
        return
    if (arrays := Path(f"{name}.npz")).exists():
        y = np.load(arrays)["y"].reshape(-1, 3 if name == "labels" else 1)
        often = float(np.maximum(y.mean(0), 1 - y.mean(0)).mean())
    elif name == "scenes":
        often = np.mean([np.asarray(Image.open(mask)) == 0 for mask in Path("scenes/masks/test").iterdir()])
    assert 1 - test["test_accuracy"] < (1 - often) / 2


def test_fashion_keeps_the_rows_of_known_classes(shared: Path, tmp_path: Path) -> None:
    """The rows of six known classes are at their places among the ten, and the first layers are frozen."""
    assert run([str(fashion.HERE / "fashion.onnx"), "-o", str(tmp_path / "model.py"), "-q"]) == 0
    before, tuned = open_model(tmp_path / "model.py"), fashion.pretrained(tmp_path / "model.py")
    assert torch.equal(tuned.fc2.weight[list(fashion.KNOWN)], before.fc2.weight)
    frozen = {name for name, p in tuned.named_parameters() if not p.requires_grad}
    assert {name.split(".")[0] for name in frozen} == {"conv1", "norm1", "conv2", "norm2"}
    scratch = fashion.from_scratch(tmp_path / "model.py")
    assert scratch.fc2.weight.shape == (10, 64) and not torch.equal(scratch.conv1.weight, before.conv1.weight)


def test_fashion(sample: Sample, shared: Path, tmp_path: Path) -> None:
    """The fine-tuned network learns more from the same few images."""
    data = little("fashion-mnist", shared, tmp_path / "data", 600, 400)
    _, scratch, tuned = sample(
        fashion, "--data", data, "--images", "30", "--seeds", "1", "--epochs", "4", "--out", tmp_path / "out"
    )
    assert (scratch[0], tuned[0]) == ("from scratch", "fine-tuned")
    assert float(tuned[1].rstrip("%")) > float(scratch[1].rstrip("%")) + 1


@pytest.mark.slow
def test_text(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generated network trains as its original does in a loop by hand: the losses are equal up to rounding."""
    pytest.importorskip("tokenizers")
    monkeypatch.setattr(text.make, "MODULES", ("calendar", "csv"))
    _, model, tags = sample(text, "--epochs", "1", "--characters", "12000", "--out", tmp_path)
    assert model[0] == "language model" and float(model[1].split()[1]) < 400  # of 400 tokens
    assert tags[0] == "tags of words" and float(tags[1].split()[1].rstrip("%")) > 40
    assert all(float(row[4]) < 1e-3 for row in (model, tags))
