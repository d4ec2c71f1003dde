"""Recognise the cells of RNN, GRU and LSTM by their gates.

    RNN     h' = tanh(W x + U h)                     or relu
    GRU     r, z = sigmoid(W x + U h)   n = tanh(W x + r * (U h))   h' = (1 - z) * n + z * h, or (h - n) * z + n
    LSTM    i, f, o = sigmoid(W x + U h)   g = tanh(W x + U h)   c' = f * c + i * g   h' = o * tanh(c')

Which product is that of the state shows in a GRU. In the other cells it is decided later: by names, or because the
state is what another cell made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import uniform
from onnxgen.passes.unrolled.forms import Form, Forms, Rows, Step, Term, bare, step_of
from onnxgen.shapes.info import info

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
        return x if x.axis is not None or x.flipped is not None else step_of(x.value)

    def states(self) -> Iterator[ir.Value]:
        """Yield the values that may be the state that it starts from."""
        if self.kind == GRU and self.h is not None:
            yield self.h
            return
        for term in self.forms[0][0].terms:
            if term.x.axis is None and term.x.flipped is None:
                yield term.x.value

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
    terms = [term for form in forms for term in form.terms]
    constants = [rows for form in forms for rows in form.constants]
    past = [t for t in terms if t.x.axis is None and _is_state(t.x.value, state)]
    rest = [t for t in terms if t not in past]
    if any(form.loose for form in forms) or len(rest) != 1 or len(past) > 1 or len(constants) + len(past) > 1:
        return None
    if past and past[0].matrix.columns != forms[0].size:
        return None
    if len(forms) == 2 and (rest[0] not in forms[0].terms or forms[0].constants):
        return None
    return Gate(rest[0], past[0] if past else None, constants[0] if constants else None)


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
            found = _memory(kept, new, forms)
            if found is None:
                continue
            f, i, g, c, nodes = found
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
