"""The mutation test that tests judge: which mutants there are, how one is put in, and what is said of it."""

from __future__ import annotations

import itertools
import marshal
import os
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.mutation import faults, started
from benchmarks.mutation.covermap import Map, Suite
from benchmarks.mutation.faults import OVER, Fault, Trees, first_failing, in_order, judges
from benchmarks.mutation.mutants import Mutant, by_statement, function_at
from benchmarks.mutation.page import SAME, TITLE, section, with_section
from benchmarks.mutation.rooms import ROOMS, ROOT, Wrong, files, for_type_checkers, same, spread, wrong

FILE = "onnxgen/shapes/dims.py"
ROOM = "tests/shapes/test_a.py"
TREES = Trees(Path("planted"), Path("clean"), Path("exports"), 10)
TIERS = [Suite(Path("maps"), tier, "1", ()) for tier in ("quick", "rest")]


def drawn(count: int) -> list[Wrong]:
    return list(itertools.islice(spread("graph", 1), count))


def of(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Wrong]:
    """All mutants of a module."""
    monkeypatch.setattr("benchmarks.mutation.rooms.ROOT", tmp_path)
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    found = [wrong(mutant, lines) for lines, group in by_statement("one.py", text) for mutant in group]
    return [one for one in found if one is not None]


def test_one_of_each_line() -> None:
    """Every mutant has a line of its own and other bytecode; the same ones are drawn for a seed."""
    found = drawn(12)
    assert len({(one.mutant.file, one.mutant.line) for one in found}) == 12
    assert [one.mutant for one in found] == [one.mutant for one in drawn(12)]
    for one in found:
        path = ROOT / one.mutant.file
        assert not same(compile(path.read_text(encoding="utf-8"), str(path), "exec"), one.code), one.mutant
    assert all(files(room) for room in ROOMS)


def test_what_only_type_checkers_read() -> None:
    assert for_type_checkers("import a\nif TYPE_CHECKING:\n    from b import c\n    d = 1\ne = 2\n") == {2, 3, 4}


def test_the_function_around_a_line() -> None:
    text = "x = 1\n\n\nclass C:\n    @a\n    def f(self):\n        return 1\n\n    y = 2\n"
    assert [function_at(text, line) for line in (1, 5, 7, 9)] == ["", "C.f", "C.f", "C"]


def test_where_a_mistake_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function gets other code, and so does what is around it; a table, a default or a class needs a new import."""
    text = "T = {'a': 1}\n\n\ndef f(x=2):\n    def g(y):\n        return y + 3\n    return g\n\n\nclass C:\n    n = 4\n"
    placed = {one.mutant.before: set(one.functions) for one in of(text, tmp_path, monkeypatch)}
    inner = {("f", 4), ("f.<locals>.g", 5)}
    assert placed == {
        "{'a': 1}": set(), "1": set(), "2": set(), "4": set(), "3": inner, "y + 3": inner, "return y + 3": inner,
        "return g": {("f", 4)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("means_nothing", "counts"),
    [
        ("try:\n    f()\nexcept (A, B):\n    pass\n", "f((A, B))\n"),
        ("isinstance(x, (A, B))\n", "f(x, (A, B))\n"),
        ("x in (A, B)\n", "x < (A, B)\n"),
        ("T = A | None\n", "T = A | B\n"),
    ],
)
def test_an_order_that_means_nothing_is_no_mistake(
    means_nothing: str, counts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(text: str) -> set[str]:
        found = {one.mutant.kind for one in of(text, tmp_path, monkeypatch)}
        return found & {"swapped entries", "swapped operands"}

    assert not swapped(means_nothing) and swapped(counts)


def test_lambdas_of_one_line_are_not_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = of("F = [lambda x: x + 1, lambda x: x - 1]\n", tmp_path, monkeypatch)
    assert found and all(not one.functions for one in found)


def test_other_code_in_a_function() -> None:
    """What a mutant holds can stand in the place of the function's own code."""
    from onnxgen.shapes import dims

    text = (ROOT / FILE).read_text(encoding="utf-8")
    mutants = [(lines, one) for lines, group in by_statement(FILE, text) for one in group]
    lines, mutant = next((lines, one) for lines, one in mutants if one.kind == "returns nothing")
    made = wrong(mutant, lines)
    assert made is not None
    (name, line), code = next(iter(made.functions.items()))
    right = getattr(dims, name)
    assert (right.__code__.co_qualname, right.__code__.co_firstlineno) == (name, line)
    assert FunctionType(code, right.__globals__).__code__.co_code != right.__code__.co_code


def test_processes_have_the_mistake(tmp_path: Path) -> None:
    """A process that is told where the mutant is imports it, wherever PYTHONPATH points; another one does not."""
    path = ROOT / "onnxgen" / "_version.py"
    mutant = tmp_path / "mutant"
    mutant.write_bytes(marshal.dumps((str(path), compile("__version__ = 'wrong'", str(path), "exec"))))
    code = f"{started.LINE}import sys; sys.path.insert(0, {str(ROOT)!r}); import onnxgen; print(onnxgen.__version__)"
    told = {**os.environ, started.STARTED: started.__file__, started.MUTANT: str(mutant), "PYTHONPATH": ""}
    said = [
        subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.strip()
        for env in (told, {**told, started.STARTED: ""})
    ]
    assert said[0] == "wrong" and said[1] != "wrong"


def test_the_page() -> None:
    """The second part is written anew, and the first one stays."""
    mutant = Mutant("onnxgen/ops/a.py", 7, "off by one", "1", "2", 0, 0)
    row = {**vars(mutant), "function": "f", "test": "", "why": "", "tests": 3}
    rows = [{**row, "outcome": "stopped", "tier": "quick"}, {**row, "outcome": "survived", "tier": "all"}]
    name, reason = next(iter(SAME.items()))
    parts = re.fullmatch(r"(?P<file>\S+) (?P<function>\S*) (?P<kind>.*?): `(?P<before>.*)` -> `(?P<after>.*)`", name)
    equal = {**row, **parts.groupdict(), "outcome": "undecided", "tier": "quick"}
    elsewhere = {**equal, "function": "another"}
    text = section({"ops": [*rows, equal, elsewhere], "code": []}, 1, "quick")
    assert "**1 of 4 mutants are stopped by a test: 25.0%**" in text and "| ops | 4 | 1 | 0 | 1 | 1 | 0 | 1 |" in text
    assert text.count(reason) == 1
    assert "- `onnxgen/ops/a.py:7` off by one: `1` becomes `2`; 3 tests run it" in text
    page = with_section("# First\n\nThis.\n", text)
    assert page.startswith("# First\n\nThis.\n\n" + TITLE) and with_section(page, text) == page


# ---- faults of the past ----------------------------------------------------------------------------------------------


def known(lines: dict[int, set[str]], seconds: dict[str, float]) -> Map:
    return Map(Path("map"), seconds, {}, set(), {}, {FILE: lines})


def test_which_functions_judge_a_fault() -> None:
    """Those near a changed line, but for what the mend taught; where importing runs it, those of the whole file."""
    near, on, taught, far, other = (f"{ROOM}::{name}" for name in ("near[1]", "on[1]", "taught[2]", "far", "other"))
    other = other.replace("shapes", "code")
    lines = {3: {near, other}, 4: {on, taught}, 9: {""}, 20: {far}}
    made = known(lines, {near: 3.0, on: 2.0, taught: 1.0, far: 5.0, other: 0.1})
    fault = Fault("1", "", "", frozenset({"taught"}))
    assert judges(fault, {FILE: {4}}, made) == [f"{ROOM}::on", f"{ROOM}::near", other]
    assert judges(fault, {FILE: {8}}, made) == []
    assert judges(fault, {FILE: {9}}, made) == [f"{ROOM}::on", f"{ROOM}::near", far, other]


def test_all_cases_of_a_function_judge() -> None:
    """The tier chooses among all cases of a function, as it does in the whole suite."""
    names = ["a.py::f[1]", "a.py::g", "a.py::f[2 3]", "a.py::h", "b.py::f[1]"]
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    chosen = in_order(items, {"a.py::g": 0, "a.py::f": 1})
    assert [item.nodeid for item in chosen] == ["a.py::g", "a.py::f[1]", "a.py::f[2 3]"]


@pytest.mark.parametrize(
    ("fails", "found"),
    [
        ({("planted", "quick"): "f[1]", ("planted", "rest"): "f[2]"}, ("quick", "f[1]")),
        ({("planted", "rest"): "f[2]"}, ("rest", "f[2]")),
        ({("planted", "quick"): "f[1]", ("clean", "quick"): "f[1]", ("planted", "rest"): "f[2]"}, ("rest", "f[2]")),
        ({("planted", "quick"): OVER}, ("", OVER)),
        ({("planted", "quick"): OVER, ("planted", "rest"): "g"}, ("rest", "g")),
        ({}, ("", "")),
    ],
)
def test_other_cases_judge_what_no_quick_case_finds(
    fails: dict[tuple[str, str], str], found: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that fails without the fault, too, does not count, and those behind it are tried."""

    def failing(folder: Path, functions: list[str], suite: Suite, trees: Trees) -> str:
        failed = fails.get((str(folder), suite.tier), "")
        return failed if failed == OVER or failed.partition("[")[0] in functions else ""

    monkeypatch.setattr(faults, "failing", failing)
    assert first_failing(["f", "g"], TREES, TIERS) == found
