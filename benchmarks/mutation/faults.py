"""Real faults of the past, planted again: which does each tier find without the tests that came with the mend?

python -m benchmarks.mutation.faults --count 40 --seed 1 [--map-folder FOLDER]

A fault is a small commit that changed the product and its tests together, whose change of the product can be taken back
in the tree of today. Test functions that the commit changed are what the fault taught. They only say whether there is a
fault: one of them fails with it. Then they are left out, and the others that run a changed line judge, as the map of
`--judge tests` knows them. A test that fails without the fault, too, does not count.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.mutation.covermap import Map, Suite, mapped
from benchmarks.mutation.rooms import ROOT
from benchmarks.mutation.started import told

PRODUCT = ("onnxgen", "build_hooks", "templates")
LARGEST = 60  # lines that a commit changed in the product
LIMIT = 600  # seconds of the tests of one fault
CHOSEN = "ONNXGEN_FAULT_TESTS"  # in the environment: the file with the tests that judge


@dataclass(frozen=True)
class Fault:
    """A commit whose mend is taken back.

    Attributes:
        commit, subject: the one that mended it.
        patch: the mend.
        taught: the test functions that the commit changed.
    """

    commit: str
    subject: str
    patch: str
    taught: frozenset[str]

    def tests(self, made: Map) -> list[str]:
        """The tests of `taught` that the map knows."""
        return [test for test in made.seconds if test.partition("[")[0].rpartition("::")[2] in self.taught]


def git(*words: str, given: str | None = None, where: Path = ROOT) -> str:
    return subprocess.run(["git", *words], cwd=where, input=given, check=True, capture_output=True, text=True).stdout


def faults() -> Iterator[Fault]:
    """The small commits whose change of the product can be taken back and makes other Python."""
    for line in git("log", "--no-merges", "--format=%h %s").splitlines():
        commit, _, subject = line.partition(" ")
        rows = [row.split("\t") for row in git("show", "--numstat", "--format=", commit).splitlines() if row]
        ours = [row for row in rows if row[2].split("/")[0] in PRODUCT]
        tests = [row[2] for row in rows if row[2].startswith("tests/") and row[2].endswith(".py")]
        if not ours or not tests or sum(int(a) + int(b) for a, b, _ in ours if a != "-") > LARGEST:
            continue
        patch = git("show", "--format=", "-U1", commit, "--", *PRODUCT)
        fits = ["git", "apply", "-R", "--check", "-C1"]
        if subprocess.run(fits, cwd=ROOT, input=patch, text=True, stderr=subprocess.DEVNULL).returncode == 0:
            yield Fault(commit, subject, patch, frozenset(_functions(commit, tests)))


def _functions(commit: str, tests: Iterable[str]) -> Iterator[str]:
    """The test functions that a commit changed: those with a changed line in its text of the files."""
    for file in tests:
        try:
            tree = ast.parse(git("show", f"{commit}:{file}"))
        except subprocess.CalledProcessError:  # the commit removed it
            continue
        lines = changed_lines(git("show", "--format=", "-U0", commit, "--", file), "+")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if lines & {*range(first, (node.end_lineno or first) + 1)}:
                    yield node.name


def changed_lines(patch: str, side: str) -> set[int]:
    """The numbers of the lines that a patch changes, in the text before ("-") or after ("+") it."""
    found: set[int] = set()
    for before, after in re.findall(r"^@@ -(\S+) \+(\S+) @@", patch, re.MULTILINE):
        first, _, count = (before if side == "-" else after).partition(",")
        found |= {*range(int(first), int(first) + max(1, int(count or 1)))}
    return found


# ---- a tree with the fault -------------------------------------------------------------------------------------------


def tree(folder: Path) -> Path:
    """A copy of what is committed, in which `onnxgen.build_hooks` and `onnxgen.templates` are its own."""
    git("worktree", "add", "--detach", "--force", str(folder), "HEAD")
    for name in PRODUCT[1:]:
        (folder / "onnxgen" / name).symlink_to(folder / name)
    return folder


def plant(fault: Fault, folder: Path) -> dict[str, set[int]]:
    """Take the mend back; the lines of the tree of today that are then others, by file."""
    git("checkout", "--force", "HEAD", "--", *PRODUCT, where=folder)
    git("apply", "-R", "-C1", given=fault.patch, where=folder)
    changed = git("diff", "--name-only", "--", *PRODUCT, where=folder).splitlines()
    return {file: changed_lines(git("diff", "-U0", "--", file, where=folder), "-") for file in changed}


def changes_code(folder: Path, file: str) -> bool:
    """Whether a file is another program than in the tree of today, and not only another text."""
    if not file.endswith(".py"):
        return True
    trees = [ast.parse((place / file).read_text(encoding="utf-8")) for place in (folder, ROOT)]
    for node in (node for one in trees for node in ast.walk(one)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return ast.dump(trees[0]) != ast.dump(trees[1])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin of pytest, in the copy: only the tests that judge, the quick ones first."""
    chosen = {name: place for place, name in enumerate(json.loads(Path(os.environ[CHOSEN]).read_text()))}
    items[:] = sorted((i for i in items if i.nodeid in chosen), key=lambda item: chosen[item.nodeid])


def failing(folder: Path, tests: Sequence[str], suite: Suite) -> str:
    """The first of these tests that fails in a tree; empty if none does."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(tests))
        file.flush()
        files = sorted({test.partition("::")[0] for test in tests})
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", __spec__.name]
        command += ["--tier", suite.tier, "--seed", suite.seed, "-rfE", "--tb=no", *files]
        environment = {**os.environ, CHOSEN: file.name, "PYTEST_XDIST_WORKER": "gw0", "OMP_NUM_THREADS": "1"}
        environment["ONNXGEN_SHARED"] = str(ROOT.parent / "shared")
        try:
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return ""
    if ran.returncode in (0, 5):
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)
    return found[1] if found else "collecting"


def judged(fault: Fault, lines: dict[str, set[int]], folder: Path, clean: Path, made: Map, suite: Suite) -> str:
    """The test that finds a fault; empty if none does."""
    found: set[str] = set()
    for file, numbers in lines.items():
        for number in numbers:
            found.update(made.tests(file, range(number - 1, number + 2))[0])
    tests = found.difference(fault.tests(made))
    return first_failing(tests, folder, clean, made, suite)


def first_failing(names: Iterable[str], folder: Path, clean: Path, made: Map, suite: Suite) -> str:
    """The first of these tests that fails with a fault and passes without, the fast ones first; empty if none does."""
    tests = sorted(names, key=lambda test: made.seconds[test])
    while tests and (failed := failing(folder, tests, suite)):
        alone = [failed] if failed in tests else tests[:1]
        if not failing(clean, alone, suite):
            return failed
        if failed not in tests:
            return ""
        tests = tests[tests.index(failed) + 1 :]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tier-seed", default="1", help="of the quick tier")
    parser.add_argument("--tier", choices=("quick", "all"), default="quick")
    parser.add_argument("--map-folder", type=Path, default=Path(tempfile.gettempdir(), "onnxgen-mutation", "tests"))
    args = parser.parse_args()
    suite = Suite(args.map_folder, args.tier, args.tier_seed, ())
    with told():
        made = mapped(suite, 2, True)
    folders = [Path(tempfile.mkdtemp(prefix="onnxgen-fault-")) for _ in range(2)]
    planted, clean = (tree(folder / "tree") for folder in folders)
    found = tried = 0
    try:
        drawn = list(faults())
        for fault in random.Random(args.seed).sample(drawn, len(drawn)):
            lines = plant(fault, planted)
            lines = {file: numbers for file, numbers in lines.items() if changes_code(planted, file)}
            if not lines or not first_failing(fault.tests(made), planted, clean, made, suite):
                continue
            test = judged(fault, lines, planted, clean, made, suite)
            tried, found = tried + 1, found + bool(test)
            print(f"{'found' if test else 'MISSED':<7} {fault.commit} {fault.subject[:70]}  [{test}]", flush=True)
            if tried == args.count:
                break
    finally:
        for folder in folders:
            git("worktree", "remove", "--force", str(folder / "tree"))
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{found} of {tried} faults are found by the tier {args.tier}")


if __name__ == "__main__":
    main()
