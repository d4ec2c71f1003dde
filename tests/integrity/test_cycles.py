"""Loading and letting go, over and over, holds on to nothing.

`python -m tests.integrity.cycles 10000` does it ten thousand times and prints memory and open files.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

from tests.integrity.cycles import Held  # noqa: E402


def test_loading_again_and_again() -> None:
    """In a process of its own: what other tests have open, and close at some time, is not counted."""
    command = [sys.executable, "-m", "tests.integrity.cycles", "60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names, *rows = (line.split() for line in done.stdout.splitlines())
    held = [Held(*map(int, row)) for row in rows]
    first, last = held[len(held) // 3], held[-1]
    assert tuple(names) == Held._fields and last.cycles == 60
    assert last.files == first.files and last.objects <= first.objects + 200
    assert last.modules == first.modules and last.sources == first.sources
    assert last.temporaries == 0
