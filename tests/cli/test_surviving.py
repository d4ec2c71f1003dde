"""`verify` outlives a crash of onnxruntime with inputs that it has drawn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system can't fork")

PROGRAM = """
import os, signal, sys
from onnxgen.cli.process import surviving
from onnxgen.common.crashes import CRASHES

def run():
    for n in {sizes}:
        if not CRASHES.has({{"n": n}}):
            CRASHES.trying({{"n": n}})
            if n < {least}:
                os.kill(os.getpid(), signal.{died})
            print("ran with", n, flush=True)
            return {code}
    return 9

def crashed(what):
    print(what)
    return 2

sys.exit(surviving(run, crashed))
"""


def ended(**given: object) -> tuple[int, str]:
    how = {"sizes": [8, 5, 16, 300], "least": 100, "died": "SIGFPE", "code": 0, **given}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(**how)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


@pytest.mark.parametrize("code", [0, 1])
def test_sizes_that_crash_are_left_out_and_so_are_smaller_ones(code: int) -> None:
    assert ended(code=code) == (code, "ran with 300\n")


def test_what_always_crashes_is_said_with_its_sizes() -> None:
    code, said = ended(sizes=[*range(1, 99)])
    assert code == 2 and said.startswith("onnxruntime crashed (SIGFPE) with inputs of n=")


def test_whoever_ends_it_from_outside_ends_it() -> None:
    assert ended(died="SIGTERM") == (128 + signal.SIGTERM, "")


def test_a_lack_of_memory_is_said() -> None:
    """The system kills what takes too much, and that process says nothing."""
    code, said = ended(died="SIGKILL")
    assert code == 128 + signal.SIGKILL and said.startswith("verify was killed (SIGKILL), most likely because")


WAITING = """
import os, signal, sys, time
from onnxgen.cli.process import surviving

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background ignores it

def run():
    try:
        print(os.getppid(), flush=True)
        while True:
            time.sleep(0.1)  # a signal right before a sleep does not end it
    except KeyboardInterrupt:
        print("interrupted")
        return 130

sys.exit(surviving(run, lambda what: 2))
"""


def stopped(died: signal.Signals, whole_group: bool = False) -> tuple[int, str]:
    """Return how the first process ends, and what both say; the second one holds the pipe until it ends, too."""
    started = [sys.executable, "-c", WAITING]
    with subprocess.Popen(started, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None and int(process.stdout.readline()) == process.pid
        (os.killpg if whole_group else os.kill)(process.pid, died)
        said, _ = process.communicate(timeout=20)
    return process.returncode, said


@pytest.mark.parametrize("died", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_first_one(died: signal.Signals) -> None:
    assert stopped(died) == (-died, "")


@pytest.mark.parametrize("whole_group", [True, False], ids=["as a terminal does", "the first process alone"])
def test_an_interrupt_is_said_once(whole_group: bool) -> None:
    assert stopped(signal.SIGINT, whole_group) == (130, "interrupted\n")
