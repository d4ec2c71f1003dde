"""Files that Windows does not let a program replace, simulated: each situation is one line, and nothing is lost.

On Windows a file that is open can be neither replaced nor renamed nor removed, and one that is mapped can only be
renamed. A read-only file can't be replaced. These rules are put into `os` here; whether Windows has them just so was
not tried.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxgen.cli import run
from onnxgen.common import atomic
from tests.conftest import ROOT

SAMPLE = ROOT / "samples" / "mnist" / "mnist.onnx"
Out = pytest.CaptureFixture[str]


class Windows:
    """Refuses what Windows refuses, for files that are named here. A file is known by its inode, under any name."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.mapped: set[int] = set()

    def refuse(self, path: Any, *kinds: set[int]) -> None:
        try:
            found = os.stat(path).st_ino
        except OSError:
            return
        if any(found in kind for kind in kinds):
            raise PermissionError(errno.EACCES, "Access is denied", str(path))

    def replace(self, real: Callable[..., None], source: Any, target: Any) -> None:
        self.refuse(source, self.open)
        self.refuse(target, self.open, self.mapped)
        if os.path.exists(target) and not os.stat(target).st_mode & 0o200:
            raise PermissionError(errno.EACCES, "Access is denied", str(target))
        real(source, target)

    def unlink(self, real: Callable[..., None], path: Any, **more: Any) -> None:
        self.refuse(path, self.open, self.mapped)
        real(path, **more)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    made, replace, unlink, access = Windows(), os.replace, os.unlink, os.access
    monkeypatch.setattr(atomic, "WINDOWS", True)
    monkeypatch.setattr(os, "replace", lambda source, target: made.replace(replace, source, target))
    for name in ("unlink", "remove"):
        monkeypatch.setattr(os, name, lambda path, **more: made.unlink(unlink, path, **more))

    def may(path: Any, mode: int, **more: Any) -> bool:
        """On POSIX the superuser may write a read-only file."""
        return access(path, mode, **more) and not (mode == os.W_OK and os.stat(path).st_mode & 0o222 == 0)

    monkeypatch.setattr(os, "access", may)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module, its weights in one file and in two, and what its export would write."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(SAMPLE, folder / "mnist.onnx")
    for more in (["-o", "model.py"], ["-o", "parts.py", "--shard-size", "1MB"]):
        assert run(["-q", str(folder / "mnist.onnx"), *more[:1], str(folder / more[1]), *more[2:]]) == 0
    shutil.copy(SAMPLE, folder / "out.onnx")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


GENERATE = "mnist.onnx -o model.py --class-name Other --force"
PARTS = "mnist.onnx -o parts.py --class-name Other --force --shard-size 1MB"
ONE = "mnist.onnx -o parts.py --class-name Other --force"
EXPORT = "export model.py -o out.onnx --no-verify"
HELD = [
    (GENERATE, "model.py"),
    (GENERATE, "model.safetensors"),
    (PARTS, "parts.py"),
    (PARTS, "parts-00001-of-00003.safetensors"),
    (PARTS, "parts.safetensors.index.json"),
    (ONE, "parts.py"),
    (EXPORT, "out.onnx"),
]


@pytest.mark.parametrize(("command", "name"), HELD)
def test_an_open_file(command: str, name: str, windows: Windows, folder: Path, capsys: Out) -> None:
    windows.open = {(folder / name).stat().st_ino}
    refused(command, folder, capsys, name, "another program has it open or mapped: end that program")


@pytest.mark.parametrize(("command", "name"), HELD)
def test_a_read_only_file(command: str, name: str, windows: Windows, folder: Path, capsys: Out) -> None:
    (folder / name).chmod(0o444)
    refused(command, folder, capsys, name, "it is read-only: clear that attribute, or name another file")


def refused(command: str, folder: Path, capsys: Out, name: str, why: str) -> None:
    """The command ends with one line, and with every file as it was."""
    before = contents(folder)
    assert run(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and why in line and name in line
    assert contents(folder) == before


@pytest.mark.parametrize(("command", "name"), HELD)
def test_a_mapped_file_is_moved_aside_until_the_next_run(
    command: str, name: str, windows: Windows, folder: Path, capsys: Out
) -> None:
    mapped = windows.mapped = {(folder / name).stat().st_ino}
    old = (folder / name).read_bytes()
    assert run(command.split()) == 0, capsys.readouterr().err
    kept = [path for path in folder.iterdir() if path.stat().st_ino in mapped]
    assert kept and all(path.name.endswith(atomic.SUFFIX) and path.read_bytes() == old for path in kept)
    windows.mapped = set()
    assert run(command.split()) == 0
    assert not [path for path in folder.iterdir() if path.name.endswith(atomic.SUFFIX)]
    if command == GENERATE:
        assert run(["verify", "mnist.onnx", "model.py"]) == 0


@pytest.mark.parametrize("name", ["con.py", "NUL.py", "com1.py", "aux.tar.py"])
def test_a_name_that_windows_keeps(name: str, windows: Windows, folder: Path, capsys: Out) -> None:
    refused(f"mnist.onnx -o {name}", folder, capsys, name, "Windows keeps this name for itself: name another file")


@pytest.mark.parametrize("name", ["a:b.safetensors", "what?.safetensors", "dot.", "space "])
def test_weights_with_a_name_that_windows_lacks(name: str, windows: Windows, folder: Path, capsys: Out) -> None:
    before = contents(folder)
    assert run(["mnist.onnx", "-o", "new.py", "--weights", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and contents(folder) == before


def test_a_path_of_more_than_259_characters(
    windows: Windows, folder: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = folder / ("d" * (250 - len(str(folder))))
    deep.mkdir()
    real = open

    def limited(file: Any, *args: Any, **more: Any) -> Any:
        if len(os.path.abspath(file)) > 259 if isinstance(file, (str, Path)) else False:
            raise FileNotFoundError(errno.ENOENT, "The system cannot find the path specified", str(file))
        return real(file, *args, **more)

    monkeypatch.setattr("builtins.open", limited)
    assert run(["mnist.onnx", "-o", str(deep / "m.py")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Windows takes 259: choose a shorter folder, or enable long paths" in line
    assert not list(deep.iterdir())
