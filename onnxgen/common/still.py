"""Tells what goes on while nothing else is printed: a silent program may be one that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar

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
