"""Layers in integers whose input is quantised at run time: modules, or functions where a tensor has another home."""

from __future__ import annotations

import ast
import re
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, MemberRef, call, unless
from onnxgen.errors import WRITER
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import op
from onnxgen.graph.traits import CONVOLUTION, RECURRENT, SAMPLES
from onnxgen.lowering.arg import Arg
from onnxgen.lowering.builder import Builder, Unpack
from onnxgen.ops.conv import conv_options
from onnxgen.ops.microsoft import MICROSOFT
from onnxgen.passes.match import uniform
from onnxgen.scopes.origin import param_path
from onnxgen.shapes import infer_conv, infer_math, infer_microsoft, own

STILL = "x scale zero"
QUANTISED = re.compile("weight(_Transposed)?_quantized")  # how onnxruntime's quantiser calls a layer's weight


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
        by_column=unless(by_column, False), learned=_learned(bias),
    )  # fmt: skip
    module = _module(b, "linear", build, weight, scale, zero, bias, sizes)
    if module is not None:
        return b("m(x)", m=module, x=x)
    given = {"zero": OMIT if zero is None else zero, "bias": OMIT if bias is None else bias}
    return b.call("dynamic_linear", x, weight, scale, **given)


@op(
    "DynamicConv", domain=DOMAIN, traits=[CONVOLUTION, SAMPLES], matrix="weight", still=STILL,
    infer=infer_conv.of_integers,
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


DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
DEFAULT_ACTIVATIONS = ["Sigmoid", "Tanh", "Tanh"]


@op("DynamicQuantizeLSTM", domain=MICROSOFT, traits=[RECURRENT], infer=infer_microsoft.lstm)
def dynamic_quantize_lstm(
    b: Builder, X: Arg, W: Arg, R: Arg, B: Arg | None, sequence_lens: Arg | None, initial_h: Arg | None,
    initial_c: Arg | None, P: Arg | None, W_scale: Arg, W_zero_point: Arg, R_scale: Arg, R_zero_point: Arg, *,
    hidden_size: int, direction: str = "forward", clip: float = 0.0, input_forget: int = 0,
    activations: list[str] | None = None, activation_alpha: list[float] | None = None,
    activation_beta: list[float] | None = None,
) -> Unpack | list[ast.expr]:  # fmt: skip
    """Directions are computed one by one; the input of each product is quantised at run time."""
    if direction not in DIRECTIONS:
        raise b.error(f"attribute 'direction' must be forward, reverse or bidirectional, not {direction!r}", WRITER)
    names = activations or DEFAULT_ACTIVATIONS
    if sequence_lens is not None or input_forget or names != DEFAULT_ACTIVATIONS * (len(names) // 3):
        raise b.error(
            "sequence_lens, input_forget and other activations are not handled", "quantise the model without its LSTM"
        )
    tensors = {
        "weight_ih": W, "weight_hh": R, "scale_ih": W_scale, "scale_hh": R_scale, "zero_ih": W_zero_point,
        "zero_hh": R_zero_point, "bias": B,
    }  # fmt: skip
    module = _lstm(b, tensors, direction, clip) if P is None else None
    if module is not None:
        states = {
            name: OMIT if s is None or uniform(s.value) == 0 else s.expr
            for name, s in (("h", initial_h), ("c", initial_c))
        }
        return b.unpack(call(module, X.expr, **states))
    state = b.let(b("x.new_zeros(x.shape[1], n)", x=X, n=hidden_size), "state")
    made = []
    for i, is_reverse in enumerate(DIRECTIONS[direction]):
        weights, recurrent = (
            b("(w[i], s[i], z[i])", w=w, s=s, z=z, i=i)
            for w, s, z in ((W, W_scale, W_zero_point), (R, R_scale, R_zero_point))
        )
        given = [None if v is None else b("v[i]", v=v, i=i) for v in (B, P)]
        h, c = (state if v is None else b("v[i]", v=v, i=i) for v in (initial_h, initial_c))
        called = b.call("dynamic_lstm", X, weights, recurrent, *given, h, c, is_reverse, clip=clip or OMIT)
        made.append(b.let(called, "direction"))
    parts = [[b("y[k]", y=y, k=k) for y in made] for k in range(3)]
    return [b.call("torch.stack", p, dim=1 if k == 0 else OMIT) for k, p in enumerate(parts)]


def _lstm(b: Builder, tensors: dict[str, Arg | None], direction: str, clip: float) -> MemberRef | None:
    """Return the module of an LSTM whose tensors are all stored, each with one number or column for each direction."""
    sources = {key: arg.source for key, arg in tensors.items() if arg is not None}
    weight, bias = sources["weight_ih"], tensors["bias"]
    if weight is None or any(source is None for source in sources.values()):
        return None
    count, size, gates = weight.shape
    ranks = {len(source.shape) for key, source in sources.items() if source is not None and key[0] in "sz"}
    if len(ranks) != 1:  # of scales and zero points
        return None
    build = b.call(
        "DynamicLSTM", size, gates // 4, unless(direction, "forward"), bias=unless(bias is not None, True),
        dtype=unless(weight.dtype, ir.DataType.INT8), by_column=unless(ranks == {2}, False),
        learned=_learned(bias), clip=unless(clip, 0.0),
    )  # fmt: skip
    module = b.module("lstm", build, **sources)
    if module is not None:
        module.member.is_state = True
    return module
