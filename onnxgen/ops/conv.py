"""Convolutions: `nn.ConvNd` where the weight is stored, `F.convNd` where it is computed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.ops.arg import Arg
from onnxgen.ops.pads import Pads, padded, resolve_pads
from onnxgen.ops.registry import op

if TYPE_CHECKING:
    from onnxgen.ops.builder import Builder


def same(values: list[int]) -> Any:
    """Equal values as the one number that torch takes for all axes."""
    return values[0] if len(set(values)) == 1 else tuple(values)


@op("Conv")
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
    kernel = _kernel(b, W, kernel_shape)
    n = len(kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    x, padding = padded(b, X, resolve_pads(b, X, auto_pad, pads, kernel, strides, dilations))
    options = {
        "stride": unless(same(strides), 1),
        "padding": OMIT if not any(padding) else same(padding),
        "dilation": unless(same(dilations), 1),
        "groups": unless(group, 1),
    }
    source = W.source
    if source is not None and (B is None or B.source is not None):
        channels = source.shape[1] * group, source.shape[0]
        build = b.call(
            f"nn.Conv{n}d",
            *channels,
            same(kernel),
            **options,
            bias=unless(B is not None, True),
            dtype=_dtype(source.dtype),
        )
        module = b.module("conv", build, weight=source, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=x)
    return b.call(f"F.conv{n}d", x, W, OMIT if B is None else B, **options)


@op("ConvTranspose")
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
    """torch pads both ends alike: what is asymmetric is cut from (or, as output_padding, added to) the result's end."""
    kernel = _kernel(b, W, kernel_shape)
    n = len(kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    extra = output_padding or [0] * n
    begins, ends = _transpose_pads(b, X, auto_pad, pads, kernel, strides, dilations, extra, output_shape)
    padding = [max(0, min(p, q + e)) for p, q, e in zip(begins, ends, extra)]
    out_extra = [min(e + q - p, max(s, d) - 1) if e + q >= p else 0 for p, q, e, s, d in zip(padding, padding, extra, strides, dilations)]  # fmt: skip
    cut_begin = [p - q for p, q in zip(begins, padding)]
    cut_end = [q - p - e + o for q, p, e, o in zip(ends, padding, extra, out_extra)]
    options = {
        "stride": unless(same(strides), 1),
        "padding": OMIT if not any(padding) else same(padding),
        "output_padding": OMIT if not any(out_extra) else same(out_extra),
        "groups": unless(group, 1),
    }
    dilation = unless(same(dilations), 1)
    made = _transposed(b, X, W, B, kernel, group, options, dilation)
    if any(cut_begin) or any(cut_end):
        pad = [v for p, q in zip(reversed(cut_begin), reversed(cut_end)) for v in (-p, -q)]
        made = b("F.pad(x, pad)", x=made, pad=tuple(pad))
    return made


def _transposed(
    b: Builder, X: Arg, W: Arg, B: Arg | None, kernel: list[int], group: int, options: dict[str, Any], dilation: Any
) -> ast.expr:
    n, source = len(kernel), W.source
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
    kernel: list[int],
    strides: list[int],
    dilations: list[int],
    extra: list[int],
    output_shape: list[int] | None,
) -> Pads:
    """Begin and end padding of each axis; from `output_shape` or `auto_pad` as the ConvTranspose-11 text computes them."""
    n = len(kernel)
    if output_shape is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        given = pads if pads and auto_pad == "NOTSET" else [0] * 2 * n
        return given[:n], given[n:]
    begins, ends = [], []
    for i in range(n):
        size = X.shape[i + 2] if X.shape is not None else None
        if output_shape is None:
            total = extra[i] + (kernel[i] - 1) * dilations[i] + 1 - strides[i]
        elif isinstance(size, int):
            wanted = output_shape[-n:][i]
            total = strides[i] * (size - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - wanted
        else:
            raise b.error("output_shape over a dynamic size", "fix the size with --input-shape")
        total = max(0, total) if output_shape is None else total
        small, large = total // 2, total - total // 2
        upper = auto_pad == "SAME_UPPER"
        begins.append(small if upper else large)
        ends.append(large if upper else small)
    return begins, ends


def _kernel(b: Builder, W: Arg, kernel_shape: list[int] | None) -> list[int]:
    if kernel_shape:
        return kernel_shape
    if W.shape is None or not all(isinstance(d, int) for d in W.shape):
        raise b.error("the size of its kernel is unknown", "give the attribute kernel_shape")
    return [int(d) for d in W.shape[2:] if isinstance(d, int)]


def _dtype(dtype: ir.DataType) -> Any:
    return unless(dtype, ir.DataType.FLOAT)
