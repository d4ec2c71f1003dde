"""A time limit for Python code: a loop of the network may run on for some inputs, in a module as in an oracle."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOOP_SECONDS = 20.0  # seconds for one run of a network with a loop, on drawn inputs
SLOWER = 50.0  # a module's loop may take so many times as long as the oracle's


class TimedOut(Exception):
    """Something ran for longer than its limit."""


class _Stop(BaseException):
    """Raised in the thread that runs for too long. No handler of `Exception` catches it on its way."""


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """Raise `TimedOut` in this thread when the block has run for so long; None: no limit.

    Python only notices between two of its own instructions, so a single long call is not interrupted.
    """
    if seconds is None:
        yield
        return
    lock, thread, is_over = threading.Lock(), threading.get_ident(), False

    def stop() -> None:
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Stop))

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except _Stop:
        raise TimedOut(f"it was stopped after {seconds:.0f} s") from None
    finally:
        with lock:
            is_over = True
        timer.cancel()
