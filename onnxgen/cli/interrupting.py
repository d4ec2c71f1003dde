"""Ctrl-C in a command that has nothing to keep yet."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

CODE = 130  # of a command that was interrupted
_ERASE = b"\r\x1b[K\x1b[?25h"  # the line of a progress bar, which also hides the cursor
_IMPORT = "<frozen importlib._bootstrap"


class Interrupting:
    """Handles a signal to stop: by `KeyboardInterrupt`, and in an import or the second time by ending the process.

    An import may lose the exception, in callbacks of Python and where libraries try what may fail; a second one would
    interrupt what the first one cleans up.

    Attributes:
        came: whether `KeyboardInterrupt` was raised. Whoever goes on nevertheless has lost it.
        ended: the exit code of a command that has said all. While libraries clean up, a signal ends the process so.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        """`tell` prints that the command was interrupted."""
        self.tell, self.came = tell, False
        self.ended: int | None = None

    def listen(self, *numbers: signal.Signals) -> None:
        """Handle these signals where nobody else does."""
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        for number in numbers if threading.current_thread() is threading.main_thread() else ():
            if signal.getsignal(number) in defaults:
                signal.signal(number, self)
                # Python takes handlers back at the very end, where a signal would still kill the process.
                atexit.register(signal.signal, number, signal.SIG_IGN)

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.ended is not None:
            os._exit(self.ended)
        if not self.came and not _imports(frame):
            self.came = True
            raise KeyboardInterrupt
        self.end()

    def end(self) -> None:
        """Tell of the interrupt, and end the process: an exception may be lost, or leave a lock held."""
        with suppress(RuntimeError, OSError):  # the signal came while a line was printed, or nobody reads it
            if sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _ERASE)
            self.tell()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(CODE)


def _imports(frame: FrameType | None) -> bool:
    """Return True if a frame, or one that called it, imports a module."""
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORT):
        frame = frame.f_back
    return frame is not None
