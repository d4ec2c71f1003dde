"""Write cells that are no step of a layer as `onnxgen.RNNCell`, `GRUCell` and `LSTMCell`, torch's cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.passes.match import uniform
from onnxgen.passes.rewrite import drop, own
from onnxgen.passes.steps import insert, replace_uses
from onnxgen.passes.unrolled.cells import GRU, LSTM, RNN, Cell
from onnxgen.passes.unrolled.chains import Copies, folded_bias, is_alone
from onnxgen.passes.unrolled.forms import Rows, Term, bare
from onnxgen.passes.unrolled.writing import Moved, joined_rows
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import info, set_info
from onnxgen.weights.stored import Views

KEYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def single_cells(cells: Iterable[Cell], views: Views) -> dict[Cell, Copies]:
    """Return the cells that torch's module computes, each with the stored tensors that are copies of its biases."""
    settled = _settled(list(cells), views)
    whole = {_of_input(cell): cell for cell in settled if all(gate.h is not None for gate in cell.gates)}
    found: dict[Cell, Copies] = {}
    for cell in settled:
        copies = _unfold(cell, whole.get(_of_input(cell)))
        if copies is not None and _is_cell(cell) and is_alone([cell]) and _is_named(cell, views):
            found[cell] = copies
    return found


def _of_input(cell: Cell) -> tuple[tuple[Rows, Rows | None], ...]:
    return tuple((gate.x.matrix, gate.x.bias) for gate in cell.gates)


def _settled(cells: list[Cell], views: Views) -> list[Cell]:
    """Tell the products of the state from those of the input. Returns the cells where that is known."""
    by_state = {bare(cell.out): cell for cell in cells}
    found = [cell for cell in cells if _is_settled(cell, views, by_state, set())]
    known = {gate.h.matrix for cell in found for gate in cell.gates if gate.h is not None}
    return [cell for cell in cells if cell.gates or _is_settled(cell, views, by_state, known)]


def _is_settled(cell: Cell, views: Views, by_state: dict[ir.Value | None, Cell], known: set[Rows]) -> bool:
    """True if names show which product is the state's, or the gates do. Nothing else shows that it is a plain RNN's."""
    if cell.gates:
        return True
    for state in cell.states():
        if cell.settle(state) and (cell.kind == GRU or _names(cell, views, 1) == {"h"}):
            return True
        past, h = by_state.get(bare(state)), cell.gates[0].h if cell.gates else None
        if cell.kind == LSTM and h is not None and not (_names(cell, views, 0) | _names(cell, views, 1)):
            follows = past is not None and past.memory is not None and bare(past.memory) is bare(cell.c)
            if follows or h.matrix in known or _is_square(h.matrix) > _is_square(cell.gates[0].x.matrix):
                return True
        cell.gates = []
    is_folded = cell.kind != GRU and cell.settle(None) and cell.gates[0].past is not None
    if is_folded and (cell.kind == LSTM or _names(cell, views, 0) == {"i"}):
        return True
    cell.gates = []
    return False


def _is_square(matrix: Rows) -> bool:
    """True if a gate's matrix has as many columns as rows, as that of a state has."""
    return matrix.columns == matrix.stop - matrix.start


def _names(cell: Cell, views: Views, index: int) -> set[str]:
    """Return the letters in the names of the input's weights (0) or the state's (1): "i" or "h"; "" for other names."""
    weights = _weights(cell)
    paths = [path for rows in (weights[index], weights[index + 2]) for path in _paths(views, rows)]
    return {path[-1][-2] if path[-1] in KEYS else "" for path in paths}


def _paths(views: Views, rows: Iterable[Rows | None]) -> Iterator[ModulePath]:
    for weight in rows:
        source = None if weight is None else views(weight.value)
        names = () if source is None else (source.label,) if source.label else source.names
        yield from (path for path in map(param_path, names) if path is not None)


def _weights(cell: Cell) -> list[list[Rows]]:
    """Return the rows of the matrices and biases, in the order of `KEYS`. Biases may be missing."""
    of_h = [gate.h for gate in cell.gates if gate.h is not None]
    terms: list[tuple[Sequence[Term], bool]] = [([gate.x for gate in cell.gates], False), (of_h, False)]
    found = [[term.matrix for term in each] for each, _ in terms]
    return found + [[term.bias for term in each if term.bias is not None] for each, _ in terms]


def _is_named(cell: Cell, views: Views) -> bool:
    """True if the names of the weights are those of one cell of torch, or they have none."""
    modules: set[ModulePath] = set()
    for key, rows in zip(KEYS, _weights(cell)):
        for path in _paths(views, rows):
            if path[-1] != key:
                return False
            modules.add(path[:-1])
    return len(modules) == 1 or (not modules and cell.kind != RNN)


def _is_cell(cell: Cell) -> bool:
    """True if torch's cell computes it: both biases or none, and states of the right shape."""
    out, x = cell.out, cell.gates[0].x.x
    shape = info(x.value).shape
    if info(out).rank != 2 or shape is None or len(shape) != 2 or shape[:1] != (info(out).shape or ())[:1]:
        return False
    if x.axis is not None or x.flipped is not None:
        return False
    if any(info(v).shape != info(out).shape for v in (cell.h, cell.c) if v is not None):
        return False
    return len({t is None or t.bias is None for gate in cell.gates for t in (gate.x, gate.h)}) == 1


def _unfold(cell: Cell, known: Cell | None) -> Copies | None:
    """Give a cell whose product with a state of zeros was folded the weights of another call of the same module.

    Returns the stored tensors that are copies of biases; None if something was folded otherwise.
    """
    if all(gate.h is not None and gate.past is None for gate in cell.gates):
        return []
    if known is None or (cell.h is not None and uniform(cell.h) != 0):
        return None
    copies: Copies = []
    for gate, other in zip(cell.gates, known.gates):
        noted = folded_bias(gate.past, other)
        if gate.h is not None or noted is None:
            return None
        copies += noted
    for gate, other in zip(cell.gates, known.gates):
        gate.h, gate.past = other.h, None
    return copies


def write_cell(cell: Cell, moved: Moved) -> None:
    """Replace a cell by one node. `moved`: what was replaced so far, by what, since later cells may take it."""
    last, memory = cell.out.producer(), None if cell.memory is None else cell.memory.producer()
    assert last is not None
    place = memory or last
    states = [None if v is None or uniform(v) == 0 else v for v in ((cell.h, cell.c) if cell.memory else (cell.h,))]
    weights = [joined_rows(place, rows) if rows else None for rows in _weights(cell)]
    while weights[-1] is None:
        weights.pop()
    relu = {"relu": 1} if cell.relu else {}
    given = [None if v is None else moved.get(v, v) for v in (cell.gates[0].x.x.value, *states)]
    node = own(f"{cell.kind}Cell", [*given, *weights], 1 + (cell.memory is not None), **relu)
    node.name = last.name
    insert(place, node, cell.out.name, info(cell.out), last)
    if cell.memory is not None:
        node.outputs[1].name = cell.memory.name
        set_info(node.outputs[1], info(cell.memory))
        moved[cell.memory] = node.outputs[1]
        replace_uses(cell.memory, node.outputs[1])
    moved[cell.out] = node.outputs[0]
    replace_uses(cell.out, node.outputs[0])
    for old in (last, memory):
        if old is not None:
            drop(old)
