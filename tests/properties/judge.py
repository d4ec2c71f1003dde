"""What a drawn node is held to: onnxruntime's outputs, strictly in shape and dtype, within what rounding explains.

    test_conv = agreement(conv(), 60)

is a test of 60 drawn cases. ONNXGEN_EXAMPLES=100 draws a hundred times as many, others each time; without it they are
the same in every run. `python -m tests.properties conv 10000` goes on after failures, and prints one of each kind.

What onnxruntime refuses is no example. What we refuse and it runs is a failure, unless `EXACT` says why no code could
be exact.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from onnxgen.errors import OnnxgenError
from tests.ops.harness import Value, assert_same, node_model, run_model, run_onnxruntime
from tests.support.tiers import drawn

TIMES = int(os.environ.get("ONNXGEN_EXAMPLES", "0"))
EPS = float(np.finfo(np.float32).eps)

# Refusals that stand: (operator, what the message says, why).
EXACT: list[tuple[str, str, str]] = []


@dataclass(frozen=True)
class Case:
    """A model of one node and what it is given.

    Attributes:
        inputs: an array each, None where it is left out.
        outputs: how many, or their names.
        stored: indices of inputs that the file stores; the others are given at run time.
        named: axes of the others that have a name in the file instead of a size.
        rtol: the relative tolerance; 0 where every operation is exact.
        atol: the absolute tolerance.
        before: the type that the first input is cast to before the node gets it.
        after: the type that the first output is cast to.
    """

    op: str
    inputs: list[Value]
    attrs: dict[str, Any] = field(default_factory=dict)
    opset: int = 21
    outputs: int | list[str] = 1
    stored: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()
    rtol: float = 0.0
    atol: float = 0.0
    before: int | None = None
    after: int | None = None

    def model(self) -> onnx.ModelProto:
        """The node; between two Casts where its first input or output has a type that numpy lacks."""
        model = node_model(
            self.op, self.inputs, self.attrs, self.opset, self.outputs, set(self.stored), dynamic=self.named
        )
        nodes, graph = list(model.graph.node), model.graph
        if self.before is not None:
            nodes[0].input[0] = "wide"
            nodes.insert(0, onnx.helper.make_node("Cast", ["i0"], ["wide"], to=self.before))
        if self.after is not None:
            nodes[-1].output[0] = "narrow"
            nodes.append(onnx.helper.make_node("Cast", ["narrow"], ["o0"], to=self.after))
        if len(nodes) > 1:
            del graph.node[:], graph.value_info[:]
            graph.node.extend(nodes)
            graph.output[0].ClearField("type")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return onnx.shape_inference.infer_shapes(model)
        return model

    def __repr__(self) -> str:
        shown = [None if v is None else f"{v.dtype}{list(v.shape)}={v.ravel()[:12].tolist()}" for v in self.inputs]
        flags = f"outputs={self.outputs}, stored={sorted(self.stored)}, named={sorted(self.named)}"
        flags += "".join(f", {n}={v}" for n, v in (("before", self.before), ("after", self.after)) if v is not None)
        return f"{self.op}-{self.opset}({shown}, {self.attrs}, {flags}, rtol={self.rtol:.2g}, atol={self.atol:.2g})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass
class Tally:
    """How a test's cases went: `held`, `refused` by onnxruntime, `exact` (refused by us, with a reason)."""

    counts: Counter[str] = field(default_factory=Counter)
    last: str = ""  # onnxruntime's last refusal

    def judge(self, case: Case) -> None:
        """Raises AssertionError where we differ; `assume`s that onnxruntime runs the case."""
        model = case.model()
        feeds = {f"i{n}": v for n, v in enumerate(case.inputs) if v is not None and n not in case.stored}
        try:
            expected = run_onnxruntime(model, feeds)
        except Exception as error:
            self.counts["refused"] += 1
            self.last = str(error)
            assume(False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ran = run_model(model, feeds)
        except OnnxgenError as error:
            assert any(case.op == op and re.search(text, str(error)) for op, text, _ in EXACT), f"refused: {error}"
            self.counts["exact"] += 1
            return
        for actual, wanted in zip(ran.outputs, expected, strict=True):
            assert_same(actual, wanted, case.rtol, case.atol)
        self.counts["held"] += 1

    def assert_mostly_held(self) -> None:
        """A test whose cases are mostly refused shows little."""
        assert self.counts["held"] > self.counts["refused"] + self.counts["exact"], (self.counts, self.last)


def profile(count: int) -> settings:
    """So many examples, the same ones each time; or ONNXGEN_EXAMPLES times as many, others each time."""
    return settings(
        max_examples=drawn(count) * max(1, TIMES),
        derandomize=not TIMES,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.generate, Phase.shrink],
    )


def agreement(cases: st.SearchStrategy[Case], count: int) -> Callable[[], None]:
    """A test of so many cases; most of them must be such as onnxruntime runs."""
    tally = Tally()

    @profile(count)
    @given(cases)
    def each(case: Case) -> None:
        tally.judge(case)

    def test() -> None:
        tally.counts.clear()
        each()
        tally.assert_mostly_held()

    test.cases = cases  # type: ignore[attr-defined]  # for __main__
    test.is_hypothesis_test = True  # type: ignore[attr-defined]  # for the tiers
    return test


def sums(terms: int, largest: float) -> float:
    """How far two sums of so many numbers in float32 can be apart, whatever their order; `largest` bounds a number."""
    return 2 * max(terms, 1) * max(terms, 1) * EPS * largest
