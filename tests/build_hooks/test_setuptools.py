"""A project that ships models, built with setuptools as its users do: `pip wheel`, isolated, from local wheels.

`test_setuptools_layouts.py` has the other layouts, built without isolation; `long_builds.py` has `python -m build`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.build_hooks.projects import (
    FIND,
    LAYOUTS,
    backend,
    check_record,
    compare,
    make_venv,
    members,
    pip,
    pip_wheel,
    run,
    save_model,
    site_of,
    unpack,
    write_project,
)
from tests.build_hooks.wheelhouse import clean_environment, environment

pytestmark = pytest.mark.slow

LAYOUT = LAYOUTS["src"]
FILES = {  # of the wheel
    "pkg/__init__.py",
    "pkg/one.py",
    "pkg/one.safetensors",
    "pkg/nets/__init__.py",
    "pkg/nets/two.py",
    "pkg/nets/two.safetensors",
}
# What the build environment has, written down by the build itself.
SETUP = """
import importlib.metadata, importlib.util, json, os
from setuptools import setup
names = sorted({found.metadata["Name"].lower() for found in importlib.metadata.distributions()})
torch = importlib.util.find_spec("torch") is not None
with open(os.environ["SEEN"], "w") as file:
    json.dump({"distributions": names, "torch": torch}, file)
setup()
"""


@dataclass(frozen=True)
class Built:
    """A project, its wheel by `pip wheel` in isolation, and what the build saw."""

    project: Path
    wheel: Path
    seen: dict[str, object]
    sources: Mapping[str, Path]  # the ONNX file by module
    cache: Path  # what onnxgen remembers of these files


@pytest.fixture(scope="module")
def built(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("setuptools")
    project = write_project(folder / "project", LAYOUT)
    (project / "setup.py").write_text(SETUP)
    env = {**environment(folder / "cache", wheelhouse), "SEEN": str(folder / "seen.json")}
    wheel = pip_wheel(project, folder / "wheels", env)
    sources = {m: project / s for m, s in zip(LAYOUT.modules, LAYOUT.outputs, strict=True)}
    return Built(project, wheel, json.loads((folder / "seen.json").read_text()), sources, folder / "cache")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {**environment(tmp_path / "cache"), "SEEN": os.devnull}


def test_the_wheel_has_modules_and_weights_and_nothing_else(built: Built) -> None:
    assert members(built.wheel) == FILES
    check_record(built.wheel)


def test_a_wheel_leaves_the_source_tree_alone(built: Built) -> None:
    outputs = [built.project / output for output in LAYOUT.outputs.values()]
    assert not any(path.exists() for o in outputs for path in (o, o.with_suffix(".safetensors")))


def test_the_modules_run_elsewhere(built: Built, tmp_path: Path) -> None:
    site = unpack(built.wheel, tmp_path / "site")
    files = compare(built.sources, tmp_path, path=site)
    assert all(file.is_relative_to(site) for file in files.values()) and set(files) == set(LAYOUT.modules)


def test_the_build_environment_has_no_torch(built: Built) -> None:
    assert built.seen["torch"] is False
    names = set(built.seen["distributions"])  # type: ignore[call-overload]
    assert {"onnxgen", "onnx", "setuptools"} <= names
    assert not {"torch", "onnxruntime", "lightning"} & names


def test_an_uninstall_removes_all_of_it(built: Built, tmp_path: Path, env: dict[str, str]) -> None:
    python = make_venv(tmp_path / "venv")
    pip("install", "--no-deps", built.wheel, cwd=tmp_path, env=env, python=python)
    (package,) = (tmp_path / "venv").rglob("pkg")
    assert {f"pkg/{p.relative_to(package).as_posix()}" for p in package.rglob("*") if p.is_file()} == FILES
    usual = clean_environment()  # compiled files lie beside their sources
    run(python, "-m", "compileall", "-q", package, cwd=tmp_path, env=usual)
    assert (package / "__pycache__").is_dir()
    pip("uninstall", "-y", "pkg", cwd=tmp_path, env=usual, python=python)
    assert not package.exists() and not list(package.parent.glob("pkg*"))


def test_an_editable_install_writes_in_place(built: Built, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """It follows its source when it is built again, and an uninstall leaves the project's files."""
    env = {**env, "ONNXGEN_CACHE_DIR": str(built.cache)}
    project, python = tmp_path / "project", make_venv(tmp_path / "venv", builder)
    shutil.copytree(built.project, project, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    sources = {m: project / s for m, s in zip(LAYOUT.modules, LAYOUT.outputs, strict=True)}
    outputs = [project / output for output in LAYOUT.outputs.values()]
    install = ("install", "--no-build-isolation", "--no-deps", "-e", project)
    pip(*install, cwd=tmp_path, env=env, python=python)
    found = run(python, "-c", FIND, *LAYOUT.modules, cwd=tmp_path, env=env).splitlines()
    assert [Path(line) for line in found] == outputs
    assert list(compare(sources, tmp_path, path=site_of(python)).values()) == outputs
    first = [(output.read_bytes(), output.stat().st_mtime_ns) for output in outputs]
    save_model(sources[LAYOUT.modules[0]], seed=5, hidden=24)
    backend("build_editable", project, tmp_path / "wheels", builder, env)
    assert list(compare(sources, tmp_path, path=site_of(python)).values()) == outputs
    second = [(output.read_bytes(), output.stat().st_mtime_ns) for output in outputs]
    assert first[0] != second[0] and first[1] == second[1]
    pip("uninstall", "-y", "pkg", cwd=tmp_path, env=env, python=python)
    assert subprocess.run([python, "-c", "import pkg"], cwd=tmp_path, capture_output=True).returncode == 1
    assert all(output.exists() for output in outputs)


def test_a_build_follows_the_content_of_its_source(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Touched, nothing is written again, though the build folder is still there; changed, one module is."""
    project = write_project(tmp_path / "project", LAYOUT)
    one, two = (project / source for source in LAYOUT.outputs)
    made = [project / "build/lib" / o.removeprefix("src/") for o in LAYOUT.outputs.values()]

    def build(name: str) -> list[tuple[bytes, int]]:
        wheel = backend("build_wheel", project, tmp_path / name, builder, env)
        assert members(wheel) == FILES
        return [(path.read_bytes(), path.stat().st_mtime_ns) for path in made]

    first = build("first")
    for path in (one, two, two.with_suffix(".data")):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert build("touched") == first
    save_model(one, seed=5, hidden=24)
    os.utime(one, (1_000_000_000, 1_000_000_000))  # the time says that it is no newer
    changed = build("changed")
    assert changed[0] != first[0] and changed[1] == first[1]
    site = unpack(tmp_path / "changed" / "pkg-1.0-py3-none-any.whl", tmp_path / "site")
    compare(dict(zip(LAYOUT.modules, (one, two), strict=True)), tmp_path, path=site)
