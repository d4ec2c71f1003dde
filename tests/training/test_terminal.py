"""The live panel of `onnxgen train` in a pseudo-terminal: interrupted, resized and resumed."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from onnxgen.training.launch import Stopping
from onnxgen.training.report import read_rows
from onnxgen.training.report.metrics import Row
from tests.training.small import network

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals on Windows", allow_module_level=True)

from tests.training.interrupted import Interrupted
from tests.training.terminal import Terminal

CODES = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]")


class Screen:
    """The text that a terminal shows, of all lines from the first on; and whether its cursor is visible."""

    def __init__(self, text: str) -> None:
        self.lines, self.row, self.column, self.cursor = [""], 0, 0, True
        for found in CODES.finditer(text):
            self._take(found[0], found[1], found[2])

    def _take(self, text: str, numbers: str | None, code: str | None) -> None:
        if text == "\n":
            self.row += 1
            self.lines += [""] * (self.row == len(self.lines))
        elif text == "\r":
            self.column = 0
        elif code is None:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + text + line[self.column + 1 :]
            self.column += 1
        elif code == "A":
            self.row = max(0, self.row - int(numbers or 1))
        elif code == "K":
            assert numbers == "2"
            self.lines[self.row] = ""
        elif numbers == "?25":
            self.cursor = code == "h"
        else:
            assert code == "m", text  # colours


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    network(folder, x=("float32", ["n", 5]))
    x = np.random.default_rng(0).normal(size=(96, 5)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=np.arange(96) % 3)
    return folder


def panels(text: str) -> list[str]:
    """Return the frames of the panel that were printed."""
    plain = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", text)
    return re.findall(r"╭.*?╯", plain, re.S)


def test_a_panel_is_interrupted_resized_and_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run = ("train", "small.py", "--data", "data.npz", "--batch-size", 16, "--workers", 0, "--out", "out")
    with Terminal(*run, "--epochs", 100000) as shown:
        shown.read(lambda text: len(panels(text)) > 1)
        wide = panels(shown.text)[-1].splitlines()[0]
        shown.resize(44)
        shown.read(lambda text: len(panels(text)) > 1)
        narrow = panels(shown.text)[-1].splitlines()[0]
        assert len(narrow) <= 44 < len(wide) < 100
        os.write(shown.file, b"\x03")
        shown.read(lambda text: "stopping after this step" in text)
        assert shown.end() == 130
    rows = read_rows(folder / "out" / "metrics.csv")
    hold(Screen(shown.text), rows, 1)

    with Terminal("train", "--resume", "--out", "out") as shown:
        shown.read(lambda text: len(panels(text)) > 1)
        numbers = re.search(r"epoch\s+(\d+) of 100000, (batch|validating)", panels(shown.text)[0])
        assert numbers is not None, shown.text
        assert f"in epoch {len(rows) + 1} of 100000" in shown.text
        before = [line for line in Screen(shown.text.partition("╭")[0]).lines if line.startswith("epoch ")]
        # Between the line of an epoch and the first batch of the next one, the panel shows the epoch that has ended.
        assert int(numbers[1]) - len(rows) - len(before) in (0, 1)
        os.write(shown.file, b"\x03")
        assert shown.end() == 130
    hold(Screen(shown.text), read_rows(folder / "out" / "metrics.csv"), len(rows) + 1)


def hold(screen: Screen, rows: list[Row], first: int) -> None:
    """Check what is left on the screen of an interrupted run: each epoch once, one message, and no panel."""
    lines = [line.rstrip() for line in screen.lines if line.strip()]
    shown = [line.split()[1] for line in lines if re.match(r"epoch [1-9]\d* of 100000: train loss", line)]
    assert shown == [f"{row['epoch']:.0f}" for row in rows[first - 1 :]] and rows[-1]["epoch"] == len(rows)
    assert screen.cursor and not re.search("[╭│╰]", "".join(lines)), lines
    assert lines.count("stopping after this step; interrupt again to stop at once") == 1
    assert lines[-2].startswith(f"stopped after {len(rows):,} whole epochs;") and lines[-1].startswith("in out: ")


def test_ctrl_c_in_a_validation_with_workers(tmp_path: Path) -> None:
    """The terminal signals the workers, too. `long_interrupted.py` draws the moments."""
    run = Interrupted(tmp_path, workers=2, count=240)
    with run.trained("whole") as whole:
        assert whole.end() == 0, whole.text
    assert run.stopped("Ctrl-C", "epoch 1 of", after=0.05) == 130


def test_a_second_interrupt_ends_a_command_where_an_exception_may_be_lost() -> None:
    """The handler of the command ends the process; without one, as in Python, there is an exception."""
    said, ended = list[str](), list[str]()

    def handler(signum: int, frame: object) -> None:
        raise AssertionError("the run listens itself")

    before = signal.getsignal(signal.SIGINT)
    for own in (handler, before):
        stopping = Stopping(said.append)
        handler.end = lambda: ended.append("ended")  # type: ignore[attr-defined]
        signal.signal(signal.SIGINT, own)
        try:
            with pytest.raises(KeyboardInterrupt), stopping.heard():
                os.kill(os.getpid(), signal.SIGINT)
                assert stopping.signum == signal.SIGINT and not ended or own is before
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, before)
    assert ended == ["ended"] and len(said) == 2
