"""What users see when a build can't be: one line that names the key, no traceback, and everything as it was."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.build_hooks.projects import LAYOUTS, backend, execute, make_venv, pip, run, save_model, write_project
from tests.build_hooks.wheelhouse import environment

pytestmark = pytest.mark.slow

Edit = Callable[[Path], object]
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def replaced(old: str, new: str) -> Edit:
    """A change of pyproject.toml."""

    def edit(project: Path) -> None:
        file = project / "pyproject.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return edit


BAD: Mapping[str, tuple[Edit, str]] = {
    "a missing source": (
        lambda project: (project / "models/one.onnx").unlink(),
        "pyproject.toml: tool.onnxgen.models[0].source: 'models/one.onnx' is missing",
    ),
    "missing data": (
        lambda project: (project / "models/two.data").unlink(),
        "pyproject.toml: tool.onnxgen.models[1].source: ...two.data is missing; put it beside the .onnx file",
    ),
    "one output": (
        replaced("src/pkg/nets/two.py", "src/pkg/one.py"),
        "pyproject.toml: tool.onnxgen.models[1].output: src/pkg/one.py is the output of tool.onnxgen.models[0], too",
    ),
    "an output outside": (
        replaced("src/pkg/nets/two.py", "../two.py"),
        "pyproject.toml: tool.onnxgen.models[1].output: '../two.py' lies outside the project...",
    ),
    "an output in no package": (
        replaced("src/pkg/nets/two.py", "tests/two.py"),
        "pyproject.toml: tool.onnxgen.models[1].output: tests/two.py is not in a package of this project "
        "(pkg, pkg.nets) -> put it into one",
    ),
    "weights outside of packages": (
        replaced('output = "src/pkg/nets/two.py"', 'output = "src/pkg/nets/two.py"\nweights = "weights/two"'),
        "pyproject.toml: tool.onnxgen.models[1].weights: weights/two lies outside src",
    ),
    "a broken model": (
        lambda project: (project / "models/one.onnx").write_bytes(b"\x08\x09not a model"),
        "pyproject.toml: tool.onnxgen.models[0].source: ...one.onnx is not a readable ONNX file (truncated or damaged)"
        " -> download or export it again",
    ),
    "an unknown key": (
        replaced('output = "src/pkg/nets/two.py"', 'outptu = "src/pkg/nets/two.py"'),
        "pyproject.toml: tool.onnxgen.models[1].outptu: unknown key -> did you mean output?",
    ),
}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "cache")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def the_line(printed: str) -> str:
    """The one line with the error, as pip shows what a build printed."""
    assert "Traceback" not in printed
    (line,) = (line for line in printed.splitlines() if "pyproject.toml: " in line)
    return line.strip()


@pytest.fixture(scope="module")
def good(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was built, in place and for a wheel."""
    folder = tmp_path_factory.mktemp("good")
    project = write_project(folder / "project", LAYOUTS["src"])
    for hook in ("build_editable", "build_wheel"):
        backend(hook, project, folder / hook, builder, environment(folder / "cache"))
    return project


@pytest.mark.parametrize("case", BAD)
def test_a_bad_project_fails_with_one_line(
    case: str, good: Path, builder: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    """And the modules of an earlier build stay, in the source tree and in the build folder."""
    edit, expected = BAD[case]
    project = tmp_path / "project"
    shutil.copytree(good, project)
    edit(project)
    made = [project / "src", project / "build/lib"]
    before = [files(folder) for folder in made]
    printed = execute(builder, "-c", BUILD, "build_wheel", tmp_path / "wheels", cwd=project, env=env, fails=True)
    line, (begin, _, end) = the_line(printed), expected.partition("...")
    assert line.startswith(f"error: {begin}") and line.endswith(end)
    assert not list((tmp_path / "wheels").glob("*.whl"))
    egg_info = {str(path.relative_to(project / "src")) for path in (project / "src").glob("*.egg-info/*")}
    after = [files(folder) for folder in made]
    assert all(before[0][name] == after[0][name] for name in before[0] if name not in egg_info)
    assert before[1] == after[1]


def test_an_edited_module_is_not_lost(good: Path, builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """Edited by hand, and the source changed: a wheel does not take it, and an editable install merges the two."""
    project = tmp_path / "project"
    shutil.copytree(good, project)
    module = project / "src/pkg/one.py"
    module.write_text(module.read_text() + "\nMINE = 1\n")
    save_model(project / "models/one.onnx", seed=5, hidden=24)
    before = module.read_bytes()
    printed = execute(builder, "-c", BUILD, "build_wheel", tmp_path / "wheel", cwd=project, env=env, fails=True)
    assert "src/pkg/one.py was edited by hand, and the ONNX file or the options changed too" in the_line(printed)
    assert module.read_bytes() == before
    execute(builder, "-c", BUILD, "build_editable", tmp_path / "editable", cwd=project, env=env)
    assert "MINE = 1" in module.read_text() and "nn.Linear(4, 24)" in module.read_text()


def test_models_are_named_in_one_place(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    project = write_project(tmp_path / "project", LAYOUTS["flat"])
    (project / "setup.py").write_text("from setuptools import setup\nsetup(onnxgen_models=['pkg/one.onnx'])\n")
    printed = execute(builder, "setup.py", "build", cwd=project, env=env, fails=True)
    assert "error: setup.py: onnxgen_models: pyproject.toml has [tool.onnxgen] too" in printed
    (project / "pyproject.toml").unlink()
    (project / "setup.py").write_text("from setuptools import setup\nsetup(name='pkg', onnxgen_models=7)\n")
    printed = execute(builder, "setup.py", "build", cwd=project, env=env, fails=True)
    assert "error: setup.py: onnxgen_models: must be a list, not 7" in printed and "Traceback" not in printed


def test_what_needs_no_models_works_without(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    project = write_project(tmp_path / "project", LAYOUTS["flat"])
    (project / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    (project / "pkg/one.onnx").unlink()
    assert execute(builder, "setup.py", "--name", cwd=project, env=env).split()[-1] == "pkg"


def test_a_folder_that_can_not_be_written_to_is_said(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """An editable install imports modules in place, and there they can't be."""
    project = write_project(tmp_path / "project", LAYOUTS["src"])
    (project / "src/pkg/nets").chmod(0o555)
    try:
        (project / "src/pkg/nets/probe").touch()
    except OSError:
        pass
    else:
        pytest.skip("whoever runs this may write to every folder")
    code = "from setuptools import build_meta; build_meta.build_editable('wheels')"
    try:
        printed = execute(builder, "-c", code, cwd=project, env=env, fails=True)
    finally:
        (project / "src/pkg/nets").chmod(0o755)
    assert "tool.onnxgen.models[1].output: " in the_line(printed) and "install without -e" in printed


def test_the_venv_of_a_failed_editable_install_has_nothing(builder: Path, tmp_path: Path, env: dict[str, str]) -> None:
    """The last install stays when the next fails."""
    project, python = write_project(tmp_path / "project", LAYOUTS["src"]), make_venv(tmp_path / "venv", builder)
    install = ("install", "--no-build-isolation", "--no-deps")
    pip(
        *install,
        backend("build_editable", project, tmp_path / "wheel", builder, env),
        cwd=tmp_path,
        env=env,
        python=python,
    )
    first = (project / "src/pkg/one.py").read_bytes()
    (project / "models/one.onnx").write_bytes(b"\x08\x09not a model")
    printed = pip(*install, "-e", project, cwd=tmp_path, env=env, fails=True, python=python)
    assert "tool.onnxgen.models[0].source" in the_line(printed) and "error: subprocess-exited-with-error" in printed
    assert (project / "src/pkg/one.py").read_bytes() == first
    assert (
        run(python, "-c", "import pkg; print(pkg.__file__)", cwd=tmp_path, env=env).split()[-1].startswith(str(project))
    )
