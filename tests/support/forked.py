"""Python processes that begin with torch imported: forks of one server, where `subprocess.run` would import it anew.

What a test is about is in the new process alone: the server has no module of onnxgen. A test of what a process imports,
or of how it starts, needs a process of its own.

`Server` does the same for the interpreter of another environment, which runs this file: it needs the standard library
alone.
"""

from __future__ import annotations

import atexit
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

spent = 0.0  # seconds of the processor that forks took, which are no children of this process

# What takes long to import. Each is fit for a fork: none starts a thread before it computes.
PRELOADED = ["numpy", "onnx", "onnx_ir", "black", "rich", "jinja2", "onnxruntime", "torch", "lightning", "torchmetrics"]


@cache
def server() -> Any:
    """Return the context whose processes are forks of the server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def start(
    words: Sequence[str | Path],
    out: Path,
    err: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    times: Path | None = None,
) -> Any:
    """Start `python WORDS`, which is `-m MODULE ...`, `-c CODE ...` or `FILE ...`; its streams go to two files.

    Returns a `multiprocessing.Process`: `pid`, `kill`, `join`, and `exitcode`, which is minus the signal that ended it.
    At the end it writes to `times` how many seconds of the processor it took.
    """
    if not hasattr(os, "fork"):
        return _Started(words, out, err, cwd, env)
    place, variables = str(cwd or Path.cwd()), dict(os.environ if env is None else env)
    told = ([*map(str, words)], place, variables, str(out), str(err), str(times or ""))
    process = server().Process(target=_child, args=told)
    process.start()
    return process


class _Started(subprocess.Popen[bytes]):
    """Where no process can be forked: a process of its own, with the methods of a `multiprocessing.Process`."""

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
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end, as `subprocess.run` does with captured text; `merged`: stderr goes to stdout."""
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *map(str, words)], cwd=cwd, env=env, timeout=timeout, text=True, encoding="utf-8",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out, err, times = Path(folder, "out"), Path(folder, "out" if merged else "err"), Path(folder, "times")
        process = start(words, out, err, cwd=cwd, env=env, times=times)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([*map(str, words)], timeout, out.read_text(errors="replace"))
        if times.is_file():
            _count(float(times.read_text()))
        printed = "" if merged else err.read_text(encoding="utf-8")
        return subprocess.CompletedProcess([*words], process.exitcode, out.read_text(encoding="utf-8"), printed)


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
            atexit._run_exitfuncs()
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
        command = [str(python), __file__, *preloaded]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(env), text=True, encoding="utf-8",
            start_new_session=True,
        )  # fmt: skip
        atexit.register(self.close)

    def run(
        self, words: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str], timeout: float = 600
    ) -> tuple[int, str]:
        """Run `python WORDS` to its end; its exit code, and what it prints to both streams."""
        told, says = self._process.stdin, self._process.stdout
        assert told is not None and says is not None
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out")
            print(json.dumps([[*map(str, words)], str(cwd), dict(env), str(out), str(out)]), file=told, flush=True)
            if not select.select([says], [], [], timeout)[0]:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired([*map(str, words)], timeout, out.read_text(errors="replace"))
            code, seconds = says.readline().split()
            _count(float(seconds))
            return int(code), out.read_text(encoding="utf-8")

    def close(self) -> None:
        """End it: it ends by itself when nobody can tell it any more."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _serve(preloaded: Sequence[str]) -> None:
    """Import, and fork for each line until there is none."""
    sys.path.pop(0)  # the folder of this file
    for name in preloaded:
        importlib.import_module(name)
    for line in sys.stdin:
        if (child := os.fork()) == 0:
            code = 1
            try:
                _child(*json.loads(line))
            except SystemExit as error:
                code = int(error.code or 0)
                atexit._run_exitfuncs()
            finally:
                os._exit(code)
        _, status, used = os.wait4(child, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)


def _child(words: list[str], cwd: str, env: dict[str, str], out: str, err: str, times: str = "") -> None:
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
        code = _run(words)
    if times:
        Path(times).write_text(repr(sum(os.times()[:4])))
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
    _serve(sys.argv[1:])
