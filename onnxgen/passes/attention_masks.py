"""Masks of attention: causal ones, those of `nn.MultiheadAttention`, and rows without any key.

`causal` recognises matrices with one number where the key is not after the query, and another elsewhere:

    inside    for column j <= row i
    outside   for column j > row i

Exporters store such a triangle, make it with Trilu, or compare positions. Casts, comparisons, arithmetic with a number
and Where then turn it into a mask that is added to scores or selects them. All of these are followed. `masks_of` takes
what is added to the scores as the `attn_mask` and `key_padding_mask` of `nn.MultiheadAttention`.

`empty_rows` is a pass. Rows without any key, which are replaced after the softmax, get a gradient of zero, not NaN:

    Where(empty, 0, Softmax(scores))   becomes   Where(empty, 0, Softmax(Where(empty, 0, scores)))

`empty` has one truth value for each row of the softmax (the mask may hide all keys). The result is the same. But the
softmax of a row of -inf is NaN, and the gradient is NaN times 0, which is NaN.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import KEPT
from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import ADDS, COMPARISON, RESHAPE, SCALES
from onnxgen.options import Options
from onnxgen.passes.layouts import Positions, Sizes, arrangement, upwards
from onnxgen.passes.match import elements, scalar, shape_of, standard_nodes, uniform
from onnxgen.passes.rewrite import constant, filled, insert, only_user, replace
from onnxgen.passes.slices import cuts
from onnxgen.shapes.dims import Dim, product
from onnxgen.shapes.info import info

MAX_DEPTH = 16  # nodes between a triangle and the mask
SAMPLE = np.arange(4)  # a few rows and columns: comparisons of positions depend on the difference alone


@dataclass(frozen=True)
class Causal:
    """A causal mask: its last two axes, and the two numbers (truth values are 1 and 0). It repeats along other axes.

    `kept`: True if it comes from a buffer of the state dict, which must not be dropped.
    """

    rows: Dim
    columns: Dim
    inside: float
    outside: float
    kept: bool = False


def causal(value: ir.Value | None, depth: int = MAX_DEPTH) -> Causal | None:
    """Return a value as a causal mask; None if it is not known to be one."""
    shape = shape_of(value)
    if value is None or len(shape) < 2 or depth == 0:
        return None
    array = elements(value)
    if array is not None:
        mask = _of_array(array)
        return None if mask is None else dataclasses.replace(mask, kept=KEPT.get(value))
    node = value.producer()
    mask = None if node is None or node.domain != "" else _of_node(node, depth - 1)
    return None if mask is None else dataclasses.replace(mask, rows=shape[-2], columns=shape[-1])


def _of_array(array: np.ndarray[Any, Any]) -> Causal | None:
    rows, columns = array.shape[-2:]
    if array.size != rows * columns or rows < 2 or columns < 2 or array.dtype.kind not in "biuf":
        return None
    matrix = array.reshape(rows, columns)
    inside, outside = matrix[0, 0], matrix[0, 1]
    if not np.array_equal(matrix, np.where(np.tri(rows, columns, dtype=bool), inside, outside)):
        return None
    return Causal(rows, columns, float(inside), float(outside))


def _arranges(node: ir.Node) -> bool:
    return is_a(node, RESHAPE) or node.op_type in ("Expand", "Identity")


def _of_node(node: ir.Node, depth: int) -> Causal | None:
    """Return the mask that a node makes; its rows and columns are not set."""
    match node.op_type:
        case "Trilu":
            return _of_trilu(node)
        case "Where":
            return _of_where(node, depth)
        case "Not":
            return _mapped(causal(node.inputs[0], depth), operator.not_)
        case "Cast":
            return _of_cast(node, depth)
        case "Slice":
            return _of_slice(node, depth)
    if _arranges(node):
        return _arranged(node, depth)
    is_computed = is_a(node, COMPARISON, ADDS, SCALES) and len(node.inputs) == 2
    function = known(node).rules.numbers if is_computed else None
    return None if function is None else _computed(node, function, depth)


def _of_where(node: ir.Node, depth: int) -> Causal | None:
    choice, (first, second) = causal(node.inputs[0], depth), (uniform(i) for i in node.inputs[1:3])
    if first is None or second is None or shape_of(node.inputs[0])[-2:] != shape_of(node.outputs[0])[-2:]:
        return None
    return _mapped(choice, lambda x: first if x else second)


def _of_cast(node: ir.Node, depth: int) -> Causal | None:
    mask, to = causal(node.inputs[0], depth), ir.DataType(node.attributes["to"].as_int())
    if to == ir.DataType.BOOL:
        return _mapped(mask, bool)
    is_exact = to.is_floating_point() or mask is None or {mask.inside, mask.outside} <= {0.0, 1.0}
    return mask if is_exact else None


def _computed(node: ir.Node, function: Callable[[Any, Any], Any], depth: int) -> Causal | None:
    """Return the result of a mask and a number, or of a comparison of the columns' positions with the rows'."""
    a, b = node.inputs[:2]
    left, right = scalar(a), scalar(b)
    if right is not None and (mask := causal(a, depth)) is not None:
        return _mapped(mask, lambda x: function(np.float32(x), np.float32(right)))
    if left is not None and (mask := causal(b, depth)) is not None:
        return _mapped(mask, lambda x: function(np.float32(left), np.float32(x)))
    first, second = _positions(a, depth), _positions(b, depth)
    if not is_a(node, COMPARISON) or first is None or second is None or first[0] == second[0]:
        return None
    grids = [offset + (SAMPLE[:, None] if axis == -2 else SAMPLE[None, :]) for axis, offset in (first, second)]
    return _of_array(function(*grids))


def _mapped(mask: Causal | None, function: Callable[[float], Any]) -> Causal | None:
    """Apply a function to both numbers of a mask; None if they are equal afterwards, or NaN."""
    if mask is None:
        return None
    with np.errstate(all="ignore"):
        inside, outside = float(function(mask.inside)), float(function(mask.outside))
    mapped = dataclasses.replace(mask, inside=inside, outside=outside)
    return None if math.isnan(inside) or math.isnan(outside) or inside == outside else mapped


def _of_trilu(node: ir.Node) -> Causal | None:
    upper = node.attributes.get_int("upper", 1)
    diagonal = scalar(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else 0
    number = uniform(node.inputs[0])
    if number is None or number == 0 or diagonal != upper:
        return None
    return Causal(0, 0, 0.0, number) if upper else Causal(0, 0, number, 0.0)


def _of_slice(node: ir.Node, depth: int) -> Causal | None:
    """Return the mask of which a Slice takes the top left corner."""
    cut, leading = cuts(node), len(shape_of(node.inputs[0])) - 2
    is_corner = cut is not None and all(c.axis < leading or (c.start, c.step) == (0, 1) for c in cut)
    return causal(node.inputs[0], depth) if is_corner else None


def _arranged(node: ir.Node, depth: int) -> Causal | None:
    """Return the mask behind a view that only changes its leading axes."""
    before, after = shape_of(node.inputs[0]), shape_of(node.outputs[0])
    is_same = after[-2:] == before[-2:] and (node.op_type != "Reshape" or product(before[:-2]) == 1)
    return causal(node.inputs[0], depth) if is_same else None


def _positions(value: ir.Value | None, depth: int) -> tuple[int, int] | None:
    """Return (axis, first number) of a value that counts by ones along its last (-1) or second last (-2) axis alone."""
    if value is None or not shape_of(value) or depth == 0:
        return None
    array, node = elements(value), value.producer()
    if array is not None:
        return _positions_in(array)
    if node is None or node.domain != "":
        return None
    if node.op_type == "Range":
        start, step = scalar(node.inputs[0]), scalar(node.inputs[2])
        return (-1, int(start)) if start is not None and step == 1 and start == int(start) else None
    if node.op_type == "Cast":
        return _positions(node.inputs[0], depth - 1)
    if node.op_type == "Add":
        return _shifted(node, depth - 1)
    counted = _positions(node.inputs[0], depth - 1) if _arranges(node) else None
    return None if counted is None else _rearranged(node, *counted)


def _positions_in(array: np.ndarray[Any, Any]) -> tuple[int, int] | None:
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) < 2:
        return None
    first = int(array[0])
    return (-1, first) if np.array_equal(array, np.arange(first, first + len(array))) else None


def _shifted(add: ir.Node, depth: int) -> tuple[int, int] | None:
    """Return positions to which a whole number is added."""
    numbers = [scalar(i) for i in add.inputs]
    index = 0 if numbers[0] is None else 1
    counted, offset = _positions(add.inputs[index], depth), numbers[1 - index]
    if counted is None or offset is None or offset != int(offset):
        return None
    return counted[0], counted[1] + int(offset)


def _rearranged(node: ir.Node, axis: int, first: int) -> tuple[int, int] | None:
    """Return positions after a node that repeats them along other axes, or adds or drops axes of size 1."""
    length, shape = shape_of(node.inputs[0])[axis], shape_of(node.outputs[0])
    place = next((a for a in (-1, -2) if len(shape) >= -a and shape[a] == length != 1), None)
    is_kept = place == axis if node.op_type == "Expand" else product(shape) == length
    return (place, first) if place is not None and is_kept else None


HIDES = -1e4  # a number as low hides a score as -inf does: BERT's
Full: TypeAlias = tuple[int, int, int, int]  # batch, heads, length, keys


@dataclass
class Masks:
    """The masks of one layer.

    Attributes:
        attention: [length, keys] or [batch * heads, length, keys]; truth values hide scores, numbers are added.
        padding: [batch, keys].
        may_empty: True unless it is known that no row loses all its keys.
    """

    attention: ir.Value | None = None
    padding: ir.Value | None = None
    may_empty: bool = False


def masks_of(added: Sequence[ir.Value], full: Full, sizes: Sizes, before: ir.Node) -> Masks | None:
    """Return what is added to scores of shape `full` ([batch, heads, length, keys]) as masks; None if it is not.

    `before`: the node before which a constant may be inserted.
    """
    masks = Masks()
    for value in (part for total in added for part in _summands(total, full, sizes)):
        if uniform(value) == 0:
            continue
        kind, mask = _mask(value, full, sizes)
        mask = _flat(value, full, before) if mask is None else mask
        if mask is None or getattr(masks, kind) is not None:
            return None
        setattr(masks, kind, mask)
    tensors = [m for m in (masks.attention, masks.padding) if m is not None]
    masks.may_empty = not (len(tensors) == 1 and _keeps_a_key(tensors[0]))
    if all(_condition(m) is not None for m in tensors):  # torch takes masks of one type
        masks.attention, masks.padding = _condition(masks.attention), _condition(masks.padding)
    return masks


def _summands(value: ir.Value, full: Full, sizes: Sizes) -> Iterator[ir.Value]:
    """Yield the masks that a value is the sum of, in the shape of the sum."""
    *_, total = upwards(value)
    node = made_by(total, "Add")
    parts = [] if node is None else [v for v in node.inputs if v is not None and info(v).rank in (3, 4)]
    is_whole = len(parts) == 2 and sizes.fit_heads(total, full)
    positions = arrangement(value, total, sizes) if is_whole else None
    if positions is None or not _covers(positions, full, np.arange(math.prod(full)).reshape(full)):
        yield value
    else:
        yield from parts


def _mask(value: ir.Value, full: Full, sizes: Sizes) -> tuple[str, ir.Value | None]:
    """Return which mask a summand is, and the mask; its nearest form that torch's layer takes."""
    batch, heads, length, keys = full
    count = math.prod(full)
    kinds: list[tuple[str, tuple[int, ...], Positions]] = [
        ("padding", (batch, keys), np.arange(batch * keys).reshape(batch, 1, 1, keys)),
        ("attention", (length, keys), np.arange(length * keys).reshape(1, 1, length, keys)),
        ("attention", (batch * heads, length, keys), np.arange(count).reshape(full)),
    ]
    for origin in upwards(value):
        dims = info(origin).shape
        if dims is None or len(dims) not in (2, 3):
            continue
        for kind, shape, wanted in kinds:
            trial = Sizes(dict(sizes.numbers))
            if len(dims) != len(shape) or not all(trial.equate(d, n) for d, n in zip(dims, shape)):
                continue
            positions = arrangement(value, origin, trial)
            if positions is not None and _covers(positions, full, wanted):
                sizes.numbers.update(trial.numbers)
                return kind, origin
    return "attention", None


def _flat(value: ir.Value, full: Full, before: ir.Node) -> ir.Value | None:
    """Return a constant [1, 1, length, keys], as which an exporter folds a mask, as [length, keys]."""
    array, dtype = elements(value), info(value).dtype
    if array is None or dtype is None or array.shape[-2:] != full[2:] or array.size != full[2] * full[3]:
        return None
    return constant(before, array.reshape(full[2:]), f"{value.name}.mask", dtype)


def _covers(positions: Positions, full: Full, wanted: Positions) -> bool:
    """True if a mask of these positions gives each score the wanted one. It has rank 2 to 4 and may broadcast."""
    batch, heads, length, keys = full
    if positions.ndim == 3:
        positions = (
            positions.reshape(-1, heads, *positions.shape[1:]) if len(positions) == batch * heads else positions[None]
        )
    try:
        return bool((np.broadcast_to(positions, full) == np.broadcast_to(wanted, full)).all())
    except ValueError:
        return False


def _condition(mask: ir.Value | None) -> ir.Value | None:
    """Return the condition of a mask that is -inf where it is true and 0 elsewhere."""
    node = made_by(mask, "Where")
    if node is None or info(node.inputs[0]).shape != info(mask).shape:
        return None
    return node.inputs[0] if (uniform(node.inputs[1]), uniform(node.inputs[2])) == (-math.inf, 0.0) else None


def _keeps_a_key(mask: ir.Value) -> bool:
    """True if each row of an attention mask surely has a key that is not hidden."""
    array, triangle = elements(mask), causal(mask)
    if array is not None and array.dtype.kind == "f":
        return bool((array.astype(np.float64) > -math.inf).any(axis=-1).all())
    return triangle is not None and triangle.inside == 0


def only_hides(mask: ir.Value | None) -> bool:
    """True if a mask keeps each score as it is or hides it, and leaves each row a key.

    `nn.TransformerEncoderLayer` without gradients takes the numbers of its mask for truth values.
    """
    if mask is None or info(mask).dtype == ir.DataType.BOOL:
        return True
    array, triangle = elements(mask), causal(mask)
    if array is None:
        return triangle is not None and triangle.inside == 0 and triangle.outside <= HIDES
    kept = array == 0
    return bool((kept | (array.astype(np.float64) <= HIDES)).all() and kept.any(axis=-1).all())


def empty_rows(model: ir.Model, options: Options) -> None:
    """Rewrite every such Where."""
    opset = model.opset_imports.get("", 1)
    for node in standard_nodes(model, "Where"):
        _rewrite(node, opset)


def _rewrite(where: ir.Node, opset: int) -> None:
    empty, zeros, value = where.inputs
    chain = []
    node = made_by(value, "Softmax", "Cast")
    while node is not None and only_user(node.outputs[0]) is not None:
        chain.append(node)
        node = made_by(node.inputs[0], "Softmax", "Cast") if node.op_type == "Cast" else None
    softmax = chain[-1] if chain and chain[-1].op_type == "Softmax" else None
    if softmax is None or empty is None or not _is_one_a_row(empty, softmax):
        return
    scores = softmax.inputs[0]
    facts = info(scores)
    if (softmax.version or opset) < 13 or scores is None or facts.dtype is None:  # before 13 over several axes
        return
    new = ir.node("Where", [empty, filled(where, (), 0, facts.dtype), scores], version=where.version)
    value = insert(where, new, f"{scores.name}.filled", facts, where)
    for old in reversed(chain):
        new = ir.Node("", old.op_type, [value], list(old.attributes.values()), version=old.version)
        value = insert(where, new, f"{old.outputs[0].name}.kept", info(old.outputs[0]), old)
    replace(where, ir.node("Where", [empty, zeros, value], version=where.version))


def _is_one_a_row(empty: ir.Value, softmax: ir.Node) -> bool:
    """True if a condition has one element along the axis of a softmax."""
    rank, shape = info(softmax.outputs[0]).rank, info(empty).shape
    if rank is None or shape is None:
        return False
    axis = softmax.attributes.get_int("axis", -1)
    from_end = -axis if axis < 0 else rank - axis
    return len(shape) < from_end or shape[-from_end] == 1
