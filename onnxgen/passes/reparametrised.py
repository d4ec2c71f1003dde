"""Weights that the network computes from others in every run, as `torch.nn.utils.parametrizations` does.

    v * (g / |v|)               weight norm: length and direction apart  (Salimans & Kingma 2016, arXiv 1602.07868)
    w / (u @ (matrix(w) @ v))   spectral norm: divided by the largest singular value (Miyato et al. 2018,
                                arXiv 1802.05957)

In evaluation, spectral norm takes the vectors u and v as they are stored. In training it improves them before each
use, and the file does not say how often. So it is only recognised by torch's own names of the three tensors. A file
that was exported in training computes the improvement, and has only one of the vectors: it stays written out.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxgen.graph.annotations import is_trained
from onnxgen.graph.catalogue import is_a
from onnxgen.graph.traits import RESHAPE, VIEW
from onnxgen.passes.idioms import Idiom, same_as
from onnxgen.passes.pattern import Match, Pattern
from onnxgen.passes.rewrite import own
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info
from onnxgen.weights.stored import stored

WHOLE = -1  # the norm of all elements, not of each slice along an axis
SPECTRAL = ("original", "0._u", "0._v")  # torch's names of w, u and v, behind that of the parametrised tensor


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


def _spectral_norm(match: Match) -> ir.Node | None:
    w, u, v = (match.tensor(name) for name in "wuv")
    paths = [param_path(x.name or "") for x in (w, u, v)]
    names = [path[-len(end.split(".")) :] if path else () for path, end in zip(paths, SPECTRAL)]
    stems = {path[: -len(name)] for path, name in zip(paths, names) if path}
    dim = _rows(match.tensor("m"), w)
    is_named = [".".join(name) for name in names] == list(SPECTRAL) and len(stems) == 1
    if dim is None or not is_named or not _is_parameter(w) or is_trained(u) or is_trained(v) or not same_as(match, "w"):
        return None
    return own("SpectralNorm", [w, u, v], dim=dim)


def _rows(matrix: ir.Value, w: ir.Value) -> int | None:
    """Return the axis of a stored tensor that the rows of a matrix are, whose columns are the others; else None."""
    sizes, node = _sizes(w), matrix.producer()
    before = node.inputs[0] if node is not None and is_a(node, RESHAPE) else matrix
    dim = 0 if before is w else _turned(before, w)
    if dim is None or len(sizes) < 2 or info(matrix).shape != (sizes[dim], math.prod(sizes) // max(sizes[dim], 1)):
        return None
    return dim


def _turned(value: ir.Value | None, w: ir.Value) -> int | None:
    """Return the axis that a Transpose of `w` moves to the front, while the others keep their order; else None."""
    node = None if value is None else value.producer()
    is_view = node is not None and is_a(node, VIEW) and node.inputs[0] is w
    perm = list(node.attributes.get_ints("perm", ())) if node is not None and is_view else []
    if not perm or perm[1:] != [axis for axis in range(len(perm)) if axis != perm[0]]:
        return None
    return perm[0]


IDIOMS = [
    Idiom((Pattern("v * g / ReduceL2(v, axes)"),), _weight_norm),
    Idiom((Pattern("v * g / ReduceL2(f, axes, 0)"),), _flat_weight_norm),
    Idiom((Pattern("w / MatMul(u, MatMul(m, v))"),), _spectral_norm),
]
