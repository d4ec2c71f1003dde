"""LayerNorm, RMSNorm and InstanceNorm spelled out in elementary operators become the standard operators.

    d = x - mean(x);  d / sqrt(mean(d * d) + eps) * scale + bias          (Ba et al. 2016, arXiv 1607.06450)
    x * m + (bias - mean(x) * m);  m = scale / sqrt(var(x) + eps)         the same, as TensorFlow writes it
    x / sqrt(mean(x * x) + eps) * scale                                   (Zhang & Sennrich 2019, arXiv 1910.07467)

Over the last axes it is LayerNorm, over all axes behind the channels InstanceNorm (Ulyanov et al. 2016, arXiv
1607.08022), and over the channels of an image LayerNorm between two Transposes, as in ConvNeXt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import OWN_NORM, SCOPE, is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.nodes import made_by
from onnxgen.graph.schemas import first_since
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.idioms import Idiom, Table, same_as
from onnxgen.passes.match import trimmed
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.reparametrised import IDIOMS
from onnxgen.passes.rewrite import only_user
from onnxgen.passes.steps import filled, flattened, insert, transposed
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info
from onnxgen.weights.stored import folded_from, stored

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
                return _made(match.root, form, x, scale, bias, eps)
    return None


def _made(
    root: ir.Node, form: _Form, x: ir.Value, scale: ir.Value | None, bias: ir.Value | None, eps: float
) -> ir.Node | None:
    """Return the node. A scale or bias that the operator needs and the match lacks is filled in as ones or zeros."""
    is_instance = form.op_type == "InstanceNormalization"
    plain = (form.shape[0],) if is_instance or form.perm else form.shape
    size = [d for d in plain if isinstance(d, int)]
    if len(size) < len(plain) and (scale is None or is_instance and bias is None):
        return None
    if any(v is not None and info(v).shape != plain and len(plain) > 1 for v in (scale, bias)):
        return None
    inputs = [x]
    for value, number in ((scale, 1), (bias, 0)) if bias is not None or is_instance else ((scale, 1),):
        if value is None:
            inputs.append(filled(root, size, number, info(x).dtype or ir.DataType.FLOAT))
        else:
            inputs.append(value if info(value).shape == plain else flattened(value, root))
    axis = {} if is_instance else {"axis": -len(plain)}
    norm = ir.node(form.op_type, inputs, {"epsilon": eps, **axis}, version=first_since(form.op_type, VERSION))
    return _channels_first(root, norm, x, form.perm) if form.perm else norm


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
    made = insert(root, norm, f"{root.outputs[0].name}.normalised", info(norm.inputs[0]), root)
    return ir.node("Transpose", [made], {"perm": [perm.index(axis) for axis in range(len(perm))]}, version=13)


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
