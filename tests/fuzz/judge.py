"""What a case may do, held by the process it runs in: time, memory, files, and how it may fail."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxgen.errors import OnnxgenError, WrongRewrite
from tests.fuzz.cases import Place
from tests.fuzz.targets import SOURCES, Target

SECONDS = 10  # of processor time
WALL = 120  # seconds in which nothing is computed, either: waiting for a pipe
MEMORY = 2 << 30  # bytes, above what the process has when it begins
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
_NEVER = ("subprocess.", "socket.", "os.exec", "os.fork", "os.spawn", "os.system", "os.posix_spawn", "ctypes.dlopen")


class Broken(Exception):
    """A promise that a case broke."""


class Judge:
    """Runs cases of one target in this process, which a case that hangs ends by a signal."""

    def __init__(self, place: Place, target: Target) -> None:
        self.place, self.target = place, target
        self.watching = False
        self.touched: list[str] = []
        self.before = set(place.files())
        self.allowed = os.path.realpath(place.out) + os.sep
        sys.addaudithook(self._heard)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY, used + 2 * MEMORY))
        self.most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 + MEMORY

    def run(self, data: bytes) -> str:
        """What came of a case, in short: equal for cases that ended in the same way.

        Raises:
            Broken: a promise was broken.
        """
        self.touched.clear()
        try:
            with self._limited():
                self.target(self.place, data)
            outcome = "made"
        except OnnxgenError as error:
            outcome = _refusal(error)
        except BaseException as error:
            if isinstance(error, WrongRewrite) and error.step == "trainable":  # a user gets a note
                self.place.clean()
                return "a doubt about what is trained"
            raise Broken("".join(traceback.format_exception(error))[-6000:]) from None
        left = self.place.clean()
        if outcome != "made" and left:
            raise Broken(f"an error left files: {left}")
        if self.touched:
            raise Broken(f"touched: {self.touched[:5]}")
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > self.most:
            raise Broken("it took more memory than it may")
        return outcome

    def finish(self) -> None:
        """Files that something native wrote."""
        if changed := (set(self.place.files()) ^ self.before) - {str(self.place.model)}:
            raise Broken(f"files came or went: {sorted(changed)}")

    @contextmanager
    def _limited(self) -> Iterator[None]:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.setitimer(signal.ITIMER_REAL, WALL)
        self.watching = True
        try:
            yield
        finally:
            self.watching = False
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(c in mode for c in "wax+") if mode else bool(flags & _WRITES)
            if writes and isinstance(path, (str, bytes)):
                self._check(event, path)
        elif event in _CHANGES:
            for path in arguments[:2]:
                if isinstance(path, (str, bytes)):
                    self._check(event, path)
        elif event.startswith(_NEVER):
            self.touched.append(f"{event} {arguments}"[:300])

    def _check(self, event: str, path: str | bytes) -> None:
        full = os.path.realpath(os.fsdecode(path))
        if not full.startswith(self.allowed) and full != str(self.place.model):
            self.touched.append(f"{event} {full}")


def _refusal(error: OnnxgenError) -> str:
    """Where an error was raised, and the first words of what it says that are not the file's."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if f.filename.startswith(SOURCES)), frames[-1])
    words = [w for w in str(error.problems[0].what).split() if re.fullmatch(r"[a-z]{2,12}[,:;]?", w)]
    return f"{os.path.basename(last.filename)}:{last.lineno} {' '.join(words[:5])}"
