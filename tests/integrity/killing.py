"""Kills a process that writes a pair, at one step after the other, and says what loads then.

    python -m tests.integrity.killing FOLDER HOW BEFORE-AFTER...

BEFORE and AFTER are layouts of the sidecar, "one" or "shards"; BEFORE may be "nothing". HOW is

    calls    `strace -e inject` kills at each system call that may change a file
    all      at every system call
    layer    the process kills itself at each call of Python's that touches a file; needs no strace
    layer:2:3    at every third of these, from the second on

Prints JSON: for each BEFORE-AFTER each step with what loaded after it ("old", "new", or "none"). A mixture that loads
is an `AssertionError`, as is a next run that does not repair and clean up.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integrity.pairs import ONE, SHARDS, built, temporaries, which, write
from tests.support.forked import run as run_forked
from tests.weights.test_weights import Fault

LAYOUTS = {"nothing": ONE, "one": ONE, "shards": SHARDS}
# One file and an index have different names: between those layouts the old pair stands until the new one does.
STAGES = {
    "nothing-one": ["none", "new"],
    "one-one": ["old", "new"],
    "shards-shards": ["old", "none", "new"],
    "one-shards": ["old", "new"],
    "shards-one": ["old", "new"],
}
THIRDS = ("layer:1:3", "layer:2:3", "layer:3:3")  # together they are "layer"
CHANGING = ("write", "copy_file_range", "rename", "link", "unlink", "chmod", "fsync", "ftruncate", "mkdir", "rmdir")


killing = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")


def stages(folder: Path, how: str, *changes: str) -> dict[str, list[str]]:
    """What loaded, step after step, each outcome once."""
    done = run_forked(
        ["-m", "tests.integrity.killing", folder, how, *changes], cwd=Path(__file__).parents[2], ours=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(len(steps) * apart(how)[1] > 8 for steps in found.values()), "a few steps are too few to be all"
    return {change: [name for name, _ in itertools.groupby(o for _, o in steps)] for change, steps in found.items()}


def apart(how: str) -> tuple[int, int]:
    """At which step the first kill is, and how many steps later the next one."""
    _, first, every = how.split(":") if ":" in how else (how, 1, 1)
    return int(first), int(every)


def forked(act: Callable[[], None]) -> int:
    """The process id of a child that is stopped, and acts when it may go on."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    return child


def traced(act: Callable[[], None], log: Path, *inject: str) -> int:
    """Act in a process of its own under strace; returns its exit status as `waitpid` has it."""
    child = forked(act)
    command = ["strace", "-f", "-p", str(child), "-o", str(log), *inject]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr is not None
        first = strace.stderr.readline()
        os.kill(child, signal.SIGCONT)
        status = os.waitpid(child, 0)[1]
        assert "attached" in first, first
        return status


def calls(log: Path, every: bool) -> Iterator[tuple[str, int]]:
    """The system calls of a log in order, each by its name and how manieth of that name it is."""
    seen: Counter[str] = Counter()
    for name, rest in re.findall(r"^\d+ +(\w+)\((.*)$", log.read_text(), re.MULTILINE):
        seen[name] += 1
        if name != "exit_group" and (every or name in CHANGING or "O_CREAT" in rest):
            yield name, seen[name]


def kills(act: Callable[[], None], how: str, log: Path, restore: Callable[[], None]) -> Iterator[str]:
    """Let `act` be killed at one step after the other, each time after `restore`; says at which."""
    if how.startswith("layer"):
        for at in itertools.count(*apart(how)):
            restore()
            child = forked(lambda at=at: _killing_itself(at, act))  # type: ignore[misc]
            os.kill(child, signal.SIGCONT)
            killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
            yield f"step {at}"
            if not killed:
                return
    restore()
    assert traced(act, log) == 0
    for name, number in [*calls(log, how == "all")]:
        restore()
        status = traced(act, log, "-e", f"inject={name}:signal=KILL:when={number}")
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{name} {number}: {status}"
        yield f"{name} {number}"


def _killing_itself(at: int, act: Callable[[], None]) -> None:
    Fault(at, lambda: os._exit(9)).install(pytest.MonkeyPatch())
    act()


def outcomes(folder: Path, how: str, before: str, after: str) -> list[tuple[str, str]]:
    """Each step of replacing one pair by another, with what loaded after a kill at it."""
    out = folder / "out" / "model.py"
    out.parent.mkdir(parents=True)
    old = built(folder, out, 1, LAYOUTS[before], external=True)
    new = built(folder, out, 2, LAYOUTS[after], external=True)
    known = {"old": old, "new": new}

    def write_new() -> None:
        write(known["new"], out, LAYOUTS[after])

    def restore() -> None:
        for path in out.parent.iterdir():
            path.unlink()
        if before != "nothing":
            write(known["old"], out, LAYOUTS[before])

    restore()
    write_new()  # the first time imports what is imported late
    found = []
    for step in kills(write_new, how, folder / "log", restore):
        found.append((step, which(out, known)))
        write_new()
        assert which(out, known) == "new", f"{step}: the next run repairs"
        assert not temporaries(out.parent), f"{step}: and cleans up"
    return found


def main(folder: Path, how: str, *changes: str) -> None:
    print(json.dumps({change: outcomes(folder / change, how, *change.split("-")) for change in changes}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
