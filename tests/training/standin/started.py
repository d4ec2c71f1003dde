"""Processes that have a simulated device: its tensors mix with no others, and a registered device stays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.support import forked

PLUG = ROOT / "tests" / "training" / "standin" / "plug"
simulating = pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch can't register a back end from Python",
)


def child(tmp_path: Path, *arguments: str) -> Any:
    """What the last line that a process prints says in JSON."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(PLUG))), "XDG_CACHE_HOME": str(tmp_path)}
    done = forked.run(arguments, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def matches_the_cpu(tmp_path: Path, device: str, kind: str, works: list[str], *imports: str) -> None:
    """A fit on a simulated device, which is chosen, tested and trained on like a real one."""
    said = child(tmp_path, "-m", "tests.training.standin.fitting", device, str(tmp_path), *imports)
    assert (said["verdict"], said["works"]) == ("ok", works)
    assert said["auto"] == f"{device.partition(':')[0]}:0"
    assert said["type"] == kind
    assert said["calls"] > 1000  # it did run there
    assert said["keys"] and said["difference"] < 1e-4
    assert said["losses"] == [pytest.approx(pair, abs=1e-4) for pair in said["expected"]]
    assert said["saved on"] == ["cpu"]
    assert "same device" in said["misplaced"] or "a tensor on cpu" in said["misplaced"]
