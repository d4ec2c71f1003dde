"""Where the new file is made: gone afterwards, and what a killed export left goes with the next one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxgen.errors import OnnxgenError
from onnxgen.export.files import WORKSHOP_PREFIX, workshop
from tests.conftest import ROOT

MAKING = """
import sys
from pathlib import Path
from onnxgen.export.files import workshop

with workshop(Path(sys.argv[1])) as made:
    made.write_bytes(b"half of it")
    print("made", flush=True)
    sys.stdin.read()
"""


def making(out: Path) -> subprocess.Popen[str]:
    """Another process that is at it, and waits."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen([sys.executable, "-c", MAKING, str(out)], cwd=ROOT, **pipes)
    assert process.stdout is not None and process.stdout.readline() == "made\n"
    return process


def test_what_a_killed_export_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    killed, living = making(tmp_path / "a.onnx"), making(tmp_path / "b.onnx")
    killed.kill()
    killed.communicate()
    (tmp_path / f"{WORKSHOP_PREFIX}mine").symlink_to(tmp_path.parent)
    assert len(list(tmp_path.glob(f"{WORKSHOP_PREFIX}*/*.onnx"))) == 2
    with workshop(tmp_path / "c.onnx") as made:
        assert made.parent.is_dir() and not made.exists()
        assert [path.name for path in tmp_path.glob(f"{WORKSHOP_PREFIX}*/*.onnx")] == ["b.onnx"]
    living.communicate("")
    assert living.returncode == 0 and tmp_path.parent.is_dir()
    assert [path.name for path in tmp_path.iterdir()] == [f"{WORKSHOP_PREFIX}mine"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), workshop(tmp_path / "a.onnx") as made:
        made.write_bytes(b"half of it")
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="cannot write .*a.onnx: No such file"), workshop(tmp_path / "no/a.onnx"):
        pass
