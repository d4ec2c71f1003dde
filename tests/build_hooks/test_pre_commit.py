"""`.pre-commit-hooks.yaml`: what pre-commit wants of it, and that the entries run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.build_hooks.projects import LAYOUTS, save_model, write_project
from tests.conftest import ROOT
from tests.support import forked

# Of a manifest's entries; https://pre-commit.com/#creating-new-hooks
REQUIRED = {"id", "name", "entry", "language"}
OPTIONAL = {"description", "files", "pass_filenames", "require_serial"}


def hooks() -> dict[str, Any]:
    found = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return {hook["id"]: hook for hook in found}


def test_it_is_a_manifest() -> None:
    assert set(hooks()) == {"onnxgen-build-check", "onnxgen-build"}
    for hook in hooks().values():
        assert set(hook) >= REQUIRED and set(hook) <= REQUIRED | OPTIONAL
        assert hook["language"] == "python" and hook["pass_filenames"] is False


@pytest.mark.parametrize("hook", sorted(hooks()))
def test_when_it_runs(hook: str) -> None:
    """pre-commit searches the path of each changed file, relative to the repository and with `/`."""
    pattern = hooks()[hook]["files"]
    counts = ["pyproject.toml", "sub/pyproject.toml", "models/a.onnx", "a.onnx.data", "m/a.onnx_data", "two.data"]
    assert [path for path in counts if not re.search(pattern, path)] == []
    others = ["src/pkg/one.py", "one.safetensors", "onnx/a.txt", "mypyproject.toml", "pyproject.toml.orig", "a.onnx.md"]
    assert [path for path in others if re.search(pattern, path)] == []


def test_the_entries_run(tmp_path: Path) -> None:
    """In the root of the repository, without file names; a hook fails by its exit code."""
    root = write_project(tmp_path / "project", LAYOUTS["flat"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ONNXGEN_CACHE_DIR": str(tmp_path / "cache")}

    def call(hook: str) -> int:
        program, *arguments = shlex.split(hooks()[hook]["entry"])
        assert program == "onnxgen"
        return forked.run(["-m", program, *arguments], cwd=root, env=environment).returncode

    assert call("onnxgen-build-check") == 1
    assert call("onnxgen-build") == 0 and (root / "pkg/one.py").exists()
    assert call("onnxgen-build-check") == 0
    save_model(root / "pkg/one.onnx", 9)
    assert call("onnxgen-build-check") == 1
