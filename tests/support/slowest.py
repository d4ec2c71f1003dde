"""Where the suite's time goes: the fifty slowest tests and files, by seconds of the processor.

    make slowest                                          # the whole suite
    python -m tests.support.slowest tests/ops -n0         # a part of it; the words go to pytest

Seconds of the processor are the test's own, and those of the processes that it started and waited for. A busy machine
hardly changes them. Seconds of the clock stand beside them. What a session makes once counts for the first test that
asks for it. Every test is in build/slowest.json.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forked

RECORD = Path(__file__).resolve().parents[2] / "build" / "slowest.json"
SHOWN = 50


def used() -> float:
    """Seconds of the processor that this process, its finished children and its forks took so far."""
    return sum(os.times()[:4]) + forked.spent


class Measured:
    """A plugin of pytest: in a worker it notes what a test took, in the first process it adds up and prints."""

    def __init__(self) -> None:
        self.mark = 0.0
        self.clock: Counter[str] = Counter()
        self.processor: Counter[str] = Counter()

    def pytest_runtest_logstart(self) -> None:
        self.mark = used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        now = used()
        report.processor = now - self.mark  # xdist carries a report's attributes to the first process
        self.mark = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.clock[report.nodeid] += report.duration
        self.processor[report.nodeid] += getattr(report, "processor", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.clock:
            return
        RECORD.parent.mkdir(exist_ok=True)
        record = {name: [round(self.processor[name], 3), round(self.clock[name], 3)] for name in self.clock}
        RECORD.write_text(json.dumps(record, indent=0), encoding="utf-8")
        files: Counter[str] = Counter()
        for name, seconds in self.processor.items():
            files[name.split("::")[0]] += seconds
        say = terminalreporter.write_line
        for title, counted in (("tests", self.processor), ("files", files)):
            terminalreporter.section(f"slowest {title}, seconds of the processor")
            for name, seconds in counted.most_common(SHOWN):
                clock = f" {self.clock[name]:7.1f} by the clock" if name in self.clock else ""
                say(f"{seconds:7.1f}{clock}  {name}")
        say(f"{len(self.clock)} tests: {sum(files.values()):.0f} seconds of the processor")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Measured(), "slowest")


if __name__ == "__main__":
    sys.exit(pytest.main(["-p", "tests.support.slowest", "-n", "2", "--dist", "worksteal", "-q", *sys.argv[1:]]))
