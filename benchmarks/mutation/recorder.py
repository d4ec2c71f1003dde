"""A plugin of pytest that notes which lines of the product each test runs, by coverage.py's contexts.

What several tests share, a fixture or what a cache keeps, has a context of its own, and each test's uses are noted:
the lines run in the first test alone, but every test that uses the result may see a mistake in them. Lines that run
when modules are imported and tests collected have the context "".
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation.rooms import ROOT
from benchmarks.mutation.started import CONTEXT, LINES, lines_noted

FEW = 50  # results of one cache that have a context; the others count as the test's own
BETWEEN = "between tests"
STARTS = ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect")  # the last one asks for a fork


class Recorder:
    def __init__(self) -> None:
        self.lines = lines_noted(os.environ[LINES], None)
        self.stack: list[str] = []
        self.uses: dict[str, set[str]] = {}
        self.tests: dict[str, tuple[float, bool]] = {}
        self.starters: set[str] = set()
        self.pid = os.getpid()
        util.register_after_fork(self, Recorder.forked)
        sys.addaudithook(self.audited)

    def forked(self) -> None:
        """In a process that `multiprocessing` forks: it ends without asking whoever waits for the end."""
        util.Finalize(None, self.saved, exitpriority=0)

    def saved(self) -> None:
        self.lines.stop()
        self.lines.save()

    def audited(self, event: str, arguments: Any) -> None:
        if event in STARTS and self.stack and os.getpid() == self.pid:
            self.starters.add(self.stack[0])

    def enter(self, context: str) -> None:
        if self.stack:
            self.uses.setdefault(self.stack[-1], set()).add(context)
        self.stack.append(context)
        self._switch(context)

    def leave(self) -> None:
        self.stack.pop()
        self._switch(self.stack[-1] if self.stack else BETWEEN)

    def _switch(self, context: str) -> None:
        if os.getpid() == self.pid:
            if sys.gettrace() is None:  # a test that traces has ended it
                self.lines.stop()
                self.lines.start()
            self.lines.switch_context(context)
            os.environ[CONTEXT] = context

    def share(self) -> None:
        """Give what caches keep a context, those of the product and of the tests."""
        modules = [m for name, m in sys.modules.items() if name.partition(".")[0] in ("onnxgen", "tests")]
        made: dict[int, tuple[Any, Any]] = {}
        for module in modules:
            for name, value in list(vars(module).items()):
                if type(value) is functools._lru_cache_wrapper and value.cache_parameters()["maxsize"] is None:
                    _, shared = made.setdefault(id(value), (value, self.cached(value)))
                    setattr(module, name, shared)

    def cached(self, function: Any) -> Callable[..., Any]:
        context = f"cache {function.__module__}:{function.__qualname__}"
        count = Counter[str]()

        @functools.cache
        @functools.wraps(function.__wrapped__)
        def computed(*args: Any, **kwargs: Any) -> Any:
            count[context] += 1
            if count[context] > FEW or not self.stack:
                return function.__wrapped__(*args, **kwargs)
            self.enter(context)
            try:
                return function.__wrapped__(*args, **kwargs)
            finally:
                self.leave()

        @functools.wraps(function.__wrapped__)
        def used(*args: Any, **kwargs: Any) -> Any:
            if self.stack:
                self.uses.setdefault(self.stack[-1], set()).add(context)
            return computed(*args, **kwargs)

        for name in ("cache_clear", "cache_info", "cache_parameters"):
            setattr(used, name, getattr(computed, name))
        return used

    # ---- hooks -------------------------------------------------------------------------------------------------------

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        import_all()
        self.share()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.enter(item.nodeid)
        info = getattr(item, "_fixtureinfo", None)
        for definitions in (info.name2fixturedefs if info else {}).values():
            for one in definitions:
                if one.scope != "function":
                    self.uses.setdefault(item.nodeid, set()).add(_fixture(one))
        try:
            return (yield)
        finally:
            self.leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function" or not self.stack:
            return (yield)
        self.enter(_fixture(fixturedef))
        try:
            return (yield)
        finally:
            self.leave()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds, passed = self.tests.get(report.nodeid, (0.0, True))
        self.tests[report.nodeid] = seconds + report.duration, passed and report.passed

    def pytest_sessionfinish(self) -> None:
        self.saved()
        found = {
            "tests": self.tests,
            "uses": {context: sorted(used) for context, used in self.uses.items()},
            "starters": sorted(self.starters),
        }
        Path(f"{os.environ[LINES]}-{os.getpid()}.json").write_text(json.dumps(found), encoding="utf-8")


def _fixture(definition: Any) -> str:
    return f"fixture {definition.baseid}::{definition.argname}"


def import_all() -> None:
    """Import the whole product, so that no test seems to run what importing a module runs."""
    for folder in ("onnxgen", "build_hooks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("onnxgen", *parts) if folder == "build_hooks" else parts).removesuffix(".__init__")
            if not name.endswith("__main__"):
                try:
                    importlib.import_module(name)
                except ImportError:  # of what is not installed: torch_directml
                    continue


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if _RECORDER is not None:
        config.pluginmanager.register(_RECORDER, "recorder")
    elif LINES in os.environ:  # starts the workers; `tests/conftest.py` has named a folder that goes
        os.environ["ONNXGEN_KEPT_EXPORTS"] = os.environ["ONNXGEN_MUTATION_EXPORTS"]


_RECORDER = Recorder() if "PYTEST_XDIST_WORKER" in os.environ and LINES in os.environ else None
