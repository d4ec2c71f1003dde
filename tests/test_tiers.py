"""What the quick tier has of the suite, and which tests a change needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.conftest import ROOT
from tests.support import tiers
from tests.support.rooms import ABOUT, APART, FLOORS, needed
from tests.support.tiers import quick

NAMES = [
    *(f"a.py::many[{n}]" for n in range(40)),
    "a.py::one",
    *(f"b.py::Class::few[{n}-{m}]" for n in range(2) for m in range(2)),
]


def functions(places: set[int]) -> set[str]:
    return {NAMES[place].partition("[")[0] for place in places}


def test_every_function_is_in_the_quick_tier() -> None:
    for seed in ("0", "4462e2bd"):
        places = quick(NAMES, seed)
        assert functions(places) == {name.partition("[")[0] for name in NAMES}
        assert len(places) < len(NAMES) / 3


def test_a_seed_chooses_the_same_cases_and_no_case_is_never_run() -> None:
    assert quick(NAMES, "a") == quick(NAMES, "a") != quick(NAMES, "b")
    assert set.union(*(quick(NAMES, str(seed)) for seed in range(300))) == {*range(len(NAMES))}


def told(folder: Path, *words: str) -> list[str]:
    """Return the lines that pytest prints for a suite of 41 cases."""
    (folder / "test_it.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(40))\ndef test_n(n): ...\ndef test_one(): ...\n"
    )
    # Plugins of other packages take seconds to import.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.tiers", "-q", "--seed", "7", *words]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


def test_the_tiers_together_are_the_suite(tmp_path: Path) -> None:
    """A case runs in exactly one of the two tiers."""

    def collected(tier: str) -> list[str]:
        return [line for line in told(tmp_path, "--collect-only", "--tier", tier) if "::" in line]

    inside, rest = collected("quick"), collected("rest")
    assert len(inside) < len(rest) and not {*inside} & {*rest}
    assert sorted([*inside, *rest]) == sorted(
        ["test_it.py::test_one", *(f"test_it.py::test_n[{n}]" for n in range(40))]
    )


def test_what_asks_how_many_to_draw_is_in_both_tiers() -> None:
    def asks() -> int:
        return tiers.drawn(200)

    def does_not() -> int:
        return 200

    made: Any = [SimpleNamespace(obj=function) for function in (asks, does_not)] + [SimpleNamespace()]
    assert [tiers._draws(item) for item in made] == [True, False, False]


def test_what_begins_too_late_is_counted_in_one_line(tmp_path: Path) -> None:
    late = told(tmp_path, "-rs", "--shuffle", "7", "--minutes", "0")
    assert any(line.startswith("SKIPPED [41]") and line.endswith("not run: 0 minutes were over") for line in late)
    assert told(tmp_path, "--minutes", "1")[-1].startswith("41 passed")


def test_a_change_needs_its_own_tests_and_those_above() -> None:
    passes, training = {*needed(["onnxgen/passes/fold.py"])}, {*needed(["onnxgen/training/fit.py"])}
    assert {"tests/passes", "tests/quantized", "tests/ops", "tests/zoo", "tests/export"} <= passes
    assert not {"tests/training", "tests/build_hooks", "tests/reader"} & passes
    assert "tests/training" in training and not {"tests/ops", "tests/passes", "tests/zoo"} & training
    assert {*needed(["build_hooks/watch.py"])} == {"tests/build_hooks"}
    assert {*needed(["tests/ops/test_math.py"])} == {"tests/ops"}
    assert {*needed(["docs/DATA.md"])} == {"tests/docs"}


def test_what_every_package_uses_needs_every_test() -> None:
    common = {*needed(["onnxgen/common/paths.py"])}
    assert common == {f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if any(path.glob("**/test_*.py"))}
    for file in ("pyproject.toml", "tests/support/real.py", "onnxgen/__init__.py"):
        assert needed([file]) == {"tests": file}


def test_every_folder_of_tests_is_about_a_package() -> None:
    rooms = {room for names in FLOORS for room in names} | {*APART, "docs"}
    for path in (ROOT / "tests").iterdir():
        if any(path.glob("**/test_*.py")):
            assert {*ABOUT.get(path.name, (path.name,))} <= rooms, path.name
