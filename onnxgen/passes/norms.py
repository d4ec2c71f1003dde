"""LayerNorm, RMSNorm and InstanceNorm spelled out in elementary operators become the standard operators.

    d = x - mean(x);  d / sqrt(mean(d * d) + eps) * scale + bias          (Ba et al. 2016, arXiv 1607.06450)
    x * m + (bias - mean(x) * m);  m = scale / sqrt(var(x) + eps)         the same, as TensorFlow writes it
    x / sqrt(mean(x * x) + eps) * scale                                   (Zhang & Sennrich 2019, arXiv 1910.07467)

Over the last axes it is LayerNorm, over all behind the channels InstanceNorm (Ulyanov et al. 2016, arXiv 1607.08022),
and over the channels of an image LayerNorm between two Transposes, as ConvNeXt has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.annotations import OWN_NORM, SCOPE, is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import made_by
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.steps import filled, flattened, insert, permuted, transposed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import folded_from, stored

CENTRED = "(x - ReduceMean(x, axes))"
VARIANCE = f"ReduceMean({CENTRED} ** 2, axes)"
NORMAL = f"{CENTRED} / ({VARIANCE} + eps) ** 0.5"
ROOT_MEAN_SQUARE = "x / (ReduceMean(x ** 2, axes) + eps) ** 0.5"
HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass
class _Form:
    """Over what a norm is taken, and the shapes that its scale and bias then have (but for leading ones).

    Attributes:
        op_type: of the standard operator.
        perm: the Transpose that brings the channels last, if they have to be.
    """

    op_type: str
    shape: tuple[object, ...]
    perm: tuple[int, ...] = ()

    @property
    def last_axes(self) -> int:
        return 1 if self.perm else len(self.shape)


def _forms(match: Match, layer: str) -> list[_Form]:
    """What the norm may be, by the axes; the first is what it is without scale and bias."""
    shape = info(match.tensor("x")).shape or ()
    rank, axes = len(shape), match.axes()
    forms: list[_Form] = []
    per_channel = (shape[1], *[1] * (rank - 2)) if rank > 2 else ()
    if layer == "LayerNormalization" and axes == tuple(range(2, rank)) and rank > 2 and isinstance(shape[1], int):
        forms = [_Form("InstanceNormalization", per_channel)]
        if rank == 3 and not _is_group(match):  # the last axis alone: of sequences, not of channels
            forms.insert(0, _Form(layer, shape[2:]))
    if axes == tuple(range(rank - len(axes), rank)) and all(f.shape != shape[rank - len(axes) :] for f in forms):
        forms.append(_Form(layer, shape[rank - len(axes) :]))
    if axes == (1,) and rank > 2:
        forms.append(_Form(layer, per_channel, (0, *range(2, rank), 1)))
    return forms


def _is_group(match: Match) -> bool:
    """Whether it is taken of groups: between two Reshapes."""
    after = only_user(match.root.outputs[0])
    return made_by(match.tensor("x"), "Reshape") is not None and after is not None and after.op_type == "Reshape"


def _build(layer: str, match: Match) -> ir.Node | None:
    x, eps = match.tensor("x"), match.number("eps")
    # in half precision the spelled-out form rounds at each step and the fused one does not: left as written
    if info(x).dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or eps <= 0 or not same_as(match):
        return None
    scale, bias = (match.tensor(name) if name in match.bound else None for name in "wb")
    for form in _forms(match, layer):
        if all(v is None or _trimmed(v, len(form.shape)) == form.shape for v in (scale, bias)):
            if scale is not None or not form.perm:
                return _made(match.root, form, x, scale, bias, eps)
    return None


def _trimmed(value: ir.Value, rank: int) -> tuple[object, ...] | None:
    """A shape without the ones in front of the last `rank` axes."""
    shape = info(value).shape
    if shape is None or any(d != 1 for d in shape[: len(shape) - rank]):
        return None
    return shape[max(0, len(shape) - rank) :]


def _made(
    root: ir.Node, form: _Form, x: ir.Value, scale: ir.Value | None, bias: ir.Value | None, eps: float
) -> ir.Node | None:
    """The node; without a scale or bias where the operator must have one, with ones or zeros."""
    of_images = form.op_type == "InstanceNormalization"
    plain = (form.shape[0],) if of_images or form.perm else form.shape
    size = [d for d in plain if isinstance(d, int)]
    given = [v for v in (scale, bias) if v is not None]
    if len(size) < len(plain) and (scale is None or of_images and bias is None):
        return None
    if any(info(v).shape != plain and len(plain) > 1 for v in given):
        return None
    dtype = info(x).dtype or ir.DataType.FLOAT
    inputs = [x, _as(root, scale, plain) if scale is not None else filled(root, size, 1, dtype)]
    if bias is not None or of_images:
        inputs.append(_as(root, bias, plain) if bias is not None else filled(root, size, 0, dtype))
    attributes: list[ir.Attr] = [ir.AttrFloat32("epsilon", eps)]
    if not of_images:
        attributes.append(ir.AttrInt64("axis", -form.last_axes))
    version = {"LayerNormalization": 17, "RMSNormalization": 23}.get(form.op_type, 6)
    if not form.perm:
        return ir.Node("", form.op_type, inputs, attributes, version=version)
    return _channels_first(root, ir.Node("", form.op_type, inputs, attributes, version=version), form.perm)


def _as(root: ir.Node, value: ir.Value, shape: tuple[object, ...]) -> ir.Value:
    """A scale or bias in the shape that the operator wants: of one axis, unless it is that already."""
    return value if info(value).shape == shape else flattened(value, root)


def _channels_first(root: ir.Node, norm: ir.Node, perm: tuple[int, ...]) -> ir.Node:
    """The norm between two Transposes; returns the second."""
    x = norm.inputs[0]
    assert x is not None
    facts = permuted(info(x), perm)
    norm.replace_input_with(0, transposed(root, x, perm, facts))
    scope = SCOPE.get(root)
    SCOPE.set(norm, scope)
    # a module of its own has the Transposes, too: then the weights are its parameters, and no nn.LayerNorm's
    stored_ones = [_parameter(i) for i in norm.inputs[1:]]
    if scope and all(v is not None and _module(v) == scope for v in stored_ones):
        OWN_NORM.set(norm, True)
        for i, value in enumerate(stored_ones):
            norm.replace_input_with(i + 1, value)
    insert(root, norm)
    norm.outputs[0].name = f"{root.outputs[0].name}.normalised"
    set_info(norm.outputs[0], facts)
    back = [perm.index(axis) for axis in range(len(perm))]
    return ir.Node("", "Transpose", [norm.outputs[0]], [ir.AttrInt64s("perm", back)], version=13)


def _parameter(value: ir.Value | None) -> ir.Value | None:
    """The trained tensor that a value is, seen with other axes of size 1 or not at all."""
    while value is not None and stored(value) is None:
        node = value.producer()
        value = node.inputs[0] if node is not None and is_a(node, RESHAPE) else None
    return value if value is not None and is_trained(value) else None


def _module(value: ir.Value) -> tuple[str, ...] | None:
    """The module whose parameter a tensor is."""
    path = param_path(folded_from(value) or value.name or "")
    return path[:-1] if path is not None else None


def _layer(match: Match) -> ir.Node | None:
    return _build("LayerNormalization", match)


def _rms(match: Match) -> ir.Node | None:
    return _build("RMSNormalization", match)


def _rms_of_half(match: Match) -> ir.Node | None:
    """Computed in float32, scaled in half precision: what RMSNormalization does with `stash_type` 1."""
    x, scale, rank = match.tensor("x"), match.tensor("w"), info(match.tensor("x")).rank
    dtypes = {info(v).dtype for v in (x, scale, match.root.outputs[0])}
    if rank is None or match.axes() != (rank - 1,) or match.number("eps") <= 0 or len(dtypes) > 1:
        return None
    if info(match.tensor("y")).dtype != ir.DataType.FLOAT or not dtypes.issubset(HALVES):
        return None
    if info(scale).shape != (info(x).shape or ())[-1:]:
        return None
    attributes = [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", match.number("eps"))]
    return ir.Node("", "RMSNormalization", [x, scale], attributes, version=23)


TABLE = Table(
    [
        Idiom(
            (
                Pattern(f"{NORMAL} * w + b"),
                Pattern("x * m + (b - ReduceMean(x, axes) * m)", {"m": f"w / ({VARIANCE} + eps) ** 0.5"}),
                Pattern(f"{NORMAL} * w"),
                Pattern(NORMAL),
            ),
            _layer,
        ),
        Idiom((Pattern(f"{ROOT_MEAN_SQUARE} * w"), Pattern(ROOT_MEAN_SQUARE)), _rms),
        Idiom(
            (Pattern("Cast(y / (ReduceMean(y ** 2, axes) + eps) ** 0.5) * w", {"y": "Cast(x)"}),),
            _rms_of_half,
        ),
    ]
)


def norms(model: ir.Model, options: Options) -> None:
    """Rewrite every spelled-out normalisation, with its scale and bias where it has them."""
    TABLE.rewrite(model, users_first=True)
