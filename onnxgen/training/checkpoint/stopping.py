"""Signals that ask a run to stop: Ctrl-C, SIGTERM, and what job schedulers send before the time is up."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1")  # job schedulers send the last one before the time is up


class Stopped(Exception):
    """A run received a signal to stop.

    Attributes:
        begun: True if a checkpoint was saved; False before the first step.
    """

    def __init__(self, signum: int, begun: bool = True) -> None:
        self.signum, self.begun = signum, begun
        super().__init__(f"stopped by {signal.Signals(signum).name}")


class Stopping:
    """Notes the first signal to stop, so that the run ends where its state is whole. A second Ctrl-C ends it at once.

    Attributes:
        signum: the latest signal; 0 before there is one.
        ends: what the run does first, for the message.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.signum, self.ends = say, 0, "before the first step"
        self._before: dict[signal.Signals, Any] = {}  # the handlers of the command

    def listen(self) -> None:
        """Install the handlers. Python allows it in the main thread alone."""
        if threading.current_thread() is threading.main_thread():
            for name in _numbers():
                signal.signal(name, self._asked)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen from the first line of a run to its report; Lightning's own handlers are between these two."""
        before = self._before = {number: signal.getsignal(number) for number in _numbers()}
        if any(getattr(handler, "came", False) for handler in before.values()):  # a library has swallowed it
            raise KeyboardInterrupt
        self.listen()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _asked(self, signum: int, frame: Any) -> None:
        if self.signum and signum == signal.SIGINT:  # a second Ctrl-C
            getattr(self._before.get(signal.SIGINT), "end", lambda: None)()  # a command ends here
            raise KeyboardInterrupt
        self.signum = signum
        with suppress(RuntimeError):  # the signal came while a line was printed
            self.say(f"stopping {self.ends}; interrupt again to stop at once")


def _numbers() -> list[signal.Signals]:
    return [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]


@contextmanager
def held() -> Iterator[None]:
    """Hold signals to stop back. Processes that are started meanwhile receive none of them until `deaf`."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _numbers())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def deaf() -> None:
    """Ignore signals to stop in this process, a worker. Its parent decides when it ends.

    A terminal, and most supervisors, signal all processes of a run, and a worker that ended by itself would take the
    batches of the parent's current step with it.
    """
    for number in _numbers():
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _numbers())


def said_alone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print what a thread of a worker raised, but not that the parent, which it hands batches to, was killed."""
    if not issubclass(kind, (ConnectionError, EOFError)):
        sys.__excepthook__(kind, error, trace)
