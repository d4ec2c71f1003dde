"""The numbers that operators accept for inputs that are indices, counts or divisors.

The oracle refuses a random number there, or worse, accepts it and computes nonsense. `Ranges` are
those of standard operators. Kernels of onnxruntime's own operators check only some of these, and
read out of bounds for others: a `Draw` draws a whole tensor for them, and returns None if no number
is valid (`microsoft.drawn`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.operators import card
from onnxgen.shapes.dims import Dim, Sym, dim_min, product
from onnxgen.shapes.equal import whole
from onnxgen.shapes.info import Shape, info


@dataclass(frozen=True)
class Range:
    """The range of values that an operator takes at an input.

    Attributes:
        least: the smallest number.
        below: the numbers are below this; None if they have no upper limit.
        distinct: range of axes along which numbers must differ, since otherwise the order of writing counts.
        is_size: they act as sizes, counts or positions, and need to be small and positive.
    """

    least: Dim = 0
    below: Dim | None = None
    distinct: tuple[int, int] | None = None
    is_size: bool = False


Rule = Callable[[ir.Node, list[Shape | None]], Range | None]
MASK = Range(0, 2)


def range_of(node: ir.Node, position: int) -> Range | None:
    """Return the range that a node accepts at an input, or None if it accepts any value or its shapes are unknown.

    Real numbers have none, but for sizes: the input may be a table or a mask to add.
    """
    dtype = info(node.inputs[position]).dtype
    rule = (card(node.domain, node.op_type).rules.ranges or {}).get(position)
    if rule is None or rule is not _size and dtype is not None and dtype.is_floating_point():
        return None
    try:
        accepted: Range | None = rule(node, [info(value).shape for value in node.inputs])
        return accepted
    except (IndexError, TypeError):  # an input that the rule needs is absent or of unknown shape
        return None


def _rows(table: int, axis: int = 0) -> Rule:
    """Make a rule for indices of the rows of another input."""
    return lambda node, shapes: Range(0, _of(shapes, table)[axis])


def _of(shapes: list[Shape | None], i: int) -> Shape:
    shape = shapes[i]
    if shape is None:
        raise TypeError
    return shape


def most_keys(node: ir.Node, shapes: list[Shape | None]) -> Dim:
    """Return the largest number of keys of a row of GroupQueryAttention: the cache is full, and no query is padding.

    If there may be padding, the file has the largest number: for example the size of a cache that does not grow.
    """
    past, length = shapes[3], _of(shapes, 0)[1]
    total = length if past is None else past[2] + length
    bound = info(node.inputs[6]).data if counts_queries(node) else None
    limits = [] if bound is None else [size for size in bound.reshape(-1).tolist()[:1] if isinstance(size, (int, Sym))]
    return dim_min(total, *limits)


def counts_queries(node: ir.Node) -> bool:
    """Return True if a GroupQueryAttention has the input with the number of queries of each row, without padding."""
    return node.op_type == "GroupQueryAttention" and len(node.inputs) > 16 and node.inputs[16] is not None


def _exactly(number: Dim) -> Range:
    return Range(number, number + 1)


def _padding(node: ir.Node, shapes: list[Shape | None], at: int = 4) -> Range:
    """Return the range of a mask, or of the lengths of the keys."""
    if len(_of(shapes, at)) != 1:
        return MASK
    keys = shapes[1] if at == 4 and shapes[1] is not None else _of(shapes, 0)
    return Range(1, keys[1] + 1)


def _rotary(node: ir.Node, shapes: list[Shape | None]) -> Range:
    """Return the range of positions of each token, or of the first ones."""
    rows, positions, x = _of(shapes, 2)[0], _of(shapes, 1), _of(shapes, 0)
    length = x[-2] if len(x) == 4 else x[1]
    return Range(0, rows - length + 1 if len(positions) == 1 else rows)


def _plane(node: ir.Node, shapes: list[Shape | None]) -> Range:
    """Return the range of places in a plane, all distinct. The plane is as small as possible: the input's size."""
    shape = _of(shapes, 0)
    return Range(0, product(shape[2:]), distinct=(2, len(shape)))


def _scattered(node: ir.Node, shapes: list[Shape | None]) -> Range | None:
    data = _of(shapes, 0)
    axis = whole(node, "axis") % len(data)
    return Range(0, data[axis], distinct=(axis, axis + 1))


def _scattered_nd(node: ir.Node, shapes: list[Shape | None]) -> Range | None:
    """Return the range of row indices: with several axes, below the smallest. The first index makes rows distinct."""
    data, indices = _of(shapes, 0), _of(shapes, 1)
    depth = indices[-1] if isinstance(indices[-1], int) else len(data)
    return Range(0, dim_min(*data[:depth]), distinct=(0, len(indices) - 1))


def _lengths(node: ir.Node, shapes: list[Shape | None]) -> Range:
    return Range(1, _of(shapes, 0)[1 if whole(node, "layout") else 0] + 1)


Ranges = dict[int, Rule]  # by input


def _size(node: ir.Node, shapes: list[Shape | None]) -> Range:
    return Range(1, is_size=True)


reshape = expand = tile = top_k = one_hot = split = pad = trilu = {1: _size}
constant_of_shape = {0: _size}
ranged = dict.fromkeys((0, 1, 2), _size)
resize = dict.fromkeys((2, 3), _size)
mod: Ranges = {1: lambda node, shapes: Range(1)}
recurrent: Ranges = {4: _lengths}
reverse_sequence: Ranges = {1: lambda node, shapes: Range(1, _of(shapes, 0)[whole(node, "time_axis")] + 1)}
group_query_attention: Ranges = {
    5: lambda node, shapes: _exactly(most_keys(node, shapes) - 1),
    6: lambda node, shapes: _exactly(most_keys(node, shapes)),
    # all queries: with fewer, onnxruntime returns uninitialised memory for the rest
    16: lambda node, shapes: _exactly(_of(shapes, 0)[1]),
}
multi_head_attention: Ranges = {4: _padding}
attention: Ranges = {3: lambda node, shapes: _padding(node, shapes, 3)}
embed_layer_norm: Ranges = {0: _rows(2), 1: _rows(4), 7: lambda node, shapes: MASK, 8: _rows(3)}
microsoft_rotary_embedding: Ranges = {1: _rotary}
rotary_embedding: Ranges = {3: _rows(1)}
decoder_masked_attention: Ranges = {7: lambda node, shapes: Range(1, _of(shapes, 5)[2])}
roi_align: Ranges = {2: _rows(0)}
cumsum: Ranges = {1: lambda node, shapes: Range(0, len(_of(shapes, 0)))}
dft: Ranges = {2: lambda node, shapes: Range(1, len(_of(shapes, 0)) - 1)}
max_unpool: Ranges = {1: _plane}
scatter_elements: Ranges = {1: _scattered}
scatter_nd: Ranges = {1: _scattered_nd}


Array: TypeAlias = Any  # numpy says no more of most results
Sizes = tuple[int, ...]
# of the shapes of all inputs, and an array that was drawn for this one
Draw = Callable[[Sequence[Sizes | None], Array, np.random.Generator], "Array | None"]
