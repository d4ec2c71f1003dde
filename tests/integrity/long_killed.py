"""Killed at any step of writing, in every layout before and after, and at every system call that may change a file.

`python -m tests.integrity.killing` kills at every system call.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.integrity.killing import STAGES, killing, stages


@cache
def no_strace() -> str:
    """Why system calls can't be injected here; empty where they can."""
    if shutil.which("strace") is None:
        return "strace is not installed: the layer in Python alone was tried"
    with (
        subprocess.Popen(["sleep", "60"]) as sleeper,
        subprocess.Popen(["strace", "-p", str(sleeper.pid)], stderr=subprocess.PIPE, text=True) as strace,
    ):
        assert strace.stderr is not None
        said = strace.stderr.readline()
        sleeper.kill()
    return "" if "attached" in said else f"strace may not look into processes here: {said.strip()}"


@killing
def test_killed_at_each_step(tmp_path: Path) -> None:
    others = STAGES.keys() - {"shards-shards"}  # which the suite has
    assert stages(tmp_path, "layer", *others) == {change: STAGES[change] for change in others}


@killing
def test_killed_at_each_system_call(tmp_path: Path) -> None:
    if no_strace():
        pytest.skip(no_strace())
    some = ("one-one", "shards-shards")
    assert stages(tmp_path, "calls", *some) == {change: STAGES[change] for change in some}
