"""onnxruntime's own operators: every node of theirs that `tests/ops` compares with onnxruntime, and how far it lies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.common import ROOT
from benchmarks.conformance.tests import Row
from benchmarks.conformance.ulp import largest
from tests.ops import harness

DRAWN = "20"  # nodes of each operator that is drawn, where the suite has six
DOMAINS = ("com.microsoft", "com.microsoft.nchwc")


class Corpus:
    """A plugin of pytest that notes each comparison, once for each node, type and shape; and which tests fail."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.seen: set[bytes] = set()
        self.numbers: Counter[str] = Counter()
        self.failed: set[str] = set()
        self.skipped: set[str] = set()

    def observe(self, model: onnx.ModelProto, ran: harness.Ran) -> None:
        node = model.graph.node[0]
        if node.domain not in DOMAINS or (mark := _mark(model)) in self.seen:
            return
        self.seen.add(mark)
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].removeprefix("tests/ops/")
        self.numbers[test] += 1
        name = f"{test} #{self.numbers[test]}"
        pairs = list(zip(ran.expected, ran.outputs, strict=False))
        measured = [largest(stated, made) for stated, made in pairs if _is_like(stated, made)]
        ulp = max((n for n in measured if n is not None), default=None)
        self.rows[name] = Row(name, node.op_type, "right", ulp)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid.removeprefix("tests/ops/"))
        elif report.skipped:
            self.skipped.add(report.nodeid.removeprefix("tests/ops/"))


def _mark(model: onnx.ModelProto) -> bytes:
    """What makes a case another one: the node, and the types and sizes of its inputs."""
    stored = [(t.name, t.data_type, tuple(t.dims)) for t in model.graph.initializer]
    given = [value.SerializeToString() for value in model.graph.input]
    return model.graph.node[0].SerializeToString() + repr((stored, given)).encode()


def _is_like(stated: Any, made: Any) -> bool:
    arrays = isinstance(stated, np.ndarray) and isinstance(made, np.ndarray)
    return arrays and stated.shape == made.shape and stated.dtype == made.dtype and stated.dtype != object


def rows(known: Sequence[Row]) -> Sequence[Row]:
    """A row for each case, in the order of names; takes some minutes. A failing test's last case is the wrong one.

    `known`: those of the last table. What this processor has no kernel for stays as it was there, and says so.
    """
    corpus = Corpus()
    os.environ.setdefault("ONNXGEN_DRAWN", DRAWN)
    harness.OBSERVERS.append(corpus.observe)
    try:
        pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", str(ROOT / "tests" / "ops")], plugins=[corpus])
    finally:
        harness.OBSERVERS.remove(corpus.observe)
    for test in corpus.failed & corpus.numbers.keys():
        name = f"{test} #{corpus.numbers[test]}"
        corpus.rows[name] = Row(name, corpus.rows[name].operator, "wrong", corpus.rows[name].ulp)
    kept = [row for row in known if row.name.rpartition(" #")[0] in corpus.skipped]
    corpus.rows |= {row.name: replace(row, note="not run on the processor of the last run") for row in kept}
    return [corpus.rows[name] for name in sorted(corpus.rows)]
