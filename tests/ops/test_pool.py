"""Pooling against onnxruntime: every geometry, as one tensor's size is known and as it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from tests.ops.fuzz import agree, examples, floats, ints
from tests.ops.harness import (
    assert_same,
    run_model,
    run_node,
    run_onnxruntime,
    unbound_names,
)

OPS = (
    "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxUnpool RoiAlign MaxRoiPool"
).split()  # fmt: skip


@st.composite
def geometry(draw: Any, dilated: bool = True) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    n = draw(st.integers(1, 3))
    kernel = draw(ints(1, 3, n))
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": draw(ints(1, 3, n))}
    if dilated and draw(st.booleans()):
        attrs["dilations"] = draw(ints(1, 2, n))
    auto = draw(st.sampled_from(["NOTSET"] * 4 + ["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if auto != "NOTSET":
        # over gaps between windows, and dilated, onnxruntime has other sizes than its own shape inference
        attrs["auto_pad"] = auto
        attrs.pop("dilations", None)
        attrs["strides"] = [min(s, k) for s, k in zip(attrs["strides"], kernel)]
    elif draw(st.booleans()):
        half = [draw(st.integers(0, k - 1)) for k in kernel]
        attrs["pads"] = half * 2 if draw(st.booleans()) else half + [draw(st.integers(0, k - 1)) for k in kernel]
    if draw(st.booleans()):
        attrs["ceil_mode"] = 1
    return floats(2, 2, *draw(ints(5, 8, n))), attrs


@given(geometry(), st.booleans(), st.sampled_from([12, 22]))
@examples(40)
def test_max_pool(case: Any, dynamic: bool, opset: int) -> None:
    x, attrs = case
    agree("MaxPool", [x], attrs, dynamic=dynamic, opset=opset)


@given(geometry(), st.booleans(), st.integers(0, 1))
@examples(20)
def test_max_pool_with_indices(case: Any, dynamic: bool, order: int) -> None:
    x, attrs = case
    agree("MaxPool", [x], {**attrs, "storage_order": order}, dynamic=dynamic, outputs=2)


@given(geometry(), st.booleans(), st.integers(0, 1), st.sampled_from([11, 19, 22]))
@examples(50)
def test_average_pool(case: Any, dynamic: bool, include: int, opset: int) -> None:
    x, attrs = case
    if opset < 19:
        attrs.pop("dilations", None)
    agree("AveragePool", [x], {**attrs, "count_include_pad": include}, dynamic=dynamic, opset=opset)


@given(geometry(), st.booleans(), st.integers(1, 3), st.sampled_from([11, 18]))
@examples(20)
def test_lp_pool(case: Any, dynamic: bool, p: int, opset: int) -> None:
    x, attrs = case
    if opset < 18:
        attrs.pop("dilations", None)
        attrs.pop("ceil_mode", None)
    agree("LpPool", [x], {**attrs, "p": p}, dynamic=dynamic, opset=opset)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("op", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
def test_global(op: str, shape: tuple[int, ...]) -> None:
    run_node(op, [floats(*shape)])
    run_node(op, [floats(*shape)], dynamic=True)


def test_global_pools_of_every_rank() -> None:
    """torch has them for one to three axes; a matrix has no axis to pool."""
    for rank in range(2, 8):
        x = floats(*range(1, rank + 1))
        axes = tuple(range(2, rank))
        for op, pooled in (
            ("GlobalAveragePool", x.mean(axes, keepdims=True)),
            ("GlobalMaxPool", x.max(axes, keepdims=True)),
            ("GlobalLpPool", np.sqrt((x.astype(np.float64) ** 2).sum(axes, keepdims=True))),
        ):
            for dynamic in (False, True):
                run_node(op, [x], dynamic=dynamic, expected=[pooled.astype(np.float32)])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("shape", [(1, 2, 7), (1, 2, 6, 7)])
def test_max_pool_of_bytes(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape).astype(dtype)
    n = len(shape) - 2
    attrs = {"kernel_shape": [3] * n, "pads": [1] * n + [2] * n, "strides": [2] * n}
    run_node("MaxPool", [x], attrs)
    run_node("MaxPool", [x], attrs, outputs=2)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("shape", [(1, 2, 1, 4), (1, 2, 2, 1), (1, 2, 1, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_images_smaller_than_the_window(op: str, shape: tuple[int, ...], dynamic: bool) -> None:
    """The last stages of networks on tiny images; `torch` itself refuses them."""
    run_node(op, [floats(*shape)], {"kernel_shape": [2, 2], "strides": [2, 2]}, dynamic=dynamic)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_windows_of_networks_that_torch_wrote(op: str) -> None:
    """They never had less than a window: the line is the author's, and torch says so where it is not enough."""
    node = helper.make_node(op, ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    values = [helper.make_tensor_value_info(n, 1, [1, 2, f"{n}h", f"{n}w"]) for n in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "min(2, xh)" in run_model(model, {"x": floats(1, 2, 1, 4)}).forward
    model.producer_name = "pytorch"
    name = "max" if op == "MaxPool" else "avg"
    assert f"F.{name}_pool2d(x, kernel_size=2)" in run_model(model, {"x": floats(1, 2, 5, 4)}).forward
    with pytest.raises(RuntimeError, match="Output size is too small"):
        run_model(model, {"x": floats(1, 2, 1, 4)})


def test_plain_pools_are_torch_calls() -> None:
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    ran = run_node("MaxPool", [floats(1, 2, 9, 9)], attrs, dynamic=True)
    assert "F.max_pool2d(i0, kernel_size=3, stride=2, padding=1)" in ran.forward
    halved = {"kernel_shape": [2, 2], "strides": [2, 2]}
    assert "F.avg_pool2d(i0, kernel_size=2)" in run_node("AveragePool", [floats(1, 2, 8, 8)], halved).forward


@given(ints(1, 3, 2), st.booleans())
@examples(5)
def test_max_unpool(kernel: list[int], given_shape: bool) -> None:
    x = floats(2, 3, 4 * kernel[0], 3 * kernel[1])
    y, index = torch.nn.functional.max_pool2d(torch.from_numpy(x), kernel, kernel, return_indices=True)
    plane = np.arange(6).reshape(2, 3, 1, 1) * x.shape[2] * x.shape[3]
    shape = np.array(x.shape, np.int64) if given_shape else None
    inputs = [y.numpy(), index.numpy() + plane, shape]
    agree("MaxUnpool", inputs, {"kernel_shape": kernel, "strides": kernel}, opset=11)
    agree("MaxUnpool", inputs, {"kernel_shape": kernel, "strides": kernel}, opset=11, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("size", [(5, 7), (6, 5)])
def test_max_unpool_of_an_odd_size(size: tuple[int, int], dynamic: bool) -> None:
    """Windows leave over the last row: indices count in the shape that was pooled, as in onnxruntime."""
    dims = ["n", "c", "h", "w"] if dynamic else [2, 3, *size]
    nodes = [
        helper.make_node("MaxPool", ["x"], ["y", "index"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("MaxUnpool", ["y", "index", "shape"], ["z"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, dims)], [helper.make_tensor_value_info("z", 1, dims)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
    x = floats(2, 3, *size)
    assert_same(run_model(model, {"x": x}).outputs, run_onnxruntime(model, {"x": x}))


def test_max_unpool_to_less_than_its_windows() -> None:
    """Pads are generated then, and indices do not count them. onnxruntime refuses it; PyTorch's has no pads at all."""
    x = torch.from_numpy(floats(1, 1, 7, 7))
    y, index = torch.nn.functional.max_pool2d(x, 2, 2, 1, return_indices=True)
    expected = torch.zeros(49).scatter(0, index.flatten(), y.flatten()).reshape(1, 1, 7, 7).numpy()
    inputs = [y.numpy(), index.numpy(), np.array([1, 1, 7, 7], np.int64)]
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    run_node("MaxUnpool", inputs, attrs, 11, initializers={2}, expected=[expected])
    run_node("MaxUnpool", inputs, attrs, 11, dynamic=True, expected=[expected])


@given(
    st.sampled_from(["avg", "max"]),
    st.integers(0, 3),
    ints(1, 4, 2),
    st.sampled_from(["half_pixel", "output_half_pixel"]),
    st.integers(0, 5),
)
@examples(20)
def test_roi_align(mode: str, ratio: int, size: list[int], shift: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.uniform(-2, 12, (4, 2))
    rois = np.concatenate([corner, corner + rng.uniform(-0.5, 12, (4, 2))], 1).astype(np.float32)
    attrs = {
        "mode": mode, "sampling_ratio": ratio, "output_height": size[0], "output_width": size[1],
        "spatial_scale": 0.5, "coordinate_transformation_mode": shift,
    }  # fmt: skip
    inputs = [floats(2, 3, 6, 7), rois, np.array([0, 1, 1, 0], np.int64)]
    agree("RoiAlign", inputs, attrs, opset=16)
    del attrs["coordinate_transformation_mode"]
    agree("RoiAlign", inputs, attrs, opset=10)


@given(ints(1, 4, 2), st.integers(0, 9))
@examples(10)
def test_max_roi_pool(size: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 8, (4, 2))
    rois = np.concatenate([[[0], [1], [1], [0]], corner, corner + rng.integers(0, 8, (4, 2))], 1).astype(np.float32)
    agree("MaxRoiPool", [floats(2, 3, 6, 7), rois], {"pooled_shape": size, "spatial_scale": 0.5})


@pytest.mark.parametrize("op", OPS)
def test_every_schema_name_is_bound(op: str) -> None:
    assert unbound_names(op) == []
