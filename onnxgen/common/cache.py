"""Digests of files, and results that are kept in the user's cache folder.

A digest is kept under the file's path with what the system says of the file: size, times, inode, device. If that is
unchanged the content is, with one exception, which git calls "racily clean": a file that changed within the same tick
of the clock as it was read looks the same. So nothing is kept of a file that was touched in the last seconds before it
was read (https://git-scm.com/docs/racy-git).

Every fact is a small file of its own, written whole and renamed into place: processes that write at the same time do
not disturb each other. A fact that is damaged, or can't be read or written, is a fact that is not known.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from onnxgen.common.timing import WEIGHTS, stage


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of one file."""
    digest = hashlib.sha256()
    with stage(WEIGHTS), open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


RACY_NANOSECONDS = 2_000_000_000  # nanoseconds; the coarsest file system clock (FAT)
CHUNK = 1 << 20
MIN_CACHED_BYTES = 1 << 16  # bytes; digesting a smaller file is faster than looking up its digest
KEPT_SECONDS = 90 * 86_400  # seconds for which a fact is kept
SWEEP_INTERVAL_SECONDS = 7 * 86_400  # seconds between two sweeps for old facts
MARKER = "swept"


def default_folder() -> Path:
    """Return `ONNXGEN_CACHE_DIR` or the system's cache folder; a path that cannot be created if there is none."""
    if chosen := os.environ.get("ONNXGEN_CACHE_DIR"):
        return Path(os.path.abspath(chosen))
    if sys.platform == "linux":  # as platformdirs does; importing it takes as long as checking ten models
        folder = Path(os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache"), "onnxgen")
    else:
        from platformdirs import user_cache_path

        folder = user_cache_path("onnxgen")
    return folder if folder.is_absolute() else Path(os.devnull, "onnxgen")  # "~" stays if there is no home folder


class Cache:
    """Facts by kind and name, stored in `folder` (default: see `default_folder`)."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = default_folder() if folder is None else folder

    def get(self, kind: str, name: str) -> Any:
        """Return a stored fact (as JSON has it), or None."""
        try:
            digest, text = self._file(kind, name).read_bytes().split(b"\n", 1)
            if digest.decode() == hashlib.sha256(text).hexdigest():
                known, fact = json.loads(text)
                return fact if known == name else None
        except (OSError, ValueError, TypeError):
            pass
        return None

    def put(self, kind: str, name: str, fact: Any) -> None:
        """Store a fact. Errors are ignored."""
        text = json.dumps([name, fact]).encode()
        file = self._file(kind, name)
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_name(f".{file.name}.{os.getpid()}.{time.time_ns()}")
            try:
                temporary.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
                os.replace(temporary, file)
            finally:
                temporary.unlink(missing_ok=True)
            self._sweep()

    @contextmanager
    def locked(self, root: Path) -> Iterator[None]:
        """Hold the lock of the project in a folder. Without a lock, concurrent builds may do the same work twice."""
        from onnxgen.common.atomic import locked  # imported here, since it is not needed if everything is fresh

        file = self.folder / "locks" / hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
        with ExitStack() as stack:
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(file))
            yield

    def _file(self, kind: str, name: str) -> Path:
        return self.folder / "build" / kind / hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def _sweep(self) -> None:
        """Remove facts that were not written for a long time, from time to time: their files may no longer exist."""
        marker, now = self.folder / "build" / MARKER, time.time()
        if marker.exists() and now - marker.stat().st_mtime < SWEEP_INTERVAL_SECONDS:
            return
        marker.touch()
        for file in (self.folder / "build").glob("*/*"):
            with suppress(OSError):
                if now - file.stat().st_mtime > KEPT_SECONDS:
                    file.unlink()


def _facts(status: os.stat_result) -> list[int]:
    """Return what the system reports about a file. It differs if the content changes."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def digest(path: Path, cache: Cache) -> str:
    """Return the SHA-256 of a file's content. Raises `OSError`, also if it is not a regular file."""
    name = os.path.abspath(path)
    status = os.stat(name)
    if not stat.S_ISREG(status.st_mode):  # reading a pipe might never end
        raise OSError(0, "not a regular file", name)
    known = None if status.st_size < MIN_CACHED_BYTES else cache.get("digests", name)
    if isinstance(known, list) and known[:-1] == _facts(status):
        return str(known[-1])
    begun = time.time_ns()
    with open(name, "rb") as file:
        before, text = _facts(os.fstat(file.fileno())), hashlib.sha256()
        while chunk := file.read(CHUNK):
            text.update(chunk)
        after = _facts(os.fstat(file.fileno()))
    if before == after and before[0] >= MIN_CACHED_BYTES and max(before[1:3]) < begun - RACY_NANOSECONDS:
        cache.put("digests", name, [*before, text.hexdigest()])
    return text.hexdigest()
