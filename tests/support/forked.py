"""Python processes that begin with torch imported: forks of one server, where `subprocess.run` would import it anew.

What a test is about is in the new process alone: it has no module of onnxgen, unless it is to begin with the generator
of this tree (`ours`). A test of what a process imports, or of how it starts, needs a process of its own. All workers of
a session share the server, which imports while they collect their tests.

`Server` does the same for the interpreter of another environment, which runs this file: it needs the standard library
alone.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

spent = 0.0  # seconds of the processor that forks took, which are no children of this process

# What takes long to import. Each is fit for a fork: none starts a thread before it computes.
PRELOADED = ["numpy", "onnx", "onnx_ir", "black", "rich", "jinja2", "onnxruntime", "torch", "lightning", "torchmetrics"]
OURS = ["onnxgen.pipeline", "onnxgen.cli.app", "onnxgen.build_hooks.build"]
LONGEST = 80  # characters of a folder's name, which with a file in it must name a socket: Linux takes 107
SHARED = "ONNXGEN_FORKS"  # in the environment of a session's workers: the address of the server
FIRST = "ONNXGEN_MUTATION"  # in the environment: a file that each process runs first, as `benchmarks/mutation` has it


@cache
def server() -> Server:
    """Start this process's server."""
    path = os.pathsep.join(filter(None, sys.path))
    return Server(Path(sys.executable), [*PRELOADED, *OURS], {**os.environ, "PYTHONPATH": path})


def share() -> None:
    """Start the server for all processes that this one will start."""
    if hasattr(os, "fork"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as each worker has it; torch reads it when it is imported
        os.environ[SHARED] = server().address


def start(
    words: Sequence[str | Path],
    out: Path,
    err: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    ours: bool = False,
) -> Any:
    """Start `python WORDS`, which is `-m MODULE ...`, `-c CODE ...` or `FILE ...`; its streams go to two files.

    Returns what has these of a `multiprocessing.Process`: `pid`, `kill`, `join`, `is_alive`, and `exitcode`, which is
    minus the signal that ended it.
    """
    if not hasattr(os, "fork"):
        return begun(words, out, err, cwd=cwd, env=env)
    place, variables = cwd or Path.cwd(), os.environ if env is None else env
    variables = {name: value for name, value in variables.items() if name != SHARED}
    return Fork(os.environ.get(SHARED) or server().address, words, place, variables, out, err, ours)


def begun(
    words: Sequence[str | Path],
    out: Path,
    err: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Start an interpreter that has imported nothing, as `start` does."""
    return _Started(words, out, err, cwd, env)


class Fork:
    """A process that a server has forked, which says when it has ended."""

    def __init__(
        self,
        address: str,
        words: Sequence[str | Path],
        cwd: Path,
        env: Mapping[str, str],
        out: Path,
        err: Path,
        ours: bool,
    ) -> None:
        self._code: int | None = None
        self._said = b""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        places = [str(path.absolute()) for path in (cwd, out, err)]  # the server is somewhere else
        told = json.dumps([ours, [*map(str, words)], places[0], dict(env), *places[1:]])
        self._connection.sendall(told.encode() + b"\n")
        self.pid = int(self._line(None))

    def _line(self, timeout: float | None) -> bytes:
        """Return the next line that the server says of it, or nothing if none comes in time."""
        end = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._said:
            self._connection.settimeout(None if end is None else max(0.0, end - time.monotonic()))
            try:
                data = self._connection.recv(1 << 10)
            except (BlockingIOError, TimeoutError):
                return b""
            if not data:
                raise RuntimeError("the server of the forks has ended")
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        if self._code is None and (line := self._line(timeout)):
            code, seconds = line.split()
            self._code = int(code)
            self._connection.close()
            _count(float(seconds))

    @property
    def exitcode(self) -> int | None:
        self.join(0)
        return self._code

    def is_alive(self) -> bool:
        return self.exitcode is None

    def kill(self) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):  # it has ended, and the server is about to say so
                os.kill(self.pid, signal.SIGKILL)


class _Started(subprocess.Popen[bytes]):
    """A process of its own, not forked, with the methods of a `multiprocessing.Process`."""

    def __init__(
        self, words: Sequence[str | Path], out: Path, err: Path, cwd: Path | None, env: Mapping[str, str] | None
    ) -> None:
        with open(out, "ab") as stdout, open(err, "ab") as stderr:
            super().__init__(
                [sys.executable, *map(str, words)],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )

    exitcode = property(subprocess.Popen.poll)

    def is_alive(self) -> bool:
        return self.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)


def run(
    words: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 300,
    merged: bool = False,
    ours: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end, as `subprocess.run` does with captured text; `merged`: stderr goes to stdout."""
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *map(str, words)], cwd=cwd, env=env, timeout=timeout, text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "out" if merged else "err")
        code = _finished(start(words, out, err, cwd=cwd, env=env, ours=ours), words, out, timeout)
        printed = "" if merged else err.read_text(encoding="utf-8")
        return subprocess.CompletedProcess([*words], code, out.read_text(encoding="utf-8"), printed)


def _finished(process: Fork, words: Sequence[str | Path], out: Path, timeout: float) -> int:
    """Wait for a fork; its exit code."""
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired([*map(str, words)], timeout, out.read_text(errors="replace"))
    return process.exitcode


class Spare:
    """A process of which nobody knows yet what it runs: `subprocess.Popen` for one call, which tells it.

    It is a fork of this process as it is when the spare is made, and its streams are those of this process.
    """

    def __init__(self) -> None:
        asked, self._told = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            os.close(asked)
            return
        os.close(self._told)
        code = 1
        try:
            with open(asked, encoding="utf-8") as told:
                line = told.read()  # nothing, if the process that made it has ended
            code = _child(*json.loads(line)) if line else 0
        except SystemExit as error:
            code = int(error.code or 0)
        finally:
            os._exit(code)

    def __call__(self, command: Sequence[str], env: Mapping[str, str], cwd: str | None = None) -> Spare:
        words = [[*command[1:]], cwd or os.getcwd(), dict(env), *(f"/dev/fd/{number}" for number in (1, 2))]
        with open(self._told, "w", encoding="utf-8") as told:
            json.dump(words, told)
        return self

    def poll(self) -> int | None:
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _count(seconds: float) -> None:
    global spent
    spent += seconds


class Server:
    """A process of any interpreter, which has imported some modules; its forks run what they are told.

    Args:
        python: the interpreter.
        preloaded: what it imports: nothing that starts a thread, and nothing that a test is about.
        env: its variables, as they are for the imports.
    """

    def __init__(self, python: Path, preloaded: Sequence[str], env: Mapping[str, str]) -> None:
        near = None if len(tempfile.gettempdir()) < LONGEST else "/tmp"
        self._owner, self._folder = os.getpid(), tempfile.mkdtemp(prefix="forks", dir=near)
        self.address = str(Path(self._folder, "server"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(64)  # who asks before the server has imported all waits
            number = listener.fileno()
            self._process = subprocess.Popen(
                [str(python), __file__, str(number), *preloaded], pass_fds=[number], env=dict(env),
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)

    def run(
        self, words: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], timeout: float = 600
    ) -> tuple[int, str]:
        """Run `python WORDS` to its end; its exit code, and what it prints to both streams."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out")
            code = _finished(Fork(self.address, words, cwd, env, out, out, True), words, out, timeout)
            return code, out.read_text(encoding="utf-8")

    def close(self) -> None:
        """End it: it ends by itself when the process that started it has ended."""
        if os.getpid() == self._owner:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)


def _serve(number: str, preloaded: Sequence[str]) -> None:
    """Import, and fork for whoever connects, until the process that started this one closes its end of stdin."""
    sys.path.pop(0)  # the folder of this file
    for name in preloaded:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    listener, children = socket.socket(fileno=int(number)), dict[int, socket.socket]()
    ended, told = os.pipe()
    os.set_blocking(told, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(told)
    while 0 not in (ready := select.select([0, ended, listener, *children.values()], [], [])[0]):
        if ended in ready:
            os.read(ended, 1 << 10)
            _tell(children)
        for child in [child for child, connection in children.items() if connection in ready]:
            os.kill(child, signal.SIGKILL)  # who asked for it has ended
            children.pop(child).close()
        if listener in ready:
            connection = listener.accept()[0]
            line = connection.makefile(encoding="utf-8").readline()
            if (child := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may run a session without
                for other in (listener, connection, *children.values()):
                    other.close()
                os.close(ended)
                os.close(told)
                _end(*json.loads(line))
            children[child] = connection
            connection.sendall(b"%d\n" % child)


def _tell(children: dict[int, socket.socket]) -> None:
    """Say of each child that has ended how, and how many seconds of the processor it took."""
    while True:
        try:
            child, status, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        if child in children:  # otherwise who asked has ended
            with children.pop(child) as connection, suppress(OSError):
                seconds = used.ru_utime + used.ru_stime
                connection.sendall(f"{os.waitstatus_to_exitcode(status)} {seconds}\n".encode())


def _end(ours: bool, words: list[str], cwd: str, env: dict[str, str], *streams: str) -> None:
    """Be the fork that was asked for, and end as a process does."""
    code = 1
    try:
        if not ours or FIRST in env:
            for name in [name for name in sys.modules if name.partition(".")[0] == "onnxgen"]:
                del sys.modules[name]
        _child(words, cwd, env, *streams)
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _child(words: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    multiprocessing.set_start_method(None, force=True)  # its own processes start as those of any process
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, out), (2, err)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
    with (
        open(os.devnull) as sys.stdin,
        open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
        open(2, "w", encoding="utf-8", closefd=False, buffering=1) as sys.stderr,
    ):
        if first := os.environ.get(FIRST):
            exec(Path(first).read_text(encoding="utf-8"), {"__name__": "started"})
        code = _run(words)
        threading._shutdown()  # type: ignore[attr-defined]  # as a process that ends: it waits for its threads first
        atexit._run_exitfuncs()
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Do what `python WORDS` does in a process; its exit code."""
    first = "" if words[0] in ("-m", "-c") else str(Path(words[0]).resolve().parent)
    sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX") or None
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *sys.path]
    try:
        if words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2:])
