"""The LoRA sample adapts an ONNX file with peft, merges it, and writes it back to the same graph."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import ROOT
from tests.support import forked

pytest.importorskip("peft", reason="peft is not installed: the LoRA sample was not run")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: the LoRA sample was not run")


def test_the_sample(tmp_path: Path) -> None:
    """After a few steps, the same nodes with other values read mirrored digits."""
    command = [ROOT / "samples" / "lora" / "tune.py", "--out", tmp_path, "--steps", "60"]
    done = forked.run(command, env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (float(re.findall(r"([\d.]+)% of mirrored", line)[0]) for line in done.stdout.splitlines()[-2:])
    assert after > before + 20, done.stdout
    original, tuned = (onnx.load(tmp_path / name).graph for name in ("digits.onnx", "mirrored.onnx"))
    assert list(original.node) == list(tuned.node)
    changed = [
        t.name
        for t, u in zip(original.initializer, tuned.initializer, strict=True)
        if not np.array_equal(onnx.numpy_helper.to_array(t), onnx.numpy_helper.to_array(u))
    ]
    assert 10 <= len(changed) < len(original.initializer)
