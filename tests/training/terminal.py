"""A process in a pseudo-terminal of its own."""

from __future__ import annotations

import os
import select
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.conftest import ROOT
from tests.support import forked

if sys.platform != "win32":
    import fcntl
    import pty
    import termios

SECONDS = 120
BEGIN = """
import os, runpy, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first terminal that a session opens is its own
for stream in range(3):
    os.dup2(terminal, stream)
os.close(terminal)
sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)
sys.argv[:2] = ["onnxgen"]
"""
SKETCHED = """
from tests.training.sketches import sketched
with sketched():
    runpy.run_module("onnxgen", run_name="__main__", alter_sys=True)
"""
PLAIN = """
print("begins")
runpy.run_module("onnxgen", run_name="__main__", alter_sys=True)
"""


class Terminal:
    """A process in a pseudo-terminal of its own: a fork that has imported torch, or an interpreter that has not."""

    def __init__(self, *command: object, width: int = 100, fresh: bool = False) -> None:
        self.file, self._begun = pty.openpty()
        self.resize(width)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.modes = termios.tcgetattr(self.file)
        words = ["-c", BEGIN + (PLAIN if fresh else SKETCHED), os.ttyname(self._begun), *map(str, command)]
        begin = forked.begun if fresh else forked.start
        self.child = begin(words, Path(os.devnull), Path(os.devnull), env=environment)
        self.text, self._end = "", time.monotonic() + SECONDS

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()

    def read(self, until: Callable[[str], object]) -> None:
        """Read what is printed until it satisfies the condition, or the process has closed the terminal."""
        seen = len(self.text)
        while not until(self.text[seen:]):
            assert time.monotonic() < self._end, self.text
            if select.select([self.file], [], [], 1.0)[0]:
                try:
                    data = os.read(self.file, 1 << 16)
                except OSError:  # Linux: the process has ended
                    return
                if not data:
                    return
                if self._begun:  # the child has opened the terminal
                    os.close(self._begun)
                    self._begun = 0
                self.text += data.decode(errors="replace")

    def resize(self, width: int) -> None:
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))

    def end(self) -> int:
        """Wait for the process. Return its exit code."""
        self.read(lambda text: False)
        assert termios.tcgetattr(self.file) == self.modes, "the terminal was not restored"
        self.child.join(SECONDS)
        os.close(self.file)
        return int(self.child.exitcode)
