"""Nothing is overwritten unasked: trained weights, tables, pages, the data that is read, a folder of another run."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxgen import OnnxgenError
from onnxgen.cli import run as cli
from onnxgen.training import fit
from onnxgen.training.launch import RUNNING
from tests.support import forked
from tests.training.small import network

Out = pytest.CaptureFixture[str]
QUIET: dict[str, Any] = {"show": "nothing", "workers": 0, "device": "cpu", "loggers": "none"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("over")
    network(folder, x=("float32", ["n", 4]))
    rng = np.random.default_rng(0)
    np.savez(folder / "d.npz", x=rng.normal(size=(40, 4)).astype(np.float32), y=np.arange(40) % 3)
    rows = "\n".join(f"{a},{a},{a},{a},{'abc'[a % 3]}" for a in range(40))
    (folder / "d.csv").write_text(f"p,q,r,s,target\n{rows}\n")
    fit(folder / "small.py", folder / "d.csv", epochs=1, out=folder / "runs" / "run", **QUIET)
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("command", "target", "says"),
    [
        ("small.onnx -o other.py --weights runs/run/best.safetensors", "runs/run/best.safetensors", "trained weights"),
        ("small.onnx -o other.py --weights kept.safetensors", "kept.safetensors", "kept.safetensors has the trained"),
        ("small.onnx -o runs/run/model.py", "runs/run/model.py", "is the module of a run"),
        ("runs --html page.html", "page.html", "page.html is there already"),
        ("predict runs/run d.csv -o out.csv", "out.csv", "out.csv is there already"),
        ("predict runs/run d.csv -o out.npz", "out.npz", "out.npz is there already"),
    ],
)
def test_nothing_is_replaced_unasked(command: str, target: str, says: str, here: Path, capsys: Out) -> None:
    shutil.copy("runs/run/best.safetensors", "kept.safetensors")
    for name in ("page.html", "out.csv", "out.npz"):
        Path(name).write_text("mine")
    before = contents(here)
    assert cli(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line and "--force" in line and contents(here) == before
    assert cli([*command.split(), "--force"]) == 0
    assert Path(target).read_bytes() != before[target]


def test_what_is_read_is_never_replaced(here: Path, capsys: Out) -> None:
    Path("photos").mkdir()
    os.link("d.csv", "photos/linked.csv")
    before = contents(here)
    for out in ("d.csv", "photos/linked.csv"):
        for more in ([], ["--force"]):
            assert cli(["predict", "runs/run", "d.csv", "-o", out, *more]) == 2
            assert "it is read for this" in capsys.readouterr().err and contents(here) == before
        assert cli(["predict", "runs/run", "*.csv", "-o", out, "--force"]) == 2, "found by a pattern"
        assert contents(here) == before


def test_a_page_of_runs_is_written_again(here: Path) -> None:
    assert [cli(["runs", "--html", "page.html", "-q"]) for _ in range(2)] == [0, 0]


@contextmanager
def training(out: Path) -> Iterator[None]:
    """Another process trains in a folder."""
    code = f"""
import sys, time
from pathlib import Path
from onnxgen.training.launch import alone_in
with alone_in(Path({str(out)!r}), True):
    Path({str(out / "begun")!r}).touch()
    while Path({str(out / "begun")!r}).exists():
        time.sleep(0.05)
"""
    other = threading.Thread(target=lambda: forked.run(["-c", code]))
    other.start()
    while not (out / "begun").exists():
        threading.Event().wait(0.05)
    try:
        yield
    finally:
        (out / "begun").unlink()
        other.join()


def test_two_trainings_at_once(here: Path, capsys: Out) -> None:
    given = {"epochs": 2, "out": Path("runs/run"), **QUIET}
    with training(here / "runs" / "run"):
        before = contents(here)
        for resume in (False, True):
            with pytest.raises(OnnxgenError, match=r"another process is training in runs.run at this moment"):
                fit("small.py", "d.csv", resume=resume, **given)
        assert cli("train small.py --data d.csv --resume --out runs/run --epochs 2".split()) == 2
        assert "another process is training" in capsys.readouterr().err and contents(here) == before
    assert len(fit("small.py", "d.csv", resume=True, **given).history) == 2
    assert not (here / "runs" / "run" / RUNNING).exists()


def test_files_that_no_run_wrote_are_kept(here: Path, capsys: Out) -> None:
    """The folder of the module itself is no folder for its run, which would have another `model.py` there."""
    Path("mine").mkdir()
    assert cli(["small.onnx", "-o", "mine/model.py", "-q"]) == 0
    before = contents(here)
    assert cli("train mine/model.py --data d.csv --out mine --epochs 1".split()) == 2
    assert "mine has model.py, but no run.json" in capsys.readouterr().err and contents(here) == before


def test_a_run_that_was_killed_as_it_began_is_no_strange_folder(tmp_path: Path) -> None:
    """It has `config.toml`, but no `run.json` yet. The lock is left, as only a kill leaves it."""
    network(tmp_path, x=("float32", ["n", 4]))
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 4), np.float32), y=np.arange(8) % 3)
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.toml").write_text("epochs = 1\n")
    given: dict[str, Any] = {"epochs": 1, "out": out, **QUIET}
    with pytest.raises(OnnxgenError, match="it is not the folder of a run"):
        fit(tmp_path / "small.py", tmp_path / "d.npz", **given)
    (out / RUNNING).touch()
    fit(tmp_path / "small.py", tmp_path / "d.npz", **given)
    assert (out / "run.json").is_file() and not (out / RUNNING).exists()
