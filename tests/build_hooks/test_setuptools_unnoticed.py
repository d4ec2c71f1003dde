"""Where onnxgen is installed, projects without models are built as if it were not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import tomllib

from onnxgen.build_hooks.setuptools_entry import _may_have_models
from tests.build_hooks.projects import LAYOUTS, SETUPTOOLS, Layout, backend, members, run, write_project
from tests.build_hooks.wheelhouse import environment
from tests.conftest import ROOT

PLAIN = Layout({}, [], LAYOUTS["src"].files)
# All of onnxgen that such a build may import: the module of the entry point, and what Python imports before it.
TINY = ["onnxgen", "onnxgen._version", "onnxgen.build_hooks", "onnxgen.build_hooks.setuptools_entry"]


def text(*lines: str) -> bytes:
    return "\n".join(lines).encode()


PROJECT = '[project]\nname = "pkg"\nversion = "1.0"'
OTHERS = {
    "no file": None,
    "empty": b"",
    "no table": text(PROJECT),
    "required": text(
        '[build-system]\nrequires = ["setuptools", "onnxgen"]', PROJECT, 'dependencies = ["onnxgen>=0.1"]'
    ),
    "a package of that name": text(PROJECT, '[tool.setuptools.package-data]\nonnxgen = ["*.txt"]'),
    "other tools": text('[tool.black]\nextend-exclude = "onnxgen"', PROJECT),
    "binary": bytes(range(256)) * 16,
    "no UTF-8": "[tøøl]".encode("utf-16"),
    "no TOML": b"[project\nname = =",
}
SETTINGS = {
    "a list": '[[tool.onnxgen.models]]\nsource = "a.onnx"',
    "a table": '[tool.onnxgen]\nmodels = [{source = "a.onnx"}]',
    "spaces": '[ tool .\t"onnxgen" ]\nembed = true',
    "quotes": "['tool'.\"onnxgen\".defaults]\nembed = true",
    "dots": 'tool.onnxgen.models = [{source = "a.onnx"}]',
    "dots and spaces": "tool . 'onnxgen' . embed = true",
    "in the table of tools": '[tool]\nonnxgen = {models = [{source = "a.onnx"}]}',
    "dots in the table of tools": "[tool]\n'onnxgen'.embed = true",
    "inline": 'tool = {onnxgen = {models = [{source = "a.onnx"}]}}',
    "inline and dots": 'tool = {black.line-length = 120, "onnxgen".embed = true}',
    "windows": "[tool.black]\r\nline-length = 120\r\n[tool.onnxgen]\r\nembed = true\r\n",
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_are_seen_however_they_are_spelled(case: str, tmp_path: Path) -> None:
    assert "onnxgen" in tomllib.loads(SETTINGS[case])["tool"]
    (tmp_path / "pyproject.toml").write_bytes(SETTINGS[case].encode())
    assert _may_have_models(str(tmp_path / "pyproject.toml"))


@pytest.mark.parametrize("case", OTHERS)
def test_other_projects_are_told_apart(case: str, tmp_path: Path) -> None:
    content = OTHERS[case]
    if content is not None:
        (tmp_path / "pyproject.toml").write_bytes(content)
    assert not _may_have_models(str(tmp_path / "pyproject.toml"))


def test_what_can_not_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    for file in ("pyproject.toml", "pyproject.toml/pyproject.toml", "a\0b", "x" * 5000):
        assert not _may_have_models(f"{tmp_path}/{file}")


def test_this_project_is_one_of_them() -> None:
    assert b"onnxgen" in (ROOT / "pyproject.toml").read_bytes()
    assert not _may_have_models(str(ROOT / "pyproject.toml"))


# ---- in a process, as setuptools calls it ----------------------------------------------------------------------------

# Prints what the entry point imports and reads in a folder, and the CPU time of importing and calling it.
WATCH = """
import json, os, sys, time
import setuptools, setuptools.dist
from importlib.metadata import entry_points

os.chdir(sys.argv[1])
if sys.argv[2] == "gone":
    os.rmdir(sys.argv[1])
(entry,) = [e for e in entry_points(group="setuptools.finalize_distribution_options") if e.name == "onnxgen"]
before, read = set(sys.modules), []

class Distribution:
    src_root = None

begun = time.process_time()
finalize = entry.load()
loaded = time.process_time()
sys.addaudithook(lambda event, args: read.append(args[0]) if event == "open" else None)
called = time.process_time()
finalize(Distribution())
spent = time.process_time() - called + loaded - begun
found = {"imported": sorted(set(sys.modules) - before), "read": [*read], "milliseconds": spent * 1000}
real = setuptools.Distribution({"name": "pkg"})
found["changed"] = sorted(name for name in ("get_command_class", "cmdclass") if vars(real).get(name))
found["later"] = sorted(name for name in sys.modules if name.startswith(("onnxgen", "tomllib", "tomli")))
print(json.dumps(found))
"""


def watch(builder: Path, folder: Path, *, gone: bool = False) -> dict[str, object]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    printed = run(builder, "-c", WATCH, folder, "gone" if gone else "", cwd=folder.parent, env=env)
    found: dict[str, object] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("case", ["no file", "no table", "required", "binary", "no TOML"])
def test_nothing_is_imported_and_one_file_is_read(case: str, builder: Path, tmp_path: Path) -> None:
    content = OTHERS[case]
    if content is not None:
        (tmp_path / "pyproject.toml").write_bytes(content)
    found = watch(builder, tmp_path)
    print(f"{found['milliseconds']:.2f} ms, importing included")
    assert found["imported"] == TINY and found["later"] == TINY
    assert found["read"] == ["./pyproject.toml"] and found["changed"] == []


@pytest.mark.slow
def test_neither_is_it_in_this_project(builder: Path) -> None:
    found = watch(builder, ROOT)
    assert found["imported"] == TINY and found["later"] == TINY and found["changed"] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the current folder can't be removed")
def test_the_current_folder_may_be_gone(builder: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    found = watch(builder, tmp_path / "gone", gone=True)
    assert found["imported"] == TINY and found["changed"] == []


def test_a_large_file_has_no_models_either(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text('# a comment\nx = "some text"\n' * 40_000)  # a megabyte
    assert not _may_have_models(str(file))


@pytest.mark.slow
def test_a_project_that_mentions_it_is_built_as_ever(builder: Path, tmp_path: Path) -> None:
    """Here the text says that there may be models and the file says that there are none."""
    mention = "# [tool.onnxgen] is for another day"
    project = write_project(tmp_path / "project", PLAIN, SETUPTOOLS, settings=mention)
    assert _may_have_models(str(project / "pyproject.toml"))
    env = environment(tmp_path / "cache")
    wheel = backend("build_wheel", project, tmp_path / "wheel", builder, env)
    assert members(wheel) == {"pkg/__init__.py", "pkg/nets/__init__.py"}
    assert not (tmp_path / "cache").exists()
