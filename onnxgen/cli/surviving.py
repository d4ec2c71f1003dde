"""A command that outlives a crash of onnxruntime, where the system can fork."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from onnxgen.common.crashes import CRASHES

MOST = 12  # processes that may die
DEADLY = {signal.SIGFPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL} if os.name == "posix" else set()


def surviving(run: Callable[[], int], crashed: Callable[[str], int]) -> int:
    """Return the exit code of `run`, in another process for as long as one dies of inputs that it has drawn.

    Args:
        run: the command. It returns its exit code.
        crashed: says that onnxruntime has crashed, given how. It returns the exit code.
    """
    while hasattr(os, "fork"):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            CRASHES.to = write
            return run()  # this process goes on as if there were no other
        os.close(write)
        died, last = _ended(child, read)
        sizes = json.loads(last) if last else None
        if sizes is None or CRASHES.has(sizes) or len(CRASHES.sizes) == MOST:
            tried = ", ".join(f"{name}={size}" for name, size in (sizes or {}).items()) or "the file's own sizes"
            return crashed(f"onnxruntime crashed ({died.name}) with inputs of {tried}")
        CRASHES.sizes.append(sizes)
    return run()


def _ended(child: int, read: int) -> tuple[signal.Signals, str]:
    """Wait for a process. Returns the signal that it died of, and the last line that it told; else ends this one."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C reaches the child, too, which says so
    with os.fdopen(read, encoding="utf-8") as lines:
        last = ([""] + lines.readlines())[-1]
    _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGINT, before)
    if not os.WIFSIGNALED(status):
        _exit(os.waitstatus_to_exitcode(status))
    died = signal.Signals(os.WTERMSIG(status))
    if died not in DEADLY:
        _exit(128 + died)
    return died, last


def _exit(code: int) -> NoReturn:
    raise SystemExit(code)
