"""Convolutions: `nn.ConvNd` where the weight is stored, `F.convNd` where it is computed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.errors import FIX_SHAPE, INFER
from onnxgen.graph.operators import op
from onnxgen.graph.traits import CONVOLUTION, SAMPLES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.fake_quant import layer
from onnxgen.ops.pads import padded, resolve_pads
from onnxgen.shapes.dims import Dim, Sym, dim_max


def same(values: Sequence[Any]) -> Any:
    """Equal values as the one number that torch takes for all axes."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _without_zeros(bias: Arg | None) -> Arg | None:
    """None for a bias of constant zeros, which an exporter writes for a layer without one."""
    constant = None if bias is None else bias.constant
    return bias if constant is None or bool(constant.any()) else None


@op("Conv", traits=[CONVOLUTION, SAMPLES], matrix="W", weights="W B")
def conv(
    b: Builder,
    X: Arg,
    W: Arg,
    B: Arg | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    B = _without_zeros(B)
    kernel = _kernel(b, W, kernel_shape)
    n = _spatial_axes(b, kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    x, padding = padded(b, X, resolve_pads(b, X, auto_pad, pads, kernel, strides, dilations))
    options = {
        "stride": unless(same(strides), 1),
        "padding": OMIT if not any(padding) else same(padding),
        "dilation": unless(same(dilations), 1),
        "groups": unless(group, 1),
    }
    made = layer(b, W, f"Conv{n}d")
    source = made.weight
    if source is not None and (B is None or B.source is not None):
        channels = source.shape[1] * group, source.shape[0]
        build = b.call(
            made.name, *channels, same(kernel), **options, bias=unless(B is not None, True),
            dtype=_dtype(source.dtype), **made.options,
        )  # fmt: skip
        module = b.module("conv", build, weight=source, bias=B, **made.keys)
        if module is not None:
            return b("m(x)", m=module, x=x)
    return b.call(f"F.conv{n}d", x, W, OMIT if B is None else B, **options)


@op("ConvTranspose", traits=[SAMPLES], matrix="W", weights="W B")
def conv_transpose(
    b: Builder,
    X: Arg,
    W: Arg,
    B: Arg | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: list[int] | None = None,
    group: int = 1,
    kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None,
    output_shape: list[int] | None = None,
    pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> ast.expr:
    """torch pads both ends alike: what one end has more is cut from the result."""
    B = _without_zeros(B)
    kernel = _kernel(b, W, kernel_shape)
    n = _spatial_axes(b, kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    extra: list[Dim] = list(output_padding or [0] * n)
    begins, ends = _transpose_pads(b, X, auto_pad, pads, kernel, strides, dilations, extra, output_shape)
    for e, s, d in zip(extra, strides, dilations):
        if isinstance(e, int) and e >= max(s, d):
            raise b.error(
                "output_padding reaches past the last tap of the kernel",
                "output_padding must be smaller than the stride",
            )
    padding = [
        max(0, min(p, q)) if isinstance(p, int) and isinstance(q, int) else 0 for p, q in zip(begins, ends)
    ]  # fmt: skip
    options = {
        "stride": unless(same(strides), 1),
        "padding": OMIT if not any(padding) else same(padding),
        "output_padding": OMIT if all(e == 0 for e in extra) else same(extra),
        "groups": unless(group, 1),
    }
    made = _transposed(b, X, W, B, kernel, group, options, unless(same(dilations), 1))
    cut = [v for p, q, a in zip(reversed(begins), reversed(ends), reversed(padding)) for v in (a - p, a - q)]
    return b("F.pad(x, cut)", x=made, cut=tuple(cut)) if any(c != 0 for c in cut) else made


def _transposed(
    b: Builder, X: Arg, W: Arg, B: Arg | None, kernel: list[Dim], group: int, options: dict[str, Any], dilation: Any
) -> ast.expr:
    n = len(kernel)
    extra = options["output_padding"]
    computed = any(isinstance(e, Sym) for e in (extra if isinstance(extra, tuple) else [extra]))
    source = None if computed else W.source  # what depends on the input's size is no module's
    if source is not None and (B is None or B.source is not None):
        channels = source.shape[0], source.shape[1] * group
        build = b.call(
            f"nn.ConvTranspose{n}d", *channels, same(kernel), **options,
            bias=unless(B is not None, True), dilation=dilation, dtype=_dtype(source.dtype),
        )  # fmt: skip
        module = b.module("deconv", build, weight=source, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=X)
    return b.call(f"F.conv_transpose{n}d", X, W, OMIT if B is None else B, **options, dilation=dilation)


def _transpose_pads(
    b: Builder,
    X: Arg,
    auto_pad: str,
    pads: list[int] | None,
    kernel: list[Dim],
    strides: list[int],
    dilations: list[int],
    extra: list[Dim],
    output_shape: list[int] | None,
) -> tuple[list[Dim], list[Dim]]:
    """What to cut from both ends of each axis; from `output_shape` or `auto_pad` as the ConvTranspose-11 text says.

    Where `output_shape` is longer than the result, `extra` (the output padding) is made to fill it.
    """
    n = len(kernel)
    if output_shape is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        given = pads if pads and auto_pad == "NOTSET" else [0] * 2 * n
        return list(given[:n]), list(given[n:])
    begins: list[Dim] = []
    ends: list[Dim] = []
    for i in range(n):
        total: Dim = extra[i] + (kernel[i] - 1) * dilations[i] + 1 - strides[i]  # output size: input size * stride
        if output_shape is not None:
            if X.shape is None:
                raise b.error("output_shape needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
            total = total + strides[i] * X.shape[i + 2] - output_shape[-n:][i]
        if output_shape is not None:  # for SAME_* onnxruntime leaves it shorter
            extra[i] = extra[i] + (max(0, -total) if isinstance(total, int) else dim_max(0, 0 - total))
        total = max(0, total) if isinstance(total, int) else dim_max(0, total)
        half = total // 2
        upper = auto_pad == "SAME_UPPER"
        begins.append(half if upper else total - half)
        ends.append(total - half if upper else half)
    return begins, ends


def _spatial_axes(b: Builder, kernel: list[Dim]) -> int:
    if not 1 <= len(kernel) <= 3:
        raise b.error(
            f"a convolution over {len(kernel)} axes has no PyTorch function", "PyTorch has 1 to 3 spatial axes"
        )
    return len(kernel)


def _kernel(b: Builder, W: Arg, kernel_shape: list[int] | None) -> list[Dim]:
    if not kernel_shape and W.shape is None:
        raise b.error("the rank of the kernel is unknown", INFER)
    return list(kernel_shape or (W.shape or ())[2:])


def _dtype(dtype: ir.DataType) -> Any:
    return unless(dtype, ir.DataType.FLOAT)
