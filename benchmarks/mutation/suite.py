"""One mutant, judged by tests: they run in a fork of a process that has collected them, until one fails.

A mistake in a function is put into a fork of pytest's session. A mistake in what importing a module runs is tried in a
fork that has not imported the product: it collects the files of a few tests, then of all others.
"""

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from benchmarks.mutation.covermap import KEPT, Map, Suite
from benchmarks.mutation.mutants import Mutant
from benchmarks.mutation.recorder import import_all
from benchmarks.mutation.rooms import ROOT, Key, Wrong
from benchmarks.mutation.started import MUTANT, substitute

LIMIT = 300.0  # seconds of a test that runs alone
PATIENCE = 20, 30.0  # a test hangs that takes so many times its time, and so many seconds
COLLECTING = 200.0  # seconds
FIRST = 4  # tests whose files are collected alone at first
COLLECTED = "collecting"
CAPTURE = "--capture=sys"  # with files, forks would share them; without, a logger may keep a stream that a test closes
Say = Callable[[Any], None]


@dataclass(frozen=True)
class Trial:
    """What `judged` takes: a mutant, the tests that judge in their order, and those known to pass in a fork."""

    wrong: Wrong
    tests: list[str]
    is_anew: bool
    fit: dict[str, bool]


@dataclass
class Verdict:
    """What became of a mutant.

    Attributes:
        outcome: "stopped", "survived", "undecided" if the time was over, or "unrun" if no test runs the line.
        test, why: what stopped it.
        ran: how many tests ran with it.
        fit: whether tests that failed pass without the mistake.
    """

    outcome: str
    test: str = ""
    why: str = ""
    ran: int = 0
    fit: dict[str, bool] = field(default_factory=dict)


class Held:
    """A plugin of pytest: something else is done with the session, where its tests would run."""

    def __init__(self, act: Callable[[pytest.Session], None]) -> None:
        self.act = act

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.act(session)
        return True


class Judge:
    """Tries mutants, for `limit` seconds each; `session` is the one that a fork uses, None in a process that has not
    imported the product.
    """

    def __init__(self, suite: Suite, made: Map, limit: float) -> None:
        self.suite, self.made, self.limit = suite, made, limit
        self.session: pytest.Session | None = None
        self.functions: dict[tuple[str, Key], list[FunctionType]] = {}

    def hold(self, act: Callable[[list[str]], None]) -> None:
        """Collect the suite in this process, and act on the names of its tests while it has its session."""

        def held(session: pytest.Session) -> None:
            self.session = session
            import_all()
            gc.unfreeze()
            for found in gc.get_objects():
                if type(found) is FunctionType and found.__code__.co_filename.startswith(f"{ROOT}{os.sep}"):
                    code = found.__code__
                    key = code.co_filename, (code.co_qualname, code.co_firstlineno)
                    self.functions.setdefault(key, []).append(found)
            gc.freeze()  # forks share it
            act([item.nodeid for item in session.items])

        _prepare(self.made)
        pytest.main([*self.suite.options(), CAPTURE], plugins=[Held(held)])

    def names(self) -> list[str]:
        """The tests of the suite, for a process that has not imported the product and ends then."""
        found: list[str] = []
        _prepare(self.made)
        held = Held(lambda session: found.extend(item.nodeid for item in session.items))
        pytest.main([*self.suite.options(), CAPTURE], plugins=[held])
        return found

    def judged(self, trial: Trial) -> Verdict:
        """Run the tests with a mutant until one fails; that test then runs alone, with it and without."""
        tests, spent, ran, fit = list(trial.tests), 0.0, 0, dict(trial.fit)
        while tests:
            if (left := self.limit - spent) <= 0:
                return Verdict("undecided", ran=ran, fit=fit)
            part = tests[:FIRST] if trial.is_anew and len(tests) == len(trial.tests) else tests
            began = time.monotonic()
            told = self.supervised(trial.wrong, trial.is_anew, part, left)
            spent += time.monotonic() - began
            ran += told.ran
            if told.outcome == "undecided":
                return Verdict("undecided", ran=ran, fit=fit)
            if told.outcome == "survived":
                tests = tests[len(part) :]
            elif self._is_sure(told, trial, part, fit):
                return Verdict("stopped", told.test, told.why, ran, fit)
            elif told.test == COLLECTED:
                return Verdict("undecided", why="its files can't be collected", fit=fit)
            else:
                tests = tests[tests.index(told.test) + 1 :]
        return Verdict("survived", ran=ran, fit=fit)

    def _is_sure(self, told: Verdict, trial: Trial, part: list[str], fit: dict[str, bool]) -> bool:
        """Whether the test that failed also fails alone, and passes without the mistake; `fit` keeps the latter."""
        alone = part[:1] if told.test == COLLECTED else [told.test]
        if alone != part[:1] and self.supervised(trial.wrong, trial.is_anew, alone, LIMIT).outcome != "stopped":
            return False
        if told.test not in fit:
            fit[told.test] = self.supervised(None, trial.is_anew, alone, LIMIT).outcome == "survived"
        return fit[told.test]

    def supervised(self, wrong: Wrong | None, is_anew: bool, tests: Sequence[str], limit: float) -> Verdict:
        """Run tests in a process group of their own, and watch that they end."""
        mine, its = Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="onnxgen-trial-", ignore_cleanup_errors=True) as folder:
            if not (child := os.fork()):
                with contextlib.suppress(BaseException):
                    os.setsid()
                    self._run(wrong, is_anew, tests, Path(folder), its.send)
                os._exit(0)
            its.close()
            try:
                return self._watched(mine, limit)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                mine.close()

    def _watched(self, pipe: Any, limit: float) -> Verdict:
        end, test, ran = time.monotonic() + limit, COLLECTED, 0
        while True:
            times, more = PATIENCE
            patience = COLLECTING if test == COLLECTED else times * self.made.seconds.get(test, 10.0) + more
            left = end - time.monotonic()
            if not pipe.poll(max(0.0, min(left, patience))):
                if left < patience:
                    return Verdict("undecided", ran=ran)
                return Verdict("stopped", test, "has no end", ran)
            try:
                kind, *rest = pipe.recv()
            except EOFError:
                return Verdict("stopped", test, "the process died", ran)
            if kind == "test":
                test, ran = rest[0], ran + 1
            else:
                return Verdict(kind, *rest, ran=ran) if rest else Verdict(kind, ran=ran)

    def _run(self, wrong: Wrong | None, is_anew: bool, tests: Sequence[str], folder: Path, say: Say) -> None:
        os.environ.update(TMPDIR=str(folder), HYPOTHESIS_STORAGE_DIRECTORY=str(folder / "hypothesis"))
        tempfile.tempdir = None
        os.chdir(ROOT)
        if wrong is not None:
            place = folder / "mutant"
            place.write_bytes(marshal.dumps((str(ROOT / wrong.mutant.file), wrong.code)))
            os.environ[MUTANT] = str(place)
        if not is_anew:
            assert self.session is not None
            if wrong is not None:
                self._put(wrong)
            factory: Any = self.session.config._tmp_path_factory  # type: ignore[attr-defined]
            factory._given_basetemp, factory._basetemp = folder / "tests", None
            run_tests(self.session, tests, say)
            return
        if wrong is not None:
            substitute(os.environ[MUTANT])
        _prepare(self.made)
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        options = ["-p", "no:cacheprovider", "-q", CAPTURE, f"--basetemp={folder / 'tests'}"]
        pytest.main([*options, *files], plugins=[Held(lambda session: run_tests(session, tests, say))])
        say(("stopped", COLLECTED, "pytest ends before it runs a test"))

    def _put(self, wrong: Wrong) -> None:
        for key, code in wrong.functions.items():
            for function in self.functions.get((str(ROOT / wrong.mutant.file), key), ()):
                function.__code__ = code


def run_tests(session: pytest.Session, tests: Sequence[str], say: Say) -> None:
    """Run tests in this order until one fails, and say which one runs."""
    from _pytest.runner import runtestprotocol

    if session.testsfailed:
        return say(("stopped", COLLECTED, "its modules can't be imported"))
    items = {item.nodeid: item for item in session.items}
    chosen = [items[test] for test in tests if test in items]
    for item, later in zip(chosen, [*chosen[1:], None]):
        say(("test", item.nodeid))
        for report in runtestprotocol(item, log=False, nextitem=later):
            if report.failed:
                return say(("stopped", item.nodeid, _said(report)))
    say(("survived",))


def _said(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr).split())[:200]


def _prepare(made: Map) -> None:
    """The environment of a worker of the map's run."""
    os.environ.update({"PYTEST_XDIST_WORKER": "gw0", "OMP_NUM_THREADS": "1", KEPT: str(made.place / "exports")})


def preload() -> None:
    """Import what the tests need of others, so that forks need not, but nothing of the product."""
    import black  # noqa: F401
    import hypothesis  # noqa: F401
    import lightning  # noqa: F401
    import onnx.reference  # noqa: F401
    import onnx_ir  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401
    import safetensors.torch  # noqa: F401
    import torch
    import torchmetrics  # noqa: F401

    torch.set_num_threads(1)


def ordered(tests: Sequence[str], made: Map, folder: str, mutant: Mutant) -> list[str]:
    """Tests in the order in which they judge.

    First those whose name has a word of the mistake (an entry of a table is an operator's name), then those of the
    room's own folder, each by their time.
    """
    words = re.compile("|".join(_words(mutant)) or "$^")

    def key(test: str) -> tuple[bool, bool, float, str]:
        return not words.search(_plain(test)), not test.startswith(folder), made.seconds.get(test, 1.0), test

    return sorted(tests, key=key)


def _words(mutant: Mutant) -> set[str]:
    """The quoted words that stand before or after a mistake alone; all of them, if they are only in other places."""
    before, after = (set(re.findall(r"'(\w{3,})'", text)) for text in (mutant.before, mutant.after))
    return {_plain(word) for word in before ^ after or before}


def _plain(text: str) -> str:
    return text.replace("_", "").lower()
