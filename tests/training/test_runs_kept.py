"""A run stays what it was: however its module keeps weights, and when module, data or folder change afterwards."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors.torch import save_file

from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import fit, load
from onnxgen.training.runs.metrics import Run, compared
from onnxgen.training.runs.record import read_record
from tests.support import forked
from tests.training.small import network

SHORT = ("--max-steps", "2", "--workers", "0", "--quiet")
Out = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a network of three classes, a table of two of them, and its first rows with no target."""
    monkeypatch.chdir(tmp_path)
    network(tmp_path, x=("float32", ("n", 4)))
    values = np.random.default_rng(0).random((40, 4))
    rows = [",".join(f"{v:.4f}" for v in row) + f",{'ab'[n % 2]}" for n, row in enumerate(values)]
    Path("t.csv").write_text("\n".join(["p,q,r,s,kind", *rows]) + "\n")
    Path("new.csv").write_text("\n".join(["p,q,r,s,kind", *(f"{row[:-1]}" for row in rows[:3])]) + "\n")
    return tmp_path


ALONE = """
import sys
sys.modules["onnxgen"] = None
from safetensors.torch import load_file
from model import Model
x = load_file("x.safetensors")["x"]
own, best = (Model.from_pretrained(*given).eval()(x).float().tolist() for given in ((), ("best.safetensors",)))
print(own == best, own)
"""


@pytest.mark.parametrize("options", [("--embed",), ("--shard-size", "20"), ("--dtype", "bfloat16")], ids=lambda o: o[0])
def test_a_run_has_its_own_weights(options: tuple[str, ...], here: Path, capsys: Out) -> None:
    """They are in one file, wherever the module that was trained had its own, and the table has all classes."""
    assert cli(["small.onnx", "-o", "m.py", "-q", *options]) == 0
    assert cli(["train", "m.py", "--data", "t.csv", "--target", "kind", "--lr", "0.1", *SHORT]) == 0
    Path("m.py").unlink()
    run, x = Path("runs/small-1"), torch.rand(2, 4)
    dtype = torch.bfloat16 if "bfloat16" in options else torch.float32
    save_file({"x": x.to(dtype)}, run / "x.safetensors")
    said = forked.run(["-c", ALONE], cwd=run, env={"PATH": ""})
    same, _, values = said.stdout.partition(" ")
    wanted = load(run).model(x.to(dtype)).detach().float()
    assert same == "True", said.stderr
    assert torch.allclose(torch.tensor(json.loads(values)), wanted, rtol=1e-6)
    assert cli(["predict", str(run), "new.csv", "--json"]) == 0
    found, *_ = json.loads(capsys.readouterr().out)
    assert list(found["outputs"]["scores"]["probabilities"]) == ["a", "b", "2"], "the data names two of three classes"
    if dtype == torch.float32:
        assert cli(["export", str(run), "--onnx", "small.onnx", "-q"]) == 0
        session = onnxruntime.InferenceSession(run / "small-1.onnx", providers=["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], wanted.numpy(), rtol=1e-5)


def test_a_module_that_changed_since_is_not_exported(here: Path, capsys: Out) -> None:
    assert cli(["train", "small.py", "--data", "t.csv", "--target", "kind", *SHORT]) == 0
    edited, count = re.subn(r"(= |return )(.*self\.fc\()", r"\1-\2", Path("small.py").read_text())
    Path("small.py").write_text(edited)
    assert count == 1
    assert cli(["export", "runs/small-1", "-q"]) == 0
    x = torch.rand(2, 4)
    (found,) = onnxruntime.InferenceSession("runs/small-1/small-1.onnx").run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, load("runs/small-1").model(x).detach().numpy(), rtol=1e-5)
    Path("small.safetensors").unlink()
    assert cli(["export", "runs/small-1", "-q"]) == 0
    shutil.copytree("runs/small-1", "else/where/small-1")
    assert cli(["export", "else/where/small-1"]) == 2 and "--onnx" in capsys.readouterr().err


def test_a_copy_of_the_data_is_split_as_before(here: Path, capsys: Out) -> None:
    given = ("--target", "kind", "--test", "0.2", "--seed", "5")
    assert cli(["train", "small.py", "--data", "t.csv", *given, *SHORT]) == 0
    Path("t.csv").rename("moved.csv")
    assert cli(["evaluate", "runs/small-1"]) == 2
    assert "the data of runs/small-1 is gone: there is no t.csv -> say where it is now, with --data" in (
        capsys.readouterr().err
    )
    assert cli(["train", "runs/small-1", "--data", "moved.csv", "--max-steps", "1"]) == 0
    assert "the samples are those of runs/small-1, split as before" in capsys.readouterr().out
    again = fit("runs/small-1", "moved.csv", out="again", show="nothing").out
    first, *others = (read_record(Path(run)).parts for run in ("runs/small-1", "runs/small-2", again))
    assert others == [first, first] and "test" in first
    Path("more.csv").write_text(Path("moved.csv").read_text() + "1,2,3,4,a\n")
    assert cli(["train", "runs/small-1", "--data", "more.csv", "--target", "kind", "--max-steps", "1"]) == 0
    assert "what it held back may be trained on now" in capsys.readouterr().out


def test_a_run_without_weights_says_how_it_goes_on(here: Path, capsys: Out) -> None:
    assert cli(["train", "small.py", "--data", "t.csv", "--target", "kind", *SHORT]) == 0
    Path("runs/small-1/best.safetensors").unlink()
    for command in (["evaluate", "runs/small-1"], ["export", "runs/small-1"], ["train", "runs/small-1"]):
        assert cli(command) == 2
        assert "onnxgen train --resume --out runs/small-1" in capsys.readouterr().err


def test_float16_that_becomes_nan_is_refused(here: Path, capsys: Out) -> None:
    assert cli(["small.onnx", "-o", "half.py", "--dtype", "float16", "-q"]) == 0
    given = ("train", "half.py", "--data", "t.csv", "--target", "kind", *SHORT)
    assert cli([*given]) == 2
    assert "makes weights of float16 NaN: its eps of 1e-08 is 0 there -> generate the module with --dtype" in (
        capsys.readouterr().err
    )
    assert cli([*given, "--optimizer", "sgd"]) == 0


def test_what_is_no_data_is_refused(here: Path, capsys: Out) -> None:
    assert cli(["train", "small.py", "--data", "t.csv", "--target", "kind", *SHORT, "--table", "auto"]) == 0
    learner = load("runs/small-1")
    for given in ([[1, 2], [3]], (np.zeros((2, 4)), np.zeros(2)), None, [Path("t.csv"), 5], np.array("x")):
        with pytest.raises(OnnxgenError):
            learner.predict(given)
    with pytest.raises(OnnxgenError, match="whole numbers end below 2"):
        learner.predict(np.full((1, 4), 1 << 63, np.uint64))
    assert cli(["runs"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 200, "a fitted table is not written out"


def test_runs_are_compared_by_accuracy_before_loss_and_by_validation_before_test() -> None:
    best = {"val_loss": 0.3, "val_accuracy": 0.9, "train_loss": 0.2}
    result = {"best": best, "test": {"test_loss": 0.4, "test_accuracy": 0.8}, "stopped": "epochs", "seconds": 5.0}
    known = {"model": "Net", "data": "d.csv", "monitor": "val_accuracy", "result": result}
    records: Any = [SimpleNamespace(settings={"lr": lr}, **known) for lr in (1, 2)]
    titles, rows = compared([Run(Path(f"runs/{i}"), record, []) for i, record in enumerate(records)])
    metrics = ["val accuracy", "test accuracy", "val loss", "test loss", "train loss"]
    assert titles == ["run", "model", "data", "lr", *metrics, "time", "ended by"]
    assert [row[3] for row in rows] == ["1", "2"]
    assert [[float(cell.split()[0]) for cell in row[6:9]] for row in rows] == [[0.3, 0.4, 0.2]] * 2
