"""Builds that take long: isolated, as pip and build make them, and of every layout; and what they cost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.build_hooks.layouts import CASES, every_kind_of_build
from tests.build_hooks.projects import (
    HATCHLING,
    LAYOUTS,
    SETUPTOOLS,
    Layout,
    backend,
    check_record,
    compare,
    make_venv,
    members,
    pip,
    pip_wheel,
    run,
    unpack,
    unpack_sdist,
    write_project,
)
from tests.build_hooks.test_hatch import SRC, WHEEL, Backend, sources, tree
from tests.build_hooks.wheelhouse import environment, isolated

LAYOUT = LAYOUTS["src"]
TOOLS = {"setuptools": (LAYOUT, SETUPTOOLS), "hatchling": (SRC, HATCHLING)}


@pytest.fixture
def env(wheelhouse: Path, tmp_path: Path) -> dict[str, str]:
    return isolated(environment(tmp_path / "cache", wheelhouse))


@pytest.mark.parametrize("name", [name for name in CASES if name != "setup.py"])
def test_every_kind_of_build(name: str, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    every_kind_of_build(name, builder, tmp_path, env)


@pytest.mark.parametrize("tool", TOOLS)
def test_build_in_isolation(tool: str, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """`python -m build`: an sdist, and of that a wheel, each in an environment of its own; the same without."""
    project = write_project(tmp_path / "project", *TOOLS[tool])
    wheels = {
        "setuptools": lambda: backend("build_wheel", project, tmp_path / "direct", builder, env),
        "hatchling": lambda: Backend(builder, env).build("wheel", project, tmp_path / "direct"),
    }
    run(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ".", cwd=project, env=env)
    (sdist,), (wheel,) = (tmp_path / "dist").glob("*.tar.gz"), (tmp_path / "dist").glob("*.whl")
    names = set(tree(unpack_sdist(sdist, tmp_path / "unpacked")))
    assert {*LAYOUT.outputs, "models/two.data", "pyproject.toml"} <= names
    assert not {name for name in names if name.endswith(".safetensors")}
    assert members(wheel) == WHEEL
    check_record(wheel)
    first, second = (tree(unpack(w, tmp_path / w.parent.name / "site")) for w in (wheel, wheels[tool]()))
    assert all(first[name] == second[name] for name in WHEEL)


@pytest.mark.parametrize("tool", TOOLS)
def test_an_editable_install_in_isolation(tool: str, tmp_path: Path, env: dict[str, str]) -> None:
    project, python = write_project(tmp_path / "project", *TOOLS[tool]), make_venv(tmp_path / "venv")
    pip("install", "--no-deps", "-e", ".", cwd=project, env=env, python=python)
    files = compare(sources(project), tmp_path, python=python)
    assert files == {"pkg.one": project / "src/pkg/one.py", "pkg.nets.two": project / "src/pkg/nets/two.py"}
    pip("uninstall", "-y", "pkg", cwd=tmp_path, env=env, python=python)
    assert subprocess.run([python, "-c", "import pkg"], cwd=tmp_path, capture_output=True).returncode == 1
    assert all(file.exists() for file in files.values())


def test_onnxgen_installs_from_wheels_and_generates(tmp_path: Path, env: dict[str, str]) -> None:
    """Everything that onnxgen needs is there, and the wheels work: without torch, and without the network."""
    python = make_venv(tmp_path / "venv")
    pip("install", "onnxgen", cwd=tmp_path, env=env, python=python)
    project = write_project(tmp_path / "project", LAYOUTS["src"])
    sources = dict(zip(("one", "two"), [project / source for source in LAYOUTS["src"].outputs], strict=True))
    for stem, source in sources.items():
        run(python, "-m", "onnxgen", source, "-o", f"{stem}.py", cwd=tmp_path, env=env)
    assert set(compare(sources, tmp_path, path=tmp_path)) == set(sources)
    code = "import importlib.util as util, sys; sys.exit(util.find_spec('torch') is not None)"
    run(python, "-c", code, cwd=tmp_path, env=env)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_models_cost_is_printed(
    tool: str, tmp_path: Path, env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """In isolation, beside the same project without models; both wheels are whole."""

    def seconds(name: str, layout: Layout, text: str) -> float:
        project = write_project(tmp_path / name, layout, text)
        begun = time.perf_counter()
        check_record(pip_wheel(project, tmp_path / f"{name}-wheels", env))
        return time.perf_counter() - begun

    text = TOOLS[tool][1]
    plain = text.replace(', "onnxgen"', "").split("[tool", 1)[0]
    without = seconds("without", Layout({}, [], LAYOUT.files), plain)
    with_models = seconds("with", LAYOUT, text)
    with capsys.disabled():
        print(f"\n{tool}: {with_models:.1f} s with two models, {without:.1f} s without")
