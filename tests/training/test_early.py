"""What is refused early: bad data before PyTorch is imported, a bad plan before Lightning is; `predict` needs neither.

What a command imports is seen in a process of its own, by `sys.modules`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.training import fit
from onnxgen.training.data.glance import glance
from onnxgen.training.settings import Settings
from tests.conftest import ROOT

WATCHED = ("torch", "lightning", "torchmetrics", "matplotlib")
LOOK = f"""
import contextlib, io, json, os, sys
from onnxgen.cli import run
for folder, words in json.loads(sys.argv[1]):
    os.chdir(folder)
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = run(words)
    print(json.dumps([code, [name for name in {WATCHED} if name in sys.modules], said.getvalue().strip()]))
"""
Ran = tuple[int, list[str], str]  # the exit code of a command, which of the packages are imported, and its errors


def ran(*commands: tuple[Path, Sequence[str | Path]]) -> list[Ran]:
    """Run commands in their folders, in one process: what one has imported, those behind it find imported."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    told = json.dumps([(str(folder), [*map(str, words)]) for folder, words in commands])
    call = [sys.executable, "-c", LOOK, told]
    made = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=120)
    return [tuple(json.loads(line)) for line in made.stdout.splitlines() if line.startswith("[")]


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (8, 8), dtype=np.uint8)).save(path)


def empty(folder: Path) -> str:
    (folder / "data").mkdir()
    return "data has no images"


def a_class_without(folder: Path) -> str:
    picture(folder / "data" / "cat" / "1.png")
    (folder / "data" / "dog").mkdir()
    return "the class folder data/dog has no images"


def without_classes(folder: Path) -> str:
    picture(folder / "data" / "1.png")
    return "data has images but no folder for each class"


def too_many(folder: Path) -> str:
    for name in "abcdefghijk":
        picture(folder / "data" / name / "1.png")
    return "the data has 11 classes (a, b, c, ...), but the model has 10 -> --replace-head 11"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("early") / "mnist.py"
    onnxgen.generate(ROOT / "samples" / "mnist" / "mnist.onnx", made)
    return made


LAID = [empty, a_class_without, without_classes, too_many]


@pytest.fixture(scope="module")
def seen(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str, Ran]]:
    """By name the folder of a command, the error that is wanted, and what it did: those that import nothing first."""
    asked, wanted = dict[str, tuple[Path, Sequence[str | Path]]](), dict[str, str]()

    def ask(name: str, error: str, *words: str | Path) -> None:
        asked[name], wanted[name] = (folder, words), error

    for lay in LAID:
        folder = tmp_path_factory.mktemp(lay.__name__)
        ask(lay.__name__, lay(folder), "train", model, "--data", "data")
    folder = tmp_path_factory.mktemp("predict")
    data = {"x": np.zeros((40, 1, 28, 28), np.float32), "y": np.arange(40) % 10}
    fit(model, data, epochs=1, out=folder / "run", device="cpu", show="nothing", max_steps=1)
    np.save(folder / "new.npy", data["x"][:2])
    np.savez(folder / "data.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 10)
    ask("gone", "error: there is no file gone.npy -> ", "predict", "run", "new.npy", "gone.npy")
    ask("unfit", "input 'image' takes", "train", model, "--data", "data.npz")
    ask("predict", "", "predict", "run", "new.npy")
    made = ran(*asked.values())
    return {name: (asked[name][0], wanted[name], of) for name, of in zip(asked, made, strict=True)}


@pytest.mark.parametrize("lay", LAID)
def test_bad_folders_are_refused_before_pytorch_is_imported(
    lay: Callable[[Path], str], model: Path, seen: dict[str, tuple[Path, str, Ran]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, wanted, (code, imported, said) = seen[lay.__name__]
    assert (code, imported) == (2, []) and wanted in said, said
    monkeypatch.chdir(folder)
    with pytest.raises(OnnxgenError, match=re.escape(wanted.partition(" -> ")[0])):  # Python's `fit` says the same
        fit(model, "data", out=folder / "out")


def test_classes_are_left_to_what_the_options_change(model: Path, tmp_path: Path) -> None:
    """They are not refused before the model is opened if they may fit it."""
    too_many(tmp_path)
    for given in ({"replace_head": 11}, {"weights": Path("other.safetensors")}, {"loss": "mse"}, {"task": "embedding"}):
        glance(model, str(tmp_path / "data"), Settings(**given))
    with pytest.raises(OnnxgenError, match="has 11 classes"):
        glance(model, str(tmp_path / "data"), Settings())


def test_data_that_does_not_fit_is_refused_before_lightning_is_imported(seen: dict[str, tuple[Path, str, Ran]]) -> None:
    folder, wanted, (code, imported, said) = seen["unfit"]
    assert (code, imported) == (2, ["torch"]) and wanted in said, said
    assert not (folder / "runs").exists()


def test_predict_imports_pytorch_alone(seen: dict[str, tuple[Path, str, Ran]]) -> None:
    _, _, (code, imported, said) = seen["predict"]
    assert (code, imported) == (0, ["torch"]), said
    _, wanted, (code, imported, said) = seen["gone"]
    assert (code, imported) == (2, []) and said.startswith(wanted), said
