"""What onnxruntime fuses beside layers and attention: against onnxruntime, or its text where it has no kernel."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from onnxgen.helpers.roi import crop_and_resize
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node

F = np.float32
rng = np.random.default_rng(3)


def run(op_type: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node(op_type, inputs, attrs, domain="com.microsoft", **{"rtol": 1e-4, "atol": 1e-5, **kwargs})


def quantised(dtype: str, scale: float, zero: int) -> list[Any]:
    return [np.array(scale, F), np.array(zero, dtype)]


# ---- sums, products, drops: of these only the parts have CPU kernels -------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_gemm_fast_gelu(bias: bool) -> None:
    x, w, b = floats(2, 3, 8), floats(8, 6, seed=1), floats(6, seed=2) if bias else None
    expected = run("FastGelu", [x @ w, b]).expected
    ran = run("GemmFastGelu", [x, w, b], expected=expected, initializers={1, 2} if bias else {1})
    assert "nn.Linear(8, 6" in ran.source


def test_drops() -> None:
    """Nothing is dropped without training; the dropout is a module."""
    x, bias, residual = floats(2, 3, 8), floats(8, seed=1), floats(2, 3, 8, seed=2)
    run("BiasAdd", [x, bias, residual], expected=[x + bias + residual])
    ratio = np.array(0.25, F)
    for name in ("BiasDropout", "BitmaskBiasDropout"):
        for skip in (None, residual):
            expected = x + bias + (0 if skip is None else skip)
            ran = run(name, [x, bias, skip, ratio], expected=[expected], initializers={1, 3})
            assert "nn.Dropout(0.25" in ran.source or "F.dropout" in ran.source
    run("BiasDropout", [x, bias], outputs=2, expected=[x + bias, np.ones(x.shape, bool)])
    run("BitmaskDropout", [x, ratio], {"seed": 3}, expected=[x], initializers={1})
    assert "an optional output that is used" in refusal("BitmaskDropout", [x], outputs=2, domain="com.microsoft")


def test_complex_products() -> None:
    x, y = floats(2, 3, 4, 2), floats(3, 4, 2, seed=1)
    a, b = (v[..., 0] + 1j * v[..., 1] for v in (x, y))
    for name, product in (("ComplexMul", a * b), ("ComplexMulConj", a * b.conj())):
        run(name, [x, y], expected=[np.stack([product.real, product.imag], -1)])


def test_embeddings() -> None:
    ids = rng.integers(0, 20, (2, 5))
    table = floats(20, 8)
    ran = run("TorchEmbedding", [table, ids, np.array(3)], expected=[table[ids]], initializers={0, 2})
    assert "nn.Embedding(20, 8" in ran.source
    angles = floats(2, 5, 8)
    operands = [floats(2, 3, 5, 8, seed=s).astype(np.float16) for s in range(1, 5)]
    sin, cos = (f(angles).astype(np.float16)[:, None] for f in (np.sin, np.cos))
    expected = [x * cos + turned * sin for x, turned in zip(operands[::2], operands[1::2])]
    run("GemmaRotaryEmbedding", [angles, *operands], outputs=2, expected=expected, atol=2e-3, rtol=2e-3)


# ---- integers --------------------------------------------------------------------------------------------------------


def test_integers() -> None:
    a, b = (rng.integers(-3000, 3000, s).astype(np.int16) for s in ((2, 3, 4), (4, 5)))
    run("MatMulInteger16", [a, b], rtol=0, atol=0)
    x, y = rng.integers(0, 256, (3, 4)).astype(np.uint8), rng.integers(0, 256, 4).astype(np.uint8)
    zero = np.array(7, np.uint8)
    wide = x.astype(np.int32)
    run("MulInteger", [x, zero, y], expected=[(wide - 7) * y.astype(np.int32)])
    run("ReduceSumInteger", [x], {"axes": [1], "keepdims": 0}, expected=[wide.sum(1, dtype=np.int32)])


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised(dtype: str) -> None:
    limits = np.iinfo(dtype)
    numbers = np.random.default_rng(10)  # of their means none lies between two integers
    x = numbers.integers(limits.min, limits.max + 1, (2, 9, 8, 5)).astype(dtype)
    for attrs in ({}, {"pads": [1, 0, 1, 1], "ceil_mode": 1}, {"auto_pad": "SAME_UPPER"}):
        run("NhwcMaxPool", [x], {"kernel_shape": [3, 2], "strides": [2, 2], **attrs}, rtol=0, atol=0)
    inputs = [x, *quantised(dtype, 0.03, 5), *quantised(dtype, 0.02, 9)]
    mean = ((x.astype(F) - 5) * F(0.03)).mean((1, 2), keepdims=True, dtype=F)
    expected = np.clip(np.rint(mean / F(0.02)) + 9, limits.min, limits.max).astype(dtype)
    run("QLinearReduceMean", inputs, {"axes": [1, 2], "keepdims": 1}, expected=[expected])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_tables_in_bytes(bits: int, zeros: bool) -> None:
    """Indices count from either end; those that the table has not give zeros."""
    table = rng.integers(0, 256, (10, 64 * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (10, 4)).astype(F)
    zero = rng.integers(0, 256, (10, 4 * bits // 8)).astype(np.uint8) if zeros else None
    ids = np.array([[0, 9, -1], [3, 3, -10]])
    attrs = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    inputs = [table, ids, scales, zero]
    run("GatherBlockQuantized", inputs, attrs, initializers={0, 2, 3} if zeros else {0, 2})
    run("GatherBlockQuantized", [table, np.array([2, 10, -11]), scales, zero], attrs, initializers={0, 2})


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("axes", [(0, 2), (1, 2), (2, 1), (-3, -1)])
@pytest.mark.parametrize("zeros", [False, True])
def test_tables_of_four_bits(dtype: str, axes: tuple[int, int], zeros: bool) -> None:
    kind = getattr(ml_dtypes, dtype)
    table = rng.integers(-8 if dtype == "int4" else 0, 8, (4, 32, 32)).astype(np.int8).astype(kind)
    shape = [4, 32, 32]
    shape[axes[1]] = 2
    scales = rng.uniform(0.01, 0.1, shape).astype(F)
    zero = rng.integers(0, 8, shape).astype(np.int8).astype(kind) if zeros else None
    attrs = {"block_size": 16, "gather_axis": axes[0], "quantize_axis": axes[1]}
    stored = {0, 2, 3} if zeros else {0, 2}
    run("GatherBlockQuantized", [table, np.array([[1, 3], [-2, 0]]), scales, zero], attrs, initializers=stored)
    text = refusal(
        "GatherBlockQuantized", [table, np.array([1]), scales], attrs | {"gather_axis": axes[1]}, domain="com.microsoft"
    )
    assert "is not handled" in text


# ---- images ----------------------------------------------------------------------------------------------------------


def test_windows() -> None:
    for attrs in ({"size": 3}, {"size": 2, "step": 2, "dim": 1}):
        run("UnfoldTensor", [floats(2, 7, 9)], attrs, rtol=0, atol=0)


BOXES = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.72, 0.9], [0.8, 0.9, 0.2, 0.1], [-0.3, 0.1, 1.2, 1.4]], F)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 5), (1, 1), (9, 2)])
@pytest.mark.parametrize("stored", [False, True])
def test_crops(mode: str, size: tuple[int, int], stored: bool) -> None:
    """Boxes turned round, and partly outside."""
    inputs = [floats(3, 2, 6, 7), BOXES, np.array([2, 0, 1, 1], np.int32), np.array(size, np.int32)]
    for attrs in ({}, {"extrapolation_value": 1.5}):
        run("CropAndResize", inputs, {"mode": mode} | attrs, initializers={3} if stored else set())


def test_gradients() -> None:
    x = torch.randn(2, 1, 4, 5, dtype=torch.float64, requires_grad=True)
    boxes = torch.from_numpy(BOXES[1:3]).double().requires_grad_()
    images = torch.tensor([1, 0])
    assert torch.autograd.gradcheck(lambda x, boxes: crop_and_resize(x, boxes, images, (3, 4)), (x, boxes))
