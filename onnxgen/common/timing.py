"""The time of each stage of a generation, and a line that says what goes on in silence.

Seconds are counted for each stage, without overlap. A silent program may be one that hangs, so `Still` speaks.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

STAGES = ("read", "simplify", "lower", "structure", "render", "validate", "write")  # in order, as progress shows them
# Timed inside the stages but not counted there: imports of modules, reading, hashing and writing of weights, black.
IMPORTS, WEIGHTS, FORMAT = "imports", "weights", "format"


class _Clock:
    """Adds up seconds by stage. Time in a nested stage does not count for the outer one."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.within, self.since = seconds, [""], time.perf_counter()

    def turn(self) -> None:
        """Add the time since the last call to the current stage."""
        now = time.perf_counter()
        if stage := self.within[-1]:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.since
        self.since = now


_running: ContextVar[_Clock | None] = ContextVar("running", default=None)


@contextmanager
def recorded(seconds: dict[str, float]) -> Iterator[None]:
    """Let every `stage` inside add to `seconds`."""
    token = _running.set(_Clock(seconds))
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time inside to this stage of the running generation, if any."""
    clock = _running.get()
    if clock is None:
        yield
        return
    clock.turn()
    clock.within.append(name)
    try:
        yield
    finally:
        clock.turn()
        clock.within.pop()


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable the garbage collector in the block: half the time of a large generation, whose trees all live on."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


EVERY = 10.0  # seconds
_NEXT = 1.0  # seconds: what begins so soon after something else goes on with its silence


class Still:
    """Says what goes on after each so many seconds without another line, from a thread of its own.

    with Still(lambda: "loading PyTorch", print):
        ...
    """

    _before: ClassVar[tuple[float, float]] = (0.0, 0.0)  # when the last one ended, and when it had last told something

    def __init__(self, what: Callable[[], str], say: Callable[[str], None], every: float = EVERY) -> None:
        """
        Args:
            what: returns what goes on, without changing anything.
            say: prints a line.
            every: seconds.
        """
        self._what, self._say, self._every = what, say, every
        self._begun = time.monotonic()
        ended, last = Still._before
        self._last = last if self._begun - ended < _NEXT else self._begun
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Still:
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *of_an_error: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        Still._before = time.monotonic(), self._last

    def told(self) -> None:
        """Begin to count the seconds: another line was printed."""
        self._last = time.monotonic()

    def _tell(self) -> None:
        while not self._done.wait(self._every / 10):
            if time.monotonic() - self._last >= self._every:
                self.told()
                self._say(f"{self._what()} ({time.monotonic() - self._begun:.0f} s)")
