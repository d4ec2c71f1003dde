"""What is installed is what is here: no module, template or marker file is left out of the wheel or the sdist."""

from __future__ import annotations

import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from onnxgen._version import __version__
from tests.build_hooks.projects import unpack_sdist
from tests.build_hooks.wheelhouse import THEN, ours
from tests.conftest import ROOT

MOVED = {"templates": "onnxgen/templates", "build_hooks": "onnxgen/build_hooks"}
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")


def build(kind: str, tree: Path, into: Path) -> Path:
    """Build "wheel", "sdist" or "editable" as pip would, without the network."""
    code = f"import sys; from setuptools.build_meta import build_{kind} as b; print(b(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(into)],
        cwd=tree,
        env=os.environ | {"SOURCE_DATE_EPOCH": THEN},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return into / done.stdout.split()[-1]


def installed(tree: Path) -> set[str]:
    """The files that an installation of this tree must have."""
    found = set()
    for folder in ("onnxgen", *MOVED):
        for path in (tree / folder).rglob("*"):
            if path.suffix in (".py", ".jinja", ".js", ".json", ".txt") or path.name == "py.typed":
                inside = path.relative_to(tree / folder).as_posix()
                found.add(f"{MOVED.get(folder, folder)}/{inside}")
    return found


def members(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree: building leaves things behind."""
    tree = tmp_path_factory.mktemp("tree")
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    for name in ("onnxgen", *MOVED):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ours(tmp_path_factory)


def test_every_folder_with_modules_is_a_package(tree: Path) -> None:
    for folder in {(tree / top / m).parent for top in ("onnxgen", *MOVED) for m in (tree / top).rglob("*.py")}:
        assert (folder / "__init__.py").is_file(), f"{folder.relative_to(tree)} has no __init__.py: it is not installed"


def test_the_wheel_has_every_file_and_no_other(tree: Path, wheel: Path) -> None:
    assert members(wheel) == installed(tree)


def test_the_sdist_builds_the_same_wheel_bit_for_bit(tree: Path, wheel: Path, tmp_path: Path) -> None:
    unpacked = unpack_sdist(build("sdist", tree, tmp_path), tmp_path / "sdist")
    assert build("wheel", unpacked, tmp_path).read_bytes() == wheel.read_bytes()


def test_the_wheel_says_what_is_in_it_and_where_it_comes_from(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        bom = json.loads(archive.read(inside["sboms/onnxgen.cdx.json"]))
        metadata = email.message_from_bytes(archive.read(inside["METADATA"]))
    component = bom["metadata"]["component"]
    assert (bom["bomFormat"], bom["specVersion"], bom["components"]) == ("CycloneDX", "1.6", [])
    assert component["purl"] == f"pkg:pypi/onnxgen@{metadata['Version']}" and component["version"] == __version__
    opening = metadata.get_payload().partition("## Install")[0]
    assert "```" not in opening and "](https://example.org/onnxgen/raw/HEAD/docs/images/mnist.svg)" in opening
    assert len(metadata.get_all("Project-URL")) == 5 and not re.search(r"\]\((?!http|#)", metadata.get_payload())


def test_the_sdist_has_what_its_tests_need() -> None:
    """Every tracked file that tests, make and continuous integration read."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("this is no git checkout")
    given = (ROOT / "MANIFEST.in").read_text()
    grafted = {*re.findall(r"^graft (\S+)$", given, re.MULTILINE), "onnxgen", "templates", "build_hooks"}
    named = set(re.search(r"^include (.*)$", given, re.MULTILINE)[1].split())  # type: ignore[index]
    named |= {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", ".gitignore", ".dockerignore"}
    missing = [f for f in tracked.stdout.splitlines() if f not in named and f.partition("/")[0] not in grafted]
    assert not missing


def test_the_installed_command_generates(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import runpy, onnxgen, onnxgen.templates, onnxgen.build_hooks\n"
        "print(onnxgen.__file__)\n"
        "runpy.run_module('onnxgen', run_name='__main__')"  # `python -m onnxgen`
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "samples" / "mnist" / "mnist.onnx"), "-o", "model.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(done.stdout.splitlines()[0]).is_relative_to(tmp_path / "site")
    assert (tmp_path / "model.py").is_file() and (tmp_path / "model.safetensors").is_file()


def test_an_editable_install_finds_the_moved_folders(tree: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(build("editable", tree, tmp_path)) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        f"import site; site.addsitedir({str(tmp_path / 'site')!r})\n"
        "import onnxgen, onnxgen.templates, onnxgen.build_hooks, onnxgen.common.paths\n"
        "print(onnxgen.__file__, onnxgen.common.paths.templates_dir(), onnxgen.build_hooks.__file__, sep='\\n')"
    )
    # Without site-packages: this very project may be installed there in the same way, and would be found first.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    expected = [tree / "onnxgen" / "__init__.py", tree / "templates", tree / "build_hooks" / "__init__.py"]
    assert done.stdout.splitlines() == [str(p) for p in expected]
