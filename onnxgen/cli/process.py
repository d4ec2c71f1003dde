"""The process of a command: which command it is, Ctrl-C, crashes of onnxruntime, and delayed imports.

Where the system can fork, `surviving` lets a command outlive a crash of onnxruntime.

`sympy_later` delays an import until a module is used. onnx_ir imports sympy, for arithmetic with
symbolic dims that onnxgen does not use. That takes a quarter of a second, a third of generating a
small model (with onnx_ir 1.1). If onnx_ir renames its private module, sympy is imported at once.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from select import select
from threading import Thread
from types import FrameType, ModuleType
from typing import NoReturn

from onnxgen.common.crashes import CRASHES

_FLAGS = ("-q", "--quiet", "-v", "--verbose", "--json")
CODE = 130  # of a command that was interrupted
_ERASE = b"\r\x1b[K\x1b[?25h"  # the line of a progress bar, which also hides the cursor
_IMPORT = "<frozen importlib._bootstrap"


def named(args: Sequence[str]) -> str:
    """Return the first argument that is not a flag (a command or a model), or ""."""
    return next((arg for arg in args if arg not in _FLAGS), "")


def may_be_file(name: str) -> bool:
    """Return True for a word that can be no command, because it is spelled like a path."""
    return "." in name or os.sep in name


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
            raise SystemExit(128 + died)
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
        raise SystemExit(os.waitstatus_to_exitcode(status))
    died = os.WTERMSIG(status)
    if died not in DEADLY | {signal.SIGKILL}:
        raise SystemExit(128 + died)
    return signal.Signals(died), last


def _whole(read: int) -> str:
    """Read a pipe to its end, awake five times a second.

    A signal that comes right before a call of the system does not end that call: a plain read would keep it waiting.
    """
    output = b""
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while True:
            if select([pipe], [], [], 0.2)[0]:
                more = pipe.read(4096)
                if not more:
                    return output.decode()
                output += more


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


LATER = ("sympy", "onnx_ir._symbolic_shapes")


class _Later(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def sympy_later() -> Iterator[None]:
    """Delay the import of sympy, by modules that are imported in this context, until its first use.

    Only for onnxgen's own processes: before Python 3.12, a lazy import is not safe with several threads.
    """
    finder = _Later()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
