"""Property tests of operators: what onnxruntime computes, for drawn attributes and sizes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from tests.ops.harness import Ran, assert_same, node_model, run_model, run_onnxruntime
from tests.support.tiers import drawn


def examples(count: int) -> settings:
    """A property test of so many examples, the same ones each time; ONNXGEN_EXAMPLES=10 makes ten times as many."""
    return settings(
        max_examples=drawn(count) * int(os.environ.get("ONNXGEN_EXAMPLES", "1")),
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


def agree(
    op: str, inputs: Sequence[Any], attrs: dict[str, Any], rtol: float = 1e-4, atol: float = 1e-4, **kwargs: Any
) -> Ran:
    """`run_node`, but a node that onnxruntime refuses is no example. `kwargs`: as of `node_model`."""
    model = node_model(op, inputs, attrs, **kwargs)
    initializers = kwargs.get("initializers", ())
    feeds = {f"i{n}": v for n, v in enumerate(inputs) if v is not None and n not in initializers}
    try:
        expected = run_onnxruntime(model, feeds)
    except Exception:
        assume(False)
    ran = run_model(model, feeds)
    for actual, wanted in zip(ran.outputs, expected, strict=True):
        assert_same(actual, wanted, rtol, atol)
    return ran


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Distinct random float32 values."""
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape).astype(np.float32)


def ints(low: int, high: int, n: int) -> st.SearchStrategy[list[int]]:
    """A list of n ints."""
    return st.lists(st.integers(low, high), min_size=n, max_size=n)
