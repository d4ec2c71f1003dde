"""What a Slice takes, whether its numbers are attributes or inputs."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.info import info

KEYS = ("starts", "ends", "axes", "steps")


@dataclass(frozen=True)
class Cut:
    """`start:end:step` of one axis, as the file has it: negative positions count from the end, and may lie past it."""

    axis: int
    start: Dim
    end: Dim
    step: int

    def range(self, size: Dim) -> tuple[int, int] | None:
        """The first position and the one after the last, of an axis whose size is known."""
        if not isinstance(self.start, int) or not isinstance(self.end, int) or not isinstance(size, int):
            return None
        start, end, _ = slice(self.start, self.end).indices(size)
        return (start, end) if self.step == 1 and start < end else None


def cuts(node: ir.Node | None) -> list[Cut] | None:
    """What a Slice takes of each axis that it cuts; None for other nodes and for numbers known only at run time."""
    rank = None if node is None else info(node.inputs[0]).rank
    if node is None or rank is None or node.op_type != "Slice" or node.domain != "":
        return None
    starts, ends, axes, steps = (_dims(node, i + 1, key) for i, key in enumerate(KEYS))
    if starts is None or ends is None or None in (axes, steps):
        return None
    chosen = axes or list(range(len(starts)))
    strides = steps or [1] * len(starts)
    numbers = [n for n in (*chosen, *strides) if isinstance(n, int)]
    if len(numbers) < 2 * len(starts) or len({len(starts), len(ends), len(chosen), len(strides)}) > 1:
        return None
    places = zip(numbers, starts, ends, numbers[len(starts) :])
    return [Cut(axis % rank, start, end, step) for axis, start, end, step in places]


def _dims(node: ir.Node, index: int, key: str) -> list[Dim] | None:
    """The numbers of one input or attribute: none if it is left out, None if they are not known."""
    if key in node.attributes:
        return [int(v) for v in node.attributes[key].value]
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return []
    data = info(value).data
    return None if data is None else [v if isinstance(v, Sym) else int(v) for v in data.flat]


def taken(value: ir.Value | None, x: ir.Value | None, axis: int) -> tuple[int, int] | None:
    """The range of one axis of x that a value is: an output of a Split, or a Slice; None if it is neither."""
    node = None if value is None else value.producer()
    shape = info(x).shape
    if node is None or value is None or shape is None or node.domain != "" or node.inputs[0] is not x:
        return None
    if node.op_type == "Slice":
        found = cuts(node)
        return found[0].range(shape[axis]) if found is not None and [c.axis for c in found] == [axis] else None
    if node.op_type != "Split" or _axis(node) % len(shape) != axis:
        return None
    start = 0
    for output in node.outputs:
        size = (info(output).shape or (None,) * len(shape))[axis]
        if not isinstance(size, int):
            return None
        if output is value:
            return start, start + size
        start += size
    return None


def _axis(split: ir.Node) -> int:
    return int(split.attributes["axis"].value) if "axis" in split.attributes else 0
