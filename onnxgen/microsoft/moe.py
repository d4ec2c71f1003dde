"""Mixtures of experts of onnxruntime, and weights whose rows are packed in GGML's formats.

A mixture is a loop over the experts, each of which computes the tokens routed to it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import onnx_ir as ir

from onnxgen.code.module_def import Assign, Loop, Statement
from onnxgen.code.quote import OMIT, Ref, shortest, unless
from onnxgen.errors import FOR_CPU, INFER, WRITER
from onnxgen.graph.operators import COUNTED, REFUSED, op
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.microsoft import infer
from onnxgen.microsoft.domain import MICROSOFT
from onnxgen.ops.cast import as_float32
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import Info

ExpertLinear = Callable[[ast.expr, Ref], ast.expr]  # from rows of tokens and the expert's number to a layer's result
ACTIVATIONS = {"relu": "F.relu(x)", "gelu": 'F.gelu(x, approximate="tanh")', "silu": "F.silu(x)", "identity": "x"}


@op(
    "MoE", domain=MICROSOFT,
    weights="fc1_experts_weights fc1_experts_bias fc2_experts_weights fc2_experts_bias fc3_experts_weights "
    "fc3_experts_bias",
    infer=same,
)  # fmt: skip
def moe(
    b: Builder, input: Arg, router_probs: Arg, fc1_experts_weights: Arg, fc1_experts_bias: Arg | None,
    fc2_experts_weights: Arg, fc2_experts_bias: Arg | None = None, fc3_experts_weights: Arg | None = None,
    fc3_experts_bias: Arg | None = None, *, activation_alpha: float = 1.0, activation_beta: float = 0.0,
    activation_type: str = "relu", k: int = 1, normalize_routing_weights: int = 0, swiglu_fusion: int = 0,
    swiglu_limit: float = math.inf, swiglu_limit_after_activation: int = 0, use_sparse_mixer: int = 0,
) -> ast.expr:  # fmt: skip
    """Experts are linear layers. One tensor has the weights of all experts (Fedus, Zoph, Shazeer 2021)."""
    if use_sparse_mixer or swiglu_limit_after_activation:
        raise b.error("use_sparse_mixer and swiglu_limit_after_activation run on GPUs only", FOR_CPU)
    inner = _layer(b, fc1_experts_weights, fc1_experts_bias)
    outer = _layer(b, fc2_experts_weights, fc2_experts_bias)
    other = None if fc3_experts_weights is None else _layer(b, fc3_experts_weights, fc3_experts_bias)
    gate = Gate(b, activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit, inner, other)
    count = experts(b, fc1_experts_weights, k)
    chosen = routed(b, router_probs, None, k, bool(normalize_routing_weights))
    return mixture(b, input, chosen, count, gate, outer)


def _layer(b: Builder, weight: Arg, bias: Arg | None) -> ExpertLinear:
    def linear(x: ast.expr, i: Ref) -> ast.expr:
        return b.call("F.linear", x, b("w[i]", w=weight, i=i), OMIT if bias is None else b("v[i]", v=bias, i=i))

    return linear


def pair(b: Builder, value: ast.expr, *hints: str) -> tuple[Ref, Ref]:
    """Assign the two parts of a value to two local variables."""
    first, second = map(b.local, hints)
    b.emit(Assign((first, second), value, b.scope, b.nodes))
    return Ref(first), Ref(second)


class Gate:
    """The first half of an expert: a linear layer with its activation, or two layers of which one gates the other."""

    def __init__(
        self, b: Builder, kind: str, fusion: int, alpha: float, beta: float, limit: float, inner: ExpertLinear,
        other: ExpertLinear | None,
    ) -> None:  # fmt: skip
        """Raises a problem if the layers and the activation do not fit each other."""
        if kind != "swiglu" and kind not in ACTIVATIONS:
            raise b.error(f"activation_type {kind} runs on GPUs only", FOR_CPU)
        if fusion not in (0, 1, 2) or (other is None) != (kind != "swiglu" or fusion != 0):
            raise b.error(
                f"activation_type {kind} and swiglu_fusion {fusion} do not fit the layers that are given", WRITER
            )
        self.b, self.kind, self.fusion, self.inner, self.other = b, kind, fusion, inner, other
        self.alpha, self.beta, self.limit = shortest(alpha), shortest(beta), shortest(limit)

    def __call__(self, x: ast.expr, i: Ref) -> ast.expr:
        hidden = self.inner(x, i)
        if self.kind != "swiglu":
            return self.b(ACTIVATIONS[self.kind], x=hidden)
        if self.other is not None:
            return self._gated(hidden, self.other(x, i))
        both = self.b.let(hidden, "h")
        if self.fusion == 1:
            return self._gated(self.b("h[:, ::2]", h=both), self.b("h[:, 1::2]", h=both))
        return self._gated(*pair(self.b, self.b("h.chunk(2, dim=-1)", h=both), "gate", "up"))

    def _gated(self, gate: ast.expr, up: ast.expr) -> ast.expr:
        b = self.b
        if self.limit != math.inf:
            gate = b.let(b("g.clamp(max=n)", g=gate, n=self.limit), "gate")
            up = b("u.clamp(-n, n)", u=up, n=self.limit)
        if self.beta:
            up = b("u + n", u=up, n=self.beta)
        if self.alpha == 1:
            return b("F.silu(g) * u", g=gate, u=up)
        gate = b.let(gate, "gate")
        return b("g * torch.sigmoid(a * g) * u", g=gate, a=self.alpha, u=up)


def experts(b: Builder, weight: Arg, chosen: int | None = None) -> int:
    """Return how many experts there are. Raises a problem if that is unknown, or if there are fewer than `chosen`."""
    if not weight.shape or not isinstance(count := weight.shape[0], int):
        raise b.error("the number of experts is unknown", INFER)
    if chosen is not None and not 1 <= chosen <= count:
        raise b.error(f"attribute 'k' is {chosen}, but there are {count} experts", WRITER)
    return count


def routed(b: Builder, router: Arg, weights: Arg | None, k: int, normalize: bool) -> tuple[ast.expr, ast.expr]:
    """Return the `k` experts that the router prefers for each token, and their weights.

    Among equal ones onnxruntime's kernel prefers the last, as the end of a stable sort does. `weights`: where to take
    the experts' weights from, instead of the router's numbers.
    """
    scores = router.expr if normalize or weights is not None else b("x.softmax(-1)", x=router)
    ranked, order = pair(b, b("x.sort(dim=-1, stable=True)", x=scores), "ranked", "order")
    chosen = b.let(b("x[:, -k:]", x=order, k=k), "chosen")
    if weights is None:
        share = b("x[:, -k:]", x=ranked, k=k)
        return chosen, b.let(b("x.softmax(-1)", x=share) if normalize else share, "share")
    share = b.let(b("w.gather(1, c)", w=weights, c=chosen), "share")
    return chosen, b.let(b("s / s.sum(-1, keepdim=True)", s=share), "share") if normalize else share


def mixture(
    b: Builder,
    input: Arg,
    route: tuple[ast.expr, ast.expr],
    count: int,
    gate: ExpertLinear,
    outer: ExpertLinear,
    wide: bool = False,
) -> ast.expr:
    """Return the weighted sum of the chosen experts' results for each token; `wide`: summed in float32."""
    chosen, share = route
    wide = wide and input.dtype != ir.DataType.FLOAT
    x: ast.expr = input.expr
    if input.known_rank != 2:
        x = b.let(b("x.flatten(0, -2)", x=x), "tokens")
    sums = b.let(b("torch.zeros_like(x, dtype=torch.float32)" if wide else "torch.zeros_like(x)", x=x), "total")
    turn = b.local("expert", Info(kind="int"))
    inner: list[Statement] = []
    with b.writing(inner):
        rows, ranks = pair(b, b("torch.where(c == i)", c=chosen, i=Ref(turn)), "rows", "ranks")
        hidden = b.let(gate(b("x[r]", x=x, r=rows), Ref(turn)), "h")
        part = b("h * w[r, n, None]", h=outer(hidden, Ref(turn)), w=share, r=rows, n=ranks)
        b.emit(Assign((sums.value,), b("y.index_add(0, r, p)", y=sums, r=rows, p=part), b.scope, b.nodes))
    b.emit(Loop((turn,), b("range(n)", n=count), None, inner, (sums.value,), b.scope, b.nodes))
    total = b("y.to(x.dtype)", y=sums, x=input) if wide else sums
    return total if input.known_rank == 2 else b("y.view_as(x)", y=total, x=input)


@op("MoEGroupRouter", domain=MICROSOFT, infer=infer.routed)
def moe_group_router(
    b: Builder, logits: Arg, expert_bias: Arg, projection_weight: Arg | None = None, *, top_k: int,
    group_topk: int = 2, n_group: int = 1, router_sentinel: float = -10000.0, topk_group: int = 1,
) -> list[ast.expr | None]:  # fmt: skip
    """Output 0: the log scores of the chosen experts. Outputs 1 and 2: all scores, with and without the bias."""
    count = experts(b, expert_bias)
    if min(top_k, group_topk, n_group, topk_group) < 1 or count % n_group or topk_group > n_group:
        raise b.error(
            f"topk_group {topk_group} and n_group {n_group} do not divide {count} experts into groups", WRITER
        )
    if top_k > topk_group * (count // n_group):
        raise b.error(f"top_k is {top_k}, but the chosen groups have {topk_group * (count // n_group)} experts", WRITER)
    if b.wants(0):
        if projection_weight is not None:
            raise b.error("projection_weight is given, but output 0 (the chosen experts) takes none", WRITER)
        routes = b.call(
            "route_by_groups", logits, expert_bias, top_k, groups=unless(n_group, 1), kept=unless(topk_group, 1),
            best=unless(group_topk, 2), sentinel=unless(shortest(router_sentinel), -10000.0),
        )  # fmt: skip
        return [routes, None, None]
    x = as_float32(b, logits)
    if projection_weight is not None:
        w = projection_weight if logits.dtype == ir.DataType.FLOAT else b("w.float()", w=projection_weight)
        x = b("F.linear(x, w)", x=x, w=w)
    elif logits.known_rank != 2:
        x = b("x.flatten(0, -2)", x=x)
    scores = b.let(b("torch.sigmoid(x)", x=x), "scores")
    return [None, b("s + v", s=scores, v=expert_bias), scores]


# ---- weights of a few bits -------------------------------------------------------------------------------------------


UNSCALED = """
    fc1_global_scale fc2_global_scale fc1_act_scale fc2_act_scale fc1_act_block_scale fc2_act_block_scale
"""  # inputs of QMoE that are refused


@op("QMoE", domain=MICROSOFT, infer=same, flat=dict.fromkeys(UNSCALED.split(), REFUSED))
def qmoe(
    b: Builder, input: Arg, router_probs: Arg, fc1_experts_weights: Arg, fc1_scales: Arg | None,
    fc1_experts_bias: Arg | None, fc2_experts_weights: Arg, fc2_scales: Arg | None = None,
    fc2_experts_bias: Arg | None = None, fc3_experts_weights: Arg | None = None, fc3_scales: Arg | None = None,
    fc3_experts_bias: Arg | None = None, fc1_zero_points: Arg | None = None, fc2_zero_points: Arg | None = None,
    fc3_zero_points: Arg | None = None, router_weights: Arg | None = None, fc1_global_scale: Arg | None = None,
    fc2_global_scale: Arg | None = None, fc1_act_scale: Arg | None = None, fc2_act_scale: Arg | None = None,
    fc1_act_block_scale: Arg | None = None, fc2_act_block_scale: Arg | None = None, *, accuracy_level: int = 0,
    activation_alpha: float = 1.0, activation_beta: float = 0.0, activation_type: str = "relu", block_size: int = 0,
    expert_weight_bits: int = 4, fc1_expert_weight_bits: int = 0, fc2_expert_weight_bits: int = 0,
    fc3_expert_weight_bits: int = 0, k: int = 1, normalize_routing_weights: int = 0, quant_type: str = "int",
    swiglu_fusion: int = 0, swiglu_limit: float = math.inf, swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0, weights_prepacked: int = -1,
) -> ast.expr:  # fmt: skip
    """MoE with weights of a few bits. The kernel weighs the experts as if `normalize_routing_weights` were set."""
    of_floats = (fc1_global_scale, fc2_global_scale, fc1_act_scale, fc2_act_scale)
    of_blocks = (fc1_act_block_scale, fc2_act_block_scale)
    is_floating = quant_type != "int" or any(scale is not None for scale in (*of_floats, *of_blocks))
    if use_sparse_mixer or swiglu_limit_after_activation or is_floating:
        raise b.error("sparse mixers, swiglu_limit_after_activation and float weights run on GPUs only", FOR_CPU)
    if weights_prepacked == 1:
        raise b.error("the weights are prepacked for one kind of device", FOR_CPU)
    bits = [n or expert_weight_bits for n in (fc1_expert_weight_bits, fc2_expert_weight_bits, fc3_expert_weight_bits)]
    if not {*bits} <= {2, 3, 4, 8}:
        raise b.error(f"the weights must have 2, 3, 4 or 8 bits, not {bits}", WRITER)
    layer = partial(_packed_layer, b, block_size)
    inner = layer(bits[0], fc1_experts_weights, fc1_scales, fc1_zero_points, fc1_experts_bias)
    outer = layer(bits[1], fc2_experts_weights, fc2_scales, fc2_zero_points, fc2_experts_bias)
    other = None
    if fc3_experts_weights is not None:
        other = layer(bits[2], fc3_experts_weights, fc3_scales, fc3_zero_points, fc3_experts_bias)
    gate = Gate(b, activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit, inner, other)
    normalize = bool(normalize_routing_weights) or router_weights is None
    count = experts(b, fc1_experts_weights, k)
    return mixture(b, input, routed(b, router_probs, router_weights, k, normalize), count, gate, outer)


def _packed_layer(
    b: Builder, block: int, bits: int, weight: Arg, scales: Arg | None, zeros: Arg | None, bias: Arg | None
) -> ExpertLinear:
    """Return a layer whose rows have a scale and a zero point per block, or per row without blocks."""
    shape = weight.shape
    if scales is None or shape is None or len(shape) != 3 or not isinstance(shape[2], int) or not shape[2]:
        raise b.error("the scales of the weights are missing, or the sizes of the weights unknown", WRITER)
    size = shape[2] * 8 // bits
    if block < 0 or block and size % block:
        raise b.error(f"block_size {block} does not divide rows of {size} elements", WRITER)

    def linear(x: ast.expr, i: Ref) -> ast.expr:
        if block:
            packed = b("w[i].unflatten(-1, (n, -1))", w=weight, i=i, n=size // block)
            zero: Any = None if zeros is None else b("z[i]", z=zeros, i=i)
        else:
            packed = b("w[i, :, None]", w=weight, i=i)
            zero = None if zeros is None else _row_zeros(b, zeros, scales, i, bits)
        full = b.call("dequantize_blocks", packed, b("s[i]", s=scales, i=i), zero, size, bits)
        return b.call("F.linear", x, full, OMIT if bias is None else b("v[i]", v=bias, i=i))

    return linear


def _row_zeros(b: Builder, zeros: Arg, scales: Arg, i: Ref, bits: int) -> ast.expr:
    """Unpack the zero points of rows into numbers of the scales' type."""
    rows = scales.shape[1] if scales.shape and len(scales.shape) > 1 else None
    if not isinstance(rows, int):
        raise b.error("the sizes of the scales are unknown", INFER)
    return b("unpack_bits(z[i], n)[:m].to(s.dtype)", z=zeros, i=i, n=bits, m=rows, s=scales)


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


@op("GatherPacked", domain=MICROSOFT, infer=infer.gather_packed, flat=COUNTED)
def gather_packed(
    b: Builder, data: Arg, indices: Arg, *, packed_type: int, K: int, output_dtype: int = ir.DataType.BFLOAT16.value
) -> ast.expr:
    """Rows of `K` numbers of a packed table, unpacked in float32. An index out of range gives the first row."""
    if output_dtype not in FLOATS:
        raise b.error(f"output_dtype must be float, float16 or bfloat16, not {output_dtype}", WRITER)
    table = unpacked(b, b.call("packed_rows", data, indices), packed_type, data, K)
    dtype = ir.DataType(output_dtype)
    return table if dtype == ir.DataType.FLOAT else b("y.to(t)", y=table, t=dtype)


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


@op("MatMulPacked", domain=MICROSOFT, infer=infer.blocked_product, flat={"global_scale": REFUSED})
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
    weight = unpacked(b, rows, packed_type, data, size)
    return weight if like.dtype == ir.DataType.FLOAT else b("w.to(x.dtype)", w=weight, x=like)


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
