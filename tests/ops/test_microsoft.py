"""onnxruntime's operators that the standard has no words for, against onnxruntime.

It has no CPU kernel for Rfft and Irfft: numpy's transforms are the oracle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from onnxgen.helpers.blocked import dequantize_blocks, unpack_bits
from onnxgen.helpers.cached_attention import group_query_attention, rotate_positions
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, refusal, run_node

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
    assert "blocks of 0 elements" in refusal("MatMulNBits", inputs, attrs, domain="com.microsoft")
    heads = {"num_heads": 4, "kv_num_heads": 0}
    assert "share 0" in refusal("GroupQueryAttention", grouped(5, 0), heads, domain="com.microsoft")


def test_groups_of_columns() -> None:
    """`g_idx`: the block whose scale a column has."""
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (6, 2, 16)).astype(np.uint8)
    groups = rng.permutation(64).astype(np.int32) // 32
    attrs = {"K": 64, "N": 6, "block_size": 32, "bits": 4}
    inputs = [floats(3, 64), packed, rng.uniform(0.01, 0.1, 12).astype(F), None, groups]
    run("MatMulNBits", inputs, attrs, initializers={1, 2, 4}, rtol=1e-3, atol=1e-3)


def test_bits_that_cross_bytes() -> None:
    numbers = np.array([[5, 1, 7, 0, 3, 6, 2, 4]])
    stream = sum(int(n) << 3 * i for i, n in enumerate(numbers[0]))
    packed = torch.tensor([[stream >> 8 * i & 255 for i in range(3)]], dtype=torch.uint8)
    assert unpack_bits(packed, 3).tolist() == numbers.tolist()


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


# ---- attention with a cache ------------------------------------------------------------------------------------------


def caches(length: int = 32, half: int = 8) -> list[Any]:
    angles = np.random.default_rng(1).uniform(0, 6, (length, half))
    return [np.cos(angles).astype(F), np.sin(angles).astype(F)]


def grouped(
    new: int, past: int, batch: int = 2, lengths: list[int] | None = None, packed: bool = False, size: int = 16
) -> list[Any]:
    """4 heads of queries, 2 of keys."""
    x = [floats(batch, new, heads * size, seed=s) for s, heads in enumerate((4, 2, 2))]
    query = [np.concatenate(x, -1), None, None] if packed else x
    cache = [floats(batch, 2, past, size, seed=s) for s in (3, 4)] if past else [None, None]
    counts = np.array(lengths or [new + past] * batch, np.int32) - 1
    return [*query, *cache, counts, np.array(new + past, np.int32)]


HEADS = {"num_heads": 4, "kv_num_heads": 2}


@pytest.mark.parametrize("new, past", [(5, 0), (1, 6), (3, 4)])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [0, 1, 2])
def test_group_query_attention(new: int, past: int, packed: bool, rotary: int) -> None:
    batch = 1 if new > 1 and past else 2
    inputs = grouped(new, past, batch, packed=packed)
    attrs: dict[str, Any] = dict(HEADS)
    if rotary:
        inputs += caches()
        attrs |= {"do_rotary": 1, "rotary_interleaved": rotary - 1}
    ran = run("GroupQueryAttention", inputs, attrs, outputs=3, initializers={7, 8} if rotary else set())
    assert list(ran.model.parameters()) == []


@pytest.mark.parametrize(
    "attrs", [{"softcap": 5.0}, {"local_window_size": 3}, {"scale": 0.5}, {"smooth_softmax": 1}], ids=str
)
@pytest.mark.parametrize("new, past", [(5, 0), (1, 6)])
def test_group_query_options(attrs: dict[str, Any], new: int, past: int) -> None:
    run("GroupQueryAttention", grouped(new, past), HEADS | attrs, outputs=3)


def test_rows_of_several_lengths() -> None:
    run("GroupQueryAttention", grouped(1, 6, lengths=[7, 4]), HEADS, outputs=3)
    inputs = [*grouped(1, 6, lengths=[7, 4]), *caches()]
    run("GroupQueryAttention", inputs, HEADS | {"do_rotary": 1}, outputs=3)


def test_a_cache_that_has_room() -> None:
    """Of a fixed length, of which the first elements are used."""
    inputs = grouped(1, 12, lengths=[5, 8])
    inputs[6] = np.array(8, np.int32)
    run("GroupQueryAttention", inputs, HEADS, outputs=3)


def test_a_bias_and_a_sink() -> None:
    inputs = [*grouped(5, 0), None, None, None, floats(2, 4, 5, 5, seed=9)]
    run("GroupQueryAttention", inputs, HEADS, outputs=3)
    inputs = [*grouped(5, 0), None, None, None, None, floats(4, seed=9)]
    run("GroupQueryAttention", inputs, HEADS, outputs=3, initializers={11})


def test_gradients_of_grouped_attention() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, h, 3, 4, dtype=torch.float64, requires_grad=True) for h in (4, 2, 2))
    cos, sin = (torch.randn(4, 2, dtype=torch.float64) for _ in range(2))
    before = torch.zeros(1, dtype=torch.long)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        turned = rotate_positions(q, cos, sin, torch.arange(3)[None], False)
        return group_query_attention(turned, k, v, before, softcap=3.0)

    assert torch.autograd.gradcheck(attend, (q, k, v))
