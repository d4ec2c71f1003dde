"""Indexing by tensors: by indices that count from 0 along an axis, and by masks.

    x[arange(batch)[:, None, None, None], arange(n)]   is   x[:, None, None, :]
    arange(n) >= 0                                     is   true
    Transpose(NonZero(mask))                           is   mask.nonzero()
    GatherND(x, the same)                              is   x[mask]
    Gather(x, Squeeze(the same), axis) of one          is   x[:, mask], which is a Compress
    GatherND(x, indices of one axis)                   is   x[indices]
    Gather(x.flatten(), every place, once, by strides) is   x.view(...).permute(...)

The last is how torch's exporter writes `as_strided`. Exporters write masks by counting indices that are functions of
positions, for each query and each key. torch has a row for the position of each element, ONNX a column. Sizes must be
the same for certain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.match import elements, ints, scalar, standard_nodes, uniform
from onnxgen.passes.rewrite import constant, insert, known_ints, own, replace, reshaped
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info

DEPTH = 8  # of nodes between a Range and what takes its numbers
ALWAYS = {"GreaterOrEqual": True, "Less": False}  # of a number that is not negative, and 0


def indexed(model: ir.Model, options: Options) -> None:
    """Replace each node whose indices are the places in their order."""
    for node in standard_nodes(model, "GatherND"):
        _gathered(node)
    for node in standard_nodes(model, *ALWAYS):
        shape = info(node.outputs[0]).shape
        if shape is not None and counted(node.inputs[0]) is not None and scalar(node.inputs[1]) == 0:
            always = constant(node, ALWAYS[node.op_type], f"{node.outputs[0].name}.always", ir.DataType.BOOL)
            replace(node, ir.node("Expand", [always, known_ints(shape)], version=13))
    for node in standard_nodes(model, "And"):
        kept = [value for value in node.inputs if uniform(value) != 1]
        shape = info(node.outputs[0]).shape
        if len(kept) == 1 and shape is not None:
            replace(node, ir.node("Expand", [kept[0], known_ints(shape)], version=13))


def counted(value: ir.Value | None, depth: int = DEPTH) -> int | None:
    """Return the axis of a value, from the last (-1), along which its elements are 0, 1, 2, ...; None if there is none.

    Along all other axes they are the same.
    """
    node, shape = None if value is None else value.producer(), info(value).shape
    if shape is None or depth == 0:
        return None
    if (array := elements(value)) is not None:
        return _counted_along(array)
    if node is None or node.domain:
        return None
    if made_by(value, "Range"):
        return -1 if scalar(node.inputs[0]) == 0 and scalar(node.inputs[2]) == 1 and _is_integer(value) else None
    if not is_a(node, RESHAPE) and node.op_type not in ("Expand", "Identity"):
        return None
    axis, before = counted(node.inputs[0], depth - 1), info(node.inputs[0]).shape
    if axis is None or before is None:
        return None
    return _moved(axis, before, shape, is_expanded=node.op_type == "Expand")


def _is_integer(value: ir.Value | None) -> bool:
    return info(value).dtype in (ir.DataType.INT64, ir.DataType.INT32)


def _moved(axis: int, before: Sequence[Dim], after: Sequence[Dim], is_expanded: bool) -> int | None:
    """Return where an axis is after a node that repeats elements, or that puts in or takes out axes of size 1."""
    size = before[axis]
    if is_expanded:
        return axis if after[axis] == size else None
    if any(d != 1 for i, d in enumerate(before) if i != axis + len(before)):
        return None
    candidates = [i - len(after) for i, d in enumerate(after) if d != 1]
    return candidates[0] if len(candidates) == 1 and after[candidates[0]] == size else None


def _counted_along(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int | None:
    if array.dtype.kind not in "iu":
        return None
    for axis in range(-array.ndim, 0):
        count = np.arange(array.shape[axis]).reshape(-1, *[1] * (-1 - axis))
        if len(count) > 1 and np.array_equal(array, np.broadcast_to(count, array.shape)):
            return axis
    return None


def _gathered(node: ir.Node) -> None:
    """Replace a GatherND that takes all elements, each at its place, by axes of size 1 and an Expand."""
    data, shape, facts = node.inputs[0], info(node.inputs[0]).shape, info(node.outputs[0])
    axes = _axes(node.inputs[1])
    if axes is None or shape is None or facts.shape is None or node.attributes.get_int("batch_dims", 0) != 0:
        return
    rank = len(facts.shape) - (len(shape) - len(axes))  # of the indices, without their last axis
    inside: list[Dim] = [1] * rank
    last = -1
    for axis, size in zip(axes, shape):
        if size == 1:  # there is one index
            continue
        if axis is None or axis + rank <= last or facts.shape[axis + rank] != size:
            return
        last = axis + rank
        inside[last] = size
    inside += shape[len(axes) :]
    new = ir.node("Reshape", [data, known_ints(inside)], version=13)
    if inside == list(facts.shape):
        return replace(node, new)
    placed = insert(node, new, f"{node.outputs[0].name}.placed", Info(facts.dtype, tuple(inside)), node)
    replace(node, ir.node("Expand", [placed, known_ints(facts.shape)], version=13))


def _axes(value: ir.Value | None) -> list[int | None] | None:
    """Return `counted` for each place of the last axis of a tensor of indices; None if they are not known apart."""
    node, shape = None if value is None else value.producer(), info(value).shape
    if (array := elements(value)) is not None:
        return [_counted_along(part) for part in np.moveaxis(array, -1, 0)] if array.ndim else None
    if node is None or shape is None or not made_by(value, "Concat"):
        return None
    last = (-1, len(shape) - 1)
    if node.attributes.get_int("axis", 0) not in last:
        return None
    axes = list[int | None]()
    for joined in node.inputs:
        maker = None if joined is None else joined.producer()
        if maker is None or not made_by(joined, "Unsqueeze") or ints(maker, "axes", 1) not in ([last[0]], [last[1]]):
            return None
        axes.append(counted(maker.inputs[0]))
    return axes


def chosen(model: ir.Model, options: Options) -> None:
    """Replace every such node."""
    for node in standard_nodes(model, "Transpose"):
        nonzero = made_by(node.inputs[0], "NonZero")
        perm = node.attributes.get_ints("perm", [1, 0])
        if nonzero is not None and list(perm) == [1, 0]:
            replace(node, own("Positions", [nonzero.inputs[0]]))
    for node in standard_nodes(model, "GatherND", "Gather"):
        (_of_axes if node.op_type == "GatherND" else _of_axis)(node)


def whole(model: ir.Model, options: Options) -> None:
    """Replace each node that takes rows as if by elements, or all elements as if by places."""
    for node in standard_nodes(model, "GatherND"):
        _of_one_axis(node)
    for node in standard_nodes(model, "Gather"):
        _strided(node)


def _of_one_axis(node: ir.Node) -> None:
    indices = node.inputs[1]
    shape = info(indices).shape
    if indices is None or not shape or shape[-1] != 1 or node.attributes.get_int("batch_dims", 0) != 0:
        return
    maker = made_by(indices, "Unsqueeze")
    rows = maker.inputs[0] if maker is not None and ints(maker, "axes", 1) in ([-1], [len(shape) - 1]) else None
    if rows is None:
        rows = reshaped(node, indices, shape[:-1], f"{node.outputs[0].name}.rows")
    replace(node, ir.node("Gather", [node.inputs[0], rows], {"axis": 0}, version=13))


def _strided(node: ir.Node) -> None:
    flat, places = node.inputs[0], elements(node.inputs[1])
    shape = info(flat).shape
    if flat is None or places is None or shape is None or len(shape) != 1 or shape[0] != places.size:
        return
    if places.dtype.kind != "i" or places.ndim < 2 or not places.size:
        return
    steps = [int(places.take(1, axis).flat[0] - places.flat[0]) if n > 1 else 0 for axis, n in enumerate(places.shape)]
    order = sorted(range(places.ndim), key=lambda axis: (-steps[axis], axis))  # from the outermost
    sizes = [places.shape[axis] for axis in order]
    perm = [order.index(axis) for axis in range(places.ndim)]
    if not np.array_equal(np.arange(places.size).reshape(sizes).transpose(perm), places):
        return
    split = reshaped(node, flat, sizes, f"{node.outputs[0].name}.split")
    replace(node, ir.node("Transpose", [split], {"perm": perm}, version=13))


def _of_axes(node: ir.Node) -> None:
    mask, shape = _mask(node.inputs[1]), info(node.inputs[0]).shape
    sizes = info(mask).shape
    if sizes and shape is not None and shape[: len(sizes)] == sizes and not node.attributes.get_int("batch_dims", 0):
        replace(node, own("Chosen", [node.inputs[0], mask]))


def _of_axis(node: ir.Node) -> None:
    squeeze, shape = made_by(node.inputs[1], "Squeeze"), info(node.inputs[0]).shape
    if squeeze is None or shape is None or ints(squeeze, "axes", 1) not in ([1], [-1]):
        return
    axis, mask = node.attributes.get_int("axis", 0) % len(shape), _mask(squeeze.inputs[0])
    if info(mask).shape == (shape[axis],):
        replace(node, ir.node("Compress", [node.inputs[0], mask], {"axis": axis}, version=11))


def _mask(value: ir.Value | None) -> ir.Value | None:
    """Return the mask whose true elements are at these positions, else None."""
    node = None if value is None else value.producer()
    is_own = node is not None and (node.domain, node.op_type) == (DOMAIN, "Positions")
    mask = node.inputs[0] if node is not None and is_own else None
    return mask if info(mask).dtype == ir.DataType.BOOL else None
