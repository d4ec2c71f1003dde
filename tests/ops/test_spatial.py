"""Grids, blocks and depth, tiling, local response and columns against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.fuzz import agree, examples, floats, ints
from tests.ops.harness import refusal, run_node, unbound_names

OPS = ["GridSample", "AffineGrid", "DepthToSpace", "SpaceToDepth", "Tile", "LRN", "Col2Im"]


def i64(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@given(
    st.sampled_from(["linear", "nearest", "cubic"]), st.sampled_from(["zeros", "border", "reflection"]),
    st.integers(0, 1), st.booleans(), st.sampled_from([16, 20, 22]), ints(2, 6, 3), st.integers(0, 3),
)  # fmt: skip
@examples(50)
def test_grid_sample(mode: str, padding: str, align: int, volume: bool, opset: int, size: list[int], seed: int) -> None:
    if opset == 16:
        mode, volume = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode), False
    size = size if volume and mode != "cubic" else size[:2]
    grid = floats(2, *[s + 1 for s in size], len(size), seed=seed)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
    agree("GridSample", [floats(2, 2, *size), grid], attrs, opset=opset, rtol=1e-3)


def test_grid_sample_of_a_cubic_volume_is_refused() -> None:
    said = refusal("GridSample", [floats(1, 1, 3, 3, 3), floats(1, 2, 2, 2, 3)], {"mode": "cubic"}, 20)
    assert "cubic" in said and "GridSample" in said


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 1, 3, 4, 5]])
@pytest.mark.parametrize("stored", [set(), {1}])
def test_affine_grid(align: int, size: list[int], stored: set[int]) -> None:
    n = len(size) - 2
    inputs = [floats(2, n, n + 1), i64(size)]
    run_node("AffineGrid", inputs, {"align_corners": align}, 20, initializers=stored, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    attrs = {"blocksize": 2, "mode": mode}
    x = floats(2, 12, 2, 3)
    y = run_node("DepthToSpace", [x], attrs, 13).outputs[0]
    run_node("DepthToSpace", [x], attrs, 13, dynamic=True)
    run_node("SpaceToDepth", [y], {"blocksize": 2, "mode": mode}, 28, expected=[x])


def test_space_to_depth_before_modes() -> None:
    run_node("SpaceToDepth", [floats(2, 3, 4, 6)], {"blocksize": 2}, 13)
    whole = np.arange(32, dtype=np.uint16).reshape(1, 2, 4, 4)
    back = run_node("SpaceToDepth", [whole], {"blocksize": 2}, 13, compare=False).outputs[0]
    run_node("DepthToSpace", [back], {"blocksize": 2}, 13, expected=[whole])


@given(st.data())
@examples(15)
def test_tile(data: Any) -> None:
    rank = data.draw(st.integers(0, 4))
    inputs = [floats(*range(1, 1 + rank)), i64(data.draw(ints(0, 3, rank)))]
    for stored in (set(), {1}):
        agree("Tile", inputs, {}, initializers=stored)


def test_tile_before_opset_6() -> None:
    x = floats(2, 3)
    inputs = [x, np.array([2], np.float32), np.array([1], np.float32)]
    run_node("Tile", inputs, None, 5, initializers={1, 2}, expected=[np.tile(x, (1, 2))])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(3, 5), st.sampled_from([0.75, 0.5]))
@examples(20)
def test_lrn(size: int, channels: int, rank: int, beta: float) -> None:
    """onnxruntime has odd windows and rank 4 only; the others are the text of LRN-13."""
    x = floats(2, channels, *range(2, rank))
    squares = np.zeros_like(x)
    for c in range(channels):
        low, high = max(0, c - (size - 1) // 2), min(channels - 1, c + size // 2)
        squares[:, c] = (x[:, low : high + 1] ** 2).sum(1)
    attrs = {"size": size, "alpha": 0.1, "beta": beta, "bias": 2.0}
    expected = x / (2.0 + np.float32(0.1) / size * squares) ** beta
    run_node("LRN", [x], attrs, 13, expected=[expected.astype(np.float32)])
    if size % 2 and rank == 4:
        run_node("LRN", [x], attrs, 13)


@given(st.data(), st.integers(1, 3))
@examples(30)
def test_col2im(data: Any, n: int) -> None:
    image, block = data.draw(ints(4, 6, n)), data.draw(ints(1, 2, n))
    stride, dilation = data.draw(ints(1, 2, n)), data.draw(ints(1, 2, n))
    pads = data.draw(ints(0, 1, n)) * 2 if data.draw(st.booleans()) else data.draw(ints(0, 1, 2 * n))
    counts = [
        (image[i] + pads[i] + pads[n + i] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1 for i in range(n)
    ]  # fmt: skip
    x = floats(2, 3 * int(np.prod(block)), int(np.prod(counts)))
    attrs = {"strides": stride, "dilations": dilation, "pads": pads}
    inputs, stored = [x, i64(image), i64(block)], data.draw(st.sampled_from([set(), {1, 2}]))
    run_node("Col2Im", inputs, attrs, 18, expected=[folded(x, image, block, **attrs)], initializers=stored, rtol=1e-4)
    if n == 2:  # onnxruntime mixes the channels up over other ranks
        agree("Col2Im", inputs, attrs, opset=18, initializers=stored)


def folded(
    x: np.ndarray[Any, Any], image: list[int], block: list[int], strides: list[int], dilations: list[int],
    pads: list[int],
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Block after block added at its place (the text of Col2Im-18)."""
    n = len(image)
    padded = np.zeros((x.shape[0], x.shape[1] // int(np.prod(block)), *[d + 4 for d in image]), np.float32)
    counts = [
        (image[i] + pads[i] + pads[n + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(n)
    ]  # fmt: skip
    values = x.reshape(*padded.shape[:2], *block, *counts)
    for at in np.ndindex(*block, *counts):
        place = tuple(at[i] * dilations[i] + at[n + i] * strides[i] for i in range(n))
        padded[(..., *place)] += values[(..., *at)]
    return padded[(..., *(slice(pads[i], pads[i] + image[i]) for i in range(n)))]


@pytest.mark.parametrize("op", OPS)
def test_every_schema_name_is_bound(op: str) -> None:
    assert unbound_names(op) == []
