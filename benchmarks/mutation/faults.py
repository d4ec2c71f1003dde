"""Real faults of the past, planted again: which does each tier find without the tests that came with the mend?

python -m benchmarks.mutation.faults --count 40 --seed 1 [--tier all] [--map-folder FOLDER]

A fault is a small commit that changed the product and its tests together, whose change of the product can be taken back
in the tree of today. Test functions that the commit changed are what the fault taught. They only say whether there is a
fault: one of them fails with it. Then they are left out, and the others that run a changed line judge, as the map of
`--judge tests` knows them for the quick tier. With `--tier all`, the other cases of the same functions judge what no
quick case finds: no second map is needed. A function that fails without the fault, too, does not count.
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
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.mutation.covermap import KEPT, Map, Suite, mapped
from benchmarks.mutation.rooms import ROOT
from benchmarks.mutation.started import told
from tests.support.tiers import function_of

PRODUCT = ("onnxgen", "build_hooks", "templates")
LARGEST = 60  # lines that a commit changed in the product
CHOSEN = "ONNXGEN_FAULT_TESTS"  # in the environment: the file with the functions that judge, then with what failed
OVER = "the time was over"


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

    def functions(self, made: Map) -> set[str]:
        """The functions of `taught` that the map knows."""
        return {name for name in map(function_of, made.seconds) if name.rpartition("::")[2] in self.taught}


@dataclass(frozen=True)
class Trees:
    """Where the tests run: the tree with the fault and the one without, the networks that both need not export anew,
    and after how many minutes no other test begins.
    """

    planted: Path
    clean: Path
    exports: Path
    minutes: float


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
    """As a plugin of pytest, in a tree: only the functions that judge, the quick ones first. The tier then chooses."""
    chosen = {name: place for place, name in enumerate(json.loads(Path(os.environ[CHOSEN]).read_text()))}
    items[:] = in_order(items, chosen)


def in_order(items: Iterable[pytest.Item], chosen: dict[str, int]) -> list[pytest.Item]:
    """All cases of the functions that are chosen, in the order of their places."""
    found = [(chosen[function_of(item.nodeid)], item) for item in items if function_of(item.nodeid) in chosen]
    return [item for _, item in sorted(found, key=lambda one: one[0])]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        Path(os.environ[CHOSEN]).write_text(json.dumps([report.nodeid]), encoding="utf-8")


# ---- judging ---------------------------------------------------------------------------------------------------------


def failing(folder: Path, functions: Sequence[str], suite: Suite, trees: Trees) -> str:
    """The first case of these functions that fails in a tree, or the file that can't be collected; empty if none."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "functions.json")
        file.write_text(json.dumps(functions))
        files = sorted({name.partition("::")[0] for name in functions})
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", __spec__.name]
        command += ["--tier", suite.tier, "--seed", suite.seed, "--minutes", str(trees.minutes), "--tb=no", *files]
        command += [f"--basetemp={place}/gw0"]  # else what is built once a session would be another session's
        environment = {**os.environ, CHOSEN: str(file), KEPT: str(trees.exports), "PYTHONPATH": str(folder)}
        environment |= {"PYTEST_XDIST_WORKER": "gw0", "OMP_NUM_THREADS": "1"}
        environment.setdefault("ONNXGEN_SHARED", str(ROOT.parent / "shared"))
        longest = 60 * (trees.minutes + 5)
        try:
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=longest)
        except subprocess.TimeoutExpired:
            return OVER
        (failed, *_) = json.loads(file.read_text())  # the first function, where pytest ends before it reports
    if ran.returncode in (0, 5):
        return OVER if "minutes were over" in ran.stdout else ""
    return str(failed)


def judges(fault: Fault, lines: dict[str, set[int]], made: Map) -> list[str]:
    """The functions with a test that runs a changed line or its neighbour, without those that the fault taught.

    What importing runs, such as an entry of a table, may matter to every test that runs anything of the file. Those of
    the changed folder come first, and the fast ones.
    """
    found: set[str] = set()
    for file, numbers in lines.items():
        for number in numbers:
            found.update(made.tests(file, range(number - 1, number + 2))[0])
            if made.tests(file, range(number, number + 1))[1]:
                found.update(made.tests(file, None)[0])
    seconds = dict.fromkeys({function_of(test) for test in found} - fault.functions(made), 0.0)
    for test, took in made.seconds.items():
        if (name := function_of(test)) in seconds:
            seconds[name] += took
    near = tuple(f"tests/{Path(file.removeprefix('onnxgen/')).parts[0]}/" for file in lines)
    return sorted(seconds, key=lambda name: (not name.startswith(near), seconds[name], name))


def first_failing(functions: Sequence[str], trees: Trees, suites: Sequence[Suite]) -> tuple[str, str]:
    """The tier and the first test of these functions that fails with a fault and passes without.

    Both are empty if none does; there is no tier if the time was over.
    """
    is_over = False
    for suite in suites:
        left = [*functions]
        while left and (failed := failing(trees.planted, left, suite, trees)):
            if failed == OVER:
                is_over = True
                break
            alike = [name for name in left if function_of(failed) in (name, name.partition("::")[0])] or left[:1]
            if not failing(trees.clean, alike, suite, trees):
                return suite.tier, failed
            left = [name for name in left[left.index(alike[0]) :] if name not in alike]
    return "", OVER if is_over else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tier-seed", default="1", help="of the quick tier")
    parser.add_argument("--tier", choices=("quick", "all"), default="quick", help="which cases judge")
    parser.add_argument("--minutes", type=float, default=10, help="of the tests of one fault and tier")
    parser.add_argument("--map-folder", type=Path, default=Path(tempfile.gettempdir(), "onnxgen-mutation", "tests"))
    args = parser.parse_args()
    tiers = ("quick", "rest") if args.tier == "all" else ("quick",)
    suites = [Suite(args.map_folder, tier, args.tier_seed, ()) for tier in tiers]
    with told():
        made = mapped(suites[0], 2, True)
    folders = [Path(tempfile.mkdtemp(prefix="onnxgen-fault-")) for _ in range(2)]
    planted, clean = (tree(folder / "tree") for folder in folders)
    trees = Trees(planted, clean, made.place / "exports", args.minutes)
    found = Counter[str]()
    try:
        drawn = list(faults())
        for fault in random.Random(args.seed).sample(drawn, len(drawn)):
            lines = plant(fault, trees.planted)
            lines = {file: numbers for file, numbers in lines.items() if changes_code(trees.planted, file)}
            if not lines or not first_failing(sorted(fault.functions(made)), trees, suites)[0]:
                continue
            functions = judges(fault, lines, made)
            tier, test = first_failing(functions, trees, suites)
            outcome = tier or ("undecided" if test == OVER else "MISSED")
            found[outcome] += 1
            said = f"{fault.commit} {fault.subject[:70]}  [{test or f'{len(functions)} functions judge'}]"
            print(f"{outcome:<9} {said}", flush=True)
            if found.total() == args.count:
                break
    finally:
        for folder in folders:
            git("worktree", "remove", "--force", str(folder / "tree"))
            shutil.rmtree(folder, ignore_errors=True)
    print(f"of {found.total()} faults, the quick tier finds {found['quick']}", end="")
    print(f", and the other cases {found['rest']} more" if args.tier == "all" else "", end="")
    print(f"; {found['undecided']} ran out of time")


if __name__ == "__main__":
    main()
