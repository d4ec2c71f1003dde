"""Convolutions and products with what was fused into them."""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.errors import WRITER
from onnxgen.passes.contrib.activations import activated
from onnxgen.passes.contrib.gated import widened
from onnxgen.passes.contrib.writer import Refused, Writer, body
from onnxgen.shapes.info import info

ACTIVATIONS_OF_GEMM = {"NONE": "", "": "", "RELU": "Relu", "GELU": "Gelu"}


@body("FusedConv")
def fused_conv(
    g: Writer, X: ir.Value, W: ir.Value, B: ir.Value | None = None, Z: ir.Value | None = None, *,
    activation: str = "", activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    """A convolution; Z is added to it, then comes the activation."""
    made = g(
        "Conv", X, W, B, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip
    made = made if Z is None else g("Add", made, Z)
    g.like(made, X)
    return activated(g, made, activation, *(activation_params or []))


@body("NhwcConv", "NhwcFusedConv")
def nhwc_fused_conv(
    g: Writer, X: ir.Value, W: ir.Value, B: ir.Value | None = None, Z: ir.Value | None = None, *,
    activation: str = "", activation_params: list[float] | None = None,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    """The same with channels last, in X, Z and the result; W is [out, in / group, *kernel] as in Conv."""
    n = g.rank(X)
    first = [0, n - 1, *range(1, n - 1)]
    inner = [None if v is None else g("Transpose", v, perm=first) for v in (X, Z)]
    made = g(
        "Conv", inner[0], W, B, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
        pads=None if auto_pad != "NOTSET" else pads, strides=strides,
    )  # fmt: skip
    made = made if inner[1] is None else g("Add", made, inner[1])
    g.like(made, X)
    made = activated(g, made, activation, *(activation_params or []))
    return g("Transpose", made, perm=[0, *range(2, n), 1])


@body("FusedGemm")
def fused_gemm(
    g: Writer, A: ir.Value, B: ir.Value, C: ir.Value | None = None, *,
    activation: str = "", activation_alpha: float | None = None, activation_beta: float | None = None,
    activation_gamma: float | None = None, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,
) -> ir.Value:  # fmt: skip
    made = g("Gemm", A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    second = activation_gamma if activation == "Selu" else activation_beta
    g.like(made, A)
    return activated(g, made, activation, activation_alpha, second)


@body("FusedMatMul", "TransposeMatMul")
def fused_matmul(
    g: Writer, A: ir.Value, B: ir.Value, *,
    alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0,
) -> ir.Value:  # fmt: skip
    """`alpha * A' @ B'`; `transBatch` takes the axis before the last from the front: [m, batch..., k]."""
    left, right = _turned(g, A, transA, transBatchA), _turned(g, B, transB, transBatchB)
    made = g("MatMul", left, right)
    return made if alpha == 1.0 else g("Mul", made, g.number(alpha, A))


def _turned(g: Writer, x: ir.Value, last: int, batch: int) -> ir.Value:
    if not last and not batch:
        return x
    rank = g.rank(x)
    perm = list(range(rank))
    if batch:
        perm = [*perm[1:-1], 0, rank - 1]
    if last and rank > 1:
        perm[-2:] = perm[-1], perm[-2]
    return x if perm == sorted(perm) else g("Transpose", x, perm=perm)


@body("SparseToDenseMatMul")
def sparse_to_dense_matmul(
    g: Writer, A: ir.Value, B: ir.Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0
) -> ir.Value:
    """`alpha * A' @ B'`; onnxruntime scales numbers of floating point only. A stored matrix is dense by now."""
    left, right = (g("Transpose", x, perm=[1, 0]) if turned else x for x, turned in ((A, transA), (B, transB)))
    if any(info(x).rank not in (None, 2) for x in (A, B)):
        raise Refused("both operands must be matrices (rank 2)", WRITER)
    made = g("MatMul", left, right)
    dtype = info(B).dtype
    if alpha == 1.0 or dtype is not None and not dtype.is_floating_point():
        return made
    return g("Mul", made, g.number(alpha, B))


@body("FusedMatMulActivation")
def fused_matmul_activation(
    g: Writer, A: ir.Value, B: ir.Value, *,
    activation: str, activation_alpha: float | None = None, activation_beta: float | None = None,
    activation_gamma: float | None = None, activation_axis: int | None = None,
    alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0, transBatchB: int = 0,
) -> ir.Value:  # fmt: skip
    made = fused_matmul(
        g, A, B, alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB
    )
    if activation in ("Softmax", "LogSoftmax"):
        return g(activation, made, axis=activation_axis)
    second = activation_gamma if activation == "Selu" else activation_beta
    g.like(made, A)
    return activated(g, made, activation, activation_alpha, second)


@body("ConvTransposeWithDynamicPads")
def conv_transpose_with_dynamic_pads(
    g: Writer, X: ir.Value, W: ir.Value, Pads: ir.Value | None = None, B: ir.Value | None = None, *,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, output_padding: list[int] | None = None, strides: list[int] | None = None,
) -> ir.Value:  # fmt: skip
    """ConvTranspose without pads, of which `Pads` elements are cut off at each side."""
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


@body("GemmFloat8")
def gemm_float8(
    g: Writer, A: ir.Value, B: ir.Value, C: ir.Value | None = None, scaleA: ir.Value | None = None,
    scaleB: ir.Value | None = None, scaleY: ir.Value | None = None, *,
    activation: str = "NONE", alpha: float = 1.0, beta: float = 0.0, dtype: int = 1, transA: int = 0, transB: int = 0,
) -> ir.Value:  # fmt: skip
    """A Gemm of narrow floats, in float32. onnxruntime has a kernel for GPUs only."""
    if scaleY is not None:
        raise Refused("scaleY is given, but its effect is not documented", "leave scaleY out")
    kind = ACTIVATIONS_OF_GEMM.get(activation)
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
