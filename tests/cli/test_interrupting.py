"""Signals to a command that has nothing to keep yet, and to one that has said all."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

if sys.platform == "win32":
    pytest.skip("a process can't send itself a Ctrl-C on Windows", allow_module_level=True)

# `onnxgen.cli.run` is what each of these makes of it; the signals come from the process itself.
BEGIN = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background ignores it
import onnxgen.cli as cli
def ask(number=signal.SIGINT):
    os.kill(os.getpid(), number)
def run(args):
{0}
    print("went on")
    return 0
cli.run = run
cli.main(["train", "model.py"])
"""
SWALLOWED = """
    class Callback:
        def __del__(self):
            ask()
    made = Callback()
    sys.unraisablehook = lambda _: None
    del made
    from onnxgen.training.launch import Stopping
    with Stopping(print).heard():
        pass
"""
CASES = {
    "at once": "    ask()",
    "SIGTERM": "    ask(signal.SIGTERM)",
    "in an import": "    import loud",
    "lost in a callback": SWALLOWED,
    "again, while the first one is answered": "    try:\n        ask()\n    finally:\n        ask(); print(2)",
}


def python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "loud.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("case", CASES)
def test_a_signal_ends_a_command_that_has_begun(case: str, tmp_path: Path) -> None:
    ended = python(BEGIN.format(CASES[case]), tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("place", ["in a library's last callback", "after Python has taken its handlers back"])
def test_a_signal_after_the_last_line_says_nothing_more(number: signal.Signals, place: str, tmp_path: Path) -> None:
    code = {
        "in a library's last callback": f"    import atexit; atexit.register(ask, {int(number)})",
        "after Python has taken its handlers back": f"""
    class Last:
        def __del__(self, kill=os.kill, me=os.getpid()):
            kill(me, {int(number)})
    sys.modules["last"] = Last()""",
    }[place]
    ended = python(BEGIN.format(code), tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "went on\n", "")
