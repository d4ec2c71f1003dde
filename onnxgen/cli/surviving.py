"""A command that outlives a crash of onnxruntime, where the system can fork."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from select import select
from threading import Thread
from types import FrameType
from typing import NoReturn

from onnxgen.common.crashes import CRASHES

MOST = 12  # processes that may die
DEADLY = {signal.SIGFPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL} if os.name == "posix" else set()


def surviving(run: Callable[[], int], crashed: Callable[[str], int]) -> int:
    """Return the exit code of `run`, in another process for as long as one dies of inputs that it has drawn.

    Args:
        run: the command. It returns its exit code.
        crashed: says how the other process has ended. It returns the exit code of a crash of onnxruntime.
    """
    if not hasattr(os, "fork"):
        return run()
    while True:
        read, write = os.pipe()
        alive, held = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until both processes know what to do with it
        child = os.fork()
        if child == 0:
            os.close(read)
            os.close(held)
            Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
            CRASHES.to = write
            return _run(run)  # this process goes on as if there were no other
        os.close(write)
        os.close(alive)
        died, last = _ended(child, read)
        os.close(held)
        if died == signal.SIGKILL:
            crashed("verify was killed (SIGKILL), most likely because the system had no memory left")
            _exit(128 + died)
        sizes = json.loads(last) if last else None
        if sizes is None or CRASHES.has(sizes) or len(CRASHES.sizes) == MOST:
            tried = ", ".join(f"{name}={size}" for name, size in (sizes or {}).items()) or "the file's own sizes"
            return crashed(f"onnxruntime crashed ({died.name}) with inputs of {tried}")
        CRASHES.sizes.append(sizes)


def _run(run: Callable[[], int]) -> int:
    """Run the command in the other process."""
    _interrupted_by(_once)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    except KeyboardInterrupt:  # it came before the command began
        return 128 + signal.SIGINT
    return run()


def _ended(child: int, read: int) -> tuple[signal.Signals, str]:
    """Wait for a process. Returns the signal that it died of, and the last line that it told; else ends this one."""

    def hand_on(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT)

    before = _interrupted_by(hand_on)  # the child says so
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    last = ([""] + _whole(read).splitlines())[-1]
    _, status = os.waitpid(child, 0)
    signal.signal(signal.SIGINT, before)
    if not os.WIFSIGNALED(status):
        _exit(os.waitstatus_to_exitcode(status))
    died = os.WTERMSIG(status)
    if died not in DEADLY | {signal.SIGKILL}:
        _exit(128 + died)
    return signal.Signals(died), last


def _whole(read: int) -> str:
    """Read a pipe to its end, awake five times a second.

    A signal that comes right before a call of the system does not end that call: a plain read would keep it waiting.
    """
    told = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while True:
            if select([pipe], [], [], 0.2)[0]:
                more = pipe.read(4096)
                if not more:
                    return told.decode()
                told += more


def _interrupted_by(handler: Callable[[int, FrameType | None], object]) -> signal._HANDLER:
    """Let a function handle a Ctrl-C, unless nobody does. Returns what did so before."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    return before


def _once(*_: object) -> NoReturn:
    """Interrupt a process that a terminal's Ctrl-C reaches twice: its parent hands it on, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_parent(alive: int) -> None:
    """Wait for the end of the process that holds the other end of this pipe, whoever ends it."""
    os.read(alive, 1)
    os._exit(128 + signal.SIGTERM)


def _exit(code: int) -> NoReturn:
    raise SystemExit(code)
