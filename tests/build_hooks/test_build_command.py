"""`onnxgen build`: what it says, its exit codes, and what it costs when nothing is to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnxgen.cli import run
from tests.build_hooks.projects import LAYOUTS, SETUPTOOLS, save_model, write_project
from tests.conftest import ROOT

Out = pytest.CaptureFixture[str]
ONE, TWO = "src/pkg/one.py", "src/pkg/nets/two.py"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with two models, the second with its data beside it."""
    return write_project(tmp_path / "project", LAYOUTS["src"])


def call(*args: object) -> int:
    return run(["build", *map(str, args)])


def files(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def edit(module: Path) -> None:
    text = module.read_text()
    assert "F.relu(" in text
    module.write_text(text.replace("F.relu(", "F.gelu("))


def edit_the_width(module: Path) -> None:
    """Change a line that a network of another width changes, too."""
    text = module.read_text()
    assert "nn.Linear(4, 16)" in text
    module.write_text(text.replace("nn.Linear(4, 16)", "nn.Linear(4, 16, bias=True)"))


# ---- what is said ----------------------------------------------------------------------------------------------------


def test_a_line_a_model(root: Path, capsys: Out) -> None:
    assert call(root) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "wrote src/pkg/one.safetensors and src/pkg/one.py",
        "wrote src/pkg/nets/two.safetensors and src/pkg/nets/two.py",
    ]
    before = files(root)
    assert call(root) == 0 and files(root) == before
    assert capsys.readouterr().out.splitlines() == [f"{ONE} is fresh", f"{TWO} is fresh"]
    edit(root / ONE)
    save_model(root / "models/two.onnx", 5, external=True)
    assert call(root / "pyproject.toml") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{ONE} is fresh",  # edited or not: it is made of this source
        "wrote src/pkg/nets/two.safetensors and src/pkg/nets/two.py",
    ]


def test_modules_that_are_kept(root: Path, capsys: Out) -> None:
    assert call(root, "-q") == 0
    module = root / ONE
    module.write_text("\n".join(line for line in module.read_text().splitlines() if not line.startswith("Build")))
    edit(module)  # as if `onnxgen models/one.onnx -o src/pkg/one.py` had made it
    assert call(root) == 0
    assert capsys.readouterr().out.startswith(f"{ONE} was edited by hand and its source has not changed: kept\n")
    settings = root / "pyproject.toml"
    settings.write_text(settings.read_text().replace('"src/pkg/nets/two.py"', '"src/pkg/nets/two.py"\nedited = "mine"'))
    save_model(root / "models/two.onnx", 5, external=True)
    assert call(root) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"{TWO} is yours: kept"


def test_quiet_verbose_and_json(root: Path, capsys: Out) -> None:
    assert run(["-q", "build", str(root)]) == 0
    assert capsys.readouterr() == ("", "")
    assert call(root, "-v") == 0
    assert f"{ONE} is fresh (tool.onnxgen.models[0]: models/one.onnx, 0.0" in capsys.readouterr().out
    assert call(root, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "done" and [m["status"] for m in told["models"]] == ["fresh", "fresh"]
    first, second = told["models"]
    assert first["key"] == "tool.onnxgen.models[0]" and first["digest"] in (root / ONE).read_text()
    assert second["files"] == [str(root / TWO), str(root / TWO).replace(".py", ".safetensors")]


def test_the_project_is_the_nearest_one(root: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "src" / "pkg")
    assert call() == 0
    assert f"wrote src/pkg/one.safetensors and {ONE}" in capsys.readouterr().out
    inner = root / "src" / "pyproject.toml"
    inner.write_text("[project]\nname = 'inner'\n")
    assert call() == 2
    assert f"error: {inner} has no [tool.onnxgen] -> write [[tool.onnxgen.models]]" in capsys.readouterr().err


# ---- exit codes ------------------------------------------------------------------------------------------------------


def test_check(root: Path, capsys: Out) -> None:
    before = files(root)
    assert call(root, "--check") == 1
    assert files(root) == before
    assert capsys.readouterr().out.splitlines() == [
        f"{ONE} is missing: onnxgen build",
        f"{TWO} is missing: onnxgen build",
    ]
    assert call(root, "-q") == 0 and call(root, "--check") == 0
    save_model(root / "models/two.onnx", 5, external=True)
    before = files(root)
    assert call(root, "--check", "--json") == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["status"] == "stale" and [m["status"] for m in told["models"]] == ["fresh", "stale"]
    assert files(root) == before


def test_edits_are_merged(root: Path, capsys: Out) -> None:
    assert call(root, "-q") == 0
    edit(root / ONE)
    save_model(root / "models/one.onnx", 5, hidden=9)
    capsys.readouterr()
    assert call(root, "--check") == 1 and call(root) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{ONE} is stale: onnxgen build",
        f"{TWO} is fresh",
        f"wrote src/pkg/one.safetensors and {ONE}: merged your edits into the new module; next: onnxgen verify "
        f"models/one.onnx {ONE} (with --partial if your edits change the layers)",
        f"{TWO} is fresh",
    ]
    text = (root / ONE).read_text()
    assert "F.gelu(" in text and "nn.Linear(4, 9)" in text and call(root, "--check") == 0


def test_edited_by_hand_and_stale(root: Path, capsys: Out) -> None:
    assert call(root, "-q") == 0
    edit_the_width(root / ONE)
    assert call(root, "--check") == 0, "its source is as it was"
    save_model(root / "models/one.onnx", 5, hidden=9)
    kept = (root / ONE).read_bytes()
    for args in (["--check"], []):
        assert call(root, *args) == 3
        said = capsys.readouterr()
        assert (
            said.err.startswith("error: pyproject.toml: tool.onnxgen.models[0]")
            and "\n+<<<<<<< one.py, edited\n         self.fc1 = nn.Linear(4, 16, bias=True)\n" in said.err
        )
        assert said.out.splitlines()[-1] == f"{TWO} is fresh"
        assert (root / ONE).read_bytes() == kept
    assert call(root, "--force", "-q") == 0
    assert "nn.Linear(4, 9)" in (root / ONE).read_text()


def test_every_problem_of_every_model_at_once(root: Path, capsys: Out) -> None:
    settings = (root / "pyproject.toml").read_text()
    for name in ("one", "two"):
        (root / "models" / f"{name}.onnx").write_bytes(b"no model")
    save_model(root / "models/three.onnx", 3)
    third = '\n[[tool.onnxgen.models]]\nsource = "models/three.onnx"\noutput = "src/pkg/three.py"\n'
    (root / "pyproject.toml").write_text(settings + third)
    assert call(root) == 2
    said = capsys.readouterr()
    errors = said.err.splitlines()
    assert [line.split(".source")[0] for line in errors] == [
        f"error: pyproject.toml: tool.onnxgen.models[{i}]" for i in (0, 1)
    ]
    assert said.out.splitlines() == ["wrote src/pkg/three.safetensors and src/pkg/three.py"], "the others are built"
    assert call(root, "--json") == 2
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 2 and len(told["problems"]) == 2


def test_settings_that_are_wrong(root: Path, capsys: Out) -> None:
    path = root / "pyproject.toml"
    path.write_text(path.read_text().replace('output = "src/pkg/one.py"', 'outptu = "src/pkg/one.py"\ndtype = "f16"'))
    assert call(root) == 2
    errors = capsys.readouterr().err.splitlines()
    assert any("tool.onnxgen.models[0].outptu: unknown key -> did you mean output?" in e for e in errors)
    assert any("tool.onnxgen.models[0].dtype" in e for e in errors)
    assert not (root / ONE).exists() and not (root / TWO).exists()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (None, "there is no pyproject.toml in"),
        ("", "has no [tool.onnxgen] -> write [[tool.onnxgen.models]]"),
        ("[tool.onnxgen]\nembed = true\n", "tool.onnxgen has no models -> write"),
        ("[tool.onnxgen\n", "is not a TOML file"),
        ("[tool]\nonnxgen = 3\n", "tool.onnxgen must be a table, not 3"),
    ],
)
@pytest.mark.parametrize("option", [(), ("--check",), ("--watch",)])
def test_no_settings_are_said_in_a_line(
    tmp_path: Path, capsys: Out, text: str | None, what: str, option: tuple[str, ...]
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    assert call(tmp_path, *option) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ") and what in error


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["nowhere"], "there is no nowhere -> name a project's folder"),
        (["models/one.onnx"], "models/one.onnx is not a pyproject.toml"),
        (["--check", "--force"], "--check writes nothing, and --force does (try: onnxgen build -h)"),
        (["--check", "--watch"], "--check writes nothing, and --watch does"),
        (["--chekc"], "--chekc"),
        ([".", "."], "unexpected extra argument"),
    ],
)
def test_what_can_not_be_meant(
    root: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch, args: list[str], what: str
) -> None:
    monkeypatch.chdir(root)
    assert call(*args) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert what in error
    assert not (root / ONE).exists()


def test_it_is_a_command_among_the_others(capsys: Out) -> None:
    assert run(["-h"]) == 0 and "build " in capsys.readouterr().out
    assert call("-h") == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: onnxgen build [OPTIONS] [PROJECT]") and "Exit codes:" in said


# ---- what it costs ---------------------------------------------------------------------------------------------------

IMPORTED = """
import sys
from onnxgen.cli import run
code = run(["build", *sys.argv[1:]])
print(code, *sorted(m for m in sys.modules if "onnxgen" in m or "." not in m))
"""


def child(*command: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("option", [[], ["--check"], ["--json"]])
def test_nothing_heavy_is_imported_when_all_is_fresh(root: Path, option: list[str]) -> None:
    assert call(root, "-q") == 0
    edit(root / ONE)
    assert call(root, "-q") == 0
    done = child("-c", IMPORTED, str(root), *option)
    code, *modules = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stdout + done.stderr
    heavy = {"onnx", "onnx_ir", "numpy", "black", "jinja2", "rich", "torch", "watchfiles", "safetensors", "difflib"}
    assert heavy & set(modules) == set()
    ours = {m for m in modules if m.startswith("onnxgen.cli")}
    needed = ("", ".building", ".group", ".options", ".process", ".say")
    assert ours == {f"onnxgen.cli{name}" for name in needed}
    assert {m for m in modules if m.startswith(("onnxgen.pipeline", "onnxgen.training", "onnxgen.reader"))} == set()


def test_a_build_that_writes_does_import_it(root: Path) -> None:
    """The test above can fail."""
    modules = set(child("-c", IMPORTED, str(root)).stdout.splitlines()[-1].split())
    assert {"onnx", "numpy", "black", "jinja2"} <= modules and "torch" not in modules


OF_SETUPTOOLS, OF_HATCHLING = 'build-backend = "setuptools.build_meta"', 'build-backend = "hatchling.build"'


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ('requires = ["setuptools", "onnxgen>=0.1"]', ""),
        (f'requires = ["setuptools"]\n{OF_SETUPTOOLS}', 'build-system.requires has no "onnxgen"'),
        (f'requires = ["hatchling", "onnxgen"]\n{OF_HATCHLING}', "tool.hatch.build.hooks.onnxgen"),
        (f'requires = ["hatchling", "onnxgen"]\n{OF_HATCHLING}\n[tool.hatch.build.hooks.onnxgen]', ""),
        (f'requires = ["hatchling", "onnxgen"]\n{OF_HATCHLING}\n[tool.hatch.build.targets.wheel.hooks.onnxgen]', ""),
        (f'requires = ["hatchling", "onnxgen"]\n{OF_HATCHLING}\n[tool.hatch.build.hooks.vcs]', "hooks.onnxgen"),
        ('requires = "setuptools"', ""),
        ('requires = ["pdm-backend"]\nbuild-backend = "pdm.backend"', ""),
    ],
)
def test_a_back_end_that_would_leave_the_modules_out_is_named(system: str, said: str, root: Path, capsys: Out) -> None:
    file = root / "pyproject.toml"
    assert SETUPTOOLS in file.read_text()
    file.write_text(file.read_text().replace(SETUPTOOLS, f"[build-system]\n{system}\n"))
    assert call(root) == 0
    printed = capsys.readouterr().err
    assert said in printed and ("note:" in printed) == bool(said)


def test_the_new_file_goes_when_the_module_is_newer(root: Path) -> None:
    assert call(root, "-q") == 0
    edit_the_width(root / ONE)
    save_model(root / "models/one.onnx", 5, hidden=9)
    new = root / f"{ONE}.new"
    assert call(root, "-q") == 3 and new.exists()
    assert call(root, "-q", "--force") == 0 and not new.exists()
