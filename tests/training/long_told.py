"""Bad input of several processes that Lightning starts: one line, and none of them hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onnxgen
from tests.conftest import ROOT
from tests.training.processes import environment

DATA = """
import os
import numpy as np
from onnxgen.errors import OnnxgenError

def of_one():
    if os.environ.get("LOCAL_RANK", "0") == "1":
        raise OnnxgenError("the second process has no data")
    return good()

def good():
    return {"x": np.random.default_rng(0).normal(size=(32, 1, 28, 28)).astype("float32"), "label": np.arange(32) % 10}
"""
BAD = {
    "before the others start": (["--data", "mine:good", "--loss", "nonsense"], 2, "no loss is called"),
    "in all": (["--data", "mine:good", "--lr", "1e30", "--optimizer", "sgd"], 2, "the validation loss is NaN"),
    "in one": (["--data", "mine:of_one"], -signal.SIGKILL, "the second process has no data"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_of_several_processes_is_told_once(name: str, tmp_path: Path) -> None:
    """None hangs. Lightning kills the first process if another one fails alone."""
    given, code, wanted = BAD[name]
    (tmp_path / "mine.py").write_text(DATA)
    onnxgen.generate(ROOT / "samples" / "mnist" / "mnist.onnx", tmp_path / "mnist.py")
    args = [sys.executable, "-m", "onnxgen", "train", "mnist.py", *given, "--devices", "2", "--device", "cpu"]
    more = environment(PYTHONPATH=f"{ROOT}:{tmp_path}")
    found = subprocess.run(
        [*args, "--epochs", "1"], env=more, capture_output=True, text=True, cwd=tmp_path, timeout=240
    )
    told = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
    assert found.returncode == code and len(told) == 1 and wanted in told[0], found.stderr
