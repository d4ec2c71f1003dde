"""NonMaxSuppression against onnxruntime and against ONNX's stated outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.harness import run_node, unbound_names
from tests.support.tiers import drawn


def test_every_schema_version_binds() -> None:
    assert unbound_names("NonMaxSuppression") == []


def scalar(value: float | int | None, dtype: str) -> Any:
    return None if value is None else np.array([value], dtype)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([None, 0, 1, 3, 100]),
    st.sampled_from([None, 0.0, 0.25, 0.5, 1 / 3, 1.0]),
    st.sampled_from([None, 0.3, 0.5, -1.0]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=drawn(120), deadline=None)
def test_random(
    seed: int, most: int | None, iou: float | None, score: float | None, centered: bool, stored: bool
) -> None:
    """Few different coordinates and scores, so that boxes touch, are equal, have no area, and tie."""
    random = np.random.default_rng(seed)
    batch, classes, count = random.integers(1, 3), random.integers(1, 4), random.integers(1, 12)
    boxes = (random.integers(0, 4, (batch, count, 4)) / 4).astype(np.float32)
    scores = (random.integers(0, 6, (batch, classes, count)) / 10).astype(np.float32)
    inputs = [boxes, scores, scalar(most, "int64"), scalar(iou, "float32"), scalar(score, "float32")]
    given_ones = {i for i in (2, 3, 4) if inputs[i] is not None}
    attrs = {"center_point_box": int(centered)}
    run_node("NonMaxSuppression", inputs, attrs, initializers=given_ones if stored else frozenset(), dynamic=True)


@pytest.mark.parametrize("opset", [10, 11, 13])
@pytest.mark.parametrize("centered", [0, 1])
def test_real_sizes(opset: int, centered: int) -> None:
    random = np.random.default_rng(3)
    corner, size = random.random((1, 300, 2)), random.random((1, 300, 2)) * 0.3
    boxes = np.concatenate([corner, size if centered else corner + size], -1).astype(np.float32)
    scores = random.random((1, 5, 300)).astype(np.float32)
    inputs = [boxes, scores, np.array([50]), np.array([0.45], np.float32), np.array([0.25], np.float32)]
    run_node("NonMaxSuppression", inputs, {"center_point_box": centered}, opset=opset, initializers={2, 3, 4})


def test_no_boxes() -> None:
    boxes, scores = np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32)
    run_node("NonMaxSuppression", [boxes, scores, np.array([3])], dynamic=True, expected=[np.zeros((0, 3), np.int64)])


def test_infinite_and_missing_scores() -> None:
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.01], [2, 2, 3, 3], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[np.inf, 0.5, -np.inf, 0.1]]], np.float32)
    run_node("NonMaxSuppression", [boxes, scores, np.array([4]), np.array([0.5], np.float32)])
