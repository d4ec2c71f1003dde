"""Link cells with the same weights to chains, one cell for each step of a sequence.

`Results` are the values that are made of the states of a chain: the sequence of all states, and the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import uniform
from onnxgen.passes.rewrite import is_used_outside
from onnxgen.passes.unrolled.cells import GRU, LSTM, Cell, Gate, Rows, bare
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Copied, Views, is_uniform, stored

Copies = list[tuple[ir.Value, Copied]]


@dataclass(eq=False)
class Chain:
    """The cells of one layer and direction, in the order in which they are computed.

    Attributes:
        h, c: the states that the first one starts from; None for zeros.
        copies: stored tensors that are copies of the weights, or of a bias: folded products with a state of zeros.
    """

    cells: list[Cell]
    h: ir.Value | None
    c: ir.Value | None
    copies: Copies

    @property
    def last(self) -> Cell:
        return self.cells[-1]

    @property
    def gates(self) -> list[Gate]:
        return self.last.gates

    @property
    def is_reverse(self) -> bool:
        return len(self.cells) > 1 and self.cells[0].x.index > self.cells[1].x.index


class Linker:
    """Finds the chains of a graph."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self._contents: dict[tuple[ir.Value, ir.Value], bool] = {}

    def chains(self, cells: list[Cell]) -> list[Chain]:
        """Return the chains of cells. The cells are in the order of the graph."""
        by_state = {bare(cell.out): cell for cell in cells}
        before: dict[Cell, Cell] = {}
        taken: set[Cell] = set()
        for cell in cells:
            for state in cell.states():
                past = by_state.get(bare(state))
                if past is not None and past not in taken and past is not cell and self._follows(cell, past, state):
                    before[cell] = past
                    taken.add(past)
                    break
        return [chain for cell in cells if cell not in taken and (chain := self._chain(cell, before)) is not None]

    def _follows(self, cell: Cell, past: Cell, state: ir.Value) -> bool:
        """True if a cell continues another one, whose new state `state` is. Settles the cell, and the other one."""
        if (cell.kind, cell.relu, cell.hidden) != (past.kind, past.relu, past.hidden):
            return False
        if cell.kind == LSTM and bare(cell.c) is not bare(past.memory):
            return False
        previous = cell.h
        if not cell.settle(state) or any(gate.h is None for gate in cell.gates):
            cell.gates, cell.h = [], previous
            return False
        if past.gates or self._start(past, cell):
            if past.gates and self._alike(past, cell):
                return True
        cell.gates, cell.h = [], previous
        return False

    def _start(self, first: Cell, cell: Cell) -> bool:
        """Settle the first cell of a chain like the second one."""
        previous = first.h
        for state in [*first.states(), *([] if first.kind == GRU else [None])]:
            if first.settle(state) and self._alike(first, cell):
                return True
            first.gates, first.h = [], previous
        return False

    def _alike(self, a: Cell, b: Cell) -> bool:
        """True if two cells have the same weights and take neighbouring steps of one sequence."""
        x, y = a.x, b.x
        if x.axis is None or (x.value, x.axis) != (y.value, y.axis) or abs(x.index - y.index) != 1:
            return False
        for one, other in zip(a.gates, b.gates):
            pairs = [(one.x.matrix, other.x.matrix), (one.x.bias, other.x.bias)]
            if one.h is not None and other.h is not None:
                pairs += [(one.h.matrix, other.h.matrix), (one.h.bias, other.h.bias)]
            if not all(self.same(*pair) for pair in pairs):
                return False
        return True

    def same(self, a: Rows | None, b: Rows | None) -> bool:
        """True if two weights are the same tensor, or one is a copy that constant folding made."""
        if a is None or b is None:
            return a is b
        if (a.transposed, a.start, a.stop) != (b.transposed, b.start, b.stop):
            return False
        return a.value is b.value or self._copied(a.value, b.value)

    def _copied(self, a: ir.Value, b: ir.Value) -> bool:
        pair = a, b
        if pair not in self._contents:
            one, other = stored(a), stored(b)
            if one is None or other is None or not (a.is_initializer() and b.is_initializer()):
                self._contents[pair] = self.views(a) == self.views(b)
            else:
                first, second = one.numpy(), other.numpy()
                self._contents[pair] = first.dtype == second.dtype and np.array_equal(first, second)
                self._contents[pair] &= not is_uniform(one)
        return self._contents[pair]

    def _chain(self, last: Cell, before: dict[Cell, Cell]) -> Chain | None:
        cells = [last]
        while cells[-1] in before:
            cells.append(before[cells[-1]])
        cells.reverse()
        if len(cells) == 1 or not _covers(cells) or not all(map(_has_both_biases, last.gates)):
            return None
        first = cells[0]
        chain = Chain(cells, first.h, first.c, [])
        if not self._begins(chain):
            return None
        for cell in cells[:-1]:
            for one, other in zip(cell.gates, chain.gates):
                pairs = [(one.x, other.x), (one.h, other.h)]
                for a, b in ((a, b) for a, b in pairs if a is not None and b is not None):
                    self._note(chain, a.matrix, b.matrix)
                    self._note(chain, a.bias, b.bias)
        return chain

    def _note(self, chain: Chain, copy: Rows | None, of: Rows | None) -> None:
        """Note that a stored tensor is a copy of another one, so that it is written back, too."""
        if copy is not None and of is not None and copy.value is not of.value and stored(copy.value) is not None:
            chain.copies.append((copy.value, Copied(of.value.name or "", 0)))

    def _begins(self, chain: Chain) -> bool:
        """Find what the first cell starts from. A folded product with zeros must equal the bias."""
        first = chain.cells[0]
        if chain.c is not None and uniform(chain.c) == 0:
            chain.c = None
        if all(gate.h is not None for gate in first.gates):
            if chain.h is not None and uniform(chain.h) == 0:
                chain.h = None
            return all(_has_batch(state, chain) for state in (chain.h, chain.c) if state is not None)
        if first.kind == GRU and (chain.h is None or uniform(chain.h) != 0):
            return False
        chain.h = None
        for gate, of in zip(first.gates, chain.gates):
            noted = folded_bias(gate.past, of)
            if noted is None:
                return False
            chain.copies += noted
        return chain.c is None or _has_batch(chain.c, chain)


def folded_bias(past: Rows | None, of: Gate) -> Copies | None:
    """Return the rows of a constant that are copies of the state's bias: the product with zeros is that bias.

    Returns None if the constant has other elements.
    """
    bias = None if of.h is None else of.h.bias
    if past is None:
        return [] if bias is None else None
    tensor = past.value.const_value if past.value.is_initializer() else None
    if tensor is None:
        return None
    array = tensor.numpy()[..., past.start : past.stop]
    if bias is None:
        return None if array.any() else [(past.value, Copied("", 0))]
    whole = stored(bias.value)
    if whole is None or not np.array_equal(array, np.broadcast_to(whole.numpy()[bias.start : bias.stop], array.shape)):
        return None
    columns = tensor.shape.numpy()[-1]
    if past.start != bias.start or columns != whole.size:
        return None
    return [(past.value, Copied(bias.value.name or "", row * columns)) for row in range(tensor.size // columns)]


def _has_batch(state: ir.Value, chain: Chain) -> bool:
    """True if an initial state has a row for every sample: torch's layers broadcast none."""
    shape, x = info(bare(state)).shape, chain.cells[0].x
    wanted = ((info(x.value).shape or ())[1 - (x.axis or 0)], chain.last.hidden)
    return shape in (wanted, (1, *wanted))


def _has_both_biases(gate: Gate) -> bool:
    """True if both products of a gate have a bias, or none has, as in torch's layers."""
    return (gate.x.bias is None) == (gate.h is None or gate.h.bias is None)


def _covers(cells: list[Cell]) -> bool:
    """True if cells take all steps of their sequence, in order or in reverse."""
    x, shape = cells[0].x, info(cells[0].x.value).shape
    if x.axis not in (0, 1) or shape is None or len(shape) != 3 or not isinstance(shape[x.axis], int):
        return False
    indices = [cell.x.index for cell in cells]
    return sorted(indices) == list(range(int(shape[x.axis]))) and indices in (sorted(indices), sorted(indices)[::-1])  # type: ignore[arg-type]


def is_alone(cells: Sequence[Cell]) -> bool:
    """True if nothing else uses what is computed inside. A memory is only used by the next cell, except the last."""
    inside = set().union(*(cell.nodes for cell in cells))
    kept = {cell.out for cell in cells} | {cells[-1].memory}
    return not any(is_used_outside(v, inside) for node in inside for v in node.outputs if v not in kept)


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
    nodes: dict[ir.Node, None] = {}
    for view in same(value):
        nodes |= {use.node: None for use in view.uses() if use.node.op_type == op_type and use.node.domain == ""}
    return list(nodes)


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
