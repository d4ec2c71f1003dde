"""A short run of each hunt, the seeds that failed once, and what finds and shrinks failures itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

from onnxgen import pipeline
from tests.hunts import composite, running, scopes, transplants
from tests.hunts.hunting import judged, recorded
from tests.hunts.judge import Case, Verdict, judge
from tests.hunts.rounding import overflows
from tests.hunts.shrink import shrink

HEADED = (3, 5)  # seeds of composite networks that end in a layer of classes
RUNS = {"scopes": range(25), "modules": range(20), "names": range(20), "composite": range(8)}


def hold(hunt: str, seeds: list[int]) -> Counter[str]:
    """The verdicts of some seeds, none of which may fail."""
    found = judged(hunt, seeds)
    bad = [f"{hunt} {seed}: {v.kind}: {v.what}: {v.detail}" for seed, v in found if v.is_bad]
    assert not bad, "\n".join(bad)
    return Counter(verdict.kind for _, verdict in found)


@pytest.mark.parametrize("hunt", RUNS)
def test_a_short_run(hunt: str) -> None:
    table = hold(hunt, list(RUNS[hunt]))
    assert table["right"] > len(RUNS[hunt]) / 2, table


@pytest.mark.parametrize("seed", (28, 93, 142))
def test_a_drawn_module_takes_its_weights_back(seed: int) -> None:
    """Or refuses them: seeds that crashed, or padded in a way that the form did not know."""
    assert transplants.judged(seed)[0] == ("refused" if seed == 142 else "equal")


@pytest.mark.parametrize("hunt", RUNS)
def test_what_failed_once(hunt: str) -> None:
    hold(hunt, recorded(hunt, "failed.txt"))


def test_a_seed_is_a_case() -> None:
    assert scopes.make(7).model == scopes.make(7).model


def negated(case: Case) -> Case:
    """The case with a Neg of its first output that its file lacks: whoever generates from that file is wrong."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.graph.node.add(op_type="Neg", input=[model.graph.output[0].name], output=["negated"])
    model.graph.output[0].name = "negated"
    return Case(case.seed, model, case.feeds)


def test_a_wrong_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in map(scopes.make, range(20)) if judge(c).kind == "right")
    wrong = negated(case)
    monkeypatch.setattr(onnx, "save", lambda model, path: path.write_bytes(case.model.SerializeToString()))
    verdict = judge(wrong)
    assert (verdict.kind, verdict.what) == ("wrong", "values"), verdict


def test_a_note_that_is_no_line_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in map(scopes.make, range(20)) if judge(c).kind == "right")
    assert judge(case).kind == "right"
    monkeypatch.setattr(pipeline, "inference_notes", lambda model, options: ["two\nlines"])
    assert judge(case).what == "a note"


def test_a_wrong_head_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks that end in a layer of classes get another one, and networks are generated in other types."""
    cases = [c for c in map(composite.make, HEADED) if c.classes]
    assert cases and all(judge(c).kind == "right" for c in cases)
    monkeypatch.setattr(running, "replace_head", lambda model, classes, keep: None)
    assert {judge(c).what for c in cases} == {"shape or dtype"}


def test_overflow_on_the_way_is_told_from_infinity_that_is_given() -> None:
    """A layer that computes in another order may stay finite; nobody is wrong then."""
    text = "<ir_version: 8, opset_import: ['': 17]> g (float[2] x) => (float[2] y) { s = Mul(x, x) y = Reciprocal(s) }"
    model = onnx.parser.parse_model(text.replace("'", '"'))
    values = {1e30: True, 1.0: False, float("inf"): False}
    assert {v: overflows(model, {"x": np.full(2, v, np.float32)}) for v in values} == values


def test_a_failure_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a failure that one operator makes, little more than that operator is left."""
    case = next(c for c in map(scopes.make, range(50)) if sum(n.op_type == "MatMul" for n in c.model.graph.node) > 1)
    failing = Verdict("wrong", "values")

    def fails(one: Case) -> Verdict:
        has = any(n.op_type == "MatMul" for n in one.model.graph.node)
        return failing if has and judge(one).kind == "right" else Verdict("right")

    monkeypatch.setattr("tests.hunts.shrink.judge", fails)
    small = shrink(case, failing)
    assert len(small.model.graph.node) <= 3 < len(case.model.graph.node)
    assert any(n.op_type == "MatMul" for n in small.model.graph.node)
