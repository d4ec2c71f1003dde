"""The LoRA sample adapts an ONNX file with peft, merges it, and writes it back to the same graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import ROOT

pytest.importorskip("peft", reason="peft is not installed: the LoRA sample was not run")
pytest.importorskip("sklearn", reason="scikit-learn is not installed: the LoRA sample was not run")


def test_the_sample(script: Callable[..., str], tmp_path: Path) -> None:
    """After a few steps, the same nodes with other values read mirrored digits."""
    said = script(ROOT / "samples" / "lora" / "tune.py", "--out", tmp_path, "--steps", "60")
    before, after = (float(re.findall(r"([\d.]+)% of mirrored", line)[0]) for line in said.splitlines()[-2:])
    assert after > before + 20, said
    original, tuned = (onnx.load(tmp_path / name).graph for name in ("digits.onnx", "mirrored.onnx"))
    assert list(original.node) == list(tuned.node)
    changed = [
        t.name
        for t, u in zip(original.initializer, tuned.initializer, strict=True)
        if not np.array_equal(onnx.numpy_helper.to_array(t), onnx.numpy_helper.to_array(u))
    ]
    assert 10 <= len(changed) < len(original.initializer)
