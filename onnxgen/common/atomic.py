"""Replace several files as one: all of them or, if anything goes wrong, none.

New contents go to temporary files in the folders of their targets; only when all are complete and on disk are they
renamed, in the order they were made. An error puts the old files back. A kill cannot: between two renames it leaves
the files up to there new and the rest old, so the order matters, and what is written must tell such a mixture apart.
"""

from __future__ import annotations

import errno
import hashlib
import ntpath
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PureWindowsPath
from typing import BinaryIO

SUFFIX = ".onnxgen-tmp"
WINDOWS = os.name == "nt"
_IN_USE = "another program has it open or mapped: end that program (a notebook, a training), or name another file"
_READ_ONLY = "it is read-only: clear that attribute, or name another file"
_MAX_PATH = 259  # characters of a path that Windows takes, unless long paths are enabled


class Replacing:
    """Collects the files that are to be replaced; see `replacing`."""

    def __init__(self) -> None:
        self._new: list[tuple[Path, Path]] = []  # (temporary, target)
        self._old: list[tuple[Path, Path | None]] = []  # (target, where its old content is)
        self._before: dict[Path, bytes] = {}
        self._withdrawn: list[Path] = []
        self._obsolete: list[Path] = []

    @contextmanager
    def file(self, target: Path, before: bytes | None = None) -> Iterator[BinaryIO]:
        """Open a file for the new content of `target`. `before`: its old content, if it must still have that."""
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
        _check_name(target)
        temporary = _temporary(target)
        self._new.append((temporary, target))
        with _opened_new(temporary, target) as file:
            yield file
        if target.exists():
            shutil.copymode(target, temporary)
        if before is not None:
            self._before[target] = before

    def take(self, ready: Path, target: Path) -> None:
        """Use a finished file of the same file system as the new content of `target`."""
        _check_name(target)
        if target.exists():
            shutil.copymode(target, ready)
        self._new.append((ready, target))

    def withdraw(self, target: Path) -> None:
        """Remove a file before the first rename, until it is in place: without it readers ignore the others."""
        self._withdrawn.append(target)

    def remove(self, target: Path) -> None:
        """Remove a file once everything else is in place."""
        self._obsolete.append(target)

    def keep(self, target: Path, name: Path) -> None:
        """Keep the old content of `target` under `name` in the same folder, replacing any file there."""
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
                kept.unlink(missing_ok=True)  # as below: the rename may have done nothing

    def commit(self) -> None:
        """Rename everything into place, in order. After the last rename, errors are ignored.

        Only now is everything put on disk: while one file was written, the system was busy with the one before.
        """
        for temporary, _ in self._new:
            with open(temporary, "rb" if os.name == "posix" else "r+b") as file:
                os.fsync(file.fileno())
        for target, before in self._before.items():
            if target.read_bytes() != before:
                raise OSError(errno.EBUSY, "it was changed meanwhile: try again", str(target))
        for target in self._withdrawn:
            with _clear_refusal(target):
                self._old.append((target, _kept(target)))
                target.unlink(missing_ok=True)
        for temporary, target in self._new:
            with _clear_refusal(target):
                self._old.append((target, _kept(target)))
                os.replace(temporary, target)
        kept, self._old = self._old, []
        for folder in {target.parent for _, target in self._new}:
            _sync(folder)
        for path in [*self._obsolete, *(old for _, old in kept if old is not None)]:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def roll_back(self) -> None:
        """Restore the old contents. A file that cannot be restored stays beside its target under its temporary name."""
        while self._old:
            target, old = self._old.pop()
            with suppress(OSError):
                if old is None:
                    target.unlink(missing_ok=True)
                else:
                    os.replace(old, target)
                    old.unlink(missing_ok=True)  # renaming a file to a hard link of itself does nothing

    def clean(self) -> None:
        """Remove temporary files."""
        for temporary, _ in self._new:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def replacing(folders: Iterable[Path]) -> Iterator[Replacing]:
    """Replace files in `folders`: renamed into place at the end of the block, or left unchanged if an error occurs.

    Only one process at a time replaces files in a folder, others wait; so temporary files found there are those of a
    run that was killed, and are removed. Raises `OSError` as the system does.
    """
    folders = sorted({Path(os.path.realpath(folder)) for folder in folders})  # each once: a lock waits for us, too
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(_locked_folder(folder))
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


def _check_name(target: Path) -> None:
    """Raise `OSError` if a target is no regular file, or has a name that Windows, if this is it, can't give a file."""
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(target))
    if WINDOWS and _is_reserved(target.name):
        raise OSError(errno.EINVAL, "Windows keeps this name for itself: name another file", str(target))


def _is_reserved(name: str) -> bool:
    if sys.version_info >= (3, 13):
        return ntpath.isreserved(name)
    return PureWindowsPath(name).is_reserved() or name[-1:] in (".", " ") or bool(set(name) & set('<>:"|?*'))


@contextmanager
def _opened_new(temporary: Path, target: Path) -> Iterator[BinaryIO]:
    try:
        file = open(temporary, "xb")  # noqa: SIM115
    except FileNotFoundError:
        length = len(os.path.abspath(temporary))
        if not WINDOWS or length <= _MAX_PATH:
            raise
        what = f"the path of its temporary file has {length} characters, and Windows takes {_MAX_PATH}"
        way = "choose a shorter folder, or enable long paths"
        raise OSError(errno.ENAMETOOLONG, f"{what}: {way}", str(target)) from None
    with file:
        yield file


@contextmanager
def _clear_refusal(target: Path) -> Iterator[None]:
    """Say what it means that Windows does not let a file be replaced."""
    try:
        yield
    except PermissionError as error:
        if not WINDOWS or not target.exists() or error.strerror == _READ_ONLY:
            raise
        raise PermissionError(error.errno, _IN_USE, str(target)) from error


def is_same_file(one: Path, other: Path) -> bool:
    """Return True if both paths exist and are the same file. Another process may replace either one meanwhile."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def tidy(folder: Path) -> None:
    """Remove the leftovers of a killed run in a folder, unless another process is replacing files there now."""
    with suppress(OSError):  # another process is replacing files, or the folder is read-only
        if any(folder.glob(f".*{SUFFIX}")):
            with _locked_folder(folder, wait=False):
                _remove_temporaries(folder)


def _remove_temporaries(folder: Path) -> None:
    for stale in folder.glob(f".*{SUFFIX}"):
        stale.unlink(missing_ok=True)


@contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Make a new folder in `parent`, and remove it at the end of the block.

    It is locked as long as this process lives; so folders of this prefix that nobody has locked are those of processes
    that were killed, and are removed. Raises `OSError` as the system does.
    """
    with ExitStack() as stack:
        with ExitStack() as begun:
            begun.enter_context(_locked_folder(parent))
            for stale in parent.glob(f"{prefix}*"):
                with suppress(OSError):  # locked by a running process
                    if not stale.is_symlink():
                        with _locked_folder(stale, wait=False):
                            shutil.rmtree(stale)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            stack.enter_context(_locked_folder(folder))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _temporary(target: Path) -> Path:
    # File names have at most 255 bytes, and the target's name may use them all.
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}{SUFFIX}")


def _kept(target: Path) -> Path | None:
    """Keep the content of a file that is about to be replaced under another name; None if there is no file."""
    kept = _temporary(target)
    if WINDOWS and target.exists():
        # Windows replaces no mapped file, but renames it; and it removes no second name of an open file.
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, _READ_ONLY, str(target))
        os.replace(target, kept)
        return kept
    try:
        os.link(target, kept)  # a hard link: no copy, and the file stays in place
    except OSError:  # no old file, or a file system without hard links
        if not target.exists():
            return None
        os.replace(target, kept)
    return kept


def _sync(folder: Path) -> None:
    """Make renames durable. Only POSIX has a way to, and only some file systems need it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _lock_file(folder: Path) -> str:
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:24]
    return os.path.join(tempfile.gettempdir(), f"onnxgen-{name}.lock")


def _opened(path: Path | str, flags: int, wait: bool = True) -> int:
    """Open a file and lock it. Returns its handle."""
    handle = os.open(path, flags, 0o666)
    try:
        _wait(handle, wait)
    except OSError:
        os.close(handle)
        raise
    return handle


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of a file. The file is created if missing, and stays; others wait. Raises `OSError`."""
    handle = _opened(file, os.O_RDWR | os.O_CREAT)
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def _locked_folder(folder: Path, wait: bool = True) -> Iterator[None]:
    """Hold the lock of a folder. Raises `OSError`, also if it would have to wait and must not."""
    handle = _lock(folder, wait)
    try:
        yield
    finally:
        os.close(handle)


@contextmanager
def held(file: Path) -> Iterator[bool]:
    """Hold a file, which is made and at the end removed. Yields False, at once, if another process holds it.

    Processes that are forked meanwhile do not hold it: it is free when this process ends, however it does. Raises
    `OSError` if it can't be made.
    """
    with open(file, "a+b") as opened:
        alone = _hold(opened.fileno())
        try:
            yield alone
        finally:
            with suppress(OSError):
                if alone and not WINDOWS:  # which removes no open file
                    file.unlink(missing_ok=True)
    if alone and WINDOWS:
        with suppress(OSError):
            file.unlink(missing_ok=True)


if sys.platform == "win32":
    import msvcrt

    def _hold(handle: int) -> bool:
        """Lock an open file for this process, and return True; False if another one has locked it."""
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _wait(handle: int, wait: bool) -> None:
        """Wait for the lock on an open file, or raise `OSError`; closing the handle gives it back."""
        while True:
            try:  # Windows gives up after ten seconds
                return msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if not wait or error.errno not in (errno.EDEADLK, errno.EACCES, 36):
                    raise

    def _lock(folder: Path, wait: bool) -> int:
        """Wait for the lock on a folder, or raise `OSError`; closing the returned handle gives it back."""
        return _opened(_lock_file(folder), os.O_RDWR | os.O_CREAT, wait)

else:
    import fcntl

    def _hold(handle: int) -> bool:
        """Lock an open file for this process, and return True; False if another one has locked it."""
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # another error: a file system without locks
            return error.errno not in (errno.EACCES, errno.EAGAIN)
        return True

    def _wait(handle: int, wait: bool) -> None:
        """Wait for the lock on an open file, or raise `OSError`; closing the handle gives it back."""
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _lock(folder: Path, wait: bool) -> int:
        """Wait for the lock on a folder, or raise `OSError`; closing the returned handle gives it back."""
        try:
            return _opened(folder, os.O_RDONLY, wait)  # lock the folder itself, which needs no lock file
        except BlockingIOError:
            raise
        except OSError:  # some network file systems do not lock folders
            return _opened(_lock_file(folder), os.O_RDWR | os.O_CREAT, wait)
