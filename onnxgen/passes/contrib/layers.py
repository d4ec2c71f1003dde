"""Convolutions and matrix products with other operators fused into them."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.graph.gradients import REFUSED
from onnxgen.passes.contrib.activations import activated
from onnxgen.passes.contrib.writer import Maybe, Refused, Value, Writer, body, nchw, nhwc, widened
from onnxgen.shapes import equal, infer_conv, infer_math, infer_microsoft
from onnxgen.shapes.info import info

GEMM_ACTIVATIONS = {"NONE": "", "": "", "RELU": "Relu", "GELU": "Gelu"}


@body("FusedConv", "NhwcConv", "NhwcFusedConv", infer=infer_microsoft.nhwc(infer_conv.conv))
def fused_conv(
    g: Writer, X: Value, W: Value, B: Maybe = None, Z: Maybe = None, *, activation: str = "",
    activation_params: list[float] | None = None, auto_pad: str = "NOTSET", dilations: list[int] | None = None,
    group: int = 1, kernel_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Value:  # fmt: skip
    """A convolution, then the sum with Z, then an activation. `Nhwc` has channels last in X, Z and the result only."""
    rank = g.rank(X) if g.node.op_type.startswith("Nhwc") else 0
    x, z = (v if v is None or not rank else nchw(g, v, rank) for v in (X, Z))
    made = g(
        "Conv", x, W, B, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    made = made if z is None else g("Add", made, z)
    made = activated(g, g.like(made, X), activation, *(activation_params or []))
    return nhwc(g, made, rank) if rank else made


@body("FusedGemm", infer=infer_math.gemm)
def fused_gemm(
    g: Writer, A: Value, B: Value, C: Maybe = None, *, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Value:  # fmt: skip
    made = g("Gemm", A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    second = activation_gamma if activation == "Selu" else activation_beta
    g.like(made, A)
    return activated(g, made, activation, activation_alpha, second)


@body("FusedMatMul", "TransposeMatMul", infer=infer_microsoft.fused_matmul, equal=equal.fused_matmul)
def fused_matmul(
    g: Writer, A: Value, B: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Value:  # fmt: skip
    """`alpha * A' @ B'`. With `transBatch`, the axis before the last comes first: [m, batch..., k]."""
    left, right = _turned(g, A, transA, transBatchA), _turned(g, B, transB, transBatchB)
    made = g("MatMul", left, right)
    return made if alpha == 1.0 else g("Mul", made, g.number(alpha, A))


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


@body("SparseToDenseMatMul", infer=infer_microsoft.sparse_matmul)
def sparse_to_dense_matmul(
    g: Writer, A: Value, B: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> Value:
    """`alpha * A' @ B'`. onnxruntime scales floating-point numbers only. A stored sparse matrix is dense by now."""
    left, right = (g("Transpose", x, perm=[1, 0]) if turned else x for x, turned in ((A, transA), (B, transB)))
    if any(info(x).rank not in (None, 2) for x in (A, B)):
        raise Refused("both operands must be matrices (rank 2)", WRITER)
    made = g("MatMul", left, right)
    dtype = info(B).dtype
    if alpha == 1.0 or dtype is not None and not dtype.is_floating_point():
        return made
    return g("Mul", made, g.number(alpha, B))


@body("FusedMatMulActivation", infer=infer_microsoft.fused_matmul)
def fused_matmul_activation(
    g: Writer, A: Value, B: Value, *, activation: str, activation_alpha: float | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None, activation_axis: int | None = None,
    alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0,
) -> Value:  # fmt: skip
    made = fused_matmul(
        g, A, B, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB
    )
    if activation in ("Softmax", "LogSoftmax"):
        return g(activation, made, axis=activation_axis)
    second = activation_gamma if activation == "Selu" else activation_beta
    g.like(made, A)
    return activated(g, made, activation, activation_alpha, second)


@body("ConvTransposeWithDynamicPads", axes="b c y x; c o j k; q; o")
def conv_transpose_with_dynamic_pads(
    g: Writer, X: Value, W: Value, Pads: Maybe = None, B: Maybe = None, *,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None, strides: list[int] | None = None,
) -> Value:  # fmt: skip
    """ConvTranspose without pads. Then `Pads` elements are cut off at each side."""
    if auto_pad != "NOTSET" and Pads is not None:
        raise Refused("Pads and auto_pad are both given", "remove auto_pad")
    made = g(
        "ConvTranspose", X, W, B, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        output_padding=output_padding, strides=strides,
    )  # fmt: skip
    if Pads is None:
        return made
    n = g.rank(X) - 2
    before = g("Slice", Pads, g.ints(0), g.ints(n))
    after = g("Slice", Pads, g.ints(n), g.ints(2 * n))
    ends = g("Sub", g("Shape", made, start=2), after)
    return g("Slice", made, before, ends, g.ints(*range(2, n + 2)))


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
    made = g("Gemm", *operands, added, alpha=alpha, beta=beta or 1.0, transA=transA, transB=transB)
    made = g(kind, made) if kind else made
    return made if dtype == ir.DataType.FLOAT else g("Cast", made, to=dtype)
