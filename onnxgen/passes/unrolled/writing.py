"""Write what was found: chains of cells as ONNX's RNN, GRU and LSTM nodes, other cells as torch's cells.

Both directions of a layer are one node, and everything uses its results. Cells that are no step of a layer become
`onnxgen.RNNCell`, `GRUCell` and `LSTMCell`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import maker, shape_of, uniform
from onnxgen.passes.rewrite import (
    constant,
    drop,
    insert,
    own,
    permuted,
    replace_uses,
    take_over,
    transposed,
    without_last,
)
from onnxgen.passes.roles import RECURRENT
from onnxgen.passes.slices import piece
from onnxgen.passes.unrolled.cells import GRU, LSTM, RNN, Cell, Rows, bare
from onnxgen.passes.unrolled.chains import Chain, Copies, Results, folded_bias, is_alone, joined, same, users
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, Shape, info, set_info
from onnxgen.weights.stored import Views

ORDER = {RNN: (0,), GRU: (1, 0, 2), LSTM: (0, 3, 1, 2)}  # ONNX's gates, as positions among torch's
# torch's gates, as positions among ONNX's
TORCH_ORDER = {kind: tuple(map(order.index, range(len(order)))) for kind, order in ORDER.items()}
SWAP = (1, 0, 2)


Moved = dict[ir.Value, ir.Value]


def write(directions: Sequence[Results], moved: Moved) -> None:
    """Replace the cells of a layer, of one direction or both, by ONNX's node.

    `moved`: what was replaced so far, by what, since later layers may take it. It is updated.
    """
    chains = [results.chain for results in directions]
    first = _first(chains)
    node = _node(first, chains, directions[0].batch, moved)
    _replace_sequences(first, node, directions, moved)
    for i in range(1, len(node.outputs)):
        _replace_last(first, node.outputs[i], [c.last.out if i == 1 else c.last.memory for c in chains], moved)
    for chain in chains:
        for value in (v for cell in reversed(chain.cells) for v in (cell.out, cell.memory)):
            if (producer := maker(value)) is not None:
                drop(producer)


def _first(chains: Sequence[Chain]) -> ir.Node:
    """Return the node before which the layer is inserted. The graph is sorted at the end."""
    node = chains[-1].cells[0].out.producer()
    assert node is not None
    return node


def _node(first: ir.Node, chains: Sequence[Chain], batch: Dim, moved: Moved) -> ir.Node:
    chain, d = chains[0], len(chains)
    kind, x, hidden = chain.last.kind, chain.cells[0].x, chain.last.hidden
    sequence = moved.get(x.value, x.value)
    sequence = sequence if x.axis == 0 else transposed(first, sequence, SWAP)
    w = _stacked(first, [[g.x.matrix for g in c.gates] for c in chains], kind)
    r = _stacked(first, [[g.h.matrix for g in c.gates if g.h is not None] for c in chains], kind)
    starts = list(zip(*((c.h, c.c) for c in chains)))[: 2 if kind == LSTM else 1]
    states = [_state(first, values, moved) for values in starts]
    inputs = without_last([sequence, w, r, _biases(first, chains, kind), None, *states])
    attributes: dict[str, int | str | list[str]] = {"hidden_size": hidden}
    attributes |= {"direction": "bidirectional"} if d == 2 else {}
    attributes |= {"activations": ["Relu"] * d} if chain.last.relu else {}
    attributes |= {"linear_before_reset": 1} if kind == GRU else {}
    node = ir.node(kind, inputs, attributes, num_outputs=len(states) + 1, version=14, name=first.name)
    name, dtype = chain.last.out.name, info(chain.last.out).dtype
    insert(first, node, f"{name}.steps", Info(dtype, (len(chain.cells), d, batch, hidden)), first)
    for output, key in zip(node.outputs[1:], "hc"):
        output.name = f"{name}.{key}"
        set_info(output, Info(dtype, (d, batch, hidden)))
    return node


# ---- weights and states ----


def _stacked(before: ir.Node, directions: Sequence[Sequence[Rows]], kind: str) -> ir.Value:
    """Return the matrices of all gates and directions as ONNX has them, [directions, gates * hidden, in]."""
    return concat(before, [unsqueezed(before, _gates(before, gates, kind)) for gates in directions])


def _biases(before: ir.Node, chains: Sequence[Chain], kind: str) -> ir.Value | None:
    """Return the biases of all directions, [directions, 2 * gates * hidden]; None if there are none."""
    biases = []
    for chain in chains:
        of_x = [g.x.bias for g in chain.gates if g.x.bias is not None]
        of_h = [g.h.bias for g in chain.gates if g.h is not None and g.h.bias is not None]
        if not of_x:
            return None
        both = [_gates(before, rows, kind) for rows in (of_x, of_h)]
        biases.append(unsqueezed(before, concat(before, both)))
    return concat(before, biases)


def _gates(before: ir.Node, rows: Sequence[Rows], kind: str) -> ir.Value:
    return concat(before, [_rows(before, rows[i]) for i in ORDER[kind]])


def joined_rows(before: ir.Node, rows: Sequence[Rows]) -> ir.Value:
    """Return rows of matrices side by side, in this order: the stored tensor itself, if it is all of its rows."""
    first = rows[0]
    is_run = all(a.value is b.value and a.stop == b.start for a, b in zip(rows, rows[1:]))
    whole = Rows(first.value, first.transposed, first.start, rows[-1].stop)
    return _rows(before, whole) if is_run else concat(before, [_rows(before, each) for each in rows])


def _rows(before: ir.Node, rows: Rows) -> ir.Value:
    """Return rows of a matrix as [out, in], or of a vector."""
    value = transposed(before, rows.value, (1, 0)) if rows.transposed else rows.value
    if rows.whole:
        return value
    shape = (rows.stop - rows.start, *(info(value).shape or ())[1:])
    return _slice(before, value, 0, rows.start, rows.stop, Info(info(value).dtype, shape))


def _state(before: ir.Node, values: Sequence[ir.Value | None], moved: Moved) -> ir.Value | None:
    """Return the initial states of all directions, [directions, batch, hidden]; None for zeros."""
    known = [bare(moved.get(v, v)) for v in values if v is not None]
    states = []
    for value in known:
        assert value is not None
        states.append(value if info(value).rank == 3 else unsqueezed(before, value))
    pieces = [piece(v) for v in states]
    if len(pieces) == 2 and pieces[0] is not None and pieces[1] is not None:
        a, b = pieces[0], pieces[1]
        if (a.x, a.axis, a.end) == (b.x, 0, b.start):
            shape = info(a.x).shape or ()
            if (a.start, b.end) == (0, shape[0]):
                return a.x
            return _slice(before, a.x, 0, a.start, b.end, Info(info(a.x).dtype, (2, *shape[1:])))
    return concat(before, states) if states else None


def concat(before: ir.Node, values: Sequence[ir.Value]) -> ir.Value:
    """Return values side by side along their first axis."""
    if len(values) == 1:
        return values[0]
    shapes = [shape_of(v) for v in values]
    rows = sum(s[0] for s in shapes if s and isinstance(s[0], int))
    node = ir.node("Concat", values, {"axis": 0}, version=13)
    facts = Info(info(values[0]).dtype, (rows, *shapes[0][1:]) if shapes[0] else None)
    return insert(before, node, f"{values[0].name}.all", facts)


def unsqueezed(before: ir.Node, value: ir.Value) -> ir.Value:
    """Return a value with a first axis of size 1."""
    node = ir.node("Unsqueeze", [value, constant(before, [0], f"{value.name}.axes")], version=13)
    return insert(before, node, f"{value.name}.unsqueezed", Info(info(value).dtype, (1, *shape_of(value))))


def squeezed(before: ir.Node, value: ir.Value, axis: int) -> ir.Value:
    """Return a value without an axis of size 1."""
    shape = shape_of(value)
    node = ir.node("Squeeze", [value, constant(before, [axis], f"{value.name}.axes")], version=13)
    facts = Info(info(value).dtype, (*shape[:axis], *shape[axis + 1 :]))
    return insert(before, node, f"{value.name}.squeezed", facts, before)


def _slice(before: ir.Node, value: ir.Value, axis: int, start: int, stop: int, facts: Info) -> ir.Value:
    bounds = [constant(before, [v], f"{value.name}.{start}.{v}") for v in (start, stop, axis)]
    node = ir.node("Slice", [value, *bounds], version=13)
    return insert(before, node, f"{value.name}.{start}", facts, before)


# ---- results ----


def _replace_sequences(before: ir.Node, node: ir.Node, directions: Sequence[Results], moved: Moved) -> None:
    """Replace the sequences of states, and single states that something else uses."""
    y, hidden = node.outputs[0], directions[0].chain.last.hidden
    sequence = squeezed(before, y, 1) if len(directions) == 1 else _merged(before, y, hidden)
    if len(directions) == 2 and (joint := joined(*directions)) is not None:
        axis, concat = joint
        _become(concat.outputs[0], sequence if axis == 0 else transposed(before, sequence, SWAP), moved)
    facts = Info(info(sequence).dtype, (*(info(sequence).shape or ())[:2], hidden))
    for i, results in enumerate(directions):
        part = _Lazy(before, sequence, None if len(directions) == 1 else (i * hidden, (i + 1) * hidden, facts))
        for axis, values in results.sequences.items():
            for value in [v for v in values if v.uses() or v.is_graph_output()]:
                _become(value, transposed(before, part.value, SWAP) if axis else part.value, moved)
        _replace_steps(before, results.chain, part, moved)


class _Lazy:
    """The sequence of one direction, which is only cut out if it is used alone."""

    def __init__(self, before: ir.Node, sequence: ir.Value, cut: tuple[int, int, Info] | None) -> None:
        self._before, self._sequence, self._cut = before, sequence, cut

    @cached_property
    def value(self) -> ir.Value:
        return self._sequence if self._cut is None else _slice(self._before, self._sequence, 2, *self._cut)


def _become(old: ir.Value, new: ir.Value, moved: Moved) -> None:

    moved[old] = new
    take_over(old, new)


def _replace_steps(before: ir.Node, chain: Chain, part: _Lazy, moved: Moved) -> None:
    """Replace the states of single steps, except the last one, by steps of the sequence."""
    inside = set().union(*(cell.nodes for cell in chain.cells))
    for t, cell in enumerate(chain.cells[:-1]):
        uses = [use for use in cell.out.uses() if use.node not in inside]
        if not uses and not cell.out.is_graph_output():
            continue
        at = len(chain.cells) - 1 - t if chain.is_reverse else t
        facts = info(cell.out)
        if facts.rank == 3:
            step = _slice(before, part.value, 0, at, at + 1, facts)
        else:
            index = constant(before, at, f"{cell.out.name}.index")
            step = insert(before, ir.node("Gather", [part.value, index], {"axis": 0}, version=13), None, facts, before)
        moved[cell.out] = step
        for use in uses:
            use.node.replace_input_with(use.idx, step)
        if cell.out.is_graph_output():
            replace_uses(cell.out, step)


def _replace_last(before: ir.Node, state: ir.Value, olds: Sequence[ir.Value | None], moved: Moved) -> None:
    """Replace the last states of all directions by one output of the layer."""
    known = [old for old in olds if old is not None]
    facts = Info(info(state).dtype, (1, *shape_of(state)[1:]))
    arranging = [node for old in known for v in same(old) if v is not old and (node := v.producer()) is not None]
    if len(known) == 2:
        _replace_pairs(state, known, moved)
    for i, old in enumerate(known):
        views = _used_views(old, shape_of(state))
        if views:
            one = state if len(known) == 1 else _slice(before, state, 0, i, i + 1, facts)
            _replace_views(before, views, one, moved)
    for node in reversed(arranging):
        drop(node)


def _used_views(state: ir.Value, shape: Shape) -> list[ir.Value]:
    """Return a last state, with its first axis or without it, where more than such views takes it."""
    views = [v for v in same(state) if info(v).shape in ((1, *shape[1:]), shape[1:])]
    return [v for v in views if v.is_graph_output() or any(not _arranges(use.node, v, shape) for use in v.uses())]


def _replace_views(before: ir.Node, views: Sequence[ir.Value], state: ir.Value, moved: Moved) -> None:
    """Let everything that takes a state, with its first axis or without it, take another one."""
    flat: ir.Value | None = None
    for view in views:
        is_flat = info(view).shape != info(state).shape
        if is_flat and flat is None:
            flat = squeezed(before, state, 0)
        moved[view] = flat if is_flat and flat is not None else state
        replace_uses(view, moved[view])


def _arranges(node: ir.Node, value: ir.Value, shape: Shape) -> bool:
    """True if a node only adds or removes the first axis of a last state, so that its result is replaced itself."""
    view = node.outputs[0]
    is_view = made_by(view, "Squeeze", "Unsqueeze", "Reshape") is not None and bare(view) is bare(value)
    return is_view and info(view).shape in ((1, *shape[1:]), shape[1:])


def _replace_pairs(state: ir.Value, olds: Sequence[ir.Value], moved: Moved) -> None:
    """Let every Concat of both directions' last states take the layer's output, which has both."""
    a, b = map(bare, olds)
    for concat in users(olds[0], "Concat"):
        inputs = list(concat.inputs)
        if concat.attributes["axis"].as_int() != 0 or info(concat.outputs[0]).rank != 3:
            continue
        for i in range(len(inputs) - 1):
            if bare(inputs[i]) is a and bare(inputs[i + 1]) is b:
                inputs[i : i + 2] = [state]
                break
        else:
            continue
        if len(inputs) == 1:
            _become(concat.outputs[0], state, moved)
            continue
        node = ir.node("Concat", inputs, {"axis": 0}, version=13, name=concat.name)
        assert concat.graph is not None
        concat.graph.insert_before(concat, node)
        set_info(node.outputs[0], info(concat.outputs[0]))
        node.outputs[0].name = concat.outputs[0].name
        _become(concat.outputs[0], node.outputs[0], moved)


def _merged(before: ir.Node, y: ir.Value, hidden: int) -> ir.Value:
    """Return ONNX's Y of two directions as torch's, [steps, batch, 2 * hidden]."""
    perm = (0, 2, 1, 3)
    turned = transposed(before, y, perm)
    facts = permuted(info(y), perm)
    sizes = constant(before, [0, 0, 2 * hidden], f"{y.name}.shape")
    node = ir.node("Reshape", [turned, sizes], version=14)
    return insert(before, node, f"{y.name}.merged", Info(facts.dtype, (*(facts.shape or ())[:2], 2 * hidden)), before)


Place = tuple[ModulePath, str, bool]


class Layers:
    """The chains that may be layers, with the places that their weights' names tell."""

    def __init__(self, chains: Iterable[Chain], views: Views) -> None:
        self._places: dict[Chain, set[Place]] = {}
        for chain in chains:
            places = _places(chain, views) if is_alone(chain.cells) else None
            if places is not None and len(places) <= 1:
                self._places[chain] = places

    @property
    def chains(self) -> list[Chain]:
        return list(self._places)

    def write(self, chains: Iterable[Chain], moved: Moved) -> list[Chain]:
        """Write these chains. `moved`: see `writing.write`. Returns those that were written."""
        candidates = [Results(chain) for chain in chains]
        reverse: dict[ir.Value, list[Results]] = {}
        for results in candidates:
            if results.chain.is_reverse:
                reverse.setdefault(results.chain.cells[0].x.value, []).append(results)
        written: list[Chain] = []
        for results in candidates:
            if results.chain.is_reverse:
                continue
            others = reverse.get(results.chain.cells[0].x.value, [])
            other = next((o for o in others if o.chain not in written and self._are_directions(results, o)), None)
            directions = [results] if other is None else [results, other]
            write(directions, moved)
            written += [each.chain for each in directions]
        return written

    def _are_directions(self, forward: Results, reverse: Results) -> bool:
        """True if two chains are the directions of one layer: their sequences are only joined, or the names show it."""
        a, b = forward.chain, reverse.chain
        x, y = a.cells[0].x, b.cells[0].x
        if (x.value, x.axis, a.last.kind, a.last.relu) != (y.value, y.axis, b.last.kind, b.last.relu):
            return False
        if (a.last.hidden, a.h is None, a.c is None) != (b.last.hidden, b.h is None, b.c is None):
            return False
        if (a.gates[0].x.bias is None) != (b.gates[0].x.bias is None):
            return False
        of_a, of_b = self._places[a], self._places[b]
        if of_a and of_b:
            return {(*place[:2], True) for place in of_a} == of_b
        scopes = {SCOPE.get(node) for chain in (a, b) if (node := chain.last.out.producer()) is not None}
        if len(scopes) == 1 and () not in scopes:
            return True
        return a.h is None and a.c is None and joined(forward, reverse) is not None


def _places(chain: Chain, views: Views) -> set[Place] | None:
    """Return the module, layer and direction in the weights' names; None if a name is not that of such a weight."""
    places: set[Place] = set()
    for gate in chain.gates:
        assert gate.h is not None
        rows = {"weight_ih": gate.x.matrix, "weight_hh": gate.h.matrix, "bias_ih": gate.x.bias, "bias_hh": gate.h.bias}
        for key, weight in rows.items():
            source = None if weight is None else views(weight.value)
            names = () if source is None else (*source.names, source.label)
            for path in map(param_path, names):
                parsed = None if path is None else RECURRENT.match(path[-1])
                if path is None:
                    continue
                if parsed is None or not path[-1].startswith(key):
                    return None
                places.add((path[:-1], parsed[1], path[-1].endswith("_reverse")))
    return places


KEYS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def single_cells(cells: Iterable[Cell], views: Views) -> dict[Cell, Copies]:
    """Return the cells that torch's module computes, each with the stored tensors that are copies of its biases."""
    settled = _settled(list(cells), views)
    whole = {_of_input(cell): cell for cell in settled if all(gate.h is not None for gate in cell.gates)}
    singles: dict[Cell, Copies] = {}
    for cell in settled:
        copies = _unfold(cell, whole.get(_of_input(cell)))
        if copies is not None and _is_cell(cell) and is_alone([cell]) and _is_named(cell, views):
            singles[cell] = copies
    return singles


def _of_input(cell: Cell) -> tuple[tuple[Rows, Rows | None], ...]:
    return tuple((gate.x.matrix, gate.x.bias) for gate in cell.gates)


def _settled(cells: list[Cell], views: Views) -> list[Cell]:
    """Tell the products of the state from those of the input. Returns the cells where that is known."""
    by_state = {bare(cell.out): cell for cell in cells}
    settled = [cell for cell in cells if _is_settled(cell, views, by_state, set())]
    known = {gate.h.matrix for cell in settled for gate in cell.gates if gate.h is not None}
    return [cell for cell in cells if cell.gates or _is_settled(cell, views, by_state, known)]


def _is_settled(cell: Cell, views: Views, by_state: dict[ir.Value | None, Cell], known: set[Rows]) -> bool:
    """True if names show which product is the state's, or the gates do. Nothing else shows that it is a plain RNN's."""
    if cell.gates:
        return True
    for state in cell.states():
        if cell.settle(state) and _shows_state(cell, by_state.get(bare(state)), views, known):
            return True
        cell.gates = []
    is_folded = cell.kind != GRU and cell.settle(None) and cell.gates[0].past is not None
    if is_folded and (cell.kind == LSTM or _names(cell, views, 0) == {"i"}):
        return True
    cell.gates = []
    return False


def _shows_state(cell: Cell, past: Cell | None, views: Views, known: set[Rows]) -> bool:
    """True if the product that is taken for the state's is that. `past`: the cell that made the state."""
    if cell.kind == GRU or _names(cell, views, 1) == {"h"}:
        return True
    x, h = cell.gates[0].x, cell.gates[0].h
    if cell.kind != LSTM or h is None or _names(cell, views, 0) | _names(cell, views, 1):
        return False
    follows = past is not None and past.memory is not None and bare(past.memory) is bare(cell.c)
    return follows or h.matrix in known or _is_square(h.matrix) > _is_square(x.matrix)


def _is_square(matrix: Rows) -> bool:
    """True if a gate's matrix has as many columns as rows, as that of a state has."""
    return matrix.columns == matrix.stop - matrix.start


def _names(cell: Cell, views: Views, index: int) -> set[str]:
    """Return the letters in the names of the input's weights (0) or the state's (1): "i" or "h"; "" for other names."""
    weights = weights_of(cell)
    paths = [path for rows in (weights[index], weights[index + 2]) for path in _paths(views, rows)]
    return {path[-1][-2] if path[-1] in KEYS else "" for path in paths}


def _paths(views: Views, rows: Iterable[Rows | None]) -> Iterator[ModulePath]:
    for weight in rows:
        source = None if weight is None else views(weight.value)
        names = () if source is None else (source.label,) if source.label else source.names
        yield from (path for path in map(param_path, names) if path is not None)


def weights_of(cell: Cell) -> list[list[Rows]]:
    """Return the rows of the matrices and biases, in the order of `KEYS`. Biases may be missing."""
    terms = [gate.x for gate in cell.gates], [gate.h for gate in cell.gates if gate.h is not None]
    matrices = [[term.matrix for term in each] for each in terms]
    return matrices + [[term.bias for term in each if term.bias is not None] for each in terms]


def _is_named(cell: Cell, views: Views) -> bool:
    """True if the names of the weights are those of one cell of torch, or they have none."""
    modules: set[ModulePath] = set()
    for key, rows in zip(KEYS, weights_of(cell)):
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
    last, memory = cell.out.producer(), maker(cell.memory)
    assert last is not None
    place = memory or last
    states = [None if v is None or uniform(v) == 0 else v for v in ((cell.h, cell.c) if cell.memory else (cell.h,))]
    weights = without_last([joined_rows(place, rows) if rows else None for rows in weights_of(cell)])
    relu = {"relu": 1} if cell.relu else {}
    operands = [None if v is None else moved.get(v, v) for v in (cell.gates[0].x.x.value, *states)]
    node = own(f"{cell.kind}Cell", [*operands, *weights], 1 + (cell.memory is not None), **relu)
    node.name = last.name
    insert(place, node, cell.out.name, info(cell.out), last)
    if cell.memory is not None:
        node.outputs[1].name = cell.memory.name
        set_info(node.outputs[1], info(cell.memory))
        moved[cell.memory] = node.outputs[1]
        replace_uses(cell.memory, node.outputs[1])
    _become(cell.out, node.outputs[0], moved)
    if memory is not None:
        drop(memory)
