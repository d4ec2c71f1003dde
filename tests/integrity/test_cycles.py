"""Loading and letting go, over and over, holds on to nothing.

`python -m tests.integrity.cycles 10000` does it ten thousand times and prints memory and open files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

from tests.integrity.cycles import cycles  # noqa: E402


def test_loading_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # put back at the end
    first, *_, last = cycles(tmp_path, 60, every=20)
    assert last.files == first.files and last.objects <= first.objects + 200
    assert last.modules == first.modules and last.sources == first.sources
    assert last.temporaries == 0
