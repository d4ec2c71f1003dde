"""Several products by weights of a few bits, fused with the norm before and the gate behind them.

onnxruntime has kernels of these for GPUs only: what is written here follows their documentation.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.passes.contrib.activations import silu
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.propagate.info import info

Operand = ir.Value | None


def _product(
    g: Writer, x: ir.Value, weight: ir.Value, scales: ir.Value, bias: Operand = None, **sizes: int
) -> ir.Value:
    given = [x, weight, scales, *([None, None, bias] if bias is not None else [])]
    return g.several(1, "MatMulNBits", *given, domain="com.microsoft", **sizes)[0]


def _normalized(g: Writer, x: ir.Value, skip: Operand, scale: Operand, epsilon: float) -> tuple[ir.Value, ir.Value]:
    """What the products take, and what the norm took."""
    total = x if skip is None else g("Add", x, skip)
    if scale is None:
        return total, total
    return g("RMSNormalization", total, scale, axis=-1, epsilon=epsilon), total


@body("MatMulNBitsQkv")
def matmul_nbits_qkv(
    g: Writer, A: ir.Value, skip: ir.Value | None, norm_scale: ir.Value,
    q_B: ir.Value, q_scales: ir.Value, q_bias: ir.Value | None,
    k_B: ir.Value, k_scales: ir.Value, k_bias: ir.Value | None,
    v_B: ir.Value, v_scales: ir.Value, v_bias: ir.Value | None = None, *,
    K: int, Nq: int, Nkv: int, block_size: int, bits: int = 4, accuracy_level: int = 0, epsilon: float = 1e-6,
) -> list[ir.Value]:  # fmt: skip
    """q, k and v of what RMSNormalization makes of an input, or of its sum with another; and that sum."""
    x, total = _normalized(g, A, skip, norm_scale, epsilon)
    sizes = {"K": K, "block_size": block_size, "bits": bits, "accuracy_level": accuracy_level}
    q = _product(g, x, q_B, q_scales, q_bias, N=Nq, **sizes)
    k = _product(g, x, k_B, k_scales, k_bias, N=Nkv, **sizes)
    return [q, k, _product(g, x, v_B, v_scales, v_bias, N=Nkv, **sizes), total]


@body("MatMulNBitsMlp")
def matmul_nbits_mlp(
    g: Writer, A: ir.Value, skip: ir.Value | None, norm_scale: ir.Value | None,
    gate_B: ir.Value, gate_scales: ir.Value, gate_bias: ir.Value | None,
    up_B: ir.Value, up_scales: ir.Value, up_bias: ir.Value | None = None, *,
    K: int, N: int, block_size: int, activation: str, bits: int = 4, accuracy_level: int = 0, epsilon: float = 1e-5,
) -> list[ir.Value]:  # fmt: skip
    """One product, gated by another that is activated; a norm and a sum before them as in MatMulNBitsQkv."""
    if activation not in ("silu", "swish"):
        raise Refused("its activation is not silu", "fix the file")
    if skip is not None and norm_scale is None:
        raise Refused("it has a skip, and no norm_scale", "fix the file")
    x, total = _normalized(g, A, skip, norm_scale, epsilon)
    sizes = {"K": K, "N": N, "block_size": block_size, "bits": bits, "accuracy_level": accuracy_level}
    gate = silu(g, _product(g, x, gate_B, gate_scales, gate_bias, **sizes))
    return [g("Mul", gate, _product(g, x, up_B, up_scales, up_bias, **sizes)), total]


@body("MatMulNBitsQLoRA")
def matmul_nbits_qlora(
    g: Writer, X: ir.Value, W: ir.Value, scales: ir.Value, lora_A: ir.Value, lora_A_scales: ir.Value,
    lora_B: ir.Value, lora_B_scales: ir.Value, *,
    K: int, N: int, block_size: int = 32, bits: int = 4, lora_block_size: int = 32, lora_bits: int = 8,
    accuracy_level: int = 0,
) -> ir.Value:  # fmt: skip
    """A product, and that by two factors of low rank (LoRA: Hu et al. 2021); an empty factor adds nothing."""
    made = _product(g, X, W, scales, K=K, N=N, block_size=block_size, bits=bits, accuracy_level=accuracy_level)
    shapes = [info(factor).shape for factor in (lora_A, lora_B)]
    known = [[d for d in shape if isinstance(d, int)] for shape in shapes if shape is not None]
    if len(known) < 2 or any(len(dims) != 3 for dims in known):
        raise Refused("the sizes of its factors are unknown", "run onnx's shape inference on the file first")
    if any(0 in dims for dims in known):
        return made
    sizes = {"block_size": lora_block_size, "bits": lora_bits}
    down = _product(g, X, lora_A, lora_A_scales, None, K=K, N=known[0][0], accuracy_level=accuracy_level, **sizes)
    return g("Add", made, _product(g, down, lora_B, lora_B_scales, None, K=known[0][0], N=N, **sizes))
