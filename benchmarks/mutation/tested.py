"""Mutation test of every room: one line is made wrong at a time, and the tests that run it should find it.

python -m benchmarks.mutation --judge tests --rooms shapes,ops --mutants 150 --seed 1 [--then-all] [--write]

The suite runs once with coverage, to learn which tests run which line. That takes about twice as long as the suite, and
is kept in `--folder` for the same product and tests; `--old-map` takes the newest map, for files that are still the
same. Mutants are drawn from all lines of a room, whether a test runs them or not. Only the tests that run the line
judge, those of the room's own folder first. `--then-all` tries the survivors of an earlier run again: with all cases,
also those outside the quick tier, of each test function of which a quick case runs the line, and with all tests of the
room's own folder. No second map is needed for that.

A test that fails has run alone, too, with the mistake and without: it judges only if it then fails and passes.
Processes that tests start have the mistake. Tests that build in isolated environments or read a copy of this tree see
none. Run one at a time: a line is put into `site-packages` while this runs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import re
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mutation.covermap import Map, Suite, digests, mapped
from benchmarks.mutation.forks import forked
from benchmarks.mutation.mutants import function_at
from benchmarks.mutation.page import section, with_section
from benchmarks.mutation.rooms import ROOMS, ROOT, Wrong, spread
from benchmarks.mutation.started import told
from benchmarks.mutation.suite import LIMIT, Judge, Trial, Verdict, ordered, preload
from tests.support import forked as forks

Row = dict[str, Any]  # a mutant, and what became of it


class Results:
    """What became of the mutants of each room, kept as JSON: a run that was stopped goes on."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder / f"results-{seed}", seed
        self.folder.mkdir(parents=True, exist_ok=True)

    def rows(self, room: str) -> dict[str, Row]:
        path = self.folder / f"{room}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def add(self, room: str, wrong: Wrong, verdict: Verdict, tier: str, tests: int) -> None:
        rows, name = self.rows(room), str(wrong.mutant)
        found = {"outcome": verdict.outcome, "test": verdict.test, "why": verdict.why, "tier": tier, "tests": tests}
        text = (ROOT / wrong.mutant.file).read_text(encoding="utf-8")
        rows[name] = asdict(wrong.mutant) | {"function": function_at(text, wrong.mutant.line)} | found
        (self.folder / f"{room}.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    of = parser.add_argument_group("with --judge tests", "--mutants is the number of each room; 0 only shows the page")
    of.add_argument("--rooms", default=",".join(ROOMS), help="of %(default)s")
    of.add_argument("--tier", choices=("quick", "all"), default="quick", help="which cases judge")
    of.add_argument("--tier-seed", default="", help="which cases are in the quick tier; default: as --seed")
    of.add_argument("--tests", nargs="*", default=[], metavar="PATH", help="only tests of these folders judge")
    of.add_argument("--then-all", action="store_true", help="try survivors again, with the cases outside the tier, too")
    of.add_argument("--limit", type=float, default=300, help="seconds of the tests of one mutant; then it is undecided")
    of.add_argument("--old-map", action="store_true", help="take the last map, although files have changed since")


def main(args: argparse.Namespace, report: Path) -> None:
    began, rooms = time.monotonic(), args.rooms.split(",")
    suite = Suite(args.folder / "tests", args.tier, args.tier_seed or str(args.seed), tuple(args.tests))
    results = Results(suite.folder, args.seed)
    if args.mutants:
        with told():
            made = mapped(suite, args.jobs, args.old_map)
            print(f"{len(made.seconds)} tests pass, {time.monotonic() - began:.0f} s", flush=True)
            again = Suite(suite.folder, "all", suite.seed, suite.paths) if args.then_all else suite
            Run(Judge(again, made, args.limit), results, args, began).all(plans(rooms, results, made, args))
    text = section({room: list(results.rows(room).values()) for room in ROOMS}, args.seed, suite.tier)
    print(text)
    if args.write:
        report.write_text(with_section(report.read_text(encoding="utf-8"), text), encoding="utf-8")


def plans(rooms: Iterable[str], results: Results, made: Map, args: argparse.Namespace) -> list[tuple[str, Wrong]]:
    """The mutants to try, with their rooms: new ones, or with `--then-all` those that survived."""
    found, now = [], digests()
    for room in rooms:
        rows = results.rows(room)
        same = (w for w in spread(room, args.seed) if now[w.mutant.file] == made.digests.get(w.mutant.file))
        for wrong in itertools.islice(same, args.mutants):
            row = rows.get(str(wrong.mutant))
            if row["outcome"] != "stopped" and row["tier"] != "all" if row and args.then_all else not row:
                found.append((room, wrong))
    return found


class Run:
    """The trials of one call of the command."""

    def __init__(self, judge: Judge, results: Results, args: argparse.Namespace, began: float) -> None:
        self.judge, self.results, self.args = judge, results, args
        self.end = began + 60 * args.minutes
        self.fit: dict[str, bool] = {}

    def all(self, planned: list[tuple[str, Wrong]]) -> None:
        """Try mutants: first those that need the product imported anew, from this process before it has imported it."""
        waiting = [(room, wrong, *candidates(self.judge.made, room, wrong)) for room, wrong in planned]
        forks.share()  # otherwise each trial would start a server of its own
        preload()
        gc.freeze()
        if anew := [one for one in waiting if one[3]]:
            names = next(forked(Judge.names, [self.judge], 1, 600))[1] if self.args.then_all else []
            self.some(anew, names or [])
        if inside := [one for one in waiting if not one[3]]:
            self.judge.hold(lambda names: self.some(inside, names))

    def some(self, part: list[tuple[str, Wrong, list[str], bool]], names: list[str]) -> None:
        work = itertools.takewhile(lambda _: time.monotonic() < self.end, (self.trial(*one, names) for one in part))
        before = time.monotonic()
        for (room, *_), (trial, found) in zip(part, forked(self.judge.judged, work, self.args.jobs, 4 * LIMIT)):
            verdict = found or Verdict("undecided", why="the watching process had no end")
            self.fit.update(verdict.fit)
            if not trial.tests:
                verdict.outcome = "unrun"
            self.results.add(room, trial.wrong, verdict, self.judge.suite.tier, len(trial.tests))
            took, before = time.monotonic() - before, time.monotonic()
            ran = f"{verdict.ran} of {len(trial.tests)} tests ran"
            said = f"{verdict.test}: {verdict.why}" if verdict.test else ran
            print(f"{verdict.outcome:<9} {took:4.0f} s {trial.wrong.mutant}  [{said}]", flush=True)

    def trial(self, room: str, wrong: Wrong, tests: list[str], is_anew: bool, names: list[str]) -> Trial:
        """A mutant with the tests that judge it; `names`: all that there are, for `--then-all`."""
        if self.args.then_all:
            functions = {test.partition("[")[0] for test in tests}
            tests = [t for t in names if t.partition("[")[0] in functions or t.startswith(f"tests/{room}/")]
        fit = [test for test in tests if self.fit.get(test, True)]
        order = ordered(fit, self.judge.made, f"tests/{room}/", wrong.mutant)
        return Trial(wrong, order, is_anew, dict(self.fit))


def candidates(made: Map, room: str, wrong: Wrong) -> tuple[list[str], bool]:
    """The tests that may see a mutant, and whether the product has to be imported anew for them.

    A line that importing runs may matter to every test that runs anything of the file. Where no test is known to run a
    line, a process may that was killed or that got another environment: the room's own tests that start processes.
    """
    file = wrong.mutant.file
    tests, is_imported = made.tests(file, wrong.lines)
    if is_imported or not wrong.functions:
        return sorted({*tests, *(made.tests(file, None)[0] or _of_importers(made, file, room))}), True
    own = [test for test in made.starters if test.startswith(f"tests/{room}/") and test in made.seconds]
    return tests or sorted(own), False


def _of_importers(made: Map, file: str, room: str) -> set[str]:
    """The tests of the room's folder, and those that run a file that imports this one: for a file of tables alone."""
    name = re.escape(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    found = {test for test in made.seconds if test.startswith(f"tests/{room}/")}
    for other in made.digests:
        if re.search(rf"^\s*(from|import) {name}\b", (ROOT / other).read_text(encoding="utf-8"), re.MULTILINE):
            found.update(made.tests(other, None)[0])
    return found
