"""Python processes that begin with torch imported: forks of one server, where `subprocess.run` would import it anew.

What a test is about is in the new process alone: the server has no module of onnxgen. A test of what a process imports,
or of how it starts, needs a process of its own.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# What takes long to import. Each is fit for a fork: none starts a thread before it computes.
PRELOADED = ["numpy", "onnx", "onnx_ir", "black", "rich", "jinja2", "onnxruntime", "torch", "lightning", "torchmetrics"]


@cache
def server() -> Any:
    """Return the context whose processes are forks of the server."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def start(
    words: Sequence[str | Path], out: Path, err: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Any:
    """Start `python WORDS`, which is `-m MODULE ...`, `-c CODE ...` or `FILE ...`; its streams go to two files.

    Returns a `multiprocessing.Process`: `pid`, `kill`, `join`, and `exitcode`, which is minus the signal that ended it.
    """
    place, variables = str(cwd or Path.cwd()), dict(os.environ if env is None else env)
    process = server().Process(target=_child, args=([*map(str, words)], place, variables, str(out), str(err)))
    process.start()
    return process


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
        out, err = Path(folder, "out"), Path(folder, "out" if merged else "err")
        process = start(words, out, err, cwd=cwd, env=env)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([*map(str, words)], timeout, out.read_text(errors="replace"))
        printed = "" if merged else err.read_text(encoding="utf-8")
        return subprocess.CompletedProcess([*words], process.exitcode, out.read_text(encoding="utf-8"), printed)


def _child(words: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, name in ((1, out), (2, err)):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, number)
    with (
        open(os.devnull) as sys.stdin,
        open(1, "w", encoding="utf-8", closefd=False) as sys.stdout,
        open(2, "w", encoding="utf-8", closefd=False, buffering=1) as sys.stderr,
    ):
        code = _run(words)
    sys.exit(code)


def _run(words: list[str]) -> int:
    """Do what `python WORDS` does in a process; its exit code."""
    first = "" if words[0] in ("-m", "-c") else str(Path(words[0]).resolve().parent)
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
