"""Replacing several files as one: all of them or, whatever goes wrong, none.

New contents go to temporary files in the folders of their targets; only when all are complete and on disk are they
renamed, in the order they were made. An error puts the old files back. A kill cannot: between two renames it leaves
the files up to there new and the rest old, so the order matters, and what is written must tell such a mixture apart.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".onnxgen-tmp"


class Replacing:
    """The files being replaced; see `replacing`."""

    def __init__(self) -> None:
        self._new: list[tuple[Path, Path]] = []  # (temporary, target)
        self._old: list[tuple[Path, Path | None]] = []  # (target, where its old content is)
        self._withdrawn: list[Path] = []
        self._obsolete: list[Path] = []

    @contextmanager
    def file(self, target: Path) -> Iterator[BinaryIO]:
        """A file to write the new content of `target` to."""
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(target))
        temporary = _temporary(target)
        self._new.append((temporary, target))
        with open(temporary, "xb") as file:
            yield file
        if target.exists():
            shutil.copymode(target, temporary)

    def take(self, ready: Path, target: Path) -> None:
        """A file of the same file system that lies ready to become `target`."""
        if target.exists() and not target.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(target))
        if target.exists():
            shutil.copymode(target, ready)
        self._new.append((ready, target))

    def withdraw(self, target: Path) -> None:
        """Let a file be gone from before the first rename until its own: without it the others are not read."""
        self._withdrawn.append(target)

    def remove(self, target: Path) -> None:
        """Remove a file once everything else is in place."""
        self._obsolete.append(target)

    def keep(self, target: Path, name: Path) -> None:
        """Let the old content of `target` stay, as `name` in the same folder, in place of what that was."""
        kept = _kept(target)
        if kept is None:
            return
        try:
            os.replace(kept, name)
        except OSError:
            if not target.exists():
                os.replace(kept, target)
            raise
        finally:
            if target.exists():
                kept.unlink(missing_ok=True)  # renaming a file to a hard link of itself does nothing, too

    def commit(self) -> None:
        """Rename everything into place, in order. From the last rename on nothing is an error any more.

        Only now is everything put on disk: while one file was written, the system was busy with the one before.
        """
        for temporary, _ in self._new:
            with open(temporary, "rb" if os.name == "posix" else "r+b") as file:
                os.fsync(file.fileno())
        for target in self._withdrawn:
            self._old.append((target, _kept(target)))
            target.unlink(missing_ok=True)
        for temporary, target in self._new:
            self._old.append((target, _kept(target)))
            os.replace(temporary, target)
        kept, self._old = self._old, []
        for folder in {target.parent for _, target in self._new}:
            _sync(folder)
        for path in [*self._obsolete, *(old for _, old in kept if old is not None)]:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def roll_back(self) -> None:
        """Put the old contents back; what the system will not let us put back stays beside, under its other name."""
        while self._old:
            target, old = self._old.pop()
            with suppress(OSError):
                if old is None:
                    target.unlink(missing_ok=True)
                else:
                    os.replace(old, target)
                    old.unlink(missing_ok=True)  # renaming a file to a hard link of itself does nothing

    def clean(self) -> None:
        """Remove what is temporary."""
        for temporary, _ in self._new:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def replacing(folders: Iterable[Path]) -> Iterator[Replacing]:
    """Replace files in `folders`: renamed into place at the end of the block, or on an error left as they were.

    Only one process at a time replaces files in a folder, others wait; so temporary files found there are those of a
    run that was killed, and are removed. Raises `OSError` as the system does.
    """
    folders = sorted({Path(os.path.realpath(folder)) for folder in folders})  # each once: its lock waits for us too
    with ExitStack() as stack:
        for folder in folders:
            stack.callback(os.close, _lock(folder))
        for folder in folders:
            _remove_temporaries(folder)
        files = Replacing()
        try:
            yield files
            files.commit()
        except BaseException:
            files.roll_back()
            raise
        finally:
            files.clean()


def is_same_file(one: Path, other: Path) -> bool:
    """Whether both are there, and are one file; another process may replace either meanwhile."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def tidy(folder: Path) -> None:
    """Remove what a run that was killed left in a folder, where nothing is to be replaced, if nobody replaces now."""
    with suppress(OSError):  # another process does, or the folder is read-only
        if any(folder.glob(f".*{SUFFIX}")):
            handle = _lock(folder, wait=False)
            try:
                _remove_temporaries(folder)
            finally:
                os.close(handle)


def _remove_temporaries(folder: Path) -> None:
    for stale in folder.glob(f".*{SUFFIX}"):
        stale.unlink(missing_ok=True)


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent`, removed at the end of the block.

    It is locked as long as this process lives; so folders of this prefix that nobody has locked are those of processes
    that were killed, and are removed. Raises `OSError` as the system does.
    """
    with ExitStack() as stack:
        with ExitStack() as begun:
            begun.callback(os.close, _lock(parent))
            for stale in parent.glob(f"{prefix}*"):
                if not stale.is_symlink():
                    _remove_unlocked(stale)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            stack.callback(os.close, _lock(folder))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _remove_unlocked(folder: Path) -> None:
    with suppress(OSError):  # of a process that lives
        handle = _lock(folder, wait=False)
        try:
            shutil.rmtree(folder)
        finally:
            os.close(handle)


def _temporary(target: Path) -> Path:
    # A name may have 255 bytes, and the target may have used them.
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}{SUFFIX}")


def _kept(target: Path) -> Path | None:
    """The content of a file that is about to be replaced, under another name; None if there is no such file."""
    kept = _temporary(target)
    try:
        os.link(target, kept)  # no copy, and the file stays where it is
    except OSError:  # nothing to keep, or a file system without hard links
        if not target.exists():
            return None
        os.replace(target, kept)
    return kept


def _sync(folder: Path) -> None:
    """Make renames last; only POSIX has a way to, and only some file systems need it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lock_file(folder: Path) -> str:
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]
    return os.path.join(tempfile.gettempdir(), f"onnxgen-{name}.lock")


def _opened(path: Path | str, flags: int, wait: bool) -> int:
    """The handle of a file, locked."""
    handle = os.open(path, flags, 0o666)
    try:
        _wait(handle, wait)
    except OSError:
        os.close(handle)
        raise
    return handle


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file (it is made if it is missing, and stays); others wait. Raises `OSError`."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait(handle)
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _wait(handle: int, wait: bool = True) -> None:
        """Wait for the lock on an open file, or raise `OSError`; closing the handle gives it back."""
        while True:
            try:  # gives up after ten seconds
                return msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if not wait or error.errno not in (errno.EDEADLK, errno.EACCES, 36):
                    raise

    def _lock(folder: Path, wait: bool = True) -> int:
        """Wait for the lock on a folder, or raise `OSError`; closing the returned handle gives it back."""
        return _opened(_lock_file(folder), os.O_RDWR | os.O_CREAT, wait)

else:
    import fcntl

    def _wait(handle: int, wait: bool = True) -> None:
        """Wait for the lock on an open file, or raise `OSError`; closing the handle gives it back."""
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _lock(folder: Path, wait: bool = True) -> int:
        """Wait for the lock on a folder, or raise `OSError`; closing the returned handle gives it back."""
        try:
            return _opened(folder, os.O_RDONLY, wait)  # the folder itself: nothing is left lying about
        except BlockingIOError:
            raise
        except OSError:  # some network file systems do not lock folders
            return _opened(_lock_file(folder), os.O_RDWR | os.O_CREAT, wait)
