"""What docs/BUILDING.md says to back ends that have no hook of ours, as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.build_hooks.projects import (
    LAYOUTS,
    SETUPTOOLS,
    check_record,
    compare,
    execute,
    members,
    save_model,
    unpack,
    unpack_sdist,
    write_project,
)
from tests.build_hooks.wheelhouse import environment
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "BUILDING.md").read_text(encoding="utf-8")
PDM = (
    '[build-system]\nrequires = ["pdm-backend", "onnxgen"]\nbuild-backend = "pdm.backend"\n\n'
    '[tool.pdm.build]\npackage-dir = "src"\nsource-includes = ["models/"]\ncustom-hook = "pdm_build.py"\n'
)
LAYOUT = LAYOUTS["src"]
WHEEL = {
    *("pkg/__init__.py", "pkg/one.py", "pkg/one.safetensors"),
    *("pkg/nets/__init__.py", "pkg/nets/two.py", "pkg/nets/two.safetensors"),
}
Build = Callable[[str, str, Path, Path], Path]


def on_the_page(file: str) -> str:
    """The text of a file that the page shows."""
    found = re.search(rf"```python\n# {re.escape(file)}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None, file
    return found[1]


@pytest.fixture
def build(builder: Path, tmp_path: Path) -> Build:
    """Call a hook of a back end in the environment that has onnxgen and the back ends."""
    code = "import sys, importlib as i; print(getattr(i.import_module(sys.argv[1]), sys.argv[2])(sys.argv[3]))"

    def call(backend: str, hook: str, project: Path, into: Path) -> Path:
        into.mkdir(exist_ok=True)
        env = environment(tmp_path / "cache")
        return into / execute(builder, "-c", code, backend, hook, into, cwd=project, env=env).split()[-1]

    return call


def sources(project: Path) -> dict[str, Path]:
    return {name: project / file for name, file in zip(LAYOUT.modules, LAYOUT.outputs, strict=True)}


def test_pdm_backend(build: Build, tmp_path: Path) -> None:
    """The wheel of an sdist has what it should, and the source tree nothing new; an editable install is in place."""
    project = write_project(tmp_path / "project", LAYOUT, PDM)
    (project / "pdm_build.py").write_text(on_the_page("pdm_build.py"))
    unpacked = unpack_sdist(build("pdm.backend", "build_sdist", project, tmp_path / "dist"), tmp_path / "sdist")
    wheel = build("pdm.backend", "build_wheel", unpacked, tmp_path / "dist")
    assert members(wheel) == WHEEL
    check_record(wheel)
    compare(sources(project), tmp_path, path=unpack(wheel, tmp_path / "site"))
    assert not [path for path in (unpacked / "src").rglob("*") if path.suffix == ".safetensors"]
    editable = unpack(build("pdm.backend", "build_editable", project, tmp_path / "dist2"), tmp_path / "editable")
    files = compare(sources(project), tmp_path, path=editable)
    assert files["pkg.one"] == project / "src/pkg/one.py"


def test_model_gen_in_a_setup_py(build: Build, tmp_path: Path) -> None:
    """Of a project without [tool.onnxgen]: what the script makes in place is in the wheel, and follows its file."""
    project = write_project(tmp_path / "project", LAYOUT, SETUPTOOLS)
    text = (project / "pyproject.toml").read_text().split("[[", 1)[0]
    (project / "pyproject.toml").write_text(text + '[tool.setuptools.package-data]\n"*" = ["*.safetensors"]\n')
    (project / "setup.py").write_text(
        "from setuptools import setup\nfrom onnxgen.build_hooks import ModelGen\n\n"
        'ModelGen().input("models/one.onnx").out_dir("src/pkg/").run_from_script()\n'
        'ModelGen().input("models/two.onnx").out("src/pkg/nets/two.py").run_from_script()\nsetup()\n'
    )
    for seed in (3, 4):
        save_model(project / "models/two.onnx", seed, external=True)
        wheel = build("setuptools.build_meta", "build_wheel", project, tmp_path / f"dist{seed}")
        assert members(wheel) == WHEEL
        check_record(wheel)
        compare(sources(project), tmp_path, path=unpack(wheel, tmp_path / f"site{seed}"))
