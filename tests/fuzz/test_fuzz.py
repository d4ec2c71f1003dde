"""A short run of each target; what the judge finds; valid graphs are made. Longer runs: `python -m tests.fuzz`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnxgen.errors import OnnxgenError, WrongRewrite
from onnxgen.options import Options
from onnxgen.pipeline import generate
from tests.conftest import ROOT
from tests.fuzz.seeds import few
from tests.fuzz.targets import VARIANTS
from tests.fuzz.valid import graphs, mutated
from tests.support import forked
from tests.support.clean_source import assert_safe
from tests.support.graphs import Case
from tests.support.tiers import drawn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="cases run in processes that are forked")
SEEDS = few()
FOUND = Path(__file__).parent / "found"
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}, ours=True)


@pytest.mark.parametrize(("target", "executions"), [("reader", 500), ("lowering", 200), ("pipeline", 40)])
def test_a_short_run_finds_nothing(target: str, executions: int, tmp_path: Path) -> None:
    state = fuzzed(tmp_path, target, executions)
    assert 0 < state["made"] < executions and len(state["outcomes"]) > 5


def test_a_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    first, second = (fuzzed(tmp_path, "reader", count) for count in (100, 150))
    assert first["seconds"] < second["seconds"]
    assert sum(second["outcomes"].values()) + second["made"] == 150


def fuzzed(folder: Path, target: str, executions: int) -> dict[str, Any]:
    """The state after a run that is to have no findings."""
    count = str(executions)
    made = python(folder, "-m", "tests.fuzz", target, "--executions", count, "--corpus", str(folder), "--few")
    findings = sorted((folder / target / "findings").glob("*.txt"))
    assert made.returncode == 0 and not findings, made.stderr + "".join(path.read_text() for path in findings)
    state: dict[str, Any] = json.loads((folder / target / "state.json").read_text())
    assert state["executions"] == executions and state["findings"] == 0
    return state


BROKEN = {
    "place.root.joinpath('new.txt').write_text('')": "touched: ['open ",
    "place.model.with_name('w.bin').unlink()": "touched: ['os.remove ",
    "__import__('subprocess').run(['true'])": 'touched: ["subprocess.Popen',
    "__import__('socket').socket()": "touched: ['socket.__new__",
    "os.abort()": "signal SIGABRT",
    "1 / 0": "ZeroDivisionError",
    "b'x' * (400 << 20)": "more memory than",
    "b'x' * (3 << 30)": "MemoryError",
    "sum(iter(lambda: 0, 1))": "it took more time than",
    "place.out.joinpath('left').write_text('') and None or refuse()": "an error left files: ['left']",
}
RUN = """
import json, os, sys
from pathlib import Path
from onnxgen.errors import OnnxgenError
from tests.fuzz import engine, judge, targets

judge.MEMORY = 1 << 28
def refuse(): raise OnnxgenError("no")
def target(place, data):
    place.put(data)
    if data == b"bad":
        eval(code)
engine.TARGETS["bad"] = target
folder, code = Path(sys.argv[1]), sys.argv[2]
judge.SECONDS = 1 if "iter(" in code else 60  # only what never ends is stopped for its time: memory may be slow
numbers = iter(range(9))
once = folder / "once"
def mutate(rng, data, other):
    if next(numbers) != 3 or once.exists():
        return b"good"
    once.touch()
    return b"bad"
engine.mutate = mutate
state = engine.Fuzzer("bad", folder, [b"x"]).run(9)
print(state.executions, state.findings, state.made)
"""


@pytest.mark.parametrize(("code", "says"), BROKEN.items(), ids=BROKEN.values())
def test_the_judge_tells(code: str, says: str, tmp_path: Path) -> None:
    """One case of nine breaks a promise: it is stored with what is wrong, and the others are run all the same."""
    made = python(tmp_path, "-c", RUN, str(tmp_path / "corpus"), code)
    assert made.stdout.split()[:2] == ["9", "1"], made.stdout + made.stderr
    (case,) = (tmp_path / "corpus" / "bad" / "findings").glob("*.onnx")
    assert case.read_bytes() == b"bad"
    assert says in case.with_suffix(".txt").read_text()


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.onnx")), ids=lambda path: path.stem)
@pytest.mark.parametrize("options", VARIANTS, ids=range(len(VARIANTS)))
def test_what_was_found_once(path: Path, options: Options, tmp_path: Path) -> None:
    """Files that broke a promise."""
    made_or_refused(path, tmp_path, options)


def made_or_refused(path: Path, folder: Path, options: Options) -> None:
    try:
        made = generate(path, folder / "net.py", options)
    except OnnxgenError as error:
        assert error.problems and str(error).isascii() and not list(folder.glob("net.py*"))
    except WrongRewrite as error:
        assert error.step == "trainable"  # a doubt, which is a note for a user
    else:
        assert_safe(made.source)


@settings(SETTINGS, max_examples=drawn(25))
@given(case=graphs())
def test_valid_graphs_are_made(case: Case, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("valid")
    onnx.save(case.model, folder / "net.onnx")
    made = generate(folder / "net.onnx", folder / "net.py", Options())
    assert made.report.status == "written"
    assert_safe(made.source)


@settings(SETTINGS, max_examples=drawn(150))
@given(data=st.sampled_from(SEEDS).flatmap(lambda data: mutated(data, SEEDS[0])))
def test_mutations_are_made_or_refused(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    (folder / "net.onnx").write_bytes(data)
    made_or_refused(folder / "net.onnx", folder, Options())
