"""Commands without the name of a run take the newest one, and `train` says what to type next."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from onnxgen.cli import run
from onnxgen.training.runs.record import read_record
from tests.training.small import network

Out = pytest.CaptureFixture[str]
TRAIN = ["train", "small.py", "--data", "data.npz", "--epochs", "1", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    network(tmp_path, x=("float32", ["n", 5]))
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(60) % 3)
    np.savez(tmp_path / "new.npz", x=x[:2])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_newest_run_is_asked(folder: Path, capsys: Out) -> None:
    assert run(["evaluate"]) == 2 and "error: there is no run in runs" in capsys.readouterr().err
    assert run(TRAIN) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: onnxgen evaluate runs/small-1"
    assert run([*TRAIN, "--val", "0"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "next: onnxgen predict runs/small-2 FILES"
    assert run(["predict", "new.npz"]) == 0
    assert capsys.readouterr().err == "asking runs/small-2, the newest run\n"
    os.utime("runs/small-1/config.toml")
    assert run(["evaluate"]) == 0 and "samples of the val part of data.npz: loss" in capsys.readouterr().out
    assert run(["predict", "new.npz"]) == 0
    newest = capsys.readouterr()
    assert run(["predict", "runs/small-1", "new.npz"]) == 0
    named = capsys.readouterr()
    assert newest.out == named.out and newest.err == "asking runs/small-1, the newest run\n" and named.err == ""
    assert run(["export"]) == 0 and Path("runs/small-1/small-1.onnx").is_file()


def test_a_run_without_weights_is_not_the_newest(folder: Path, capsys: Out) -> None:
    assert run(TRAIN) == 0
    shutil.copytree("runs/small-1", "runs/small-2")
    Path("runs/small-2/best.safetensors").unlink()
    os.utime("runs/small-2/config.toml")
    capsys.readouterr()
    for command, verb in (("evaluate", "asking"), ("predict new.npz", "asking"), ("export", "exporting")):
        assert run(command.split()) == 0
        said = f"runs/small-2 is unfinished: {verb} runs/small-1, the newest run with weights\n"
        assert capsys.readouterr().err == said
    os.utime("runs/small-1/config.toml")
    assert run(["evaluate"]) == 0 and capsys.readouterr().err == "", "the unfinished run is older"
    Path("runs/small-1/best.safetensors").unlink()
    assert run(["evaluate"]) == 2
    assert "error: runs/small-1 has no best.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gone", "photos"])
def test_a_first_word_that_is_no_run_is_told(name: str, folder: Path, capsys: Out) -> None:
    Path("photos").mkdir()
    assert run(["predict", name, "new.npz"]) == 2
    what = "there is no run gone" if name == "gone" else f"{name} is not a run: it has no run.json"
    assert capsys.readouterr().err == f"error: {what} -> onnxgen train makes them\n"


def test_a_module_that_does_not_say_how_it_is_asked_is_told(folder: Path, capsys: Out) -> None:
    assert run(["predict", "small.py", "new.npz"]) == 2
    what = "small.py was not trained here, and its ONNX file says no characters, or not how images are fed"
    help_ = "onnxgen evaluate small.py --data DATA; or train it, and predict with the run"
    assert capsys.readouterr().err == f"error: {what} -> {help_}\n"


WEIGHTS = "runs/small-1/best.safetensors"


@pytest.mark.parametrize("command", ["evaluate {}", "predict {}", "predict {} new.npz", "export {}"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("runs/smal-1", "there is no run runs/smal-1 -> did you mean runs/small-1?"),
        ("runs/mnist", "there is no run runs/mnist -> the runs are runs/other, runs/small-1"),
        (WEIGHTS, f"{WEIGHTS} is a file of a run -> name the run: runs/small-1"),
    ],
)
def test_a_word_that_means_a_run_is_told_which_there_are(
    command: str, name: str, told: str, folder: Path, capsys: Out
) -> None:
    for made in ("small-1", "other"):
        Path("runs", made).mkdir(parents=True)
        for file in ("run.json", "config.toml", "best.safetensors"):
            Path("runs", made, file).write_bytes(b"")
    assert run(command.format(name).split()) == 2
    assert capsys.readouterr().err == f"error: {told}\n"


def test_a_run_alone_is_no_file(folder: Path, capsys: Out) -> None:
    assert run(TRAIN) == 0 and run(["predict", "runs/small-1"]) == 2
    assert "error: no file to predict for -> " in capsys.readouterr().err


def test_a_run_that_goes_on_keeps_its_name(folder: Path, capsys: Out) -> None:
    shutil.copy("data.npz", "other.npz")
    assert run([*TRAIN, "--name", "first-try"]) == 0
    before = read_record(Path("runs/first-try-1")).settings
    for more in ([], ["--data", "other.npz"], ["--name", "second"], ["--out", "there"]):
        assert run(["train", "runs/first-try-1", *more]) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == [*(f"first-try-{n}" for n in (1, 2, 3)), "second-1"]
    assert read_record(Path("runs/first-try-2")).settings == before
