"""Tells which values torch may store with other strides than those of their shape: views, and what follows from them.

cuDNN's recurrent layers refuse such a state ("rnn: hx is not contiguous"). The CPU's take any.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import ELEMENTWISE, RESHAPE, STRIDES, VIEW
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info


def is_contiguous(value: ir.Value) -> bool:
    """Return True if torch stores a value row by row, whatever sizes are unknown. A graph's inputs count as such."""
    pending, seen = [value], set()
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or value in seen:
            continue
        seen.add(value)
        data = [x for i, x in enumerate(node.inputs) if x is not None and i in known(node).data]
        if is_a(node, STRIDES) and not _keeps_rows(node, data[0], value):
            return False
        if is_a(node, STRIDES, ELEMENTWISE, RESHAPE):
            pending += data
    return True


def _keeps_rows(node: ir.Node, before: ir.Value, after: ir.Value) -> bool:
    """Return True if the sizes of the axes before the one that a view cuts are 1, or of those that it moves.

    A repeated axis has stride 0. Where a size is unknown, an axis may be repeated.
    """
    old, new = info(before).shape, info(after).shape
    if old is None or new is None:
        return False
    if is_a(node, VIEW):
        order = node.attributes.get_ints("perm", list(range(len(old)))[::-1])
        moved = [axis for axis in order if old[axis] != 1]
        return moved == sorted(moved)
    if len(new) > len(old):  # indices of any rank copy; more axes by broadcasting do not
        return known(node).matrix is not None
    if len(new) < len(old):
        return all(size == 1 for size in old[: node.attributes.get_int("axis", 0) % len(old)])
    changed = [axis for axis, (a, b) in enumerate(zip(old, new)) if a != b]
    is_cut = all(_is_less(new[axis], old[axis]) for axis in changed)
    return is_cut and _is_dense(node) and set(old[: max(changed, default=0)]) <= {1}


def _is_less(a: Dim, b: Dim) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a < b


def _is_dense(node: ir.Node) -> bool:
    """Return True unless a slice has steps."""
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    known_steps = info(steps).constant
    return steps is None or (known_steps is not None and bool((known_steps == 1).all()))
