"""Norms spelled out become operators: LayerNorm, RMSNorm, InstanceNorm, GroupNorm, BatchNorm.

    d = x - mean(x);  d / sqrt(mean(d * d) + eps) * scale + bias     Ba et al. 2016
    x * m + (bias - mean(x) * m);  m = scale / sqrt(var(x) + eps)    the same, TensorFlow's way
    x / sqrt(mean(x * x) + eps) * scale                              Zhang & Sennrich 2019

Over the last axes it is LayerNorm (arXiv 1607.06450) or RMSNorm (arXiv 1910.07467), over all axes behind the channels
InstanceNorm (Ulyanov et al. 2016, arXiv 1607.08022), and over the channels of an image LayerNorm between two
Transposes, as in ConvNeXt. GroupNorm (Wu & He 2018, arXiv 1803.08494) becomes GroupNormalization-21. Scale and bias
have the shape [C, 1, 1], or both are missing:

    Reshape to [N, groups, -1]; InstanceNormalization with scale 1 and bias 0; Reshape back;
    Mul by a scale; Add a bias

`standardised` takes BatchNormalization by the statistics of its own input, which nobody keeps:

    F.batch_norm(x, None, None, weight, bias, training=True)

It is a BatchNorm without running statistics, or it standardises a weight (Qiao et al. 2019, arXiv 1903.10520), as in
NFNet and ResNetV2: the weight as one sample, [1, out, -1]. Torch's exporters compute the statistics beside the norm.
The legacy exporter may do so from a folded copy of the weight, and stores the weight as the norm takes it. Its own
shape is the convolution's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import OWN_NORM, SCOPE, is_trained
from onnxgen.graph.nodes import first_since, made_by
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes, trimmed, uniform
from onnxgen.passes.pattern import Idiom, Match, Pattern, Table, same_as
from onnxgen.passes.reparametrised import IDIOMS
from onnxgen.passes.rewrite import filled, flattened, insert, is_used, only_user, own, replace, transposed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import Shape, info
from onnxgen.weights.stored import folded_from, stored

OWN_MEAN = Pattern("ReduceMean(x, axes, 0)")
OWN_VARIANCE = Pattern("ReduceMean((x - ReduceMean(x, axes)) ** 2, axes, 0)")


def standardised(model: ir.Model, options: Options) -> None:
    """Rewrite every such norm to `onnxgen.Standardize`."""
    for node in standard_nodes(model, "BatchNormalization"):
        x, scale, bias, mean, variance = node.inputs[:5]
        is_training = node.attributes.get_int("training_mode", 0) == 1
        computed = stored(mean) is None and stored(variance) is None
        if not computed or not (is_training or _is_of(mean, OWN_MEAN, x) and _is_of(variance, OWN_VARIANCE, x)):
            continue
        if any(map(is_used, node.outputs[1:])):
            continue
        last, weight, shape = _reshaped(node, x)
        attributes: dict[str, Any] = {"epsilon": node.attributes.get_float("epsilon", 1e-5)}
        attributes |= {"shape": shape} if shape else {}
        inputs = [weight, None if uniform(scale) == 1 else scale, None if uniform(bias) == 0 else bias]
        replace(last, own("Standardize", inputs, **attributes), node)


def _is_of(statistic: ir.Value | None, formula: Pattern, x: ir.Value | None) -> bool:
    """Return True if a value is this statistic of each channel of `x`. Half precision would round at each step."""
    maker, facts = None if statistic is None else statistic.producer(), info(x)
    is_exact = facts.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    match = None if maker is None or not is_exact else formula.match(maker)
    return match is not None and match.tensor("x") is x and match.axes() == (0, *range(2, facts.rank or 0))


def _reshaped(node: ir.Node, x: ir.Value | None) -> tuple[ir.Node, ir.Value | None, list[int]]:
    """Return the Reshape after the norm of a stored weight, the weight and its shape; else the norm and no shape."""
    reshape = only_user(node.outputs[0])
    weight = _unshaped(x)
    before, after = info(x).shape or (), () if reshape is None else info(reshape.outputs[0]).shape or ()
    shape = [d for d in after if isinstance(d, int)]
    if reshape is None or not is_a(reshape, RESHAPE) or weight is None or len(before) != 3 or len(shape) < 2:
        return node, x, []
    fits = len(shape) == len(after) and before == (1, shape[0], math.prod(shape[1:]))
    return (reshape, weight, shape) if fits and info(weight).shape in (before, after) else (node, x, [])


def _unshaped(x: ir.Value | None) -> ir.Value | None:
    """Return the trained tensor that a value is, perhaps in another shape; else None.

    If it is stored in the other shape, nothing else may use it.
    """
    node = None if x is None else x.producer()
    if node is not None and stored(x) is None and is_a(node, RESHAPE):
        weight = node.inputs[0]
    else:
        weight = x if x is not None and only_user(x) is not None else None
    return weight if weight is not None and stored(weight) is not None and is_trained(weight) else None


CENTRED = "(x - ReduceMean(x, axes))"
VARIANCE = f"ReduceMean({CENTRED} ** 2, axes)"
NORMAL = f"{CENTRED} / ({VARIANCE} + eps) ** 0.5"
ROOT_MEAN_SQUARE = "x / (ReduceMean(x ** 2, axes) + eps) ** 0.5"
VERSION = 17  # of these norms; RMSNormalization is newer


@dataclass
class _Form:
    """A standard norm that may fit the match.

    Attributes:
        shape: the shape of scale and bias, apart from leading ones.
        perm: the permutation of the Transpose that makes the channels the last axis, if one is needed.
    """

    op_type: str
    shape: tuple[object, ...]
    perm: tuple[int, ...] = ()


def _forms(match: Match, layer: str) -> list[_Form]:
    """Return the forms that the axes allow. Without scale and bias, the norm is the first one."""
    shape = info(match.tensor("x")).shape or ()
    rank, axes = len(shape), match.axes()
    forms: list[_Form] = []
    per_channel = (shape[1], *[1] * (rank - 2)) if rank > 2 else ()
    if layer == "LayerNormalization" and axes == tuple(range(2, rank)) and rank > 2 and isinstance(shape[1], int):
        forms = [_Form("InstanceNormalization", per_channel)]
        if rank == 3 and not _is_group(match):  # the last axis alone is more often that of a sequence
            forms.insert(0, _Form(layer, shape[2:]))
    if axes == tuple(range(rank - len(axes), rank)) and all(f.shape != shape[rank - len(axes) :] for f in forms):
        forms.append(_Form(layer, shape[rank - len(axes) :]))
    if axes == (1,) and rank > 2:
        forms.append(_Form(layer, per_channel, (0, *range(2, rank), 1)))
    return forms


def _is_group(match: Match) -> bool:
    """True if the norm is between two Reshapes, as in GroupNorm."""
    return bool(made_by(match.tensor("x"), "Reshape") and only_user(match.root.outputs[0], "Reshape"))


def _build(layer: str, match: Match) -> ir.Node | None:
    x, eps = match.tensor("x"), match.number("eps")
    # in half precision the spelled-out form rounds at each step, and the fused one does not: it is left as written
    if info(x).dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or eps <= 0 or not same_as(match):
        return None
    scale, bias = (match.tensor(name) if name in match.bound else None for name in "wb")
    for form in _forms(match, layer):
        if all(v is None or trimmed(v, len(form.shape)) == form.shape for v in (scale, bias)):
            if scale is not None or not form.perm:
                return _norm(match.root, form, x, scale, bias, eps)
    return None


def _norm(
    root: ir.Node, form: _Form, x: ir.Value, scale: ir.Value | None, bias: ir.Value | None, eps: float
) -> ir.Node | None:
    """Return the node. A scale or bias that the operator needs and the match lacks is filled in as ones or zeros."""
    is_instance = form.op_type == "InstanceNormalization"
    plain = (form.shape[0],) if is_instance or form.perm else form.shape
    vectors = [(scale, 1), (bias, 0)] if bias is not None or is_instance else [(scale, 1)]
    shapes = {None if v is None else info(v).shape for v, _ in vectors}
    is_open = not all(isinstance(d, int) for d in plain)
    if is_open and None in shapes or len(plain) > 1 and not shapes <= {None, plain}:
        return None
    inputs = [x, *(_vector(root, value, number, plain, info(x).dtype) for value, number in vectors)]
    axis = {} if is_instance else {"axis": -len(plain)}
    norm = ir.node(form.op_type, inputs, {"epsilon": eps, **axis}, version=first_since(form.op_type, VERSION))
    return _channels_first(root, norm, x, form.perm) if form.perm else norm


def _vector(
    root: ir.Node, value: ir.Value | None, number: int, shape: tuple[object, ...], dtype: ir.DataType | None
) -> ir.Value:
    """Return a scale or bias in the shape that the operator takes, filled with a number if there is none."""
    if value is None:
        return filled(root, [d for d in shape if isinstance(d, int)], number, dtype or ir.DataType.FLOAT)
    return value if info(value).shape == shape else flattened(value, root)


def _channels_first(root: ir.Node, norm: ir.Node, x: ir.Value, perm: tuple[int, ...]) -> ir.Node:
    """Insert the norm behind a Transpose, and return the Transpose back."""
    norm.replace_input_with(0, transposed(root, x, perm))
    scope = SCOPE.get(root)
    # the module with the weights also has the Transposes, so it is not nn.LayerNorm: the weights are its parameters
    parameters = [_parameter(i) for i in norm.inputs[1:]]
    if scope and all(v is not None and _module(v) == scope for v in parameters):
        OWN_NORM.set(norm, True)
        for i, value in enumerate(parameters):
            norm.replace_input_with(i + 1, value)
    normalised = insert(root, norm, f"{root.outputs[0].name}.normalised", info(norm.inputs[0]), root)
    return ir.node("Transpose", [normalised], {"perm": [perm.index(axis) for axis in range(len(perm))]}, version=13)


def _parameter(value: ir.Value | None) -> ir.Value | None:
    """Return the trained tensor behind a value, which may be reshaped; else None."""
    while value is not None and stored(value) is None:
        node = value.producer()
        value = node.inputs[0] if node is not None and is_a(node, RESHAPE) else None
    return value if value is not None and is_trained(value) else None


def _module(value: ir.Value) -> ModulePath | None:
    """Return the path of the module whose parameter a tensor is."""
    path = param_path(folded_from(value) or value.name or "")
    return path[:-1] if path is not None else None


def _rms_of_half(match: Match) -> ir.Node | None:
    """Build RMSNormalization for half precision: it computes in float32 (`stash_type` 1), and scales in half."""
    x, scale, rank = match.tensor("x"), match.tensor("w"), info(match.tensor("x")).rank
    dtypes = {info(v).dtype for v in (x, scale, match.root.outputs[0])}
    if rank is None or match.axes() != (rank - 1,) or match.number("eps") <= 0 or len(dtypes) > 1:
        return None
    if info(match.tensor("y")).dtype != ir.DataType.FLOAT:
        return None
    if not dtypes <= {ir.DataType.FLOAT16, ir.DataType.BFLOAT16} or info(scale).shape != (info(x).shape or ())[-1:]:
        return None
    return ir.node("RMSNormalization", [x, scale], {"axis": -1, "epsilon": match.number("eps")}, version=23)


TABLE = Table(
    [
        Idiom(
            (
                Pattern(f"{NORMAL} * w + b"),
                Pattern("x * m + (b - ReduceMean(x, axes) * m)", {"m": f"w / ({VARIANCE} + eps) ** 0.5"}),
                Pattern(f"{NORMAL} * w"),
                Pattern(NORMAL),
            ),
            partial(_build, "LayerNormalization"),
        ),
        Idiom((Pattern(f"{ROOT_MEAN_SQUARE} * w"), Pattern(ROOT_MEAN_SQUARE)), partial(_build, "RMSNormalization")),
        Idiom(
            (Pattern("Cast(y / (ReduceMean(y ** 2, axes) + eps) ** 0.5) * w", {"y": "Cast(x)"}),),
            _rms_of_half,
        ),
        *IDIOMS,
    ]
)


def norms(model: ir.Model, options: Options) -> None:
    """Rewrite every spelled-out normalisation, with its scale and bias where it has them, and normalised weights."""
    TABLE.rewrite(model, users_first=True)


def group_norm(model: ir.Model, options: Options) -> None:
    """Rewrite every spelled-out GroupNorm."""
    for node in standard_nodes(model, "InstanceNormalization"):
        if uniform(node.inputs[1]) == 1 and uniform(node.inputs[2]) == 0:
            _rewrite(node)


def _rewrite(node: ir.Node) -> None:
    before, after = made_by(node.inputs[0], "Reshape"), only_user(node.outputs[0], "Reshape")
    groups = (info(node.inputs[1]).shape or (None,))[0]
    if before is None or after is None or not isinstance(groups, int):
        return
    x, shape, grouped = before.inputs[0], info(after.outputs[0]).shape, info(before.outputs[0]).shape
    if x is None or shape is None or info(x).shape != shape or len(shape) < 3 or not isinstance(shape[1], int):
        return
    if grouped is None or grouped[:2] != (shape[0], groups) or shape[1] % groups:
        return
    last, inputs = _affine(after, shape, shape[1], info(x).dtype or ir.DataType.FLOAT)
    attributes = {"num_groups": groups, "epsilon": node.attributes.get_float("epsilon", 1e-5)}
    replace(last, ir.node("GroupNormalization", [x, *inputs], attributes, version=21), origin=node)


def _affine(after: ir.Node, shape: Shape, channels: int, dtype: ir.DataType) -> tuple[ir.Node, list[ir.Value]]:
    """Return the last node of the norm, its scale and its bias. Missing ones are filled in as ones and zeros."""
    last = after
    product = only_user(after.outputs[0], "Mul")
    total = None if product is None else only_user(product.outputs[0], "Add")
    if product is not None and total is not None:
        scale, bias = other(product, after.outputs[0]), other(total, product.outputs[0])
        wanted = (channels, *[1] * (len(shape) - 2))
        if uniform(scale) == 1 and uniform(bias) == 0 and info(total.outputs[0]).shape == shape:
            last = total
        elif scale is not None and bias is not None:
            if trimmed(scale, len(wanted)) == wanted == trimmed(bias, len(wanted)):
                return total, [flattened(scale, total), flattened(bias, total)]
    return last, [filled(last, [channels], number, dtype) for number in (1, 0)]
