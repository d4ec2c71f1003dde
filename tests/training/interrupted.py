"""A tiny run that mostly validates, in a terminal; a signal comes at a drawn moment."""

from __future__ import annotations

import os
import random
import re
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


def _to_all(terminal: Terminal) -> None:
    os.killpg(terminal.child.pid, signal.SIGTERM)


def _to_one(terminal: Terminal) -> None:
    os.kill(terminal.child.pid, signal.SIGTERM)


WAYS = {"Ctrl-C": _ctrl_c, "SIGTERM to all": _to_all, "SIGTERM to one": _to_one}


class Interrupted:
    """A run in a folder, which is trained once to its end, and once with an interruption."""

    def __init__(self, folder: Path, workers: int, count: int = 480) -> None:
        network(folder, x=("float32", ["n", 5]))
        x = np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)
        np.savez(folder / "data.npz", x=x, y=np.arange(count) % 3)
        self.folder = folder
        self.run = ("--workers", workers, "--val", 0.9, "--batch-size", 4, "--epochs", 4)

    def trained(self, out: str, *more: object) -> Terminal:
        data = ("train", self.folder / "small.py", "--data", self.folder / "data.npz")
        return Terminal(*data, *self.run, "--out", self.folder / out, *more)

    def at_a_drawn_moment(self, way: str, seed: int) -> None:
        """Let the run be as long as it is, and draw the moment of the signal."""
        with self.trained("whole") as whole:
            whole.read(lambda text: "training" in text)
            begun = time.monotonic()
            assert whole.end() == 0, whole.text
        moment = random.Random(f"{way} {seed}").uniform(0, time.monotonic() - begun)
        self.stopped(way, "training", moment)

    def stopped(self, way: str, seen: str, after: float = 0.0) -> int:
        """Send the signal some seconds after this was said. What is left is resumed, and then equal to `whole`.

        Returns the exit code.
        """
        with self.trained("parts") as parts:
            parts.read(lambda text: seen in text)
            time.sleep(after)
            with suppress(ProcessLookupError):  # it has ended
                WAYS[way](parts)
            code = parts.end()
        check(self.folder / "parts", code, parts.text)
        if code == 130:
            with self.trained("parts", "--resume") as rest:
                assert rest.end() == 0, rest.text
        assert content(self.folder / "parts") == content(self.folder / "whole")
        return code


def check(out: Path, code: int, said: str) -> None:
    """What an interrupted run says and leaves; it may have ended before the signal came."""
    assert code in (0, 130), said
    assert not re.search("Traceback|bug|Error|error: (?!interrupted)", said), said
    stepped = (out / "checkpoints" / "last.ckpt").exists()
    assert ("stopped after" in said) == (stepped and code == 130), said
    assert (out / "report.html").exists() == (stepped or code == 0), said


def content(out: Path) -> dict[str, object]:
    """What must be equal, bit for bit; the last column of the metrics is a duration."""
    lines = (out / "metrics.csv").read_text().splitlines()
    assert lines[0].endswith(",seconds")
    found: dict[str, object] = {"metrics": [line.rpartition(",")[0] for line in lines]}
    for file in ("last", "best"):
        weights = load_file(out / f"{file}.safetensors")
        found |= {f"{file} {name}": weight.tobytes() for name, weight in weights.items()}
    return found
