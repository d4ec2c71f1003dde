"""Weights of which the length and the direction are stored, as `torch.nn.utils.parametrizations.weight_norm` does.

    v * (g / |v|)               Salimans & Kingma 2016, arXiv 1602.07868

Spectral norm stays written out: in training it improves its vectors before each use, and a file does not say how often.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.passes.pattern import Idiom, Match, Pattern, same_as
from onnxgen.passes.rewrite import own
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

WHOLE = -1  # the norm of all elements, not of each slice along an axis


def _sizes(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of a stored tensor, else ()."""
    tensor = stored(value)
    return () if tensor is None else tuple(tensor.shape.numpy())


def _is_parameter(value: ir.Value) -> bool:
    """Return True for a tensor that is trained, or that an option freezes."""
    return is_trained(value) or param_path(value.name or "") is not None


def _weight_norm(match: Match) -> ir.Node | None:
    return _of(match, [axis for axis in range(len(_sizes(match.tensor("v")))) if axis not in match.axes()])


def _of(match: Match, others: list[int]) -> ir.Node | None:
    """Return the node for a norm of all axes but `others`, if these are what torch's function can take."""
    v, g = match.tensor("v"), match.tensor("g")
    sizes, length = _sizes(v), info(g).shape if stored(g) is not None else None
    is_float = info(v).dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    if len(sizes) < 2 or not is_float or not (_is_parameter(v) and _is_parameter(g)) or not same_as(match, "v"):
        return None
    wanted = tuple(n if axis in others else 1 for axis, n in enumerate(sizes)) if others else ()
    if length != wanted or len(others) > 1:
        return None
    return own("WeightNorm", [v, g], dim=others[0] if others else WHOLE)


def _flat_weight_norm(match: Match) -> ir.Node | None:
    """The norm of the whole tensor, as torch's dynamo exporter writes it."""
    v, g, flat = (match.tensor(name) for name in "vgf")
    node = flat.producer()
    is_flat = node is not None and is_a(node, RESHAPE) and node.inputs[0] is v and info(flat).rank == 1
    return _of(match, []) if is_flat and info(g).shape == () else None


IDIOMS = [
    Idiom((Pattern("v * g / ReduceL2(v, axes)"),), _weight_norm),
    Idiom((Pattern("v * g / ReduceL2(f, axes, 0)"),), _flat_weight_norm),
]
