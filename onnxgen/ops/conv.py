"""Convolutions: `nn.ConvNd` where the weight is stored, `F.convNd` where it is computed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import unless
from onnxgen.errors import FIX_SHAPE, INFER
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.operators import op
from onnxgen.graph.traits import CONVOLUTION, PASSES_ON, PRODUCT, SAMPLES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.fake_quant import layer
from onnxgen.ops.pad import f_pad, halved, padded, resolve_pads
from onnxgen.ops.rules import rules
from onnxgen.passes.places import is_buffer_name, slots
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.dims import Dim, Sym, dim_max
from onnxgen.weights.provenance import Source

LEAST = 3  # convolutions by one kernel that is no layer's


def same(values: Sequence[Any]) -> Any:
    """Return equal values as the single number that torch takes for all axes."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def _without_zeros(bias: Arg | None) -> Arg | None:
    """Return None for a bias of constant zeros, which exporters write for a layer without a bias."""
    constant = None if bias is None else bias.constant
    return bias if constant is None or bool(constant.any()) else None


@op("Conv", traits=[PRODUCT, CONVOLUTION, SAMPLES], matrix="W", bias="B", weights="W B", **rules("conv"))
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
    kernel = kernel_sizes(b, W, kernel_shape)
    n = len(kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    x, padding = padded(b, X, resolve_pads(b, X, auto_pad, pads, kernel, strides, dilations))
    options = conv_options(strides, padding, dilations, group)
    made = layer(b, W, f"Conv{n}d")
    source = made.weight
    if source is not None and not _is_filter(source, W):
        channels = source.shape[1] * group, source.shape[0]
        build = made.build(
            b, *channels, same(kernel), **options, bias=unless(B is not None, True), dtype=_dtype(source.dtype)
        )
        module = b.module("conv", build, **made.keys, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=x)
    return b.call(f"F.conv{n}d", x, W, unless(B, None), **options)


def _is_filter(source: Source, weight: Arg) -> bool:
    """Return True for a kernel that is slid with several strides or paddings: no layer of torch has two of them.

    A transform over octaves does so. A parameter whose name in the file is a layer's key stays a layer. What its author
    called a buffer is no layer's, either.
    """
    value = weight.value
    if value is not None and is_buffer_name(value.name or "") and not weight.is_trainable:
        return True
    if value is None or len(source.names) != 1 or param_path(source.names[0]) is not None:
        return False
    while (node := value.producer()) is not None and is_a(node, PASSES_ON) and node.inputs[0] is not None:
        value = node.inputs[0]
    users = [node for node, _ in slots(value) if is_a(node, CONVOLUTION)]
    told = {tuple(sorted((name, str(a.value)) for name, a in node.attributes.items())) for node in users}
    return len(users) >= LEAST and len(told) > 1


def conv_options(strides: list[int], padding: list[int], dilations: list[int], group: int) -> dict[str, Any]:
    return {
        "stride": unless(same(strides), 1),
        "padding": unless(same(padding), 0),
        "dilation": unless(same(dilations), 1),
        "groups": unless(group, 1),
    }


@op("ConvTranspose", traits=[PRODUCT, SAMPLES], matrix="W", bias="B", weights="W B", **rules("conv_transpose"))
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
    """torch pads both ends equally; the rest of the longer end is cut from the result."""
    B = _without_zeros(B)
    kernel = kernel_sizes(b, W, kernel_shape)
    n = len(kernel)
    strides, dilations = strides or [1] * n, dilations or [1] * n
    extra: list[Dim] = list(output_padding or [0] * n)
    if output_shape is None and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        begins, ends = resolve_pads(b, X, auto_pad, pads, kernel, strides, dilations)
    else:
        begins, ends = _computed_pads(b, X, auto_pad, kernel, strides, dilations, extra, output_shape)
    for e, s, d in zip(extra, strides, dilations):
        if isinstance(e, int) and e >= max(s, d):
            raise b.error("output_padding reaches past the kernel's last tap", "make it smaller than the stride")
    pairs = zip(begins, ends)
    padding = [max(0, min(p, q)) if isinstance(p, int) and isinstance(q, int) else 0 for p, q in pairs]
    options = {
        "stride": unless(same(strides), 1),
        "padding": unless(same(padding), 0),
        "output_padding": unless(same(extra), 0),
        "groups": unless(group, 1),
    }
    made = _transposed(b, X, W, B, kernel, group, options, unless(same(dilations), 1))
    cut = f_pad([a - p for a, p in zip(padding, begins)], [a - q for a, q in zip(padding, ends)])
    return b("F.pad(x, cut)", x=made, cut=cut) if any(c != 0 for c in cut) else made


def _transposed(
    b: Builder, X: Arg, W: Arg, B: Arg | None, kernel: list[Dim], group: int, options: dict[str, Any], dilation: Any
) -> ast.expr:
    n = len(kernel)
    extra = options["output_padding"]
    computed = any(isinstance(e, Sym) for e in (extra if isinstance(extra, tuple) else [extra]))
    made = layer(b, W, f"ConvTranspose{n}d")
    source = None if computed else made.weight  # a module has no option that depends on the input's size
    if source is not None:
        channels = source.shape[0], source.shape[1] * group
        build = made.build(
            b, *channels, same(kernel), **options,
            bias=unless(B is not None, True), dilation=dilation, dtype=_dtype(source.dtype),
        )  # fmt: skip
        module = b.module("deconv", build, **made.keys, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=X)
    return b.call(f"F.conv_transpose{n}d", X, W, unless(B, None), **options, dilation=dilation)


def _computed_pads(
    b: Builder,
    X: Arg,
    auto_pad: str,
    kernel: list[Dim],
    strides: list[int],
    dilations: list[int],
    extra: list[Dim],
    output_shape: list[int] | None,
) -> tuple[list[Dim], list[Dim]]:
    """Return what to cut from both ends of each axis, by `output_shape` or `auto_pad` (ConvTranspose-11 text).

    If `output_shape` is larger than the result, `extra` (the output padding) is increased to fill it.
    """
    n = len(kernel)
    totals: list[Dim] = []
    for i in range(n):
        total: Dim = extra[i] + (kernel[i] - 1) * dilations[i] + 1 - strides[i]  # output size: input size * stride
        if output_shape is not None:  # for SAME_* onnxruntime leaves a result that is too small as it is
            if X.shape is None:
                raise b.error("output_shape needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
            total = total + strides[i] * X.shape[i + 2] - output_shape[-n:][i]
            extra[i] = extra[i] + dim_max(0, 0 - total)
        totals.append(dim_max(0, total))
    return halved(totals, auto_pad)


def kernel_sizes(b: Builder, W: Arg, kernel_shape: list[int] | None) -> list[Dim]:
    """Return the spatial sizes of the kernel, of which PyTorch allows 1 to 3."""
    if not kernel_shape and W.shape is None:
        raise b.error("the rank of the kernel is unknown", INFER)
    kernel: list[Dim] = list(kernel_shape or (W.shape or ())[2:])
    if not 1 <= len(kernel) <= 3:
        raise b.error(
            f"a convolution over {len(kernel)} axes has no PyTorch function", "PyTorch has 1 to 3 spatial axes"
        )
    return kernel


def _dtype(dtype: ir.DataType) -> Any:
    return unless(dtype, ir.DataType.FLOAT)
