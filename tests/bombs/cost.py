"""What generating a file costs, measured on a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SECONDS, MEMORY, WRITTEN = 10, 1_000_000_000, 100_000_000
TIMED_OUT = -9


@dataclass(frozen=True)
class Cost:
    """Processor time in seconds, peak resident memory and written files in bytes, how the process ended."""

    seconds: float
    memory: int
    written: int
    code: int
    said: str

    def fault(self) -> str:
        """What is past a bound, or wrong with the ending; empty if nothing is."""
        found = [
            what
            for what, is_so in {
                f"more than {SECONDS} s": self.seconds > SECONDS or self.code == TIMED_OUT,
                f"more than {MEMORY:,} bytes of memory": self.memory > MEMORY,
                f"more than {WRITTEN:,} bytes written": self.written > WRITTEN,
                f"exit code {self.code}: {self.said[-300:]}": self.code not in (0, 2),
                "writes though it refuses": self.code == 2 and self.written > 0,
                "says nothing": self.code == 2 and "error:" not in self.said,
            }.items()
            if is_so
        ]
        return "; ".join(found)

    def __str__(self) -> str:
        return f"{self.seconds:5.1f} s, {self.memory >> 20:5} MiB, {self.written:11,} bytes written, exit {self.code}"


def cost_of(data: bytes) -> Cost:
    """Generate a file by the command line, with the default options."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.onnx").write_bytes(data)
        out = folder / "out"
        out.mkdir()
        command = [sys.executable, "-m", "onnxgen", str(folder / "model.onnx"), "-o", str(out / "model.py"), "-q"]
        with open(folder / "said", "w+b") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
            status, used = _ended(process)
            said.seek(0)
            text = said.read(100_000).decode(errors="replace")
        written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        kilobytes = 1 if sys.platform == "darwin" else 1024
        code = os.waitstatus_to_exitcode(status)
        return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * kilobytes, written, code, text)


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, os.struct_rusage]:
    """The status and usage of the process, which is killed where it takes far too long for a busy machine, too."""
    deadline = time.monotonic() + 6 * SECONDS
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            return status, used
        if time.monotonic() > deadline:
            process.kill()
            deadline = float("inf")
        time.sleep(0.02)
