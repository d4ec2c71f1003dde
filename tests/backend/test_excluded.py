"""What is left out of ONNX's backend tests or may differ more: neither oracle makes what is stated."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx.backend.base import Backend, BackendRep
from onnx.reference import ReferenceEvaluator

from tests.backend.exclusions import EXCLUDED, ROUNDED
from tests.ops.harness import backend_cases, run_case, run_onnxruntime
from tests.support.onnx_cases import kept_cases

MOST = 10
NAMES = {
    "test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed", "test_bernoulli_expanded",
    "test_bernoulli_double_expanded", "test_bernoulli_seed_expanded", "test_loop16_seq_none",
}  # fmt: skip


class Rep(BackendRep):
    def __init__(self, run: Callable[[Sequence[Any]], list[Any]]) -> None:
        self.run = run


class Reference(Backend):
    """ONNX's own evaluator."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Rep:
        names = [i.name for i in model.graph.input]
        session = ReferenceEvaluator(model)
        return Rep(lambda inputs: session.run(None, dict(zip(names, inputs))))


class Onnxruntime(Backend):
    """onnxruntime; it has Bernoulli in the same meaning, but only as of opset 15."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Rep:
        older = onnx.ModelProto()
        older.CopyFrom(model)
        if any("Bernoulli" in n.op_type or "RandomUniformLike" in n.op_type for n in model.graph.node):
            older.opset_import[0].version = 15
        names = [i.name for i in model.graph.input]
        return Rep(lambda inputs: run_onnxruntime(older, dict(zip(names, inputs))))


@functools.cache
def runner_tests(backend: type[Backend]) -> dict[str, type[unittest.TestCase]]:
    """The class of each of the runner's tests of a backend."""
    with kept_cases():
        found = onnx.backend.test.BackendTest(backend, __name__, test_kwargs=ROUNDED).test_cases.values()
    return {name.removesuffix("_cpu"): cases for cases in found for name in vars(cases) if name.endswith("_cpu")}


def passes(backend: type[Backend], name: str) -> bool:
    """Whether a backend passes a test by ONNX's own runner."""
    case = runner_tests(backend)[name](f"{name}_cpu")
    result = unittest.TestResult()
    case.run(result)
    assert not result.skipped
    return result.wasSuccessful()


def test_the_patterns_leave_out_what_they_name() -> None:
    left_out = {name for name in runner_tests(Reference) if any(pattern in name for pattern in EXCLUDED)}
    assert left_out == NAMES and len(NAMES) <= MOST


@pytest.mark.parametrize("name", sorted(NAMES))
def test_both_oracles_differ_from_what_is_stated(name: str) -> None:
    """Twice, since ten coins may fall alike."""
    for backend in (Reference, Onnxruntime):
        assert not (passes(backend, name) and passes(backend, name)), backend


def test_a_loop_that_makes_a_list_of_scalars() -> None:
    (case,) = [case for case in backend_cases("Loop") if case.name == "test_loop16_seq_none"]
    run_case(case)


def test_the_inverse_transform_is_closer_than_what_is_stated() -> None:
    """Both are held to numpy's in double precision; onnxruntime's is not within what is allowed."""
    assert not any(passes(Onnxruntime, name) for name in ROUNDED)
    for case in (c for c in backend_cases("DFT") if c.name in ROUNDED):
        (((x, *_), (stated,)),) = case.data_sets
        exact = np.fft.ifft(x[..., 0].astype(np.float64) + 1j * x[..., 1], axis=1)
        ours = run_case(case, atol=1e-6).outputs[0]
        errors = [np.abs(y[..., 0] + 1j * y[..., 1] - exact).max() for y in (ours, stated)]
        assert errors[0] <= errors[1] < 3e-6
