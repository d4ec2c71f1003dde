"""Building a project: what is written, what is left alone, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from onnxgen.build_hooks.build import build_project
from onnxgen.build_hooks.settings import Project, read_project
from tests.conftest import ROOT

MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"
SETTINGS = """
[[tool.onnxgen.models]]
source = "models/mnist.onnx"
output = "src/pkg/mnist.py"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one model."""
    root = tmp_path / "project"
    (root / "models").mkdir(parents=True)
    shutil.copy(MNIST, root / "models" / "mnist.onnx")
    (root / "pyproject.toml").write_text(SETTINGS)
    return root


def project(root: Path) -> Project:
    found = read_project(root)
    assert found is not None
    return found


def test_a_build_writes_the_pair_and_the_next_does_nothing(root: Path) -> None:
    (built,) = build_project(project(root))
    module, weights = root / "src/pkg/mnist.py", root / "src/pkg/mnist.safetensors"
    assert (built.status, built.files) == ("written", (module, weights))
    assert f"\nBuild     {built.key}\n" in module.read_text()
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in built.files}
    (again,) = build_project(project(root))
    assert (again.status, again.files, again.key) == ("fresh", built.files, built.key)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in built.files} == before
