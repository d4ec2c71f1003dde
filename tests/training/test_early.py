"""What is refused early: bad data before PyTorch is imported, a bad plan before Lightning is; `predict` needs neither.

What a command imports is seen in a process of its own, by `sys.modules`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
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
import json, sys
from onnxgen.cli import run
code = run(sys.argv[1:])
print(json.dumps([code, [name for name in {WATCHED} if name in sys.modules]]))
"""


def ran(folder: Path, *words: str) -> tuple[int, list[str], str]:
    """Return the exit code of a command, which of the packages it imported, and its errors."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-c", LOOK, *words]
    made = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    code, found = json.loads(made.stdout.splitlines()[-1])
    return code, found, made.stderr.strip()


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


@pytest.mark.parametrize("lay", [empty, a_class_without, without_classes, too_many])
def test_bad_folders_are_refused_before_pytorch_is_imported(
    lay: Callable[[Path], str], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = lay(tmp_path)
    code, imported, said = ran(tmp_path, "train", str(model), "--data", "data")
    assert (code, imported) == (2, []) and wanted in said, said
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OnnxgenError, match=re.escape(wanted.partition(" -> ")[0])):  # Python's `fit` says the same
        fit(model, "data", out=tmp_path / "out")


def test_classes_are_left_to_what_the_options_change(model: Path, tmp_path: Path) -> None:
    """They are not refused before the model is opened if they may fit it."""
    too_many(tmp_path)
    for given in ({"replace_head": 11}, {"weights": Path("other.safetensors")}, {"loss": "mse"}, {"task": "embedding"}):
        glance(model, str(tmp_path / "data"), Settings(**given))
    with pytest.raises(OnnxgenError, match="has 11 classes"):
        glance(model, str(tmp_path / "data"), Settings())


def test_data_that_does_not_fit_is_refused_before_lightning_is_imported(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 10)
    code, imported, said = ran(tmp_path, "train", str(model), "--data", "data.npz")
    assert (code, imported) == (2, ["torch"]) and "input 'image' takes" in said, said
    assert not (tmp_path / "runs").exists()


def test_predict_imports_pytorch_alone(model: Path, tmp_path: Path) -> None:
    data = {"x": np.zeros((40, 1, 28, 28), np.float32), "y": np.arange(40) % 10}
    fit(model, data, epochs=1, out=tmp_path / "run", device="cpu", show="nothing", max_steps=1)
    np.save(tmp_path / "new.npy", data["x"][:2])
    code, imported, said = ran(tmp_path, "predict", "run", "new.npy")
    assert (code, imported) == (0, ["torch"]), said
    code, imported, said = ran(tmp_path, "predict", "run", "new.npy", "gone.npy")
    assert (code, imported) == (2, []) and said.startswith("error: there is no file gone.npy -> "), said
