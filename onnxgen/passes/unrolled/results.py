"""The values that are made of the states of a chain: the sequence of all states, and the last ones."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.unrolled.chains import Chain
from onnxgen.passes.unrolled.forms import bare
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info


class Results:
    """The values that a chain's states are used as.

    Attributes:
        sequences: values that are all states side by side, by the axis of the steps.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        cells = chain.cells[::-1] if chain.is_reverse else chain.cells
        states = [bare(cell.out) for cell in cells]
        self.sequences: dict[int, list[ir.Value]] = {0: [], 1: []}
        for concat in users(cells[0].out, "Concat"):
            axis = concat.attributes["axis"].as_int() % (info(concat.outputs[0]).rank or 1)
            if [bare(v) for v in concat.inputs] == states and info(concat.outputs[0]).rank == 3 and axis < 2:
                if info(concat.outputs[0]).shape == self._shape(axis):
                    self.sequences[axis].append(concat.outputs[0])

    @property
    def batch(self) -> Dim:
        x = self.chain.cells[0].x
        return (info(x.value).shape or ())[1 - (x.axis or 0)]

    def _shape(self, axis: int) -> tuple[Dim, ...]:
        steps, hidden = len(self.chain.cells), self.chain.last.hidden
        return (steps, self.batch, hidden) if axis == 0 else (self.batch, steps, hidden)


def users(value: ir.Value, op_type: str) -> list[ir.Node]:
    """Return the nodes of a type that use a value, also behind nodes that only add or remove axes of size 1."""
    found: dict[ir.Node, None] = {}
    for view in same(value):
        found |= {use.node: None for use in view.uses() if use.node.op_type == op_type and use.node.domain == ""}
    return list(found)


def same(value: ir.Value) -> Iterator[ir.Value]:
    """Yield a value, and those that differ from it in axes of size 1 alone."""
    pending = [value]
    while pending:
        value = pending.pop()
        yield value
        for use in value.uses():
            output = use.node.outputs[0]
            is_view = made_by(output, "Squeeze", "Unsqueeze", "Reshape") is not None and use.idx == 0
            if is_view and bare(output) is bare(value):
                pending.append(output)


def joined(forward: Results, reverse: Results) -> tuple[int, ir.Node] | None:
    """Return the Concat that joins the directions' sequences, and the axis of the steps."""
    for axis in (0, 1):
        for one in forward.sequences[axis]:
            for other in reverse.sequences[axis]:
                for node in [use.node for use in one.uses()]:
                    concat = made_by(node.outputs[0], "Concat")
                    if concat is not None and list(concat.inputs) == [one, other]:
                        if concat.attributes["axis"].as_int() in (2, -1):
                            return axis, concat
    return None
