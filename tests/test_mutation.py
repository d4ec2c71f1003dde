"""The mutation test of the product itself, on one file and two lines."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import onnx
import pytest

from onnxgen.options import Options
from tests.conftest import ROOT
from tests.idioms import spelled


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one file."""
    made = tmp_path_factory.mktemp("corpus")
    place = made / "pool" / "one"
    place.mkdir(parents=True)
    onnx.save(spelled("s = Sigmoid(x)  t = Mul(s, x)  u = Sub(t, s)  y = Sub(u, x)"), place / "net.onnx")
    (place / "options.pickle").write_bytes(pickle.dumps(("one", Options())))
    return made


def tried(folder: Path, file: str, text: str) -> str:
    """What the command prints of all mutants of the first line that has the text."""
    lines = (ROOT / "onnxgen" / file).read_text(encoding="utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if text in line)
    command = [sys.executable, "-m", "benchmarks.mutation", "--folder", str(folder), "--at", f"{file}:{number}"]
    ran = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_mistakes_in_a_condition(folder: Path) -> None:
    """Of all that can be wrong in one condition some make a wrong module, some other names, some nothing."""
    text = tried(folder, "structure/naming.py", "if name not in self.busy and name not in self.reserved")
    found = Counter(line.partition(" ")[0] for line in text.splitlines() if " structure/naming.py:" in line)
    assert found["survived"] + found["stopped"] == 3 and found["equal"] == 1 and found["cosmetic"] == 4, text


def test_other_operators_for_text(folder: Path) -> None:
    """Text cannot be subtracted: generating fails by itself, and that is no silent mistake."""
    assert "\nerror     structure/writer.py:" in tried(folder, "structure/writer.py", '"return "')
