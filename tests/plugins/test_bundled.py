"""The plugin that lies in the tree: the core works without it, and it is a plugin like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgen import OnnxgenError, Options
from onnxgen.graph import operators
from onnxgen.pipeline import generate
from tests.ops.classical import ml_model
from tests.ops.harness import run_node
from tests.plugins.nets import saved


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """onnxgen without the plugins of its tree."""
    monkeypatch.setattr(operators, "BUNDLED", ())
    operators._own.cache_clear()
    yield
    operators._own.cache_clear()


def linear() -> onnx.ModelProto:
    attrs = {"coefficients": [0.5, -1.25, 2.0], "intercepts": [0.75]}
    return ml_model("LinearRegressor", [np.ones((2, 3), np.float32)], attrs, 1, 1)


def test_the_core_works_without_it(bare: None, tmp_path: Path) -> None:
    run_node("Relu", [np.array([-1.0, 2.0], np.float32)])
    with pytest.raises(OnnxgenError, match=r"ai\.onnx\.ml\.LinearRegressor"):
        generate(saved(linear(), tmp_path / "a.onnx"), tmp_path / "a.py")


def test_named_as_a_plugin_it_writes_the_same(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = saved(linear(), tmp_path / "a.onnx")
    own = generate(path, tmp_path / "a.py").source
    request.getfixturevalue("bare")
    named = generate(path, tmp_path / "a.py", Options(plugins=["onnxgen.classical"]), force=True).source
    assert named == own and "nn.Linear(3, 1)" in own
