"""Which tests run a line of the product: one run of the suite, noted by `recorder.py`, and kept in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.mutation.recorder import BETWEEN
from benchmarks.mutation.rooms import ROOMS, ROOT, files
from benchmarks.mutation.started import LINES

KEPT = "ONNXGEN_KEPT_EXPORTS"  # as in `tests/conftest.py`


@dataclass(frozen=True)
class Suite:
    """The tests that judge.

    Attributes:
        folder: where maps and results are kept.
        tier, seed: as `tests/support/tiers.py` takes them.
        paths: the folders of tests; all if there are none.
    """

    folder: Path
    tier: str
    seed: str
    paths: tuple[str, ...]

    def options(self) -> list[str]:
        return ["--tier", self.tier, "--seed", self.seed, "-p", "no:cacheprovider", "-q", *self.paths]


@dataclass
class Map:
    """What the run found.

    Attributes:
        place: its folder, which has `lines` (coverage's data) and `exports` (the exported networks of the zoo).
        seconds: how long each test took that passed.
        users: the tests that use what a fixture or a cache keeps.
        starters: the tests that start processes.
        digests: of the files of the product.
    """

    place: Path
    seconds: dict[str, float]
    users: dict[str, set[str]]
    starters: set[str]
    digests: dict[str, str]
    _known: dict[str, dict[int, set[str]]] = field(default_factory=dict)

    def tests(self, file: str, lines: range | None) -> tuple[list[str], bool]:
        """The tests that run any of these lines of a file (None: any at all), and whether importing runs one."""
        known = self._lines(file)
        found: set[str] = set().union(*(known.get(line, set()) for line in known if lines is None or line in lines))
        tests: set[str] = set().union(*(self.users.get(context, {context}) for context in found))
        return sorted(test for test in tests if test in self.seconds), "" in found

    def _lines(self, file: str) -> dict[int, set[str]]:
        from coverage import CoverageData

        if file not in self._known:
            data = CoverageData(str(self.place / "lines"))
            data.read()
            contexts = data.contexts_by_lineno(str(ROOT / file))
            self._known[file] = {line: set(names) for line, names in contexts.items()}
        return self._known[file]


def mapped(suite: Suite, jobs: int, is_old_good: bool) -> Map:
    """The map of the tree as it is, made if there is none; `is_old_good`: the newest one that there is."""
    product = digests()
    tests = sorted(path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".txt", ".jinja"))
    version = hashlib.sha256("".join(product.values()).encode() + b"".join(path.read_bytes() for path in tests))
    which = f"map-{suite.tier}-{suite.seed}-{hashlib.sha256(' '.join(suite.paths).encode()).hexdigest()[:6]}"
    place = suite.folder / f"{which}-{version.hexdigest()[:12]}"
    if is_old_good and (old := sorted(suite.folder.glob(f"{which}-*/found.json"), key=lambda p: p.stat().st_mtime)):
        place = old[-1].parent
    if not (place / "found.json").exists():
        shutil.rmtree(place, ignore_errors=True)
        _made(suite, place, jobs, product)
    found: dict[str, Any] = json.loads((place / "found.json").read_text(encoding="utf-8"))
    seconds = {test: took for test, (took, passed) in found["tests"].items() if passed}
    return Map(place, seconds, _users(found["uses"]), set(found["starters"]), found["digests"])


def digests() -> dict[str, str]:
    """A digest of each file of the rooms and of what else they import."""
    paths = sorted({*(ROOT / "onnxgen").rglob("*.py"), *(path for room in ROOMS for path in files(room))})
    return {p.relative_to(ROOT).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def _made(suite: Suite, place: Path, jobs: int, product: dict[str, str]) -> None:
    """Run the suite, and put together what its processes noted."""
    import coverage

    (place / "exports").mkdir(parents=True)
    began = time.monotonic()
    environment = {**os.environ, LINES: str(place / "part"), "ONNXGEN_MUTATION_ROOT": str(ROOT)}
    environment["ONNXGEN_MUTATION_EXPORTS"] = str(place / "exports")
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.mutation.recorder", *suite.options()]
    command += ["-n", str(jobs), "--dist", "worksteal"]
    with (place / "pytest.log").open("wb") as log:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)
    parts = [path for path in place.glob("part*") if path.suffix != ".json"]
    whole = coverage.Coverage(data_file=str(place / "lines"), config_file=False, messages=False)
    whole.combine([str(path) for path in parts], strict=True)
    whole.save()
    found: dict[str, Any] = {"tests": {}, "uses": {}, "starters": [], "digests": product}
    for path in place.glob("part*.json"):
        one = json.loads(path.read_text(encoding="utf-8"))
        found["tests"].update(one["tests"])
        found["starters"] += one["starters"]
        for context, used in one["uses"].items():
            found["uses"][context] = sorted({*found["uses"].get(context, ()), *used})
    found["took"] = time.monotonic() - began
    (place / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _users(uses: dict[str, list[str]]) -> dict[str, set[str]]:
    """Turn what each context uses into the tests that use each shared context, through others, too."""

    @cache
    def reached(context: str) -> frozenset[str]:
        waiting, seen = [context], {context}
        while waiting:
            new = set(uses.get(waiting.pop(), ())) - seen
            seen |= new
            waiting += new
        return frozenset(seen - {context})

    found: dict[str, set[str]] = {}
    for context in uses:
        if not context.startswith(("fixture ", "cache ", BETWEEN)):
            for shared in reached(context):
                found.setdefault(shared, set()).add(context)
    return found
