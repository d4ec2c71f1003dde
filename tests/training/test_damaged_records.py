"""Damaged records of a run: each is one line and exit code 2, and the other runs are listed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import load
from onnxgen.training.runs.alike import fits
from onnxgen.training.runs.record import BOXES
from tests.training.damaged import asked, trained
from tests.training.small import network

Out = pytest.CaptureFixture[str]
Runs = tuple[Path, dict[str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("damaged")
    return folder, trained(folder)


@pytest.mark.parametrize("name", ["table", "images"])
@pytest.mark.parametrize("seed", range(12))
def test_drawn_damage_is_no_bug(name: str, seed: int, runs: Runs) -> None:
    """Whatever is wrong with a file of a run, no command calls it a bug. `tests.training.damaged` draws more."""
    folder, data = runs
    assert asked(folder / name, data[name], random.Random(f"{name} {seed}")) == []


def record(**changes: Any) -> Callable[[Path], None]:
    """Return what changes a record: a value by its path, with `__` between keys."""

    def change(run: Path) -> None:
        found = json.loads((run / "run.json").read_text())
        for path, value in changes.items():
            *keys, last = (int(key) if key.isdigit() else key for key in path.split("__"))
            owner = found
            for key in keys:
                owner = owner[key]
            owner[last] = value
        (run / "run.json").write_text(json.dumps(found))

    return change


def written(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes(change((run / name).read_bytes())) and None


METRICS = b"epoch,step,val_loss,seconds\n"
DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a list": (written("run.json", lambda _: b"[1]"), "the JSON is not an object"),
    "another encoding": (written("run.json", lambda b: b.decode().encode("utf-16")), "codec can't decode"),
    "seconds as text": (
        record(result__seconds="long"),
        "its result.seconds is of type str, not a finite number: 'long'",
    ),
    "endless": (record(result__seconds=float("inf")), "its result.seconds must be a finite number, not inf"),
    "before the beginning": (record(result__seconds=-5), "its result.seconds must be from 0 to 1e+12, not -5"),
    "metrics as a list": (record(result__best=[1]), "its result.best is of type list, not an object"),
    "epochs as text": (record(settings__epochs="many"), "its settings: epochs must be a whole number, not 'many'"),
    "endless epochs": (record(settings__lr=float("inf")), "its settings: lr must be a number, not 'inf'"),
    "a place that a run has not": (
        record(settings__out="/x"),
        "its settings have 'out', which none of a run is called",
    ),
    "classes as a number": (record(targets__0__names=3), "its targets[0].names is of type int, not a list: 3"),
    "too few classes": (record(targets__0__classes=2), "its target 'scores' has 2 classes and 3 names"),
    "shape of text": (record(inputs__0__shape=["4"]), "its inputs[0].shape[0] is of type str, not a whole number: '4'"),
    "a type of no tensor": (record(inputs__0__dtype="int7"), "its inputs[0].dtype must be one of"),
    "a name that is a path": (record(name="../../x"), "its name is '../../x', which is no name of a file"),
    "an ONNX file that is a path": (record(onnx="../x.onnx"), "its onnx is '../x.onnx', which is no name of a file"),
    "a tokenizer elsewhere": (
        record(settings__tokenizer="../t.json"),
        "its tokenizer is '../t.json', not tokenizer.json",
    ),
    "an unknown part": (record(parts__more={"samples": 1, "digest": ""}), "its parts have 'more'"),
}
ELSEWHERE: dict[str, tuple[Callable[[Path], None], str]] = {
    "more classes": (record(targets__0__classes=5), "output 'scores' is "),
    "another output": (record(targets__0__output=3), "has a target for output 3, and its model has 1 output"),
    "another input": (record(inputs__0__name="y"), "has inputs y, and its model takes x"),
    "trailing bytes": (written("best.safetensors", lambda b: b + b"x"), "was changed or damaged since the run ended"),
    "another weight": (written("best.safetensors", lambda b: b[:-1] + bytes([b[-1] ^ 1])), "has another SHA-256"),
    "a letter of the module": (
        written("model.py", lambda b: b.replace(b"self.fc", b"self.fd")),
        "it does something else",
    ),
    "half a module": (written("model.py", lambda b: b[:-40]), "was changed or damaged since the run wrote it"),
}


@pytest.mark.parametrize("damage", [*DAMAGED, *ELSEWHERE])
def test_damage_is_told_in_a_line(damage: str, runs: Runs, tmp_path: Path, capsys: Out) -> None:
    change, says = {**DAMAGED, **ELSEWHERE}[damage]
    copy = Path(shutil.copytree(runs[0] / "table", tmp_path / "copy"))
    change(copy / "run")
    for command in (["predict", copy / "run", copy / "d.csv"], ["evaluate", copy / "run", "--device", "cpu"]):
        code, lines = cli(list(map(str, command))), capsys.readouterr().err.splitlines()
        if damage != "more classes" or command[0] == "predict":
            assert code == 2 and len(lines) == 1 and says in lines[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", b"{}"),
        ("run.json", b"[1]"),
        ("metrics.csv", METRICS + b"1,1,x,1\n"),
        ("metrics.csv", METRICS + b"1,1\n"),
        ("metrics.csv", METRICS + b"1,1,2,inf\n"),
        ("metrics.csv", b"a,b\n1,1\n"),
        ("metrics.csv", METRICS.decode().encode("utf-16")),
    ],
)
def test_the_other_runs_are_listed(name: str, text: bytes, runs: Runs, tmp_path: Path, capsys: Out) -> None:
    for copy in ("one", "other"):
        shutil.copytree(runs[0] / "table" / "run", tmp_path / copy)
    (tmp_path / "one" / name).write_bytes(text)
    assert cli(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("1 run in ") and "note: left out, since " in shown.err and f"one/{name}" in shown.err
    assert cli(["runs", str(tmp_path / "one")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"one/{name}" in line


def test_weights_that_are_named_are_not_compared(runs: Runs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(runs[0] / "table", tmp_path / "copy"))
    shutil.copy(copy / "run" / "last.safetensors", copy / "run" / "best.safetensors")
    content = (copy / "run" / "best.safetensors").read_bytes()
    (copy / "run" / "best.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert cli(["evaluate", str(copy / "run"), "--device", "cpu", "-q"]) == 2
    assert load(copy / "run", weights=copy / "run" / "best.safetensors").evaluate(copy / "d.csv")


def test_a_finished_run_with_averages_is_resumed(runs: Runs, tmp_path: Path) -> None:
    """There is nothing to train; the model has the averages again."""
    copy = Path(shutil.copytree(runs[0] / "table", tmp_path / "copy"))
    before = load(copy / "run").evaluate()
    assert cli(["train", "--resume", "--out", str(copy / "run"), "-q"]) == 0
    assert load(copy / "run").evaluate() == before


def test_a_head_of_boxes_that_is_no_head_is_told(tmp_path: Path) -> None:
    model = network(tmp_path, x=("float32", ("n", 4)))
    for head in ({}, {"tail": 3}, {"tail": {}}, {"tail": None, "places": [0]}):
        target = SimpleNamespace(output=0, loss=BOXES, head=head)
        record: Any = SimpleNamespace(inputs=[SimpleNamespace(name="x")], targets=[target])
        with pytest.raises(OnnxgenError, match="run.json has no maps that boxes can be made of"):
            fits(record, model, tmp_path, {})
