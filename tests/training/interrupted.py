"""A tiny run that mostly validates, in a terminal; a signal comes at a drawn moment."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.training.small import network
from tests.training.terminal import Terminal


def _ctrl_c(terminal: Terminal) -> None:
    os.write(terminal.file, b"\x03")  # the kernel sends SIGINT to all processes of the foreground


def _ctrl_c_twice(terminal: Terminal) -> None:
    _ctrl_c(terminal)
    time.sleep(random.uniform(0, 0.05))
    with suppress(OSError):  # it has ended
        _ctrl_c(terminal)


def _to_all(terminal: Terminal) -> None:
    os.killpg(terminal.child.pid, signal.SIGTERM)


def _to_one(terminal: Terminal) -> None:
    os.kill(terminal.child.pid, signal.SIGTERM)


def _killed(terminal: Terminal) -> None:
    os.kill(terminal.child.pid, signal.SIGKILL)


KILL = "kill -9"
WAYS = {
    "Ctrl-C": _ctrl_c,
    "Ctrl-C twice": _ctrl_c_twice,
    "SIGTERM to all": _to_all,
    "SIGTERM to one": _to_one,
    KILL: _killed,
}


class Interrupted:
    """A run in a folder, which is trained once to its end, and once with an interruption.

    With `fresh`, each process is an interpreter that has imported nothing yet.
    """

    def __init__(self, folder: Path, workers: int, count: int = 480) -> None:
        network(folder, x=("float32", ["n", 5]))
        x = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)
        np.savez(folder / "data.npz", x=x, y=np.arange(count) % 3)
        self.folder = folder
        self.run = ("--workers", workers, "--val", 0.9, "--batch-size", 4, "--epochs", 4)

    def trained(self, out: str, *more: object, fresh: bool = False) -> Terminal:
        data = ("train", self.folder / "small.py", "--data", self.folder / "data.npz")
        return Terminal(*data, *self.run, "--out", self.folder / out, *more, fresh=fresh)

    def at_drawn_moments(self, way: str, seeds: range, fresh: bool = False) -> None:
        """Let the run be as long as it is, and draw the moments of the signal.

        They are from the first line of the run to its end, or with `fresh` from the start of Python to that line.
        """
        first, last = ("begins", "training") if fresh else ("training", "nothing that is said")
        with self.trained("whole", fresh=fresh) as whole:
            whole.read(lambda text: first in text)
            begun = time.monotonic()
            whole.read(lambda text: last in text)
            length = time.monotonic() - begun
            assert whole.end() == 0, whole.text
        for seed in seeds:
            after = random.Random(f"{way} {seed}").uniform(0, length)
            print(f"seed {seed}: {way} {after:.2f} s after {first!r}")
            self.stopped(way, first, after, fresh)
            shutil.rmtree(self.folder / "parts", ignore_errors=True)

    def stopped(self, way: str, seen: str, after: float = 0.0, fresh: bool = False) -> int:
        """Send the signal some seconds after this was said. What is left is resumed, and then equal to `whole`.

        Returns the exit code.
        """
        with self.trained("parts", fresh=fresh) as parts:
            parts.read(lambda text: seen in text)
            time.sleep(after)
            with suppress(ProcessLookupError):  # it has ended
                WAYS[way](parts)
            code = parts.end()
        check(self.folder / "parts", way, code, parts.text)
        if code == 0 or (self.folder / "parts" / "config.toml").exists():
            if code:
                with self.trained("parts", "--resume") as rest:
                    assert rest.end() == 0, rest.text
            assert content(self.folder / "parts") == content(self.folder / "whole")
        return code


def check(out: Path, way: str, code: int, said: str) -> None:
    """What an interrupted run says and leaves; it may have ended before the signal came."""
    assert code in (0, -signal.SIGKILL if way == KILL else 130), (code, said)
    assert not re.search("Traceback|bug|Error|Exception|error: (?!interrupted)", said), said
    if code == 0:
        assert (out / "report.html").exists(), said
    elif way not in (KILL, "Ctrl-C twice"):
        stepped = (out / "checkpoints" / "last.ckpt").exists()
        assert ("stopped after" in said) == stepped == ("error: interrupted" not in said), said
        assert (out / "report.html").exists() == stepped, said


def content(out: Path) -> dict[str, object]:
    """What must be equal, bit for bit; the last column of the metrics is a duration."""
    lines = (out / "metrics.csv").read_text().splitlines()
    assert lines[0].endswith(",seconds")
    found: dict[str, object] = {"metrics": [line.rpartition(",")[0] for line in lines]}
    for file in ("last", "best"):
        weights = load_file(out / f"{file}.safetensors")
        found |= {f"{file} {name}": weight.tobytes() for name, weight in weights.items()}
    return found
