"""Layouts and settings of projects that setuptools builds; without isolation, so that it is quick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.build_hooks.layouts import CASES, FLAT, every_kind_of_build, expected, sources
from tests.build_hooks.projects import (
    LAYOUTS,
    Layout,
    backend,
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

pytestmark = pytest.mark.slow


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "cache")


@pytest.mark.parametrize("name", ["setup.py"])  # `long_builds.py` has the others
def test_every_kind_of_build(name: str, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    every_kind_of_build(name, builder, tmp_path, env)


@pytest.mark.parametrize(("mode", "layout"), [("lenient", FLAT), ("strict", LAYOUTS["src"])], ids=["lenient", "strict"])
def test_an_editable_install_runs(
    mode: str, layout: Layout, builder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    """Where it is strict, module and sidecar are links in a folder of their own."""
    project = write_project(tmp_path / "project", layout)
    wheel = backend("build_editable", project, tmp_path / "wheel", builder, env, {"editable_mode": mode})
    compare(sources(layout, project), tmp_path, path=unpack(wheel, tmp_path / "site"))


# ---- other ways to build ---------------------------------------------------------------------------------------------


def setup_py(project: Path, builder: Path, env: dict[str, str], *arguments: str | Path) -> str:
    if not (project / "setup.py").exists():
        (project / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    return execute(builder, "setup.py", "-q", *arguments, cwd=project, env=env)


def test_setup_py_build(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Into a folder that is named, and by itself; the first keeps out of the project altogether."""
    project = write_project(tmp_path / "project", LAYOUTS["src"])
    setup_py(project, builder, env, "build", "--build-lib", tmp_path / "out", "--build-base", tmp_path / "base")
    made = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*") if p.is_file()}
    assert made == {*expected(LAYOUTS["src"]), "pkg/__init__.py", "pkg/nets/__init__.py"}
    assert not (project / "build").exists() and not list((project / "src").rglob("*.safetensors"))
    setup_py(project, builder, env, "build_onnxgen", "-d", tmp_path / "alone")
    alone = {p.relative_to(tmp_path / "alone").as_posix() for p in (tmp_path / "alone").rglob("*") if p.is_file()}
    assert alone == expected(LAYOUTS["src"])


CUSTOM = """
from setuptools.command.build import build
class Build(build):
    sub_commands = [*build.sub_commands]
    def run(self):
        super().run()
        print("the project's own build")
"""
COMMANDS = {
    "setup.py": {"setup.py": f"{CUSTOM}\nfrom setuptools import setup\nsetup(cmdclass={{'build': Build}})\n"},
    "setup.cfg": {"custom.py": CUSTOM, "setup.cfg": "[options]\ncmdclass =\n    build = custom.Build\n"},
    "pyproject": {"custom.py": CUSTOM},
}


@pytest.mark.parametrize("where", COMMANDS)
def test_a_build_command_of_the_project_stays(where: str, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    layout = replace(LAYOUTS["src"], files={**LAYOUTS["src"].files, **COMMANDS[where]})
    table = '[tool.setuptools.cmdclass]\nbuild = "custom.Build"\n' if where == "pyproject" else ""
    project = write_project(tmp_path / "project", layout, settings=table)
    printed = setup_py(project, builder, {**env, "PYTHONPATH": str(project)}, "build")
    assert "the project's own build" in printed
    made = {p.relative_to(project / "build/lib").as_posix() for p in (project / "build/lib").rglob("*")}
    assert expected(layout) <= made


def test_options_in_setup_cfg_count(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """The command that gets the sub-command is made after settings are read."""
    files = {**LAYOUTS["src"].files, "setup.cfg": "[build]\nbuild_base = elsewhere\n"}
    project = write_project(tmp_path / "project", replace(LAYOUTS["src"], files=files))
    setup_py(project, builder, env, "build")
    assert (project / "elsewhere/lib/pkg/one.safetensors").is_file() and not (project / "build").exists()


# ---- what goes in ----------------------------------------------------------------------------------------------------


def onnx_files(wheel: Path) -> set[str]:
    return {name for name in members(wheel) if name.endswith((".onnx", ".data"))}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("", set()),
        ("[tool.onnxgen]\ninclude-onnx = true\n", {"pkg/one.onnx", "pkg/nets/two.onnx", "pkg/nets/two.data"}),
        ('[tool.setuptools.package-data]\npkg = ["*.onnx"]\n', {"pkg/one.onnx"}),
        ('[tool.setuptools.package-data]\n"*" = ["**/*.data"]\n', {"pkg/nets/two.data"}),
    ],
    ids=["no", "include-onnx", "package-data", "package-data of all"],
)
def test_onnx_files_go_in_only_if_asked_for(
    settings: str, found: set[str], builder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    """They lie in the package, and setuptools takes what an sdist has for data of the package."""
    project = write_project(tmp_path / "project", FLAT, settings=settings)
    assert onnx_files(backend("build_wheel", project, tmp_path / "wheel", builder, env)) == found


def test_onnx_files_from_outside_lie_beside_the_module(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    layout = LAYOUTS["src"]
    project = write_project(tmp_path / "project", layout, settings="[tool.onnxgen]\ninclude-onnx = true\n")
    wheel = backend("build_wheel", project, tmp_path / "wheel", builder, env)
    assert onnx_files(wheel) == {"pkg/one.onnx", "pkg/nets/two.onnx", "pkg/nets/two.data"}
    check_record(wheel)


TEMPLATE = """{% extends "onnxgen/module.py.jinja" %}
{% block before_classes %}
HOUSE = "ours"
{% endblock %}
"""


PLUGIN = """import onnxgen
@onnxgen.op("Gemm")
def gemm(b, A, B, C=None, **more):
    return b("f(A, B)", f=b.helper("product"), A=A, B=B)
def product(a, b):
    return a @ b.T
"""


def test_templates_and_plugins_go_into_an_sdist(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    files = {**LAYOUTS["src"].files, "looks/module.py.jinja": TEMPLATE, "ops/gemm.py": PLUGIN}
    settings = '[tool.onnxgen]\ntemplates = "looks"\nplugins = ["ops/gemm.py"]\nembed = true\n'
    layout = replace(LAYOUTS["src"], files=files, settings=settings)
    project = write_project(tmp_path / "project", layout)
    unpacked = unpack_sdist(backend("build_sdist", project, tmp_path / "sdist", builder, env), tmp_path / "unpacked")
    wheel = backend("build_wheel", unpacked, tmp_path / "wheel", builder, env)
    assert not [name for name in members(wheel) if name.endswith(".safetensors")]
    made = (unpack(wheel, tmp_path / "site") / "pkg/one.py").read_text()
    assert 'HOUSE = "ours"' in made and "def product(a, b):" in made


@pytest.mark.parametrize("name", ["src", "new folder"])
def test_a_module_that_was_edited_goes_into_the_wheel(
    name: str, builder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    """With its weights; by way of an sdist, too, even if its folder is no package yet."""
    layout = CASES[name]
    project = write_project(tmp_path / "project", layout)
    backend("build_editable", project, tmp_path / "editable", builder, env)
    module, installed = project / list(layout.outputs.values())[0], layout.modules[0].replace(".", "/")
    module.write_text(module.read_text() + "\nMINE = 1\n")
    site = unpack(backend("build_wheel", project, tmp_path / "wheel", builder, env), tmp_path / "site")
    assert (site / f"{installed}.py").read_bytes() == module.read_bytes()
    compare(sources(layout, project), tmp_path, path=site)
    unpacked = unpack_sdist(backend("build_sdist", project, tmp_path / "sdist", builder, env), tmp_path / "unpacked")
    again = backend("build_wheel", unpacked, tmp_path / "again", builder, env)
    assert (unpack(again, tmp_path / "site2") / f"{installed}.py").read_bytes() == module.read_bytes()
    assert (tmp_path / "site2" / f"{installed}.safetensors").is_file()


def test_a_module_that_is_mine_takes_its_weights_along(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Its source may be another one by now, and nothing of it is made again."""
    layout = replace(LAYOUTS["src"], settings='[tool.onnxgen]\nedited = "mine"\n')
    project = write_project(tmp_path / "project", layout)
    backend("build_editable", project, tmp_path / "editable", builder, env)
    module = project / "src/pkg/one.py"
    module.write_text(module.read_text() + "\nMINE = 1\n")
    save_model(project / "models/one.onnx", seed=5, hidden=24)
    unpacked = unpack_sdist(backend("build_sdist", project, tmp_path / "sdist", builder, env), tmp_path / "unpacked")
    wheel = backend("build_wheel", unpacked, tmp_path / "wheel", builder, env)
    site = unpack(wheel, tmp_path / "site")
    for name in ("one.py", "one.safetensors"):
        assert (site / "pkg" / name).read_bytes() == (module.parent / name).read_bytes()


def test_nothing_of_an_earlier_build_goes_into_a_wheel(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """setuptools keeps its build folder; what is a module of the package by now stays all the same."""
    project = write_project(tmp_path / "project", LAYOUTS["src"], settings="include-onnx = true")
    wheel = backend("build_wheel", project, tmp_path / "one", builder, env)
    assert {"pkg/one.safetensors", "pkg/nets/two.onnx", "pkg/nets/two.data"} < members(wheel)
    file = project / "pyproject.toml"
    text = file.read_text().replace('one.py"', 'one.py"\nembed = true').replace("nets/two.py", "nets/three.py")
    file.write_text(text.replace("include-onnx = true", ""))
    (project / "src/pkg/nets/two.py").write_text("mine = 1\n")
    wheel = backend("build_wheel", project, tmp_path / "two", builder, env)
    modules = {f"pkg/{name}" for name in ("one.py", "nets/two.py", "nets/three.py", "nets/three.safetensors")}
    assert members(wheel) == modules | {"pkg/__init__.py", "pkg/nets/__init__.py"}
    check_record(wheel)
    assert (unpack(wheel, tmp_path / "site") / "pkg/nets/two.py").read_text() == "mine = 1\n"
