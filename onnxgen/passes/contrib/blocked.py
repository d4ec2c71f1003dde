"""Matrix products with weights of a few bits, fused with a norm before them and a gate after them.

onnxruntime has GPU kernels only. The bodies follow its documentation.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxgen.errors import INFER, WRITER
from onnxgen.graph.gradients import SETS_GRID, UNREAD
from onnxgen.passes.contrib.activations import silu
from onnxgen.passes.contrib.writer import FLOAT, INT64, Maybe, Refused, Value, Writer, body, rounded, size_of, widened
from onnxgen.shapes import infer_microsoft
from onnxgen.shapes.info import info

Operand = Maybe


def _product(g: Writer, x: Value, weight: Value, scales: Value, bias: Operand = None, **sizes: int) -> Value:
    given = [x, weight, scales, *([None, None, bias] if bias is not None else [])]
    return g.several(1, "MatMulNBits", *given, domain="com.microsoft", **sizes)[0]


def _normalized(g: Writer, x: Value, skip: Operand, scale: Operand, epsilon: float) -> tuple[Value, Value]:
    """Return the input of the products, and the input of the norm."""
    total = x if skip is None else g("Add", x, skip)
    if scale is None:
        return total, total
    return g("RMSNormalization", total, scale, axis=-1, epsilon=epsilon), total


@body("MatMulNBitsQkv", infer=infer_microsoft.blocked_qkv)
def matmul_nbits_qkv(
    g: Writer, A: Value, skip: Maybe, norm_scale: Value, q_B: Value, q_scales: Value, q_bias: Maybe, k_B: Value,
    k_scales: Value, k_bias: Maybe, v_B: Value, v_scales: Value, v_bias: Maybe = None, *,
    K: int, Nq: int, Nkv: int, block_size: int, bits: int = 4, accuracy_level: int = 0, epsilon: float = 1e-6,
) -> list[Value]:  # fmt: skip
    """q, k and v of RMSNormalization of an input, or of its sum with `skip`; and that sum."""
    x, total = _normalized(g, A, skip, norm_scale, epsilon)
    sizes = {"K": K, "block_size": block_size, "bits": bits, "accuracy_level": accuracy_level}
    q = _product(g, x, q_B, q_scales, q_bias, N=Nq, **sizes)
    k = _product(g, x, k_B, k_scales, k_bias, N=Nkv, **sizes)
    return [q, k, _product(g, x, v_B, v_scales, v_bias, N=Nkv, **sizes), total]


@body("MatMulNBitsMlp", infer=infer_microsoft.nbits_mlp)
def matmul_nbits_mlp(
    g: Writer, A: Value, skip: Maybe, norm_scale: Maybe, gate_B: Value, gate_scales: Value, gate_bias: Maybe,
    up_B: Value, up_scales: Value, up_bias: Maybe = None, *, K: int, N: int, block_size: int, activation: str,
    bits: int = 4, accuracy_level: int = 0, epsilon: float = 1e-5,
) -> list[Value]:  # fmt: skip
    """One product, gated by the SiLU of another. Norm and sum before them are as in MatMulNBitsQkv."""
    if activation not in ("silu", "swish"):
        raise Refused(f"attribute 'activation' must be silu or swish, not {activation!r}", WRITER)
    if skip is not None and norm_scale is None:
        raise Refused("input skip needs the input norm_scale, which is missing", WRITER)
    x, total = _normalized(g, A, skip, norm_scale, epsilon)
    sizes = {"K": K, "N": N, "block_size": block_size, "bits": bits, "accuracy_level": accuracy_level}
    gate = silu(g, _product(g, x, gate_B, gate_scales, gate_bias, **sizes))
    return [g("Mul", gate, _product(g, x, up_B, up_scales, up_bias, **sizes)), total]


@body("MatMulNBitsQLoRA", infer=infer_microsoft.blocked_product)
def matmul_nbits_qlora(
    g: Writer, X: Value, W: Value, scales: Value, lora_A: Value, lora_A_scales: Value, lora_B: Value,
    lora_B_scales: Value, *, K: int, N: int, block_size: int = 32, bits: int = 4, lora_block_size: int = 32,
    lora_bits: int = 8, accuracy_level: int = 0,
) -> Value:  # fmt: skip
    """A product plus a product with two low-rank factors (LoRA: Hu et al. 2021). Empty factors add nothing."""
    made = _product(g, X, W, scales, K=K, N=N, block_size=block_size, bits=bits, accuracy_level=accuracy_level)
    shapes = [info(factor).shape for factor in (lora_A, lora_B)]
    known = [[d for d in shape if isinstance(d, int)] for shape in shapes if shape is not None]
    if len(known) < 2 or any(len(dims) != 3 for dims in known):
        raise Refused("the sizes of the factors are unknown", INFER)
    if any(0 in dims for dims in known):
        return made
    sizes = {"block_size": lora_block_size, "bits": lora_bits}
    down = _product(g, X, lora_A, lora_A_scales, None, K=K, N=known[0][0], accuracy_level=accuracy_level, **sizes)
    return g("Add", made, _product(g, down, lora_B, lora_B_scales, None, K=known[0][0], N=N, **sizes))


@body("MatMulBlockQuantizedFp8Weight", flat={"a_scale": SETS_GRID})
def matmul_block_quantized_fp8_weight(
    g: Writer, A: Value, B: Value, b_scale: Value, a_scale: Maybe = None, bias: Maybe = None, *, block_size: int = 128
) -> Value:
    """A product with float8 weights, a scale for each `block_size` in a row. The input may be rounded to float8."""
    x = widened(g, A)
    if a_scale is not None:
        scaled = g.detached(g("Div", x, a_scale), 1)
        small = g("Cast", scaled, to=ir.DataType.FLOAT8E4M3FN)
        x = g.detached(g("Mul", g("Cast", small, to=FLOAT), a_scale), 1)
    scales = _by_column(g, b_scale, size_of(B, 1), block_size)
    weight = g("Mul", g("Cast", B, to=FLOAT), scales)
    made = rounded(g, g("MatMul", x, g("Transpose", weight, perm=[1, 0])), A)
    return made if bias is None else g("Add", made, bias)


@body("MatMulBlockQuantizedFp4Weight", flat={"input_scale": UNREAD})
def matmul_block_quantized_fp4_weight(
    g: Writer, A: Value, B: Value, weight_scale: Value, weight_scale_2: Value, input_scale: Maybe = None,
    bias: Maybe = None, *, block_size: int = 16,
) -> Value:  # fmt: skip
    """A product with 4-bit weights (E2M1), two in a byte. Their scales are float8 (E4M3), stored as bytes."""
    four = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    eight = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    halves = [g("BitwiseAnd", B, _byte(g, 15)), g("BitShift", B, _byte(g, 4), direction="RIGHT")]
    nibbles = g("Concat", *(g("Unsqueeze", half, g.ints(-1)) for half in halves), axis=-1)
    numbers = _looked_up(g, np.concatenate([four, -four]), g("Reshape", nibbles, g.ints(0, -1)))
    scales = _by_column(g, _looked_up(g, eight, weight_scale), 2 * size_of(B, 1), block_size)
    weight = rounded(g, g("Mul", g("Mul", numbers, weight_scale_2), scales), A)
    made = g("MatMul", A, g("Transpose", weight, perm=[1, 0]))
    return made if bias is None else g("Add", made, bias)


def _byte(g: Writer, number: int) -> Value:
    return g.constant(np.asarray(number, np.uint8))


def _looked_up(g: Writer, table: np.ndarray[tuple[int, ...], np.dtype[np.float32]], at: Value) -> Value:
    """Look bytes up in a table."""
    return g("Gather", g.constant(table), g("Cast", at, to=INT64))


def _by_column(g: Writer, scales: Value, columns: int, block_size: int) -> Value:
    """Return a scale for each column, from scales [rows, blocks]."""
    if block_size < 1:
        raise Refused(f"attribute 'block_size' must be positive, not {block_size}", WRITER)
    wide = g("Expand", g("Unsqueeze", scales, g.ints(-1)), g.ints(1, 1, block_size))
    flat = g("Reshape", wide, g.ints(0, -1))
    return flat if columns % block_size == 0 else g("Slice", flat, g.ints(0), g.ints(columns), g.ints(1))
