"""Every layout and every way to say it, in every kind of build; without isolation, so that it is quick."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.build_hooks.projects import (
    LAYOUTS,
    Layout,
    backend,
    check_record,
    compare,
    members,
    run,
    save_model,
    unpack,
    unpack_sdist,
    write_project,
)
from tests.build_hooks.wheelhouse import environment

pytestmark = pytest.mark.slow

FLAT = LAYOUTS["flat"]
NAMED = 'packages = ["pkg"]\n'
MODELS = [{"source": source, "output": output} for source, output in FLAT.outputs.items()]
CASES = {
    "src": LAYOUTS["src"],
    "flat": FLAT,
    # Packages that lie elsewhere than their names say.
    "mapped": Layout(
        {"models/one.onnx": "lib/code/one.py", "models/two.onnx": "lib/nets/two.py"},
        ["pkg.one", "pkg.nets.two"],
        {"lib/code/__init__.py": "", "lib/nets/__init__.py": ""},
        '[tool.setuptools]\npackages = ["pkg", "pkg.nets"]\n'
        '[tool.setuptools.package-dir]\npkg = "lib/code"\n"pkg.nets" = "lib/nets"\n',
    ),
    # Namespace packages (PEP 420), one of which has nothing but a model.
    "namespace": Layout(
        {"src/group/pkg/one.onnx": "src/group/pkg/one.py", "src/group/nets/two.onnx": "src/group/nets/two.py"},
        ["group.pkg.one", "group.nets.two"],
        {"src/group/pkg/__init__.py": ""},
    ),
    # A folder that is no package yet, in one that is.
    "new folder": Layout(
        {"models/one.onnx": "pkg/made/one.py", "models/two.onnx": "pkg/two.py"},
        ["pkg.made.one", "pkg.two"],
        {"pkg/__init__.py": ""},
        f"[tool.setuptools]\n{NAMED}",
    ),
    # Nothing but modules that are generated, in no package.
    "modules": Layout(
        {"models/one.onnx": "one.py", "models/two.onnx": "two.py"},
        ["one", "two"],
        settings="[tool.setuptools]\npackages = []\npy-modules = []\n",
    ),
    "setup.py": replace(
        FLAT,
        files={**FLAT.files, "setup.py": f"from setuptools import setup\nsetup(onnxgen_models={MODELS!r})\n"},
    ),
}


def without_table(project: Path) -> None:
    """Remove the models from pyproject.toml, for a project that says them in setup.py."""
    file = project / "pyproject.toml"
    file.write_text(file.read_text().partition("[[tool.onnxgen")[0])


@pytest.fixture
def env(wheelhouse: Path, tmp_path: Path) -> dict[str, str]:
    return environment(wheelhouse, tmp_path / "cache")


def sources(layout: Layout, project: Path) -> dict[str, Path]:
    return {m: project / s for m, s in zip(layout.modules, layout.outputs, strict=True)}


def expected(layout: Layout) -> set[str]:
    """The files that an installation of a project has; `__init__.py` where the project has one."""
    modules = [module.replace(".", "/") for module in layout.modules]
    return {*(f"{m}.py" for m in modules), *(f"{m}.safetensors" for m in modules)}


IMPORT = """
import importlib.util, site, sys
site.addsitedir(sys.argv[1])
for name in sys.argv[2:]:
    print(importlib.util.find_spec(name).origin)
"""


@pytest.mark.parametrize("name", [name for name in CASES if name != "src"])  # `test_setuptools.py` has that
def test_every_kind_of_build(name: str, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    layout = CASES[name]
    project = write_project(tmp_path / "project", layout)
    if name == "setup.py":
        without_table(project)
    wheel = backend("build_wheel", project, tmp_path / "wheel", builder, env)
    assert {name for name in members(wheel) if not name.endswith("__init__.py")} == expected(layout)
    check_record(wheel)
    assert sum(name.endswith("__init__.py") for name in members(wheel)) == sum("__init__" in f for f in layout.files)
    assert not any((project / output).exists() for output in layout.outputs.values())
    site = unpack(wheel, tmp_path / "site")
    compare(sources(layout, project), tmp_path, path=site)

    unpacked = unpack_sdist(backend("build_sdist", project, tmp_path / "sdist", builder, env), tmp_path / "unpacked")
    assert not list(unpacked.rglob("*.safetensors"))
    again = backend("build_wheel", unpacked, tmp_path / "again", builder, env)
    assert members(again) == members(wheel)
    second = unpack(again, tmp_path / "second")
    assert all((site / name).read_bytes() == (second / name).read_bytes() for name in members(wheel))

    for mode in ("lenient", "strict"):
        wheel = backend("build_editable", project, tmp_path / mode, builder, env, {"editable_mode": mode})
        site = unpack(wheel, tmp_path / f"site-{mode}")
        printed = run(builder, "-c", IMPORT, site, *layout.modules, cwd=tmp_path, env=env)
        found = [Path(line) for line in printed.splitlines()]
        assert [file.resolve() for file in found] == [project / output for output in layout.outputs.values()]
        assert all(file.with_suffix(".safetensors").is_file() for file in found)
        assert all(file.is_relative_to(project / "build") == (mode == "strict") for file in found)


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
    return run(builder, "setup.py", "-q", *arguments, cwd=project, env=env)


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
