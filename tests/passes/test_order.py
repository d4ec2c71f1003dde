"""Passes are loaded and run where the graph has what they start from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxgen.passes
from onnxgen.options import Options
from onnxgen.passes import Step, simplify
from onnxgen.reader import read

CONV = "net (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) <float[4, 3, 3, 3] w> { y = Conv(x, w) }"
LOADED = """import sys
from onnxgen.cli import run
assert run(sys.argv[1:]) == 0
print(*(module.removeprefix('onnxgen.') for module in sys.modules if module.startswith('onnxgen')))
"""


def network(folder: Path) -> Path:
    graph = parser.parse_graph(CONV)
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w"))
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8),
        folder / "net.onnx",
    )
    return folder / "net.onnx"


def test_only_what_a_graph_needs_is_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADED, str(network(tmp_path)), "-o", str(tmp_path / "net.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "ONNXGEN_STRICT": "0"}
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "passes.trainable" in loaded
    assert {"passes.attention", "passes.unrolled", "passes.activations", "passes.quantized"}.isdisjoint(loaded)
    assert len(loaded) <= 227, "more is imported for a convolution; or make this number smaller"


def test_a_pass_that_starts_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everything is checked, a pass that is left out runs as well, and must change nothing."""
    harmful = Step("no_ops", "Softmax")
    monkeypatch.setattr(Step, "__call__", lambda step, model, options: model.graph.remove(model.graph[0]))
    monkeypatch.setattr(onnxgen.passes, "PASSES", [harmful])
    with pytest.raises(AssertionError, match="no_ops"):
        simplify(read(network(tmp_path), Options()), Options())
    monkeypatch.setenv("ONNXGEN_STRICT", "0")
    model = read(network(tmp_path), Options())
    simplify(model, Options())
    assert len(model.graph) == 1
