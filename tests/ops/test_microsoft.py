"""onnxruntime's operators that the standard has no words for, against onnxruntime.

It has no CPU kernel for Rfft and Irfft: numpy's transforms are the oracle. Its text says that Irfft is the inverse of
Rfft, so it is divided by the number of elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.microsoft.helpers.blocked import dequantize_blocks, unpack_bits
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node
from tests.ops.kernels import needs

F = np.float32


def run(op_type: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    kwargs = {"rtol": 1e-4, "atol": 1e-4, **kwargs}
    return run_node(op_type, inputs, attrs, domain="com.microsoft", **kwargs)


def test_inverse_and_distances() -> None:
    run("Inverse", [floats(2, 3, 3) + 3 * np.eye(3, dtype=F)], dynamic=True)
    for metric in ("euclidean", "sqeuclidean"):
        run("CDist", [floats(7, 5), floats(4, 5, seed=1)], {"metric": metric}, dynamic=True)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("dims", [1, 2])
def test_fourier(onesided: int, dims: int) -> None:
    x = floats(3, 6, 8)
    axes = tuple(range(-dims, 0))
    spectrum = (np.fft.rfftn if onesided else np.fft.fftn)(x, axes=axes)
    pairs = np.stack([spectrum.real, spectrum.imag], -1).astype(F)
    attrs = {"onesided": onesided, "signal_ndim": dims}
    run("Rfft", [x], attrs, expected=[pairs])
    run("Irfft", [pairs], attrs, expected=[x])
    assert "normalized" in refusal("Rfft", [x], {"normalized": 1}, domain="com.microsoft")


# ---- weights of few bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [64, 40])
@pytest.mark.parametrize("zeros", ["none", "packed", "floats"])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_nbits(bits: int, size: int, zeros: str, bias: bool) -> None:
    rng = np.random.default_rng(bits)
    rows, block = 6, 32
    blocks = -(-size // block)
    packed = rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, rows * blocks).astype(F)
    zero: Any = None
    if zeros == "packed":
        zero = rng.integers(0, 256, rows * -(-blocks * bits // 8)).astype(np.uint8)
    elif zeros == "floats":
        zero = rng.uniform(0, 2**bits - 1, rows * blocks).astype(F)
    attrs = {"K": size, "N": rows, "block_size": block, "bits": bits}
    inputs = [floats(2, 3, size), packed, scales, zero, None, floats(rows) if bias else None]
    stored = {i for i in (1, 2, 3, 5) if inputs[i] is not None}
    expected = None
    if bits == 8 and zeros == "floats":  # onnxruntime's CPU provider has no such kernel: the definition
        numbers = packed.reshape(rows, -1) - zero.reshape(rows, blocks).repeat(block, 1)
        weight = (numbers * scales.reshape(rows, blocks).repeat(block, 1))[:, :size]
        expected = [inputs[0] @ weight.T + (inputs[5] if bias else 0)]
    run("MatMulNBits", inputs, attrs, initializers=stored, rtol=1e-3, atol=1e-3, expected=expected)


def test_nonsense_is_refused() -> None:
    attrs = {"K": 64, "N": 6, "block_size": 0}
    inputs = [floats(3, 64), np.zeros((6, 2, 16), np.uint8), floats(12)]
    assert "block_size 0 must be positive" in refusal("MatMulNBits", inputs, attrs, domain="com.microsoft")


@pytest.mark.parametrize("size", [64, 60])
def test_groups_of_columns(size: int) -> None:
    """`g_idx`: the block whose scale a column has; it may go on to the end of the last block."""
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (6, 2, 16)).astype(np.uint8)
    groups = rng.permutation(64).astype(np.int32) // 32
    attrs = {"K": size, "N": 6, "block_size": 32, "bits": 4}
    inputs = [floats(3, size), packed, rng.uniform(0.01, 0.1, 12).astype(F), None, groups]
    run("MatMulNBits", inputs, attrs, initializers={1, 2, 4}, rtol=1e-3, atol=1e-3)


def test_bits_that_cross_bytes() -> None:
    numbers = np.array([[5, 1, 7, 0, 3, 6, 2, 4]])
    stream = sum(int(n) << 3 * i for i, n in enumerate(numbers[0]))
    packed = torch.tensor([[stream >> 8 * i & 255 for i in range(3)]], dtype=torch.uint8)
    assert unpack_bits(packed, 3).tolist() == numbers.tolist()


class Blob:
    """A drawn matrix of 4 bits as onnxruntime's MatMulFpQ4 stores it, and its floats; `zeros`: with zero points."""

    def __init__(self, size: int, rows: int, zeros: bool) -> None:
        rng = np.random.default_rng(size)
        blocks = -(-size // 32)
        scales = rng.uniform(-0.1, 0.1, (rows, blocks, 1)).astype(F)
        numbers, zero = rng.integers(0, 16, (rows, blocks, 32)), rng.integers(0, 16, (rows, blocks, 1))
        packed = numbers[..., :16] | numbers[..., 16:] << 4
        parts = [scales.view(np.uint8), *([zero] if zeros else []), packed]
        self.bytes = np.concatenate(parts, -1).astype(np.uint8).reshape(-1)
        self.matrix = ((numbers - (zero if zeros else 8)) * scales).reshape(rows, -1)[:, :size]


@needs("MatMulFpQ4")
@pytest.mark.parametrize("size, rows", [(64, 5), (32, 1), (40, 7), (3, 2), (130, 16)])
@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_of_a_blob(size: int, rows: int, zeros: bool) -> None:
    blob, shape = Blob(size, rows, zeros), np.array([size, rows])
    attrs = {"blk_quant_type": int(zeros)}
    for lead in [(3,), (2, 2), (), (0,)]:
        x = floats(*lead, size)
        ran = run("MatMulFpQ4", [x, blob.bytes, shape], attrs, initializers={1, 2}, rtol=1e-4, atol=1e-5)
        assert np.allclose(ran.outputs[0], x @ blob.matrix.T, rtol=1e-4, atol=1e-5)
    run("MatMulFpQ4", [floats(3, size), blob.bytes, shape], attrs, initializers={1, 2}, dynamic=True, atol=1e-5)
    run("MatMulFpQ4", [floats(3, size), blob.bytes, shape], attrs, initializers={2}, atol=1e-5)


@needs("MatMulFpQ4")
def test_all_other_types_of_a_blob_are_the_default() -> None:
    blob = Blob(40, 3, True)
    for attrs in ({}, {"blk_quant_type": 2}):
        run("MatMulFpQ4", [floats(2, 40), blob.bytes, np.array([40, 3])], attrs, initializers={1, 2}, atol=1e-5)


def test_blobs_of_another_size_are_refused() -> None:
    inputs = [floats(2, 40), Blob(40, 3, False).bytes, np.array([40, 3])]
    assert "must have 126 bytes" in refusal("MatMulFpQ4", inputs, domain="com.microsoft", initializers={1, 2})
    inputs[1] = Blob(40, 3, True).bytes
    assert "B_shape is computed" in refusal("MatMulFpQ4", inputs, domain="com.microsoft", initializers={1})


@pytest.mark.parametrize("quant_type", [0, 1])
def test_matmul_bnb4(quant_type: int) -> None:
    rng = np.random.default_rng(3)
    packed = rng.integers(0, 256, 6 * 64 // 2).astype(np.uint8)
    attrs = {"K": 64, "N": 6, "block_size": 32, "quant_type": quant_type}
    scales = rng.uniform(0.5, 2, 6 * 64 // 32).astype(F)
    run("MatMulBnb4", [floats(2, 3, 64), packed, scales], attrs, initializers={1, 2}, rtol=1e-3, atol=1e-3)


def test_gradients_of_scales() -> None:
    packed = torch.randint(0, 256, (2, 2, 8), dtype=torch.uint8)
    scales = torch.rand(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: dequantize_blocks(packed, s, None, 30, 4), (scales,))
