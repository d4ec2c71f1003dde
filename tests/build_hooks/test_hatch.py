"""Projects that hatchling builds: what is in their wheels and sdists, and what is said when something is wrong."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.build_hooks.projects import (
    FIND,
    HATCHLING,
    LAYOUTS,
    Layout,
    check_record,
    compare,
    execute,
    make_venv,
    members,
    pip,
    run,
    save_model,
    site_of,
    unpack,
    unpack_sdist,
    write_project,
)
from tests.build_hooks.wheelhouse import environment

pytestmark = pytest.mark.slow

# What most projects ignore; and the external data, which the sdist needs all the same.
IGNORED = "__pycache__/\n*.safetensors\n*.data\n/src/pkg/one.py\n/src/pkg/nets/two.py\n"
# A hook of the project itself, which runs after ours, in the build's own environment.
NO_TORCH = """
import importlib.util, sys
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

class Check(BuildHookInterface):
    def finalize(self, version, build_data, artifact_path):
        assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("onnx") is not None
        assert not any(name.split(".")[0] == "pkg" for name in sys.modules), "the project itself was imported"
"""
SRC = replace(
    LAYOUTS["src"],
    files={**LAYOUTS["src"].files, ".gitignore": IGNORED, "hatch_build.py": NO_TORCH},
    settings="[tool.hatch.build.hooks.custom]\n",
)
WHEEL = {
    "pkg/__init__.py",
    "pkg/nets/__init__.py",
    *("pkg/one.py", "pkg/one.safetensors"),
    *("pkg/nets/two.py", "pkg/nets/two.safetensors"),
}


def sources(project: Path, layout: Layout = SRC) -> dict[str, Path]:
    return dict(zip(layout.modules, [project / source for source in layout.outputs], strict=True))


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- builds in one environment, which has hatchling and onnxgen and no more ------------------------------------------


@dataclass
class Backend:
    python: Path
    env: Mapping[str, str]

    def build(self, kind: str, project: Path, into: Path) -> Path:
        """Build "wheel", "sdist" or "editable" as a frontend would."""
        into.mkdir(exist_ok=True)
        printed = execute(self.python, "-c", _BUILD, kind, into, cwd=project, env=self.env)
        return into / printed.splitlines()[-1]

    def fails(self, kind: str, project: Path, into: Path) -> list[str]:
        """The lines that a build ends with that must fail; nothing may be built."""
        into.mkdir(exist_ok=True)
        printed = execute(self.python, "-c", _BUILD, kind, into, cwd=project, env=self.env, fails=True)
        assert list(into.iterdir()) == []
        return printed.splitlines()


_BUILD = "import sys, hatchling.build as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


@pytest.fixture(scope="module")
def backend(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return Backend(builder, environment(tmp_path_factory.mktemp("cache")))


# ---- a wheel, an sdist, and the wheel of that; `long_builds.py` makes the last two in isolation ----------------------


@dataclass
class Built:
    """A project, and its wheel."""

    project: Path
    before: dict[str, bytes]
    wheel: Path


@pytest.fixture(scope="module")
def built(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("hatch")
    project = write_project(folder / "project", SRC, HATCHLING)
    before = tree(project)
    return Built(project, before, backend.build("wheel", project, folder / "direct"))


@pytest.fixture(scope="module")
def sdist(built: Built, backend: Backend) -> Path:
    return backend.build("sdist", built.project, built.project.with_name("dist"))


def test_a_wheel_has_modules_and_weights_and_nothing_else(built: Built) -> None:
    assert members(built.wheel) == WHEEL
    check_record(built.wheel)


def test_building_leaves_the_project_as_it_is(built: Built, sdist: Path) -> None:
    assert tree(built.project) == built.before


def test_an_sdist_has_what_modules_are_made_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    packages = {"src/pkg/__init__.py", "src/pkg/nets/__init__.py"}
    models = {"models/one.onnx", "models/two.onnx", "models/two.data"}
    assert names == packages | models | {".gitignore", "hatch_build.py", "pyproject.toml", "PKG-INFO"}


def test_the_wheel_of_an_sdist_is_the_same(built: Built, sdist: Path, backend: Backend, tmp_path: Path) -> None:
    wheel = backend.build("wheel", unpack_sdist(sdist, tmp_path / "unpacked"), tmp_path / "dist")
    assert members(wheel) == WHEEL
    check_record(wheel)
    assert tree(unpack(built.wheel, tmp_path / "a")) == tree(unpack(wheel, tmp_path / "b"))


def test_an_installed_wheel_computes_what_its_file_does_and_goes_whole(
    built: Built, backend: Backend, tmp_path: Path
) -> None:
    python = make_venv(tmp_path / "venv")
    empty = set(tree(tmp_path / "venv"))
    pip("install", "--no-deps", built.wheel, cwd=tmp_path, env=backend.env, python=python)
    files = compare(sources(built.project), tmp_path, path=site_of(python))
    assert all(file.is_relative_to(tmp_path / "venv") for file in files.values())
    assert set(tree(tmp_path / "venv")) > empty
    pip("uninstall", "-y", "pkg", cwd=tmp_path, env=backend.env, python=python)
    assert set(tree(tmp_path / "venv")) == empty


def test_an_editable_install_follows_the_file(built: Built, backend: Backend, tmp_path: Path) -> None:
    """Written in place; found fresh after a touch and in a fresh checkout; written again when the file changed."""
    project = tmp_path / "project"
    shutil.copytree(built.project, project)
    python = make_venv(tmp_path / "venv", backend.python)
    pip("install", "--no-build-isolation", "--no-deps", "-e", ".", cwd=project, env=backend.env, python=python)
    found = run(python, "-c", FIND, *SRC.modules, cwd=tmp_path, env=backend.env).splitlines()
    files = compare(sources(project), tmp_path, path=site_of(python))
    assert [Path(line) for line in found] == list(files.values())
    assert files == {"pkg.one": project / "src/pkg/one.py", "pkg.nets.two": project / "src/pkg/nets/two.py"}
    assert set(tree(project)) - set(built.before) == {f"src/{name}" for name in WHEEL if "__init__" not in name}
    save_model(project / "models/two.onnx", seed=7, external=True)
    os.utime(project / "models/one.onnx")
    written = {path: path.stat().st_mtime_ns for path in project.rglob("*.safetensors")}
    backend.build("editable", project, tmp_path / "again")
    compare(sources(project), tmp_path, path=site_of(python))
    changed = {path.name for path, then in written.items() if path.stat().st_mtime_ns != then}
    assert changed == {"two.safetensors"}


def test_a_flat_layout_keeps_its_onnx_files_out_of_the_wheel(backend: Backend, tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", LAYOUTS["flat"], HATCHLING)
    wheel = backend.build("wheel", project, tmp_path / "wheels")
    assert members(wheel) == WHEEL
    check_record(wheel)
    compare(sources(project, LAYOUTS["flat"]), tmp_path, path=unpack(wheel, tmp_path / "site"))


# ---- settings of hatchling, and of the project ----------------------------------------------------------------------

ONE = Layout({"models/one.onnx": "src/pkg/one.py"}, ["pkg.one"], {"src/pkg/__init__.py": ""})


def one(root: Path, settings: str = "", output: str = "src/pkg/one.py", **files: str) -> Path:
    """A project with a single model."""
    return write_project(
        root, Layout({"models/one.onnx": output}, ["pkg.one"], files or ONE.files), HATCHLING + settings
    )


@pytest.mark.parametrize(
    ("settings", "output", "expected"),
    [
        ('[tool.hatch.build.targets.wheel]\npackages = ["lib/deep/pkg"]\n', "lib/deep/pkg/one.py", "pkg/one"),
        ('[tool.hatch.build.targets.wheel]\npackages = ["lib/pkg", "lib/more"]\n', "lib/more/one.py", "more/one"),
        (
            '[tool.hatch.build.targets.wheel]\nonly-include = ["lib"]\nsources = {"lib" = "over"}\n',
            "lib/pkg/one.py",
            "over/pkg/one",
        ),
        ('[tool.hatch.build]\ninclude = ["lib/**/*.py"]\nsources = ["lib"]\n', "lib/pkg/one.py", "pkg/one"),
        ('[tool.hatch.build.targets.wheel]\nonly-include = ["one.py"]\n', "one.py", "one"),
    ],
    ids=["packages", "two packages", "sources", "include", "a module alone"],
)
def test_modules_go_where_hatchling_puts_their_package(
    settings: str, output: str, expected: str, backend: Backend, tmp_path: Path
) -> None:
    beside = (Path(output).parent / "there.py").as_posix()
    project = one(tmp_path / "project", settings, output, **{beside: "", ".gitignore": "one.py\n*.safetensors\n"})
    wheel = backend.build("wheel", project, tmp_path / "dist")
    there = {expected.replace("one", "there.py")} if "/" in expected else set()
    assert members(wheel) == {f"{expected}.py", f"{expected}.safetensors"} | there
    check_record(wheel)


def test_a_stale_module_in_the_tree_is_not_what_goes_into_the_wheel(backend: Backend, tmp_path: Path) -> None:
    project = one(tmp_path / "project")
    backend.build("editable", project, tmp_path / "editable")
    save_model(project / "models/one.onnx", seed=5)
    before = tree(project)
    wheel = backend.build("wheel", project, tmp_path / "dist")
    assert members(wheel) == {"pkg/__init__.py", "pkg/one.py", "pkg/one.safetensors"}
    check_record(wheel)
    compare({"pkg.one": project / "models/one.onnx"}, tmp_path, path=unpack(wheel, tmp_path / "site"))
    assert tree(project) == before


def test_a_module_that_was_edited_goes_into_wheel_and_sdist(backend: Backend, tmp_path: Path) -> None:
    project = one(tmp_path / "project", **ONE.files, **{".gitignore": "*.safetensors\n/src/pkg/one.py\n"})
    backend.build("editable", project, tmp_path / "editable")
    module = project / "src/pkg/one.py"
    module.write_text(module.read_text() + "\nMINE = 1\n")
    wheel = backend.build("wheel", project, tmp_path / "dist")
    sdist = backend.build("sdist", project, tmp_path / "dist")
    unpacked = unpack_sdist(sdist, tmp_path / "unpacked")
    (tmp_path / "dist2").mkdir()
    again = backend.build("wheel", unpacked, tmp_path / "dist2")
    found = tree(unpack(wheel, tmp_path / "a"))
    assert found["pkg/one.py"] == module.read_bytes() and "pkg/one.safetensors" in found
    assert tree(unpack(again, tmp_path / "b")) == found


def test_include_onnx_puts_the_file_and_its_data_beside_the_module(backend: Backend, tmp_path: Path) -> None:
    layout = replace(SRC, settings="[tool.onnxgen]\ninclude-onnx = true\n", files=LAYOUTS["src"].files)
    wheel = backend.build("wheel", write_project(tmp_path / "src", layout, HATCHLING), tmp_path / "dist")
    assert members(wheel) == WHEEL | {"pkg/one.onnx", "pkg/nets/two.onnx", "pkg/nets/two.data"}
    check_record(wheel)


def test_include_onnx_leaves_files_of_a_package_where_they_are(backend: Backend, tmp_path: Path) -> None:
    project = one(
        tmp_path / "project", "[tool.onnxgen]\ninclude-onnx = true\n", **ONE.files, **{".gitignore": "*.onnx"}
    )
    text = (project / "pyproject.toml").read_text().replace("models/one.onnx", "src/pkg/graphs/one.onnx")
    (project / "pyproject.toml").write_text(text)
    shutil.move(project / "models", project / "src/pkg/graphs")
    wheel = backend.build("wheel", project, tmp_path / "dist")
    onnx = {"pkg/graphs/one.onnx"}
    assert members(wheel) == {"pkg/__init__.py", "pkg/one.py", "pkg/one.safetensors"} | onnx
    check_record(wheel)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_out_of_the_project_is_followed(backend: Backend, tmp_path: Path) -> None:
    """As data stores make them: an sdist with a link to a folder of this machine would be of no use."""
    project = one(tmp_path / "project")
    shutil.move(project / "models/one.onnx", tmp_path / "stored")
    (project / "models/one.onnx").symlink_to(tmp_path / "stored")
    with tarfile.open(backend.build("sdist", project, tmp_path / "dist")) as archive:
        (found,) = [member for member in archive.getmembers() if member.name.endswith("one.onnx")]
        assert found.isreg() and found.size == (tmp_path / "stored").stat().st_size


def test_templates_and_plugins_are_in_the_sdist(backend: Backend, tmp_path: Path) -> None:
    settings = '[tool.hatch.build.targets.sdist]\nonly-include = ["src"]\n\n'
    settings += '[tool.onnxgen]\ntemplates = "mine"\nplugins = ["ops/"]\n'
    files = {"mine/part.jinja": "{# mine #}", "ops/__init__.py": "from . import more\n", "ops/more.py": "1 / 0\n"}
    project = one(tmp_path / "project", settings, **ONE.files, **files)
    with tarfile.open(backend.build("sdist", project, tmp_path / "dist")) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert names >= {"mine/part.jinja", "ops/__init__.py", "ops/more.py", "models/one.onnx", "pyproject.toml"}


# ---- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose module is there."""
    project = one(tmp_path_factory.mktemp("generated") / "project")
    backend.build("editable", project, project.parent / "dist")
    return project


def table(source: str, output: str) -> str:
    return f'[[tool.onnxgen.models]]\nsource = "{source}"\noutput = "{output}"\n'


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (table("models/none.onnx", "src/pkg/x.py"), "tool.onnxgen.models[0].source: 'models/none.onnx' is missing"),
        (table("models/one.onnx", "src/pkg/one.py"), "tool.onnxgen.models[1].output: src/pkg/one.py is the output of"),
        (table("models/one.onnx", "../x.py"), "tool.onnxgen.models[0].output: '../x.py' lies outside the project"),
        (table("hatch.onnx", "src/pkg/x.py"), "hatch.onnx is not an ONNX model"),
        (table("models/one.onnx", "tools/x.py"), "tool.onnxgen.models[0].output: tools/x.py is not in a package"),
        (
            table("models/one.onnx", "src/pkg/x.py") + 'weights = "data/x.safetensors"\n',
            "tool.onnxgen.models[0].weights: data/x.safetensors would not be where the module looks for it",
        ),
        (
            "[tool.hatch.build.hooks.onnxgen]\nsource = 1\n",
            "tool.hatch.build.hooks.onnxgen.source: unknown key",
        ),
    ],
    ids=["missing", "one output", "outside", "broken", "no package", "weights", "hook's table"],
)
def test_bad_input_is_one_line_that_names_the_key(
    settings: str, expected: str, generated: Path, backend: Backend, tmp_path: Path
) -> None:
    """Of any build, and the modules that were there stay."""
    project = tmp_path / "project"
    shutil.copytree(generated, project)
    file = project / "pyproject.toml"
    head, models = file.read_text().replace("[tool.hatch.build.hooks.onnxgen]\n", "").split("[[", 1)
    hook = "" if "hooks" in settings else "[tool.hatch.build.hooks.onnxgen]\n"
    file.write_text(f"{head}{hook}{settings}[[{models}")
    (project / "hatch.onnx").write_text("no model")
    before = tree(project)
    lines = backend.fails("wheel", project, tmp_path / "dist")
    assert expected in lines[0] and lines[0].startswith("onnxgen: pyproject.toml: tool.")
    assert all("pyproject.toml: tool." in line for line in lines), "no traceback, nothing but problems"
    assert tree(project) == before


def test_a_hook_without_models_says_so(backend: Backend, tmp_path: Path) -> None:
    project = one(tmp_path / "project")
    text = (project / "pyproject.toml").read_text().split("[[", 1)[0]
    (project / "pyproject.toml").write_text(text)
    for kind in ("wheel", "sdist", "editable"):
        assert "the file has no [tool.onnxgen] table" in backend.fails(kind, project, tmp_path / "dist")[-1]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="nothing is read-only for this user")
def test_an_editable_install_of_a_read_only_tree_says_so(backend: Backend, tmp_path: Path) -> None:
    project = one(tmp_path / "project")
    (project / "src/pkg").chmod(0o555)
    try:
        last = backend.fails("editable", project, tmp_path / "dist")[-1]
    finally:
        (project / "src/pkg").chmod(0o755)
    assert "tool.onnxgen.models[0].output" in last and "can't be written to" in last


def test_a_project_without_the_hook_does_not_notice(backend: Backend, tmp_path: Path) -> None:
    """Not even where hatchling looks through all packages for a hook of another name: no more is imported than this."""
    project = one(tmp_path / "project")
    text = (project / "pyproject.toml").read_text().replace("[tool.hatch.build.hooks.onnxgen]\n", "")
    (project / "pyproject.toml").write_text(text)
    code = f"import sys; sys.argv[1:] = ['wheel', {str(tmp_path)!r}]; {_BUILD}; print('onnxgen' in sys.modules); "
    code += "from hatchling.plugin.manager import PluginManager; print(PluginManager().build_hook.get('other')); "
    code += "print(sorted(m for m in sys.modules if m.startswith('onnxgen.') or m in ('onnx', 'numpy', 'black')))"
    printed = run(backend.python, "-c", code, cwd=project, env=backend.env).splitlines()
    ours = ("_version", "build_hooks", "build_hooks.hatch", "common", "common.names", "errors")
    assert printed[-3:] == ["False", "None", str([f"onnxgen.{name}" for name in ours])]
    (wheel,) = tmp_path.glob("*.whl")
    assert members(wheel) == {"pkg/__init__.py"}
