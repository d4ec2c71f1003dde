"""Names that a terminal's encoding lacks, names that are no UTF-8, and processes that are spawned."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"


def onnxgen(folder: Path, *args: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "onnxgen", *args]
    given = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=folder, env=given, capture_output=True, timeout=300)


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "cp437"])
def test_a_name_that_the_streams_encoding_lacks(encoding: str, tmp_path: Path) -> None:
    """Generating, inspecting, a missing file: the name is shown by its numbers."""
    shutil.copy(SAMPLE, tmp_path / "模型.onnx")
    for args, code in (
        (["模型.onnx", "-o", "网络.py"], 0),
        (["inspect", "模型.onnx"], 0),
        (["缺少.onnx", "-o", "m.py"], 2),
    ):
        done = onnxgen(tmp_path, *args, PYTHONIOENCODING=encoding)
        assert done.returncode == code and b"bug" not in done.stderr, done.stderr
        assert (b"\\u" if code == 0 else b"??.onnx: no such file") in done.stdout + done.stderr
    assert (tmp_path / "网络.py").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' names are text")
def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, os.fsencode(tmp_path) + b"/in\xff.onnx")
    done = onnxgen(tmp_path, b"in\xff.onnx", "-o", "m.py")
    assert done.returncode in (0, 2) and done.stderr.count(b"\n") == (done.returncode == 2), done.stderr
    done = onnxgen(tmp_path, SAMPLE.as_posix(), "-o", b"out\xff.py")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1, done.stderr
    done = onnxgen(tmp_path, b"missing\xff.onnx", "-o", "n.py")
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1, done.stderr
    assert not (tmp_path / "n.py").exists()
