"""Convolutions, matrix products and activations, alone or with other operators fused into them.

`causal_conv_with_state` is a causal depthwise convolution with a state for the next call.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.errors import FOR_CPU, WRITER
from onnxgen.graph.operators import REFUSED
from onnxgen.graph.traits import ACTIVATION
from onnxgen.microsoft import infer
from onnxgen.microsoft.domain import body
from onnxgen.passes.contrib.parts import causal_conv
from onnxgen.passes.contrib.writer import Maybe, Refused, Results, Value, Writer, nchw, nhwc, widened
from onnxgen.shapes import equal, infer_math
from onnxgen.shapes.infer_math import same
from onnxgen.shapes.info import info

# the activations that onnxruntime fuses into a layer, with their parameters in order
FUSED: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}


def activated(g: Writer, x: Value, activation: str, *parameters: float | None) -> Value:
    """Apply the activation that a fused node names ("" for none)."""
    if activation == "":
        return x
    if activation == "Clip" and len(parameters) == 2:
        return g("Clip", x, *(None if p is None else g.number(p, x) for p in parameters))
    names = FUSED.get(activation)
    if names is None or len(parameters) > len(names) and any(p is not None for p in parameters[len(names) :]):
        raise Refused(f"activation {activation!r} with these parameters is not one that onnxruntime fuses", WRITER)
    return g(activation, x, **dict(zip(names, parameters)))


@body("Gelu", infer=same)
def gelu(g: Writer, X: Value) -> Value:
    return g("Gelu", X)


@body("BiasGelu", infer=same)
def bias_gelu(g: Writer, A: Value, B: Value) -> Value:
    return g("Gelu", g("Add", A, B))


@body("FastGelu", infer=same)
def fast_gelu(g: Writer, X: Value, bias: Maybe = None) -> Value:
    return g("Gelu", X if bias is None else g("Add", X, bias), approximate="tanh")


@body("QuickGelu", traits=[ACTIVATION], infer=same)
def quick_gelu(g: Writer, X: Value, *, alpha: float = 1.702) -> Value:
    inside = X if alpha == 1.0 else g("Mul", X, g.number(alpha, X))
    return g("Mul", X, g("Sigmoid", inside))


def silu(g: Writer, x: Value) -> Value:
    return g("Mul", x, g("Sigmoid", x))


@body("BiasSplitGelu", infer=infer.split_gelu)
def bias_split_gelu(g: Writer, X: Value, bias: Value) -> Value:
    """The first half of the channels, times the GELU of the second half."""
    halves = g.several(2, "Split", g("Add", X, bias), axis=-1, num_outputs=2)
    return g("Mul", halves[0], g("Gelu", halves[1]))


@body("BiasSoftmax", infer=same)
def bias_softmax(g: Writer, data: Value, bias: Value, *, axis: int = 1, is_inner_broadcast: int) -> Value:
    """Softmax over all axes from `axis` on. The bias broadcasts as in numpy, or along the axes before `axis`."""
    rank, bias_rank = g.rank(data), g.rank(bias)
    if axis % rank != rank - 1:
        raise Refused("the softmax is over several axes", "optimise the model without BiasSoftmaxFusion")
    if not is_inner_broadcast and bias_rank != rank:
        raise Refused("the bias broadcasts along outer axes", "optimise the model without BiasSoftmaxFusion")
    return g("Softmax", g("Add", data, bias), axis=-1)


GEMM_ACTIVATIONS = {"NONE": "", "": "", "RELU": "Relu", "GELU": "Gelu"}


@body("FusedConv", "NhwcConv", "NhwcFusedConv", infer=infer.nhwc(infer_math.conv))
def fused_conv(
    g: Writer, X: Value, W: Value, B: Maybe = None, Z: Maybe = None, *, activation: str = "",
    activation_params: list[float] | None = None, auto_pad: str = "NOTSET", dilations: list[int] | None = None,
    group: int = 1, kernel_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:  # fmt: skip
    """A convolution, then the sum with Z, then an activation. `Nhwc` has channels last in X, Z and the result only."""
    rank = g.rank(X) if g.node.op_type.startswith("Nhwc") else 0
    x, z = (v if v is None or not rank else nchw(g, v, rank) for v in (X, Z))
    convolved = g(
        "Conv", x, W, B, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    convolved = convolved if z is None else g("Add", convolved, z)
    convolved = activated(g, g.like(convolved, X), activation, *(activation_params or []))
    return nhwc(g, convolved, rank) if rank else convolved


@body("FusedGemm", infer=infer_math.gemm)
def fused_gemm(
    g: Writer, A: Value, B: Value, C: Maybe = None, *, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Value:  # fmt: skip
    product = g("Gemm", A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    second = activation_gamma if activation == "Selu" else activation_beta
    g.like(product, A)
    return activated(g, product, activation, activation_alpha, second)


@body("FusedMatMul", "TransposeMatMul", infer=infer.fused_matmul, equal=equal.fused_matmul)
def fused_matmul(
    g: Writer, A: Value, B: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:  # fmt: skip
    """`alpha * A' @ B'`. With `transBatch`, the axis before the last comes first: [m, batch..., k]."""
    left, right = _turned(g, A, transA, transBatchA), _turned(g, B, transB, transBatchB)
    product = g("MatMul", left, right)
    return product if alpha == 1.0 else g("Mul", product, g.number(alpha, A))


def _turned(g: Writer, x: Value, last: int, batch: int) -> Value:
    if not last and not batch:
        return x
    rank = g.rank(x)
    perm = list(range(rank))
    if batch:
        perm = [*perm[1:-1], 0, rank - 1]
    if last and rank > 1:
        perm[-2:] = perm[-1], perm[-2]
    return x if perm == sorted(perm) else g("Transpose", x, perm=perm)


@body("SparseToDenseMatMul", infer=infer.sparse_matmul)
def sparse_to_dense_matmul(
    g: Writer, A: Value, B: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    """`alpha * A' @ B'`. onnxruntime scales floating-point numbers only. A stored sparse matrix is dense by now."""
    left, right = (g("Transpose", x, perm=[1, 0]) if turned else x for x, turned in ((A, transA), (B, transB)))
    if any(info(x).rank not in (None, 2) for x in (A, B)):
        raise Refused("both operands must be matrices (rank 2)", WRITER)
    product = g("MatMul", left, right)
    dtype = info(B).dtype
    if alpha == 1.0 or dtype is not None and not dtype.is_floating_point():
        return product
    return g("Mul", product, g.number(alpha, B))


@body("FusedMatMulActivation", infer=infer.fused_matmul)
def fused_matmul_activation(
    g: Writer, A: Value, B: Value, *, activation: str, activation_alpha: float | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None, activation_axis: int | None = None,
    alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0,
) -> Value:  # fmt: skip
    product = fused_matmul(
        g, A, B, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB
    )
    if activation in ("Softmax", "LogSoftmax"):
        return g(activation, product, axis=activation_axis)
    second = activation_gamma if activation == "Selu" else activation_beta
    g.like(product, A)
    return activated(g, product, activation, activation_alpha, second)


@body("ConvTransposeWithDynamicPads", axes="b c y x; c o j k; q; o")
def conv_transpose_with_dynamic_pads(
    g: Writer, X: Value, W: Value, Pads: Maybe = None, B: Maybe = None, *,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    """ConvTranspose without pads. Then `Pads` elements are cut off at each side."""
    if auto_pad != "NOTSET" and Pads is not None:
        raise Refused("Pads and auto_pad are both given", "remove auto_pad")
    convolved = g(
        "ConvTranspose", X, W, B, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        output_padding=output_padding, strides=strides,
    )  # fmt: skip
    if Pads is None:
        return convolved
    n = g.rank(X) - 2
    before = g("Slice", Pads, g.ints(0), g.ints(n))
    after = g("Slice", Pads, g.ints(n), g.ints(2 * n))
    ends = g("Sub", g("Shape", convolved, start=2), after)
    return g("Slice", convolved, before, ends, g.ints(*range(2, n + 2)))


@body("GemmFloat8", flat={"scaleY": REFUSED})
def gemm_float8(
    g: Writer, A: Value, B: Value, C: Maybe = None, scaleA: Maybe = None, scaleB: Maybe = None, scaleY: Maybe = None, *,
    activation: str = "NONE", alpha: float = 1.0, beta: float = 0.0, dtype: int = 1, transA: int = 0, transB: int = 0,
) -> Value:  # fmt: skip
    """A Gemm of narrow floats, computed in float32. onnxruntime has a GPU kernel only."""
    if scaleY is not None:
        raise Refused("scaleY is given, but its effect is not documented", "leave scaleY out")
    kind = GEMM_ACTIVATIONS.get(activation)
    if kind is None:
        raise Refused(f"attribute 'activation' must be RELU, GELU or NONE, not {activation!r}", WRITER)
    operands = []
    for x, scale in ((A, scaleA), (B, scaleB)):
        wide = widened(g, x)
        operands.append(wide if scale is None else g("Mul", wide, scale))
    added = None if C is None or beta == 0.0 else widened(g, C)
    product = g("Gemm", *operands, added, alpha=alpha, beta=beta or 1.0, transA=transA, transB=transB)
    product = g(kind, product) if kind else product
    return product if dtype == ir.DataType.FLOAT else g("Cast", product, to=dtype)


@body("CausalConvWithState", infer=infer.causal_conv)
def causal_conv_with_state(
    g: Writer, input: Value, weight: Value, bias: Maybe = None, past_state: Maybe = None, *,
    activation: str = "none", channels_last: int = 0, dilation: int = 1, ndim: int = 1, state_window: int = 0,
    state_length: int = 0, state_channels_last: int = -1, state_update_capacity: int = 0, input_channels: int = 0,
    input_channel_offset: int = 0,
) -> Results:  # fmt: skip
    """A convolution over the last inputs of the previous call and the inputs of this one (Mamba, Gated DeltaNet).

    The second output holds the inputs that the next call needs. Without a state, zeros precede the first input.
    """
    is_sliced = (
        state_length or state_channels_last != -1 or state_update_capacity or input_channels or input_channel_offset
    )
    for what, is_asked in (
        ("convolution of several axes", ndim != 1), ("window of states", state_window), ("slice of channels", is_sliced)
    ):  # fmt: skip
        if is_asked:
            raise Refused(f"a {what} runs on GPUs only", FOR_CPU)
    return causal_conv(
        g, input, weight, bias, past_state, activation=activation, channels_last=bool(channels_last), dilation=dilation
    )
