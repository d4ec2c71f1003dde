"""What the table of `verify` shows of differences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from onnxgen.cli.generating import print_report
from onnxgen.verify import OutputCheck, Run, VerifyReport, gradients, verify
from onnxgen.verify.compare import Tolerance, compare
from tests.conftest import ROOT


def relative(expected: list[float], got: list[float]) -> float | None:
    return compare(np.array(expected), np.array(got), Tolerance()).relative


def test_a_difference_is_no_part_of_0() -> None:
    assert relative([0.0, 2.0], [1e-9, 2.0]) is None
    assert relative([0.0, 2.0], [1e-9, 2.1]) == pytest.approx(0.05)
    assert relative([0.0, 2.0], [0.0, 2.0]) == 0.0 and relative([np.nan], [np.nan]) == 0.0
    assert compare(np.zeros(3), np.full(3, 1.0), Tolerance()).why


def test_nor_is_it_in_a_sequence() -> None:
    zero, two = np.array([0.0]), np.array([2.0])
    both: list[Any] = [zero, two]
    assert compare(both, [zero + 1e-9, two * 1.1], Tolerance()).relative == pytest.approx(0.1)
    assert compare([zero], [zero + 1e-9], Tolerance()).relative is None
    assert compare([], [], Tolerance()).relative == 0.0


def test_the_table_has_a_dash_there(capsys: pytest.CaptureFixture[str]) -> None:
    output = OutputCheck("y", "float32 [1]", "float32 [1]", 1e-9, None, "values", "")
    report = VerifyReport("m.onnx", "m.py", tolerance="rtol 0.001", runs=[Run(0, {}, {}, "onnxruntime", [output])])
    print_report(report, quiet=False)
    header, row = (line.split() for line in capsys.readouterr().out.splitlines()[1:3])
    assert row[-3:] == ["1e-09", "-", "ok"] and header[-1] == "relative"
    assert json.loads(json.dumps(report.as_json()))["runs"][0]["outputs"][0]["relative"] is None


def test_groups_that_time_ran_out_for_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least one group is compared, however slow the machine is."""
    monkeypatch.setattr(gradients, "MAX_SECONDS", -1.0)
    report = verify(ROOT / "samples/mnist/mnist.onnx", runs=1)
    found = report.gradients
    assert found.held == 1 and found.not_compared == found.groups - 1 > 0
    print_report(report, quiet=False)
    assert f"1 of {found.groups} groups" in (printed := " ".join(capsys.readouterr().out.split()))
    assert f"{found.not_compared} not compared (time ran out)" in printed
    assert printed.endswith(f"; not compared: the gradients of {found.not_compared} of {found.groups} groups")
