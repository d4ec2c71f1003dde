"""Convolutions and padding: `nn.ConvNd` for a stored weight, `F.convNd` for a computed one.

torch's modules pad equally on both sides; convolutions and pools that do not are padded before.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onnxgen.code.quote import OMIT, unless
from onnxgen.errors import CHECK, FIX_SHAPE, INFER
from onnxgen.graph.operators import is_a, op
from onnxgen.graph.traits import CONVOLUTION, FILLS, PASSES_ON, PRODUCT, SAMPLES
from onnxgen.lowering.builder import Arg, Builder
from onnxgen.ops.linear import layer
from onnxgen.ops.rules import rules
from onnxgen.passes.roles import is_buffer_name, slots
from onnxgen.scopes.origin import param_path
from onnxgen.shapes import ranges
from onnxgen.shapes.dims import Dim, Sym, dim_max
from onnxgen.weights.provenance import Source

MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@op(
    "Pad", renames={"paddings": "pads", "value": "constant_value"}, traits=[FILLS], data="data constant_value",
    still="pads constant_value axes", **rules("pad"))  # fmt: skip
def pad(
    b: Builder,
    data: Arg,
    pads: Arg,
    constant_value: Arg | None = None,
    axes: Arg | None = None,
    *,
    mode: str = "constant",
) -> ast.expr:
    """`F.pad`, whose modes other than "constant" pad only spatial axes of floats."""
    if mode not in ("constant", *MODES):
        raise b.error(f"attribute 'mode' must be constant, reflect, edge or wrap, not {mode!r}", CHECK)
    value = _value(b, constant_value) if mode == "constant" else OMIT
    sides = _sides(data, pads, axes)
    if sides is None:
        return b.call(
            "pad_axes", data, pads.as_ints(), axes=OMIT if axes is None else axes.as_ints(),
            mode=unless(mode, "constant"), value=value,
        )  # fmt: skip
    if not sides:
        return data.expr
    rank, first = data.known_rank, min(sides)
    if isinstance(value, Arg):
        return b.call("pad_with", data, _from_last(sides, rank, first), value)
    if mode == "constant":
        return b.call("F.pad", data, _from_last(sides, rank, first), value=value)
    first = min(first, 2)
    if data.is_float and first and 1 <= rank - first <= 3 and all(_fits(data, *side, mode) for side in sides.items()):
        return b.call("F.pad", data, _from_last(sides, rank, first), mode=MODES[mode])
    order = sorted(sides)
    flat = [*(sides[a][0] for a in order), *(sides[a][1] for a in order)]
    return b.call("pad_axes", data, tuple(flat), axes=tuple(order), mode=mode)


def _sides(data: Arg, pads: Arg, axes: Arg | None) -> dict[int, tuple[Dim, Dim]] | None:
    """Return begin and end of each axis that is padded; None if the axes or sizes are known at run time only."""
    known, chosen = pads.ints, None if axes is None else axes.ints
    if known is None or (axes is not None and chosen is None) or data.rank is None:
        return None
    rank = data.rank
    positions = list(range(rank)) if chosen is None else [a % rank for a in chosen if isinstance(a, int)]
    sides = zip(positions, zip(known[: len(positions)], known[len(positions) :]))
    return {axis: side for axis, side in sides if side != (0, 0)}


def _value(b: Builder, constant_value: Arg | None) -> Any:
    """Return the value to pad with: a Python number if it is known, else the tensor."""
    if constant_value is None:
        return OMIT
    scalar = constant_value.scalar
    if isinstance(scalar, int) and int(float(scalar)) != scalar:  # torch converts the number to a float
        return constant_value
    if scalar == 0:
        return OMIT
    return constant_value if constant_value.number is None else constant_value.number


def _from_last(sides: dict[int, tuple[Dim, Dim]], rank: int, first: int) -> tuple[Dim, ...]:
    """Return begin and end of each axis from the last back to `first`, as `F.pad` takes them."""
    return tuple(p for axis in range(rank - 1, first - 1, -1) for p in sides.get(axis, (0, 0)))


def _fits(data: Arg, axis: int, side: tuple[Dim, Dim], mode: str) -> bool:
    """Return True if `F.pad` can pad an axis in a mode that copies elements."""
    size, known = (data.shape or ())[axis], [p for p in side if isinstance(p, int) and p >= 0]
    if len(known) < len(side):
        return False
    if not isinstance(size, int):  # F.pad itself raises an error where "reflect" is impossible, but not for "circular"
        return mode != "wrap"
    return max(known) <= {"reflect": size - 1, "edge": max(known) if size > 0 else -1, "wrap": size}[mode]


@op("CenterCropPad", traits=[FILLS], ranges=ranges.pad)
def center_crop_pad(b: Builder, input_data: Arg, shape: Arg, *, axes: list[int] | None = None) -> ast.expr:
    return b.call("center_crop_pad", input_data, shape.as_ints(), OMIT if axes is None else tuple(axes))


def resolve_pads(
    b: Builder,
    X: Arg,
    auto_pad: str,
    pads: list[int] | None,
    kernel: Sequence[Dim],
    strides: list[int],
    dilations: list[int],
) -> tuple[list[Dim], list[Dim]]:
    """Return the begin and end padding of each spatial axis: as given, or as `auto_pad` computes it (Conv-1 text).

    SAME_*: the output has `ceil(size / stride)` elements. With a stride over a dynamic size, the padding is an
    expression of that size.
    """
    n = len(kernel)
    if auto_pad in ("NOTSET", "VALID", ""):
        explicit = pads if pads and auto_pad != "VALID" else [0] * 2 * n
        return list(explicit[:n]), list(explicit[n:])
    totals: list[Dim] = []
    for i in range(n):
        effective = (kernel[i] - 1) * dilations[i] + 1
        total: Dim = effective - 1
        if strides[i] != 1:
            if X.shape is None:
                raise b.error("auto_pad needs the spatial sizes of the input, which are unknown", FIX_SHAPE)
            size = X.shape[i + 2]
            wanted = (size + strides[i] - 1) // strides[i]
            total = dim_max(0, (wanted - 1) * strides[i] + effective - size)
        totals.append(total)
    return halved(totals, auto_pad)


def halved(totals: list[Dim], auto_pad: str) -> tuple[list[Dim], list[Dim]]:
    """Divide padding between both ends: for SAME_UPPER an odd element goes to the end, else to the begin."""
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (less, more) if auto_pad == "SAME_UPPER" else (more, less)


def padded(b: Builder, X: Arg | ast.expr, pads: tuple[list[Dim], list[Dim]]) -> tuple[ast.expr | Arg, list[int]]:
    """Return the input and the padding that the module does itself, which is none if `F.pad` has to come before it."""
    begins, ends = pads
    plain = [p for p in begins if isinstance(p, int) and p >= 0]
    if begins == ends and len(plain) == len(begins):
        return X, plain
    return b.call("F.pad", X, f_pad(begins, ends)), [0] * len(begins)


def f_pad(begins: Sequence[Dim], ends: Sequence[Dim]) -> tuple[Dim, ...]:
    """Return begins and ends as `F.pad` takes them: last axis first."""
    return tuple(v for pair in zip(reversed(begins), reversed(ends)) for v in pair)


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
    kernel, strides, dilations = geometry(b, W, kernel_shape, strides, dilations)
    n = len(kernel)
    x, padding = padded(b, X, resolve_pads(b, X, auto_pad, pads, kernel, strides, dilations))
    options = conv_options(strides, padding, dilations, group)
    spec = layer(b, W, f"Conv{n}d")
    source = spec.weight
    if source is not None and not _is_filter(source, W):
        channels = source.shape[1] * group, source.shape[0]
        dtype = unless(source.dtype, ir.DataType.FLOAT)
        build = spec.build(b, *channels, same(kernel), **options, bias=unless(B is not None, True), dtype=dtype)
        module = b.module("conv", build, **spec.keys, bias=B)
        if module is not None:
            return b("m(x)", m=module, x=x)
    return b.call(f"F.conv{n}d", x, W, unless(B, None), **options)


def _is_filter(source: Source, weight: Arg) -> bool:
    """Return True for a kernel that is slid with several strides or paddings: no layer of torch has two of them.

    A transform over octaves does so. A parameter whose name in the file is a layer's key stays a layer. What its author
    called a buffer is no layer's, either.
    """
    value = weight.value
    if value is None:
        return False
    if is_buffer_name(value.name or "") and not weight.is_trainable:
        return True
    if len(source.names) != 1 or param_path(source.names[0]) is not None:
        return False
    while (node := value.producer()) is not None and is_a(node, PASSES_ON) and node.inputs[0] is not None:
        value = node.inputs[0]
    users = [node for node, _ in slots(value) if is_a(node, CONVOLUTION)]
    settings = {tuple(sorted((name, str(a.value)) for name, a in node.attributes.items())) for node in users}
    return len(users) >= LEAST and len(settings) > 1


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
    kernel, strides, dilations = geometry(b, W, kernel_shape, strides, dilations)
    extra: list[Dim] = list(output_padding or [0] * len(kernel))
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
    y = _transposed(b, X, W, B, kernel, group, options, unless(same(dilations), 1))
    cut = f_pad([a - p for a, p in zip(padding, begins)], [a - q for a, q in zip(padding, ends)])
    return b("F.pad(x, cut)", x=y, cut=cut) if any(c != 0 for c in cut) else y


def _transposed(
    b: Builder, X: Arg, W: Arg, B: Arg | None, kernel: list[Dim], group: int, options: dict[str, Any], dilation: Any
) -> ast.expr:
    n = len(kernel)
    extra = options["output_padding"]
    computed = any(isinstance(e, Sym) for e in (extra if isinstance(extra, tuple) else [extra]))
    spec = layer(b, W, f"ConvTranspose{n}d")
    source = None if computed else spec.weight  # a module has no option that depends on the input's size
    if source is not None:
        channels = source.shape[0], source.shape[1] * group
        build = spec.build(
            b, *channels, same(kernel), **options,
            bias=unless(B is not None, True), dilation=dilation, dtype=unless(source.dtype, ir.DataType.FLOAT),
        )  # fmt: skip
        module = b.module("deconv", build, **spec.keys, bias=B)
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


def geometry(
    b: Builder, W: Arg, kernel_shape: list[int] | None, strides: list[int] | None, dilations: list[int] | None
) -> tuple[list[Dim], list[int], list[int]]:
    """Return the size of the kernel, the stride and the dilation along each axis. PyTorch has 1 to 3 of them."""
    if not kernel_shape and W.shape is None:
        raise b.error("the rank of the kernel is unknown", INFER)
    kernel: list[Dim] = list(kernel_shape or (W.shape or ())[2:])
    if not 1 <= len(kernel) <= 3:
        raise b.error(
            f"a convolution over {len(kernel)} axes has no PyTorch function", "PyTorch has 1 to 3 spatial axes"
        )
    return kernel, strides or [1] * len(kernel), dilations or [1] * len(kernel)
