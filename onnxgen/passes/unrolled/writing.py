"""Write one layer, of one or two chains, as a node, and let everything use its results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.rewrite import drop
from onnxgen.passes.slices import piece
from onnxgen.passes.steps import constant, insert, permuted, replace_uses, transposed
from onnxgen.passes.unrolled.cells import GRU, LSTM, RNN
from onnxgen.passes.unrolled.chains import Chain
from onnxgen.passes.unrolled.forms import Rows, bare
from onnxgen.passes.unrolled.results import Results, joined, same, users
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, Shape, info, set_info

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
        for value in (v for cell in reversed(chain.cells) for v in (cell.out, cell.memory) if v is not None):
            producer = value.producer()
            if producer is not None:
                drop(producer)


def _first(chains: Sequence[Chain]) -> ir.Node:
    """Return the node before which the layer is inserted. The graph is sorted at the end."""
    node = chains[-1].cells[0].out.producer()
    assert node is not None
    return node


def _node(first: ir.Node, chains: Sequence[Chain], batch: Dim, moved: Moved) -> ir.Node:
    chain, d = chains[0], len(chains)
    kind, x, hidden = chain.last.kind, chain.cells[0].x, chain.last.hidden
    given = moved.get(x.value, x.value)
    given = given if x.axis == 0 else transposed(first, given, SWAP)
    w = _stacked(first, [[g.x.matrix for g in c.gates] for c in chains], kind)
    r = _stacked(first, [[g.h.matrix for g in c.gates if g.h is not None] for c in chains], kind)
    states = [_state(first, [c.h for c in chains], moved)] + (
        [_state(first, [c.c for c in chains], moved)] if kind == LSTM else []
    )
    inputs = [given, w, r, _biases(first, chains, kind), None, *states]
    while inputs[-1] is None:
        inputs.pop()
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
    return _concat(before, [unsqueezed(before, _gates(before, gates, kind)) for gates in directions])


def _biases(before: ir.Node, chains: Sequence[Chain], kind: str) -> ir.Value | None:
    """Return the biases of all directions, [directions, 2 * gates * hidden]; None if there are none."""
    found = []
    for chain in chains:
        of_x = [g.x.bias for g in chain.gates if g.x.bias is not None]
        of_h = [g.h.bias for g in chain.gates if g.h is not None and g.h.bias is not None]
        if not of_x:
            return None
        both = [_gates(before, rows, kind) for rows in (of_x, of_h)]
        found.append(unsqueezed(before, _concat(before, both)))
    return _concat(before, found)


def _gates(before: ir.Node, rows: Sequence[Rows], kind: str) -> ir.Value:
    return _concat(before, [_rows(before, rows[i]) for i in ORDER[kind]])


def joined_rows(before: ir.Node, rows: Sequence[Rows]) -> ir.Value:
    """Return rows of matrices side by side, in this order: the stored tensor itself, if it is all of its rows."""
    first = rows[0]
    is_run = all(a.value is b.value and a.stop == b.start for a, b in zip(rows, rows[1:]))
    whole = Rows(first.value, first.transposed, first.start, rows[-1].stop)
    return _rows(before, whole) if is_run else _concat(before, [_rows(before, each) for each in rows])


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
    return _concat(before, states) if states else None


def _concat(before: ir.Node, values: Sequence[ir.Value]) -> ir.Value:
    """Return values side by side along their first axis."""
    if len(values) == 1:
        return values[0]
    shapes = [info(v).shape or () for v in values]
    rows = sum(s[0] for s in shapes if isinstance(s[0], int))
    node = ir.node("Concat", values, {"axis": 0}, version=13)
    return insert(before, node, f"{values[0].name}.all", Info(info(values[0]).dtype, (rows, *shapes[0][1:])))


def unsqueezed(before: ir.Node, value: ir.Value) -> ir.Value:
    """Return a value with a first axis of size 1."""
    facts = info(value)
    node = ir.node("Unsqueeze", [value, constant(before, [0], f"{value.name}.axes")], version=13)
    return insert(before, node, f"{value.name}.unsqueezed", Info(facts.dtype, (1, *(facts.shape or ()))))


def squeezed(before: ir.Node, value: ir.Value, axis: int) -> ir.Value:
    """Return a value without an axis of size 1."""
    facts = info(value)
    shape = facts.shape or ()
    node = ir.node("Squeeze", [value, constant(before, [axis], f"{value.name}.axes")], version=13)
    return insert(
        before, node, f"{value.name}.squeezed", Info(facts.dtype, (*shape[:axis], *shape[axis + 1 :])), before
    )


def _slice(before: ir.Node, value: ir.Value, axis: int, start: int, stop: int, facts: Info) -> ir.Value:
    bounds = [constant(before, [v], f"{value.name}.{start}.{v}") for v in (start, stop, axis)]
    node = ir.node("Slice", [value, *bounds], version=13)
    return insert(before, node, f"{value.name}.{start}", facts, before)


# ---- results ----


def _replace_sequences(before: ir.Node, node: ir.Node, directions: Sequence[Results], moved: Moved) -> None:
    """Replace the sequences of states, and single states that something else uses."""
    y, hidden = node.outputs[0], directions[0].chain.last.hidden
    sequence = squeezed(before, y, 1) if len(directions) == 1 else _merged(before, y, hidden)
    if len(directions) == 2 and (found := joined(*directions)) is not None:
        axis, concat = found
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
    """Let everything use a new value, and remove the node of the old one."""
    producer = old.producer()
    moved[old] = new
    replace_uses(old, new)
    if producer is not None:
        drop(producer)


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
    shape = info(state).shape or ()
    arranging = [node for old in known for v in same(old) if v is not old and (node := v.producer()) is not None]
    if len(known) == 2:
        _replace_pairs(state, known, moved)
    for i, old in enumerate(known):
        views = [v for v in same(old) if info(v).shape in ((1, *shape[1:]), shape[1:])]
        outside = [v for v in views if v.is_graph_output() or any(not _arranges(u.node, v, shape) for u in v.uses())]
        if not outside:
            continue
        facts = Info(info(state).dtype, (1, *shape[1:]))
        one = state if len(known) == 1 else _slice(before, state, 0, i, i + 1, facts)
        flat: ir.Value | None = None
        for view in outside:
            if info(view).shape != facts.shape:
                flat = flat or squeezed(before, one, 0)
            moved[view] = one if info(view).shape == facts.shape or flat is None else flat
            replace_uses(view, moved[view])
    for node in reversed(arranging):
        drop(node)


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
