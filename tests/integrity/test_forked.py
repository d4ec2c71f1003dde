"""Forks behave as the processes that they stand for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import forked

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
WAIT = """
import pathlib, sys, time
print('here', flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""


def test_several_at_once(tmp_path: Path) -> None:
    """The server takes the next while others run, and says of each how it ended."""
    said = [tmp_path / f"said{number}" for number in range(3)]
    waiting = [forked.start(["-c", WAIT, tmp_path / "go"], out, out, cwd=ROOT) for out in said]
    done = forked.run(["-c", "import sys; print(sys.argv, file=sys.stderr); sys.exit(3)", "a"], cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "['-c', 'a']\n")
    while not all(out.is_file() and out.read_text() == "here\n" for out in said):
        time.sleep(0.01)
    assert all(process.is_alive() and process.exitcode is None for process in waiting)
    assert len({process.pid for process in waiting}) == 3
    waiting[0].kill()
    os.kill(waiting[1].pid, signal.SIGINT)
    for process in waiting[:2]:
        process.join(60)
    assert waiting[2].is_alive()
    (tmp_path / "go").touch()
    waiting[2].join(60)
    assert [process.exitcode for process in waiting] == [-signal.SIGKILL, 1, 0]
    assert "KeyboardInterrupt" in said[1].read_text()
    waiting[0].kill()  # does nothing, where another process may have its number by now


def test_a_folder_that_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is in another."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path)
    done = forked.run(["-c", "import os; print(os.getcwd())"], cwd=Path("inner"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'inner'}\n"), done.stderr


def test_too_long() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        forked.run(["-c", "print('begun', flush=True)\nimport time\ntime.sleep(600)"], cwd=ROOT, timeout=0.3)
    assert caught.value.output in ("begun\n", "")


def test_it_ends_as_a_process(tmp_path: Path) -> None:
    """What is registered for the end runs, and threads are waited for, as in a process of its own."""
    code = """
import atexit, threading, time
atexit.register(print, 'at exit')
threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()
print('main', __name__)
"""
    own = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    fork = forked.run(["-c", code], cwd=tmp_path)
    assert (fork.returncode, fork.stdout, fork.stderr) == (0, own.stdout, own.stderr)


def test_it_has_nothing_of_ours_unless_it_is_asked_for() -> None:
    code = "import sys; print(sum(name.partition('.')[0] == 'onnxgen' for name in sys.modules)); import onnxgen.cli"
    counts = [int(forked.run(["-c", code], cwd=ROOT, ours=ours).stdout) for ours in (False, True)]
    assert counts[0] == 0 and counts[1] > 100
