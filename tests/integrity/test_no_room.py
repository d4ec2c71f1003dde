"""No room on the disk, a folder that is read-only: the old pair stays, and one line says why."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.output.compose import Generated
from tests.integrity.pairs import ONE, SHARDS, built, temporaries, which, write
from tests.weights.test_weights import Fault

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="limits and rights of POSIX")
BOTH = pytest.mark.parametrize("options", [ONE, SHARDS], ids=["one", "shards"])


def known(folder: Path, out: Path, options: Options) -> dict[str, Generated]:
    """Two trainings of one network, the old one written."""
    out.parent.mkdir(exist_ok=True)
    found = {name: built(folder, out, seed, options, external=True) for seed, name in enumerate(("old", "new"))}
    write(found["old"], out, options)
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def child(act: Callable[[], None]) -> str:
    """What an `OnnxgenError` said that ended `act` in a process of its own; "" if nothing did."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except OnnxgenError as error:
            os.write(writing, str(error).encode())
        except BaseException as error:
            os.write(writing, repr(error).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


@BOTH
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_an_error_at_each_call(tmp_path: Path, options: Options, number: int) -> None:
    out = tmp_path / "out" / "model.py"
    pairs = known(tmp_path, out, options)
    before = content(out.parent)

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    for at in range(1, 100):
        fault = Fault(at, fail)
        said = ""
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault.install(monkeypatch)
            try:
                write(pairs["new"], out, options)
            except OnnxgenError as error:
                said = str(error)
        if said:
            assert os.strerror(number) in said and len(said.splitlines()) == 1
            assert content(out.parent) == before, f"step {at}"
        else:  # there was another way, or it came after the last rename
            assert which(out, pairs) == "new", f"step {at}"
            write(pairs["old"], out, options)
            assert content(out.parent) == before, f"step {at}"
        if fault.calls < at:
            break
    assert 8 < at < 99


@BOTH
@pytest.mark.parametrize("first", range(4))
def test_no_file_may_grow_further(tmp_path: Path, options: Options, first: int) -> None:
    """The kernel's own refusal, after any number of bytes."""
    out = tmp_path / "out" / "model.py"
    pairs = known(tmp_path, out, options)
    before = content(out.parent)
    largest = max(map(len, before.values()))
    for limit in {*range(97 * first, largest, 4 * 97), largest - 1}:

        def limited(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            write(pairs["new"], out, options)

        assert "File too large" in child(limited), limit
        assert content(out.parent) == before, limit
    assert which(out, pairs) == "old"


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


@BOTH
def test_a_full_disk(tmp_path: Path, small_disk: Path, options: Options) -> None:
    out = small_disk / "out" / "model.py"
    pairs = known(tmp_path, out, options)
    before = content(out.parent)
    free = os.statvfs(small_disk).f_bavail
    assert free > 4
    for pages in range(free + 1):
        (small_disk / "filler").write_bytes(b"\0" * 4096 * (free - pages))
        try:
            write(pairs["new"], out, options)
        except OnnxgenError as error:
            assert "No space left" in str(error) and content(out.parent) == before, pages
        else:
            break
    assert pages > 1 and which(out, pairs) == "new" and not temporaries(out.parent)


@BOTH
def test_a_folder_that_is_read_only(options: Options) -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own are hidden from other users
    try:
        out = folder / "out" / "model.py"
        pairs = known(folder, out, options)
        before = content(out.parent)
        folder.chmod(0o755)
        for path in folder.rglob("net.*"):
            path.chmod(0o644)
        out.parent.chmod(0o555)

        b"".decode("utf-8-sig")  # the codec is loaded by its first use, which that user may not be allowed

        def as_nobody(name: str) -> str:
            def act() -> None:
                if os.getuid() == 0:
                    os.setuid(65534)
                write(pairs[name], out, options)

            return child(act)

        assert as_nobody("new") == f"cannot write {out}: Permission denied ({out.parent})"
        assert content(out.parent) == before and which(out, pairs) == "old"
        assert not as_nobody("old"), "it is fresh: there is nothing to write"
    finally:
        (folder / "out").chmod(0o755)
        shutil.rmtree(folder)
