"""Killed at any step of writing, what is left is the old pair, the new pair, or one that refuses to load.

Old and new are of one network with other weights, as after training: the fingerprint is the same, so that it could not
tell a mixture of their shards. `python -m tests.integrity.killing` kills at every system call.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")

# One file and an index have different names: between those layouts the old pair stands until the new one does.
STAGES = {
    "nothing-one": ["none", "new"],
    "one-one": ["old", "new"],
    "shards-shards": ["old", "none", "new"],
    "one-shards": ["old", "new"],
    "shards-one": ["old", "new"],
}


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


def stages(folder: Path, how: str, *changes: str) -> dict[str, list[str]]:
    """What loaded, step after step, each outcome once."""
    command = [sys.executable, "-m", "tests.integrity.killing", str(folder), how, *changes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(len(steps) > 8 for steps in found.values()), "a few steps are too few to be all"
    return {change: [name for name, _ in itertools.groupby(o for _, o in steps)] for change, steps in found.items()}


def test_killed_at_each_step(tmp_path: Path) -> None:
    assert stages(tmp_path, "layer", *STAGES) == STAGES


def test_killed_at_each_system_call(tmp_path: Path) -> None:
    if no_strace():
        pytest.skip(no_strace())
    some = ("one-one", "shards-shards")
    assert stages(tmp_path, "calls", *some) == {change: STAGES[change] for change in some}
