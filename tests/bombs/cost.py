"""What generating a file costs, measured on a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
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
        measured = [sys.executable, str(Path(__file__).with_name("measured.py")), str(6 * SECONDS), *command]
        run = subprocess.run(measured, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
        *said, last = run.stdout.decode(errors="replace").splitlines()
        seconds, memory, code = json.loads(last)
        written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        return Cost(seconds, memory, written, code, "\n".join(said))
