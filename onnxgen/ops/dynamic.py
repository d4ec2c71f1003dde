"""Layers in integers whose input is quantised at run time: modules, or functions where a tensor has another home."""

from __future__ import annotations

import ast
import re
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import CONVOLUTION, SAMPLES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder
from onnxgen.ops.conv import conv_options
from onnxgen.scopes.origin import param_path

STILL = "x scale zero"
QUANTISED = re.compile("weight(_Transposed)?_quantized")  # how onnxruntime's quantiser calls a layer's weight


@op("DynamicLinear", domain=DOMAIN, matrix="weight", still=STILL)
def dynamic_linear(
    b: Builder, x: Arg, weight: Arg, scale: Arg, zero: Arg | None = None, bias: Arg | None = None
) -> ast.expr:
    """`x @ weight + bias`, with the weight as [in, out]."""
    source = weight.source
    assert source is not None
    by_column = any(arg is not None and arg.shape not in ((), (1,)) for arg in (scale, zero))
    sizes = (source.shape[1],) if by_column else ()
    build = b.call(
        "DynamicLinear", *source.shape, bias=unless(bias is not None, True),
        dtype=unless(source.dtype, ir.DataType.INT8), shifted=unless(zero is not None, False),
        by_column=unless(by_column, False), learned=_learned(bias),
    )  # fmt: skip
    module = _module(b, "linear", build, weight, scale, zero, bias, sizes)
    if module is not None:
        return b("m(x)", m=module, x=x)
    given = {"zero": OMIT if zero is None else zero, "bias": OMIT if bias is None else bias}
    return b.call("dynamic_linear", x, weight, scale, **given)


@op("DynamicConv", domain=DOMAIN, traits=[CONVOLUTION, SAMPLES], matrix="weight", still=STILL)
def dynamic_conv(
    b: Builder, x: Arg, weight: Arg, scale: Arg, zero: Arg | None = None, bias: Arg | None = None, *,
    dilations: list[int] | None = None, group: int = 1, pads: list[int] | None = None,
    strides: list[int] | None = None, rounded: int = 0,
) -> ast.expr:  # fmt: skip
    source = weight.source
    assert source is not None
    outside, inside, *kernel = source.shape
    ones, half = [1] * len(kernel), (pads or [0] * len(kernel))[: len(kernel)]
    options = conv_options(strides or ones, half, dilations or ones, group)
    rounds = unless(bool(rounded), False)
    build = b.call(
        "DynamicConv", inside * group, outside, tuple(kernel), **options, bias=unless(bias is not None, True),
        dtype=unless(source.dtype, ir.DataType.INT8), shifted=unless(zero is not None, False), rounded=rounds,
        learned=_learned(bias),
    )  # fmt: skip
    module = _module(b, "conv", build, weight, scale, zero, bias, ())
    if module is not None:
        return b("m(x)", m=module, x=x)
    given = {"zero": OMIT if zero is None else zero, "bias": OMIT if bias is None else bias, "rounded": rounds}
    return b.call("dynamic_conv", x, weight, scale, **given, **options)


def _learned(bias: Arg | None) -> Any:
    return unless(bias is not None and bias.is_trainable, False)


def _module(
    b: Builder, role: str, build: ast.expr, weight: Arg, scale: Arg, zero: Arg | None, bias: Arg | None,
    sizes: tuple[int, ...],
) -> Any:  # fmt: skip
    """Return the layer; `sizes`: the shape of its scale and of its zero point."""
    keys = {"weight": weight.source, "scale": scale.source, "zero": None if zero is None else zero.source}
    for key in ("scale", "zero"):
        source = keys[key]
        if source is not None and source.shape != sizes:
            if sizes:
                return None
            keys[key] = source.reshape(sizes)
    keys["bias"] = None if bias is None else bias.source
    path = param_path(weight.name)
    home = path[:-1] if path is not None and QUANTISED.fullmatch(path[-1]) else None
    module = b.module_at(home or None, role, build, keys)
    if module is not None:
        module.member.is_state = True
    return module
