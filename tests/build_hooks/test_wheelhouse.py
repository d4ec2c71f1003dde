"""The folder of wheels is one that pip can install from, and the little projects are what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_hooks.projects import LAYOUTS, check_record, compare, make_venv, pip, run, save_model, write_project
from tests.build_hooks.wheelhouse import environment


def test_its_wheels_are_whole(wheelhouse: Path) -> None:
    wheels = sorted(wheelhouse.glob("*.whl"))
    assert {"onnxgen", "setuptools", "hatchling", "onnx", "numpy"} <= {w.name.split("-")[0] for w in wheels}
    for wheel in wheels:
        check_record(wheel)


@pytest.mark.slow
def test_onnxgen_installs_from_it_and_generates(wheelhouse: Path, tmp_path: Path) -> None:
    """Everything that onnxgen needs is there, and the repacked wheels work: without torch, and without the network."""
    env = environment(wheelhouse, tmp_path / "cache")
    python = make_venv(tmp_path / "venv")
    pip("--python", python, "install", "onnxgen", cwd=tmp_path, env=env)
    project = write_project(tmp_path / "project", LAYOUTS["src"])
    sources = dict(zip(("one", "two"), [project / source for source in LAYOUTS["src"].outputs], strict=True))
    for stem, source in sources.items():
        run(python, "-m", "onnxgen", source, "-o", f"{stem}.py", cwd=tmp_path, env=env)
    assert set(compare(sources, tmp_path, path=tmp_path)) == set(sources)
    code = "import importlib.util as util, sys; sys.exit(util.find_spec('torch') is not None)"
    run(python, "-c", code, cwd=tmp_path, env=env)


def test_equal_arguments_make_equal_models(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        save_model(tmp_path / name / "model.onnx", seed, external=True)
    a, b, c = ([(tmp_path / n / f).read_bytes() for f in ("model.onnx", "model.data")] for n in "abc")
    assert a == b and a[1] != c[1]
