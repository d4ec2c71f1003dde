"""Tables and weights of onnxruntime whose rows are packed in GGML's formats."""

from __future__ import annotations

import ast
import math
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import Ref, shortest, unless
from onnxgen.errors import WRITER
from onnxgen.graph.gradients import COUNTED, REFUSED
from onnxgen.graph.operators import op
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.microsoft import MICROSOFT
from onnxgen.ops.moe import ExpertLinear, Gate, experts, mixture, pair
from onnxgen.shapes import infer_microsoft
from onnxgen.shapes.infer_elementwise import same

# By GGML's number of a format: the numbers in a block, its bytes, and the helper that unpacks rows.
BLOCKS = {
    2: (32, 18, "unpack_q4_0"),
    6: (32, 22, "unpack_q5_0"),
    8: (32, 34, "unpack_q8_0"),
    13: (256, 176, "unpack_q5_k"),
    14: (256, 210, "unpack_q6_k"),
    20: (32, 18, "unpack_iq4_nl"),
    23: (256, 136, "unpack_iq4_xs"),
    42: (64, 18, "unpack_q2_0"),
}
PLAIN = {0: ir.DataType.FLOAT, 1: ir.DataType.FLOAT16, 30: ir.DataType.BFLOAT16}
CODEBOOKS = {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 22: "IQ2_S"}
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
OTHERS = "pack the weights as Q4_0, Q5_0, Q8_0, Q5_K, Q6_K, IQ4_NL or IQ4_XS"
EPILOGUES = {"none": "y", "silu": "F.silu(y)"} | dict.fromkeys(("relu2", "relu_squared"), "F.relu(y).square()")


@op("GatherPacked", domain=MICROSOFT, infer=infer_microsoft.gather_packed, flat=COUNTED)
def gather_packed(
    b: Builder, data: Arg, indices: Arg, *, packed_type: int, K: int, output_dtype: int = ir.DataType.BFLOAT16.value
) -> ast.expr:
    """Rows of `K` numbers of a packed table, unpacked in float32. An index out of range gives the first row."""
    if output_dtype not in FLOATS:
        raise b.error(f"output_dtype must be float, float16 or bfloat16, not {output_dtype}", WRITER)
    made = unpacked(b, b.call("packed_rows", data, indices), packed_type, data, K)
    dtype = ir.DataType(output_dtype)
    return made if dtype == ir.DataType.FLOAT else b("y.to(t)", y=made, t=dtype)


def unpacked(b: Builder, rows: Any, packed_type: int, data: Arg, size: int | None = None) -> ast.expr:
    """Unpack rows of the bytes `data` into float32. The formats are those of the CPU kernel of GatherPacked.

    Raises a problem for other formats, and for rows that do not hold `size` numbers.
    """
    if packed_type in CODEBOOKS:
        raise b.error(f"the rows are packed as {CODEBOOKS[packed_type]}, whose codebook is not known", OTHERS)
    if packed_type not in BLOCKS and packed_type not in PLAIN:
        raise b.error(f"packed_type {packed_type} has no CPU kernel in onnxruntime", OTHERS)
    plain = PLAIN.get(packed_type)
    block, count = (1, plain.itemsize) if plain else BLOCKS[packed_type][:2]
    width = data.shape[-1] if data.shape else None
    wanted = size // block * count if size is not None else width
    if size is not None and (size < 1 or size % block) or isinstance(width, int) and (width % count or width != wanted):
        numbers = "whole blocks of" if size is None else size
        raise b.error(f"rows of {width} bytes do not hold {numbers} numbers", WRITER)
    return b.call("bytes_as", rows, plain) if plain else b.call(BLOCKS[packed_type][2], rows)


@op("MatMulPacked", domain=MICROSOFT, infer=infer_microsoft.blocked_product, flat={"global_scale": REFUSED})
def matmul_packed(
    b: Builder, A: Arg, B: Arg, global_scale: Arg | None = None, *, packed_type: int, N: int, K: int,
    activation_type: str = "none",
) -> ast.expr:  # fmt: skip
    """A linear layer with packed weights, which are rounded to the input's type before the product."""
    if global_scale is not None:
        raise b.error("global_scale belongs to NVFP4 weights, whose layout is not known", OTHERS)
    if activation_type not in EPILOGUES:
        raise b.error(f"attribute 'activation_type' must be none, relu2 or silu, not {activation_type!r}", WRITER)
    if B.shape and isinstance(B.shape[0], int) and B.shape[0] != N:
        raise b.error(f"the weights have {B.shape[0]} rows, but attribute 'N' is {N}", WRITER)
    return b(EPILOGUES[activation_type], y=b.call("F.linear", A, _weight(b, B, A, packed_type, B, K)))


def _weight(b: Builder, rows: Any, like: Arg, packed_type: int, data: Arg, size: int | None = None) -> ast.expr:
    made = unpacked(b, rows, packed_type, data, size)
    return made if like.dtype == ir.DataType.FLOAT else b("w.to(x.dtype)", w=made, x=like)


@op("MoEPacked", domain=MICROSOFT, infer=same)
def moe_packed(
    b: Builder, input: Arg, router_probs: Arg, gate_experts_weights: Arg, up_experts_weights: Arg | None,
    down_experts_weights: Arg, router_weights: Arg | None = None, *, gate_type: int, down_type: int, up_type: int = -1,
    activation_type: str = "swiglu", k: int = 1, normalize_routing_weights: int = 1, routed_scaling_factor: float = 1.0,
    routing_epsilon: float = 0.0,
) -> ast.expr:  # fmt: skip
    """Experts with packed weights and a gate; their results are summed in float32."""
    if activation_type != "swiglu" or up_experts_weights is None:
        raise b.error("experts without a gate are packed as IQ2_XXS, whose codebook is not known", OTHERS)
    if router_weights is None and (routing_epsilon or routed_scaling_factor != 1):
        raise b.error("routing_epsilon and routed_scaling_factor need the input router_weights", WRITER)
    count = experts(b, gate_experts_weights, k)

    def layer(data: Arg, packed_type: int) -> ExpertLinear:
        def linear(x: ast.expr, i: Ref) -> ast.expr:
            return b.call("F.linear", x, _weight(b, b("w[i]", w=data, i=i), input, packed_type, data))

        return linear

    gate = Gate(
        b, "swiglu", 0, 1.0, 0.0, math.inf, layer(gate_experts_weights, gate_type), layer(up_experts_weights, up_type)
    )
    route = b.call(
        "best_experts", router_probs, unless(router_weights, None), count=k,
        normalize=unless(bool(normalize_routing_weights), True), epsilon=unless(shortest(routing_epsilon), 0.0),
        factor=unless(shortest(routed_scaling_factor), 1.0),
    )  # fmt: skip
    return mixture(
        b, input, pair(b, route, "chosen", "share"), count, gate, layer(down_experts_weights, down_type), True
    )
