"""`onnxgen train`: its options, early errors, output and files."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from onnxgen.cli import app as cli
from onnxgen.cli import run
from onnxgen.cli.train_options import given_settings
from onnxgen.errors import OnnxgenError
from onnxgen.training import report
from onnxgen.training.config import read_config, write_config
from onnxgen.training.settings import SETTINGS, Settings
from tests.conftest import ROOT
from tests.support import forked
from tests.training.small import network

Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated model, and data for it."""
    folder = tmp_path_factory.mktemp("train")
    network(folder, x=("float32", ["n", 5]), b=("float32", ["n", 2]))
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 96)
    x = rng.normal(size=(96, 5)).astype(np.float32) + y[:, None].astype(np.float32)
    np.savez(folder / "data.npz", x=x, b=x[:, :2] - 1, y=y)
    return folder


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def train(*arguments: object) -> int:
    return run(["train", *map(str, arguments)])


SHORT = ("small.py", "--data", "data.npz", "--epochs", 2, "--batch-size", 16, "--lr", 0.05, "--workers", 0)


# ---- options and configuration files ---------------------------------------------------------------------------------


def taken(*arguments: str) -> dict[str, Any]:
    """Return the settings that a command line gives."""
    return given_settings(cli.app.commands["train"].make_context("train", list(arguments)))


def test_every_setting_is_an_option() -> None:
    options = {p.name: p.opts for p in cli.app.commands["train"].params}
    for field in fields(Settings):
        assert options[field.name] == [SETTINGS[field.name].option] and SETTINGS[field.name].help.endswith(".")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("--epochs 3", "epochs", 3),
        ("--lr 1e-3", "lr", 1e-3),
        ("--early-stop none", "early_stop", None),
        ("--workers auto", "workers", "auto"),
        ("--workers 2", "workers", 2),
        ("--loss mse_loss", "loss", "mse_loss"),
        ("--loss a=mse_loss,b=nll_loss", "loss", {"a": "mse_loss", "b": "nll_loss"}),
        ("--inputs ids=col_a,mask=col_b", "inputs", {"ids": "col_a", "mask": "col_b"}),
        ("--target digit", "target", "digit"),
        ("--target out=digit", "target", {"out": "digit"}),
        ("--freeze stem --freeze layer1.*", "freeze", ("stem", "layer1.*")),
        ("--import torch_ocl", "imports", ("torch_ocl",)),
        (
            "--optimizer-arg momentum=0.5 --optimizer-arg nesterov=true",
            "optimizer_args",
            {"momentum": 0.5, "nesterov": True},
        ),
        ("--schedule-arg milestones=[2,4]", "schedule_args", {"milestones": [2, 4]}),
        ("--optimizer-arg betas=(0.9,0.99)", "optimizer_args", {"betas": (0.9, 0.99)}),
        ("--optimizer-arg line_search_fn=strong_wolfe", "optimizer_args", {"line_search_fn": "strong_wolfe"}),
        ("--compile", "compile", True),
        ("--no-compile", "compile", False),
        ("--out runs/x", "out", Path("runs/x")),
        ("--weights mine.safetensors", "weights", Path("mine.safetensors")),
    ],
)
def test_options(text: str, field: str, value: Any) -> None:
    assert taken(*text.split()) == {field: value}
    assert type(taken(*text.split())[field]) is type(value)


def test_only_given_options_are_returned() -> None:
    assert taken("model.py", "--data", "x") == {}


@pytest.mark.parametrize(
    "wrong", ["--epochs x", "--lr fast", "--inputs ids", "--optimizer-arg momentum", "--epochs", "--learning-rate 1"]
)
def test_wrong_options_are_refused_in_one_line(wrong: str, capsys: Out) -> None:
    assert train("small.py", *wrong.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "learning" not in wrong or "no such option --learning-rate; did you mean --lr?" in line


def test_a_configuration_is_written_and_read(tmp_path: Path) -> None:
    asked = Settings(
        lr=1.0, optimizer_args={"betas": [0.9, 0.99], "a b": 1e-8}, target={"a": 'ü\n"\\\x7f😀'}, workers=2,
        schedule="steplr", freeze=("l1.*",), early_stop=3, out=tmp_path, weights=Path("w.safetensors"),
    )  # fmt: skip
    write_config(tmp_path / "c.toml", asked, {"model": "m.py", "data": "digits"}, ["several\nlines"])
    found = read_config(tmp_path / "c.toml")
    assert found.pop("model") == "m.py" and found.pop("data") == "digits" and Settings(**found) == asked


def test_values_that_toml_cannot_represent_become_comments(tmp_path: Path) -> None:
    write_config(tmp_path / "c.toml", Settings(optimizer_args={"f": len}), {})
    assert "optimizer_args" not in read_config(tmp_path / "c.toml")
    assert "# optimizer_args: not written" in (tmp_path / "c.toml").read_text()


def test_every_mistake_of_a_configuration_is_named(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        "epoch = 3\nlr = 'x'\nfreeze = 'a'\nworkers = 1.5\ncompile = 1\nearly-stop = true\ntarget = {a=1}\n"
    )
    with pytest.raises(OnnxgenError) as caught:
        read_config(path)
    found = [str(problem) for problem in caught.value.problems]
    assert [text.split()[0] for text in found] == [f"{path}:"] * 7
    assert found[0].endswith("there is no setting 'epoch' -> did you mean epochs?")
    for text, words in zip(
        found[1:], ["lr must be a number", "freeze must be a list", "workers", "compile must be true"]
    ):
        assert words in text


@pytest.mark.parametrize("text", ["epochs = ", "\xff", None])
def test_unreadable_configuration_files(text: str | None, tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "c.toml"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    assert train("--config", path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replace `fit`. Return the list of its calls."""
    found: list[tuple[Any, ...]] = []

    def fit(model: str, data: str, *, settings: Settings, show: str, **given: Any) -> Any:
        found.append((model, data, replace(settings, **given), show))
        raise OnnxgenError("asked")

    monkeypatch.setattr("onnxgen.cli.training._fit", lambda: fit)
    return found


def test_the_command_line_overrides_the_configuration(asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    (tmp_path / "small.py").touch()
    path.write_text("model = 'small.py'\ndata = 'digits'\nepochs = 5\nbatch-size = 7\nearly-stop = 2\ncompile = true\n")
    train("--config", path, "--epochs", 3, "--data", "data.npz", "--early-stop", "none", "--no-compile", "-q")
    assert asked == [(str(tmp_path / "small.py"), "data.npz", Settings(epochs=3, batch_size=7), "nothing")]


def test_a_resumed_run_uses_its_settings(asked: list[Any], tmp_path: Path) -> None:
    write_config(tmp_path / "config.toml", Settings(lr=0.5, out=tmp_path), {"model": "small.py", "data": "data.npz"})
    shutil.copy("small.py", tmp_path / "model.py")  # a run has the code of its module: no other is run unasked
    train("--resume", "--out", tmp_path, "--epochs", 30)
    assert asked == [("small.py", "data.npz", Settings(lr=0.5, epochs=30, resume=True, out=tmp_path), "auto")]


def test_paths_of_a_configuration_are_relative_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run can be repeated from any folder, also through a symbolic link."""
    (tmp_path / "work" / "data").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (tmp_path / "work" / "runs").symlink_to(tmp_path / "disk")
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "disk" / "x").mkdir()
    asked = Settings(out=Path("runs/x"), weights=Path("mine.safetensors"))
    write_config(Path("runs/x/config.toml"), asked, {"model": "model.py", "data": "data"})
    for here in (tmp_path / "work", tmp_path, tmp_path / "disk" / "x"):
        monkeypatch.chdir(here)
        found = read_config(Path(os.path.relpath(tmp_path / "work" / "runs" / "x" / "config.toml")))
        assert isinstance(found["weights"], Path) and isinstance(found["data"], str)
        assert Path(found["model"]).absolute() == tmp_path / "work" / "model.py"
        assert Path(found["data"]).absolute() == tmp_path / "work" / "data"
        assert found["weights"].absolute() == tmp_path / "work" / "mine.safetensors"
        assert found["out"].resolve() == tmp_path / "disk" / "x"
    monkeypatch.chdir(tmp_path / "work")
    assert read_config(Path("runs/x/config.toml"))["model"] == "model.py", "it is relative to the current folder"


@pytest.mark.parametrize("data", ["digits", "here:data", "package.module:function"])
def test_data_sources_that_are_not_paths_are_not_changed(data: str, tmp_path: Path) -> None:
    write_config(tmp_path / "config.toml", Settings(), {"model": "small.py", "data": data})
    assert f'data = "{data}"' in (tmp_path / "config.toml").read_text()
    assert read_config(tmp_path / "config.toml")["data"] == data


def test_absolute_paths_are_not_changed(tmp_path: Path) -> None:
    given = {"model": str(tmp_path / "m.py"), "data": str(tmp_path / "d")}
    write_config(tmp_path / "config.toml", Settings(out=tmp_path / "run"), given)
    found = read_config(tmp_path / "config.toml")
    assert found["model"] == given["model"] and found["data"] == given["data"] and found["out"] == tmp_path / "run"


# ---- what is refused before PyTorch is loaded ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "MODEL is missing"),
        ("--resume --out nowhere", "there is no run to resume in nowhere"),
        ("small.py --resume --out nowhere", "there is no run to resume in nowhere"),
        ("none.py", "there is no file or folder none.py -> name a module that onnxgen generated, or"),
        ("mall.py", "there is no file or folder mall.py -> did you mean small.py?"),
        ("small.onnx", "first: onnxgen small.onnx -o small.py"),
        ("small.py --data none.npz", "there is no data at none.npz"),
        ("small.py --weights none.safetensors", "there is no file none.safetensors"),
        ("data.npz", "data.npz is not a Python file -> name a file that ends in .py: data.py"),
        ("small.py --epochs 0", "epochs must be at least 1"),
        ("small.py --lr -1", "lr must be more than 0, not -1"),
        ("small.py --lr 0", "lr must be more than 0, not 0"),
        ("small.py --precision 8", "precision must be one of 32-true"),
        ("small.py --val 0.6 --test 0.5", "shares of the data"),
        ("small.py --weights small.safetensors --from-scratch", "exclude each other"),
        ("small.py --out taken", "taken already has a run -> continue it with --resume"),
    ],
)
def test_refused_at_once(
    arguments: str, expected: str, folder: Path, asked: list[Any], capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "last.safetensors").touch()
    assert train(*arguments.split()) == 2 and asked == []
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--device", "cuda:9"], "cuda:9"),
        (["--optimizer", "sdg"], "sgd"),
        (["--loss", "mse"], "mse_loss"),
        (["--freeze", "nothing.*"], "nothing"),
    ],
)
def test_refused_before_the_first_epoch(arguments: list[str], expected: str, tmp_path: Path, capsys: Out) -> None:
    assert train(*SHORT, "--out", tmp_path / "out", *arguments) == 2
    said = capsys.readouterr()
    assert expected.lower() in said.err.lower() and "epoch 1" not in said.out
    assert len(said.err.splitlines()) == 1


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_can_be_repeated_from_its_configuration(tmp_path: Path, capsys: Out) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert train(*SHORT, "--optimizer", "sgd", "--optimizer-arg", "momentum=0.5", "--test", 0.2, "--out", first) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"training Small \(9 parameters\) on data.npz \(67 train, 10 val, 19 test\) with cpu", lines[0])
    assert lines.pop() == f"next: onnxgen evaluate {first}"
    assert [line for line in lines if re.match(r"epoch \d of 2: train loss ", line)] == lines[-4:-2]
    assert re.fullmatch(r"test: loss [\d.]+, accuracy [\d.]+%", lines[-2])
    expected = {"config.toml", "metrics.csv", "report.html", "loss.png", "accuracy.png", "confusion.png", "tensorboard"}
    expected |= {"best.safetensors", "last.safetensors", "checkpoints", "model.py", "run.json"}
    assert expected <= {path.name for path in first.iterdir()}
    assert expected <= set(re.split(r"[:,] ", lines[-1]))

    assert train("--config", first / "config.toml", "--out", second, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    rows = report.read_rows(first / "metrics.csv")
    assert [{**row, "seconds": 0} for row in told["history"]] == [{**row, "seconds": 0} for row in rows]
    assert told["out"] == str(second) and told["test"].keys() == {"test_loss", "test_accuracy"}
    for name in ("best.safetensors", "last.safetensors"):
        ours, again = load_file(first / name), load_file(second / name)
        assert ours.keys() == again.keys() and all(np.array_equal(ours[key], again[key]) for key in ours)
    untrained = load_file("small.safetensors")
    assert ours.keys() == untrained.keys() and not all(np.array_equal(ours[key], untrained[key]) for key in ours)


def test_runs_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    paths = [Path(name).absolute() for name in ("small.py", "data.npz")]
    monkeypatch.chdir(tmp_path)
    once = (paths[0], "--data", paths[1], "--max-steps", 1, "--workers", 0)
    for more in ((), (), ("--resume", "--max-steps", 2), ("--name", "slow")):
        assert train(*once, *more) == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["slow-1", "small-1", "small-2"]
    resumed = Path("runs/small-2/config.toml").read_text(encoding="utf-8")
    assert "max_steps = 2" in resumed
    capsys.readouterr()
    assert train(*once, "--out", "runs/small-1") == 2
    assert "already has a run" in capsys.readouterr().err


def test_quiet(tmp_path: Path, capsys: Out) -> None:
    assert train(*SHORT, "--out", tmp_path, "-q") == 0
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_ctrl_c_twice_is_an_interruption(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    """Lightning then ends the process with its own exit code."""

    def fit(*_: Any, **__: Any) -> Any:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise SystemExit(1)  # noqa: B904

    monkeypatch.setattr("onnxgen.cli.training._fit", lambda: fit)
    assert train(*SHORT) == 130 and capsys.readouterr().err.strip() == "error: interrupted"


@contextmanager
def process(folder: Path, *arguments: object) -> Iterator[Any]:
    """A process that trains; its streams are in the files `said` and `errors` of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = ["-m", "onnxgen", "train", *map(str, arguments)]
    child = forked.start(command, folder / "said", folder / "errors", env=environment)
    try:
        yield child
    finally:
        child.kill()


def until(true: Callable[[], bool], child: Any, errors: Path) -> None:
    for _ in range(1200):
        if true():
            return
        assert child.exitcode is None, errors.read_text()
        time.sleep(0.05)
    raise AssertionError("it never came to it")


@pytest.mark.skipif(sys.platform == "win32", reason="a process can't be sent Ctrl-C alone")
def test_ctrl_c_leaves_a_complete_folder_that_can_be_resumed(tmp_path: Path, capsys: Out) -> None:
    out = tmp_path / "out"
    with process(tmp_path, *SHORT, "--epochs", 100000, "--out", out) as child:
        until(lambda: len(report.read_rows(out / "metrics.csv")) > 2, child, tmp_path / "errors")
        os.kill(child.pid, signal.SIGINT)
        child.join(60)
    errors = (tmp_path / "errors").read_text()
    assert child.exitcode == 130 and errors == "", errors
    lines = (tmp_path / "said").read_text().splitlines()
    assert any(re.fullmatch("stopping after [a-z ]+; interrupt again to stop at once", line) for line in lines), lines
    rows = report.read_rows(out / "metrics.csv")
    last = f"stopped after {len(rows):,} whole epochs; continue with: onnxgen train --resume --out {out}"
    assert last in lines
    left = {"config.toml", "metrics.csv", "report.html", "loss.png", "best.safetensors", "last.safetensors"}
    assert left <= {path.name for path in out.iterdir()}
    assert train("--resume", "--out", out, "--epochs", len(rows) + 2) == 0
    going_on = rf"continuing after step \d+, in epoch {len(rows) + 1} of {len(rows) + 2}"
    assert any(re.fullmatch(going_on, line) for line in capsys.readouterr().out.splitlines())
    assert train("--resume", "--out", out, "--epochs", len(rows) + 2) == 0
    assert "nothing is left to train" in capsys.readouterr().out
    again = report.read_rows(out / "metrics.csv")
    assert [row["epoch"] for row in again] == [i + 1 for i in range(len(rows) + 2)] and again[: len(rows)] == rows


@pytest.mark.skipif(sys.platform == "win32", reason="pipes close otherwise there")
def test_the_reader_of_the_output_may_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "said")
    with process(tmp_path, *SHORT, "--out", tmp_path / "out") as child:
        with open(tmp_path / "said") as reader:
            assert reader.readline().startswith("training Small")
        child.join(60)
    assert (tmp_path / "errors").read_text() == "" and child.exitcode == 0
    assert len(report.read_rows(tmp_path / "out/metrics.csv")) == 2 and (tmp_path / "out/report.html").exists()
