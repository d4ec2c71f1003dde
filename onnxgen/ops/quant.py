"""Quantisation: linear quantising and its inverse, and operators and layers in integers.

Layers whose input is quantised at run time are modules, or functions where a tensor has another
home.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.code.quote import OMIT, shortest, unless
from onnxgen.errors import CHECK
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import INTEGERS, PIECEWISE_CONSTANT, op
from onnxgen.graph.traits import CONVOLUTION, QUANTISED, QUANTISES, SAME, SAMPLES
from onnxgen.lowering.builder import Arg, Builder, Unpack
from onnxgen.lowering.parameter import role_in_integers
from onnxgen.ops.cast import as_float32, converted
from onnxgen.ops.conv import conv_options, geometry, padded, resolve_pads
from onnxgen.ops.rules import rules
from onnxgen.scopes.origin import param_path
from onnxgen.shapes import infer_math, own

T = ir.DataType
LIMITS = {
    T.UINT8: (0, 255), T.INT8: (-128, 127), T.UINT16: (0, 65535), T.INT16: (-32768, 32767),
    T.UINT4: (0, 15), T.INT4: (-8, 7), T.UINT2: (0, 3), T.INT2: (-2, 1),
}  # fmt: skip


def _spread(b: Builder, value: Arg, x: Arg, axis: int, block: int = 0) -> Any:
    """Return a scale or zero point that broadcasts to `x`, in float32: a number, one per axis element, or per block."""
    number, is_state = _number(value), bool(role_in_integers(value.value))
    if number is not None and (not is_state or number == 0):
        return number
    rank = value.known_rank
    if rank == 0 or value.shape == (1,):
        return as_float32(b, value)
    if block:
        repeated = b("s.repeat_interleave(n, dim=axis)", s=as_float32(b, value), n=block, axis=axis)
        if x.shape is not None and value.shape is not None and x.shape[axis] == value.shape[axis] * block:
            return repeated
        return b("s.narrow(axis, 0, x.shape[axis])", s=repeated, axis=axis, x=x)
    if rank != 1:
        raise b.error(f"{value.name!r} has rank {rank}, but attribute 'block_size' is missing", CHECK)
    shape = (-1, *[1] * (x.known_rank - 1 - axis % x.known_rank))
    if value.constant is not None and not is_state:
        return b.buffer(value.constant.astype(np.float32).reshape(shape), value.name, T.FLOAT)
    vector = as_float32(b, value)
    return b("s.reshape(shape)", s=vector, shape=shape) if len(shape) > 1 else vector


def _number(value: Arg | None) -> float | int | None:
    """Return the single known element as a Python number; 0 for an absent zero point."""
    if value is None:
        return 0
    constant = value.constant
    if constant is None or constant.size != 1:
        return None
    item = constant.flat[0]
    if value.is_float:
        return shortest(float(np.float32(item)))
    return int(item)


@op("QuantizeLinear", traits=[QUANTISES, SAME], **rules("quantize"), flat=PIECEWISE_CONSTANT)
def quantize_linear(
    b: Builder, x: Arg, y_scale: Arg, y_zero_point: Arg | None = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: int = 0, precision: int = 0, saturate: int = 1,
) -> ast.expr:  # fmt: skip
    """`saturate(round(x / y_scale) + y_zero_point)`, rounded half to even, in float32 as in onnxruntime."""
    target = T(output_dtype) if output_dtype else T.UINT8
    if y_zero_point is not None and y_zero_point.dtype is not None:
        target = y_zero_point.dtype
    scaled = b("x / s", x=as_float32(b, x), s=_spread(b, y_scale, x, axis, block_size))
    if target not in LIMITS:
        return converted(b, scaled, T.FLOAT, target, bool(saturate))
    zero = 0 if y_zero_point is None else _spread(b, y_zero_point, x, axis, block_size)
    scaled = b("x.round()", x=scaled)
    if not isinstance(zero, int) or zero:
        scaled = b("x + z", x=scaled, z=zero)
    low, high = LIMITS[target]
    return b("x.clamp(low, high).to(d)", x=scaled, low=low, high=high, d=target)


@op("DequantizeLinear", traits=[QUANTISES, SAME], still="x_scale x_zero_point", **rules("dequantize"))
def dequantize_linear(
    b: Builder, x: Arg, x_scale: Arg, x_zero_point: Arg | None = None, *,
    axis: int = 1, block_size: int = 0, output_dtype: int = 0,
) -> ast.expr:  # fmt: skip
    """`(x - x_zero_point) * x_scale`, computed in float32 and converted to the type of the scale."""
    target = T(output_dtype) if output_dtype else x_scale.dtype or T.FLOAT
    zero = 0 if x_zero_point is None else _spread(b, x_zero_point, x, axis, block_size)
    if isinstance(zero, (int, float)) and zero == 0:
        y = b("x.float()", x=x)
    elif x.dtype == T.INT32:
        y = b("(x - z).float()", x=x, z=zero if isinstance(zero, int) else b("z.int()", z=zero))
    else:
        y = b("x.float() - z", x=x, z=zero)
    y = b("x * s", x=y, s=_spread(b, x_scale, x, axis, block_size))
    return converted(b, y, T.FLOAT, target)


@op("DynamicQuantizeLinear", traits=[QUANTISES], still="x", **rules("dynamic_quantize"))
def dynamic_quantize_linear(b: Builder, x: Arg) -> Unpack:
    return b.unpack(b("dynamic_quantize(x)", x=x), 3)


# ------------------------------------------------------------------------------------------------ integer operators


def _zero(b: Builder, zero: Arg | None, shape: tuple[int, ...]) -> Any:
    """Return a zero point for float64 arithmetic: a number, a tensor, or a vector in the shape of its axis."""
    number = _number(zero)
    if number is not None or zero is None:
        return number
    return b("z.reshape(shape).double()" if _is_vector(zero) else "z.double()", z=zero, shape=shape)


@op("MatMulInteger", traits=[QUANTISED], matrix="B", **rules("matmul_integer"), flat=INTEGERS)
def matmul_integer(
    b: Builder, A: Arg, B: Arg, a_zero_point: Arg | None = None, b_zero_point: Arg | None = None
) -> ast.expr:
    """The zero points are single numbers, one per row of A, or one per column of B."""
    left, right = _zero(b, a_zero_point, _by_row(A)), _zero(b, b_zero_point, (-1,))
    no_right = isinstance(right, int) and right == 0
    no_left = no_right and isinstance(left, int) and left == 0
    return b.call("integer_matmul", A, B, OMIT if no_left else left, OMIT if no_right else right)


def _by_row(A: Arg) -> tuple[int, ...]:
    """Return the shape of one number per row of A. If A is a vector, it is one row, and the product has no row axis."""
    return (-1,) if A.rank == 1 else (-1, 1)


@op("QLinearMatMul", matrix="b", **rules("qlinear_matmul"), flat=PIECEWISE_CONSTANT)
def qlinear_matmul(
    builder: Builder, a: Arg, a_scale: Arg, a_zero_point: Arg, b: Arg, b_scale: Arg, b_zero_point: Arg,
    y_scale: Arg, y_zero_point: Arg,
) -> ast.expr:  # fmt: skip
    """MatMulInteger, scaled by `a_scale * b_scale / y_scale`."""
    total, rows = matmul_integer(builder, a, b, a_zero_point, b_zero_point), _by_row(a)
    scale = _ratio(builder, (a_scale, rows), (b_scale, (-1,)), (y_scale, rows))
    return _requantized(builder, total, scale, y_zero_point, rows)


Shaped = tuple[Arg, tuple[int, ...]]


def _ratio(b: Builder, x: Shaped, w: Shaped, y: Shaped) -> Any:
    """Return `x * w / y` in float32 for scales; each comes with the shape to give it if it is a vector."""
    constants = [a.constant for a, _ in (x, w, y)]
    if all(c is not None for c in constants):
        shaped = [
            c.astype(np.float32).reshape(shape if c.ndim == 1 and c.size > 1 else c.shape if c.size > 1 else ())
            for c, (_, shape) in zip(constants, (x, w, y))
            if c is not None
        ]
        ratio = np.asarray(shaped[0] * shaped[1] / shaped[2], np.float32)
        return shortest(float(ratio)) if ratio.size == 1 else b.buffer(ratio, "scale", T.FLOAT)
    parts = (
        b("s.reshape(shape)", s=as_float32(b, arg), shape=shape) if _is_vector(arg) else as_float32(b, arg)
        for arg, shape in (x, w, y)
    )
    return b("x * w / y", **dict(zip("xwy", parts)))


def _is_vector(x: Arg) -> bool:
    return x.rank == 1 and x.shape != (1,)


def _requantized(b: Builder, total: ast.expr, scale: Any, zero: Arg | None, shape: tuple[int, ...]) -> ast.expr:
    target = zero.dtype if zero is not None and zero.dtype is not None else T.UINT8
    if target not in (T.UINT8, T.INT8):
        raise b.error(f"a result of {target.name.lower()} is not handled", "quantise to int8 or uint8")
    offset: Any = _number(zero)
    if offset is None and zero is not None:
        offset = b("z.reshape(shape)", z=zero, shape=shape) if _is_vector(zero) else zero
    return b("requantize(t, s, z, d)", t=total, s=scale, z=offset, d=target)


@op("ConvInteger", traits=[QUANTISED, CONVOLUTION, SAMPLES], matrix="w", **rules("conv_integer"), flat=INTEGERS)
def conv_integer(
    b: Builder, x: Arg, w: Arg, x_zero_point: Arg | None = None, w_zero_point: Arg | None = None, *,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ast.expr:  # fmt: skip
    """Convolve integers to int32, in float64, where every sum is exact. The padding has the value of the zero point."""
    total = _integer_conv(
        b, x, w, x_zero_point, w_zero_point, None, auto_pad, dilations, group, kernel_shape, pads, strides
    )
    return b("x.long().int()", x=total)


@op("QLinearConv", traits=[CONVOLUTION, SAMPLES], matrix="w", **rules("qlinear_conv"), flat=PIECEWISE_CONSTANT)
def qlinear_conv(
    b: Builder, x: Arg, x_scale: Arg, x_zero_point: Arg, w: Arg, w_scale: Arg, w_zero_point: Arg,
    y_scale: Arg, y_zero_point: Arg, B: Arg | None = None, *,
    auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None, strides: list[int] | None = None,
) -> ast.expr:  # fmt: skip
    """ConvInteger plus an int32 bias, scaled by `x_scale * w_scale / y_scale`; w_scale may be per output channel."""
    total = _integer_conv(
        b, x, w, x_zero_point, w_zero_point, B, auto_pad, dilations, group, kernel_shape, pads, strides
    )
    channels = (-1, *[1] * (w.known_rank - 2))
    scale = _ratio(b, (x_scale, channels), (w_scale, channels), (y_scale, channels))
    return _requantized(b, total, scale, y_zero_point, channels)


def _integer_conv(
    b: Builder, x: Arg, w: Arg, x_zero: Arg | None, w_zero: Arg | None, bias: Arg | None, auto_pad: str,
    dilations: list[int] | None, group: int, kernel_shape: list[int] | None, pads: list[int] | None,
    strides: list[int] | None,
) -> ast.expr:  # fmt: skip
    kernel, strides, dilations = geometry(b, w, kernel_shape, strides, dilations)
    n = len(kernel)
    data = _shifted(b, x, _zero(b, x_zero, (-1,)))
    weight = _shifted(b, w, _zero(b, w_zero, (-1, *[1] * (n + 1))))
    data, padding = padded(b, data, resolve_pads(b, x, auto_pad, pads, kernel, strides, dilations))
    added = OMIT if bias is None else b("x.double()", x=bias)
    return b.call(f"F.conv{n}d", data, weight, added, **conv_options(strides, padding, dilations, group))


def _shifted(b: Builder, x: Arg, zero: Any) -> Any:
    return b("x.double()", x=x) if isinstance(zero, int) and zero == 0 else b("x.double() - z", x=x, z=zero)


STILL = "x scale zero"
QUANTISED_NAME = re.compile("weight(_Transposed)?_quantized")  # how onnxruntime's quantiser calls a layer's weight


@op(
    "DynamicLinear", domain=DOMAIN, matrix="weight", still=STILL, infer=infer_math.of_integers,
    reference=own.DynamicLinear,
)  # fmt: skip
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
        by_column=unless(by_column, False), learned=learned(bias),
    )  # fmt: skip
    module = _module(b, "linear", build, weight, scale, zero, bias, sizes)
    if module is not None:
        return b("m(x)", m=module, x=x)
    optional = {"zero": OMIT if zero is None else zero, "bias": OMIT if bias is None else bias}
    return b.call("dynamic_linear", x, weight, scale, **optional)


@op(
    "DynamicConv", domain=DOMAIN, traits=[CONVOLUTION, SAMPLES], matrix="weight", still=STILL,
    infer=infer_math.conv_of_integers,
    reference=own.DynamicConv,
)  # fmt: skip
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
        learned=learned(bias),
    )  # fmt: skip
    module = _module(b, "conv", build, weight, scale, zero, bias, ())
    if module is not None:
        return b("m(x)", m=module, x=x)
    optional = {"zero": OMIT if zero is None else zero, "bias": OMIT if bias is None else bias, "rounded": rounds}
    return b.call("dynamic_conv", x, weight, scale, **optional, **options)


def learned(bias: Arg | None) -> Any:
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
    home = path[:-1] if path is not None and QUANTISED_NAME.fullmatch(path[-1]) else None
    module = b.module_at(home or None, role, build, keys)
    if module is not None:
        module.member.is_state = True
    return module
