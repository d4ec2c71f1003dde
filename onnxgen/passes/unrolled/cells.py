"""Recognise the cells of RNN, GRU and LSTM by their gates, which are sums of products with stored matrices.

    RNN     h' = tanh(W x + U h), or relu
    GRU     r, z = sigmoid(W x + U h)      n = tanh(W x + r * (U h))
            h' = (1 - z) * n + z * h, or (h - n) * z + n
    LSTM    i, f, o = sigmoid(W x + U h)   g = tanh(W x + U h)
            c' = f * c + i * g             h' = o * tanh(c')

A `Form` is such a sum:

    W x_t + b_ih + U h + b_hh     Gemm, MatMul and Add in any order; the exporter may multiply the
                                  whole sequence and then take one step, or take one gate's rows of
                                  a larger product

Which product is that of the state shows in a GRU. In the other cells it is decided later: by names, or because the
state is what another cell made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import is_plain_gemm, maker, scalar, shape_of, uniform
from onnxgen.passes.rewrite import input_at
from onnxgen.passes.slices import only_cut, piece
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import info
from onnxgen.weights.stored import Views, stored

MAX_DEPTH = 16  # nodes between a gate and its matrices


@dataclass(frozen=True)
class Step:
    """A value, or its element at one index of an axis: `value[:, index]`. `flipped`: counted from the end."""

    value: ir.Value
    axis: int | None = None
    index: int = 0
    flipped: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.axis is None and self.flipped is None


@dataclass(frozen=True)
class Rows:
    """Rows of a stored tensor: a matrix of [out, in] (`transposed`: it is stored as [in, out]), or a vector."""

    value: ir.Value
    transposed: bool
    start: int
    stop: int

    def cut(self, start: int, stop: int) -> Rows:
        return replace(self, start=self.start + start, stop=self.start + stop)

    @property
    def columns(self) -> Dim | None:
        """The size of the input that a matrix takes."""
        shape = shape_of(self.value)
        return shape[0 if self.transposed else -1] if len(shape) == 2 else None

    @property
    def whole(self) -> bool:
        """True if these are all rows."""
        shape = shape_of(self.value)
        return bool(shape) and self.start == 0 and self.stop == shape[-1 if self.transposed else 0]


@dataclass(frozen=True)
class Term:
    """`x @ matrix.T + bias`."""

    x: Step
    matrix: Rows
    bias: Rows | None = None

    def cut(self, start: int, stop: int) -> Term:
        return Term(self.x, self.matrix.cut(start, stop), self.bias and self.bias.cut(start, stop))


@dataclass(frozen=True)
class Form:
    """A sum of terms, biases and constants of several rows, such as a folded product with the initial state.

    Attributes:
        loose: biases that belong to no single term.
        nodes: the nodes that compute it.
    """

    size: int
    terms: tuple[Term, ...] = ()
    loose: tuple[Rows, ...] = ()
    constants: tuple[Rows, ...] = ()
    nodes: frozenset[ir.Node] = frozenset()

    def cut(self, start: int, stop: int) -> Form:
        """Return these columns."""
        loose, constants = (tuple(r.cut(start, stop) for r in rows) for rows in (self.loose, self.constants))
        return Form(stop - start, tuple(t.cut(start, stop) for t in self.terms), loose, constants, self.nodes)


class Forms:
    """Finds the form of a value; each is computed once."""

    def __init__(self, views: Views) -> None:
        self.views = views
        self._known: dict[ir.Value, Form | None] = {}

    def __call__(self, value: ir.Value | None, depth: int = 0) -> Form | None:
        """Return the form of a value, or None if it has none."""
        if value is None or depth > MAX_DEPTH:
            return None
        if value not in self._known:
            self._known[value] = self._form(value, depth)
        return self._known[value]

    def _form(self, value: ir.Value, depth: int) -> Form | None:
        if stored(value) is not None:
            return _constant(value)
        node = value.producer()
        if node is None or node.domain != "":
            return None
        form: Form | None = None
        if node.op_type in ("Gemm", "MatMul"):
            form = self._product(node)
        elif node.op_type == "Add":
            form = _sum(self(node.inputs[0], depth + 1), self(node.inputs[1], depth + 1))
        elif node.op_type in ("Slice", "Split", "Squeeze", "Gather"):
            form = self._part(value, node, depth)
        return None if form is None else replace(form, nodes=form.nodes | {node})

    def _product(self, node: ir.Node) -> Form | None:
        x, w = node.inputs[:2]
        if node.op_type == "Gemm" and not is_plain_gemm(node):
            return None
        transposed = node.op_type == "MatMul" or not node.attributes.get_int("transB", 0)
        matrix = self._rows(w, transposed, 2)
        if x is None or matrix is None:
            return None
        bias = input_at(node, 2)
        vector = None if bias is None else self._rows(bias, False, 1)
        if bias is not None and (vector is None or vector.stop != matrix.stop):
            return None
        return Form(matrix.stop, (Term(Step(x), matrix, vector),))

    def _rows(self, value: ir.Value | None, transposed: bool, rank: int) -> Rows | None:
        """Return all rows of a stored tensor or of a view of one."""
        shape = info(value).shape
        if value is None or shape is None or len(shape) != rank or not self.views.is_view(value):
            return None
        size = shape[-1 if transposed else 0]
        return Rows(value, transposed, 0, size) if isinstance(size, int) else None

    def _part(self, value: ir.Value, node: ir.Node, depth: int) -> Form | None:
        """Return the form of columns, or of one step of a sequence, or of the sequence from its end."""
        part, rank = piece(value), info(value).rank
        if part is not None and rank is not None and part.axis == rank - 1:
            form = self(part.x, depth + 1)
            return None if form is None else form.cut(part.start, part.end)
        step = step_of(value)
        if step.axis is not None:
            form, cutter = self._picked(step, depth), maker(node.inputs[0])
            inside = {cutter} if node.op_type == "Squeeze" and cutter is not None else set[ir.Node]()
            return None if form is None else replace(form, nodes=form.nodes | inside)
        axis = flipped_axis(node)
        form = None if axis is None else self(node.inputs[0], depth + 1)
        if form is None or form.constants or not all(t.x.is_whole for t in form.terms):
            return None
        return replace(form, terms=tuple(replace(t, x=replace(t.x, flipped=axis)) for t in form.terms))

    def _picked(self, step: Step, depth: int) -> Form | None:
        form = self(step.value, depth + 1)
        if form is None or form.constants or not form.terms or step.axis == (info(step.value).rank or 0) - 1:
            return None
        terms = []
        for term in form.terms:
            x, shape = term.x, info(term.x.value).shape
            if x.axis is not None or x.flipped not in (None, step.axis) or shape is None or step.axis is None:
                return None
            size = shape[step.axis]
            if len(shape) != info(step.value).rank or not isinstance(size, int):
                return None
            index = step.index if x.flipped is None else size - 1 - step.index
            terms.append(replace(term, x=Step(x.value, step.axis, index)))
        return replace(form, terms=tuple(terms))


def _constant(value: ir.Value) -> Form | None:
    """Return the form of a stored tensor: a bias, or rows of constants."""
    shape = info(value).shape
    if not shape or not isinstance(shape[-1], int):
        return None
    rows = Rows(value, True, 0, shape[-1])
    if len(shape) == 1:
        return Form(shape[-1], loose=(replace(rows, transposed=False),))
    return Form(shape[-1], constants=(rows,))


def _sum(a: Form | None, b: Form | None) -> Form | None:
    if a is None or b is None or a.size != b.size:
        return None
    if len(b.terms) > len(a.terms):
        a, b = b, a
    terms, loose = (*a.terms, *b.terms), (*a.loose, *b.loose)
    if len(terms) == 1 and terms[0].bias is None and len(b.loose) == 1 and not (a.loose or a.constants or b.constants):
        terms, loose = (replace(terms[0], bias=b.loose[0]),), ()
    return Form(a.size, terms, loose, (*a.constants, *b.constants), a.nodes | b.nodes)


def step_of(value: ir.Value) -> Step:
    """Return a value as one step of another one, if a Gather, Slice or Split takes it out; else the value itself."""
    node = made_by(value, "Gather", "Squeeze")
    if node is None or node.inputs[0] is None:
        return Step(value)
    source, shape = node.inputs[0], info(node.inputs[0]).shape
    if node.op_type == "Gather":
        index, axis = scalar(node.inputs[1]), node.attributes.get_int("axis", 0)
        if index is None or info(node.inputs[1]).rank != 0 or not shape or not isinstance(shape[axis], int):
            return Step(value)
        size = int(shape[axis])  # type: ignore[arg-type]
        return Step(source, axis % len(shape), int(index) % size)
    part, rank = piece(source), info(value).rank
    if part is None or part.end != part.start + 1 or shape is None or rank != len(shape) - 1:
        return Step(value)
    rest = shape[: part.axis] + shape[part.axis + 1 :]
    is_axis = info(value).shape == rest and _squeezed(node) == part.axis
    return Step(part.x, part.axis, part.start) if is_axis else Step(value)


def _squeezed(node: ir.Node) -> int | None:
    """Return the one axis that a Squeeze removes."""
    constant = info(input_at(node, 1)).constant
    axes = node.attributes.get_ints("axes", None) or ([] if constant is None else [int(a) for a in constant.flat])
    return axes[0] % (info(node.inputs[0]).rank or 1) if len(axes) == 1 else None


def flipped_axis(node: ir.Node) -> int | None:
    """Return the axis that a Slice reverses as a whole, if it does nothing else."""
    cut, shape = only_cut(node), info(node.inputs[0]).shape
    size = None if cut is None or shape is None else shape[cut.axis]
    if cut is None or cut.step != -1 or not isinstance(size, int):
        return None
    if not isinstance(cut.start, int) or not isinstance(cut.end, int):
        return None
    return cut.axis if range(size)[slice(cut.start, cut.end, -1)] == range(size)[::-1] else None


def bare(value: ir.Value | None) -> ir.Value | None:
    """Return what a value is without nodes that only add or remove axes of size 1."""
    for _ in range(MAX_DEPTH):
        node = made_by(value, "Squeeze", "Unsqueeze", "Reshape")
        if node is None:
            break
        before, after = info(node.inputs[0]).shape, info(value).shape
        if before is None or after is None or [d for d in before if d != 1] != [d for d in after if d != 1]:
            break
        value = node.inputs[0]
    return value


RNN, GRU, LSTM = "RNN", "GRU", "LSTM"
ACTIVATIONS = ("Tanh", "Relu")


@dataclass
class Gate:
    """One gate: what it takes of the input and of the state. `past`: a constant in the place of the state's product."""

    x: Term
    h: Term | None
    past: Rows | None


@dataclass(eq=False)
class Cell:
    """One step.

    Attributes:
        out: the new state; `memory` is the new cell state of an LSTM.
        forms: of the gates in torch's order. The last one of a GRU has two: of the input and of the state.
        h, c: the states that it starts from, where they are known; c is that of an LSTM.
        gates: the forms with the products told apart, once that is known.
        nodes: all nodes that only compute this step, if nothing else uses them.
    """

    kind: str
    relu: bool
    out: ir.Value
    memory: ir.Value | None
    forms: list[tuple[Form, ...]]
    h: ir.Value | None = None
    c: ir.Value | None = None
    gates: list[Gate] = field(default_factory=list)
    nodes: set[ir.Node] = field(default_factory=set)

    @property
    def hidden(self) -> int:
        return self.forms[0][0].size

    @property
    def x(self) -> Step:
        """The step of a sequence that it takes."""
        x = self.gates[0].x.x
        return step_of(x.value) if x.is_whole else x

    def states(self) -> Iterator[ir.Value]:
        """Yield the values that may be the state that it starts from."""
        if self.kind == GRU and self.h is not None:
            yield self.h
            return
        yield from (term.x.value for term in self.forms[0][0].terms if term.x.is_whole)

    def settle(self, state: ir.Value | None) -> bool:
        """Tell the products apart: that of `state` is the state's. Returns False if they are not those of a cell."""
        gates: list[Gate] = []
        for forms in self.forms:
            gate = _gate(forms, bare(state))
            if gate is None or (gates and gate.x.x != gates[0].x.x):
                return False
            gates.append(gate)
        if len({(g.h is None, g.x.bias is None, g.h is not None and g.h.bias is None) for g in gates}) > 1:
            return False
        self.gates, self.h = gates, state
        return True


def _gate(forms: tuple[Form, ...], state: ir.Value | None) -> Gate | None:
    """Return the gate of one form, or of two: one of the input, one of the state."""
    of_x, of_h = _told_apart([term for form in forms for term in form.terms], state)
    constants = [rows for form in forms for rows in form.constants]
    if len(of_x) != 1 or len(of_h) + len(constants) > 1 or any(form.loose for form in forms):
        return None
    if of_h and of_h[0].matrix.columns != forms[0].size:
        return None
    if len(forms) == 2 and (of_x[0] not in forms[0].terms or forms[0].constants):
        return None
    return Gate(of_x[0], next(iter(of_h), None), next(iter(constants), None))


def _told_apart(terms: list[Term], state: ir.Value | None) -> tuple[list[Term], list[Term]]:
    """Return the terms of the input, and those of the state."""
    of_h = [term for term in terms if term.x.axis is None and _is_state(term.x.value, state)]
    return [term for term in terms if term not in of_h], of_h


def _is_state(value: ir.Value, state: ir.Value | None) -> bool:
    """True if a value is the state. Exporters write zeros more than once."""
    return state is not None and (bare(value) is state or (uniform(state) == 0 and uniform(value) == 0))


def cell_of(value: ir.Value, forms: Forms) -> Cell | None:
    """Return the cell whose new state a value is, else None."""
    node = value.producer()
    if node is None or node.domain != "" or info(value).rank not in (2, 3):
        return None
    if node.op_type == "Mul":
        return _lstm(node, forms)
    if node.op_type == "Add":
        return _gru(node, forms)
    form = forms(node.inputs[0]) if node.op_type in ACTIVATIONS else None
    if form is None or form.loose or not 1 <= len(form.terms) <= 2:
        return None
    nodes = {node, *form.nodes}
    return Cell(RNN, node.op_type == "Relu", value, None, [(form,)], nodes=nodes)


def _applied(value: ir.Value | None, op_type: str, forms: Forms) -> Form | None:
    """Return the form that an activation is applied to."""
    node = made_by(value, op_type)
    return None if node is None else forms(node.inputs[0])


def _orders(node: ir.Node | None) -> list[tuple[ir.Value, ir.Value]]:
    """Return the operands of a binary node, in both orders."""
    if node is None or len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return []
    return [(node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])]


def _makers(*values: ir.Value | None) -> set[ir.Node]:
    return {node for value in values if value is not None and (node := value.producer()) is not None}


def _lstm(node: ir.Node, forms: Forms) -> Cell | None:
    for gate, squashed in _orders(node):
        o, tanh = _applied(gate, "Sigmoid", forms), made_by(squashed, "Tanh")
        memory = None if tanh is None else tanh.inputs[0]
        if o is None or memory is None:
            continue
        for kept, new in _orders(made_by(memory, "Add")):
            gates = _memory(kept, new, forms)
            if gates is None:
                continue
            f, i, g, c, nodes = gates
            nodes |= {node, *_makers(gate, squashed, memory), *o.nodes}
            return Cell(LSTM, False, node.outputs[0], memory, [(i,), (f,), (g,), (o,)], c=c, nodes=nodes)
    return None


def _memory(kept: ir.Value, new: ir.Value, forms: Forms) -> tuple[Form, Form, Form, ir.Value, set[ir.Node]] | None:
    """Return the gates f, i and g, and c, if the values are `f * c` and `i * g`."""
    for gate, value in _orders(made_by(new, "Mul")):
        i, g = _applied(gate, "Sigmoid", forms), _applied(value, "Tanh", forms)
        for forget, c in _orders(made_by(kept, "Mul")):
            f = _applied(forget, "Sigmoid", forms)
            if i is not None and g is not None and f is not None:
                return f, i, g, c, {*_makers(kept, new, gate, value, forget), *f.nodes, *i.nodes, *g.nodes}
    return None


def _gru(node: ir.Node, forms: Forms) -> Cell | None:
    for blend in _blends(node):
        z_value, n_value, h, nodes = blend
        tanh = made_by(n_value, "Tanh")
        z = _applied(z_value, "Sigmoid", forms)
        if tanh is None or z is None:
            continue
        for of_x, gated in _orders(made_by(tanh.inputs[0], "Add")):
            for reset, of_h in _orders(made_by(gated, "Mul")):
                r, x, past = _applied(reset, "Sigmoid", forms), forms(of_x), forms(of_h)
                if r is not None and x is not None and past is not None:
                    inside = nodes | {node, tanh, *_makers(z_value, tanh.inputs[0], gated, reset)}
                    inside |= r.nodes | z.nodes | x.nodes | past.nodes
                    return Cell(GRU, False, node.outputs[0], None, [(r,), (z,), (x, past)], h=h, nodes=inside)
    return None


def _blends(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value, ir.Value, set[ir.Node]]]:
    """Yield (z, n, h, nodes) of each way to read a sum as `(h - n) * z + n` or `(1 - z) * n + z * h`."""
    for product, other in _orders(node):
        for z, difference in _orders(made_by(product, "Mul")):
            minus = made_by(difference, "Sub")
            if minus is None or minus.inputs[0] is None:
                continue
            if minus.inputs[1] is other:
                yield z, other, minus.inputs[0], _makers(product, difference)
            gate = minus.inputs[1]
            for candidate, h in _orders(made_by(other, "Mul")):
                if gate is not None and candidate is gate and uniform(minus.inputs[0]) == 1:
                    yield gate, z, h, _makers(product, difference, other)
