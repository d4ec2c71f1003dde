"""Express values as sums of products with stored matrices, of which a gate of a recurrent cell is one.

W x_t + b_ih + U h + b_hh          Gemm, MatMul and Add in any order; the exporter may multiply the whole sequence
                                   and then take one step, or take one gate's rows of a larger product
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import scalar
from onnxgen.passes.slices import cuts, piece
from onnxgen.passes.steps import input_at
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
        shape = info(self.value).shape or ()
        return shape[0 if self.transposed else -1] if len(shape) == 2 else None

    @property
    def whole(self) -> bool:
        """True if these are all rows."""
        shape = info(self.value).shape or ()
        return bool(shape) and self.start == 0 and self.stop == shape[-1 if self.transposed else 0]


@dataclass(frozen=True)
class Term:
    """`x @ matrix.T + bias`."""

    x: Step
    matrix: Rows
    bias: Rows | None = None


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

        def rows(all_rows: Iterable[Rows]) -> tuple[Rows, ...]:
            return tuple(r.cut(start, stop) for r in all_rows)

        terms = tuple(
            Term(t.x, t.matrix.cut(start, stop), None if t.bias is None else t.bias.cut(start, stop))
            for t in self.terms
        )
        return Form(stop - start, terms, rows(self.loose), rows(self.constants), self.nodes)


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
        found: Form | None = None
        if node.op_type in ("Gemm", "MatMul"):
            found = self._product(node)
        elif node.op_type == "Add":
            found = _sum(self(node.inputs[0], depth + 1), self(node.inputs[1], depth + 1))
        elif node.op_type in ("Slice", "Split", "Squeeze", "Gather"):
            found = self._part(value, node, depth)
        return None if found is None else replace(found, nodes=found.nodes | {node})

    def _product(self, node: ir.Node) -> Form | None:
        x, w = node.inputs[:2]
        transposed = True
        if node.op_type == "Gemm":
            given = node.attributes
            if given.get_int("transA", 0) or given.get_float("alpha", 1.0) != 1 or given.get_float("beta", 1.0) != 1:
                return None
            transposed = not given.get_int("transB", 0)
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
            found = self(part.x, depth + 1)
            return None if found is None else found.cut(part.start, part.end)
        step = step_of(value)
        if step.axis is not None:
            found = self._picked(step, depth)
            cutter = None if node.inputs[0] is None else node.inputs[0].producer()
            inside = {cutter} if node.op_type == "Squeeze" and cutter is not None else set[ir.Node]()
            return None if found is None else replace(found, nodes=found.nodes | inside)
        axis = flipped_axis(node)
        found = None if axis is None else self(node.inputs[0], depth + 1)
        if (
            found is None
            or found.constants
            or any(t.x.axis is not None or t.x.flipped is not None for t in found.terms)
        ):
            return None
        return replace(found, terms=tuple(replace(t, x=replace(t.x, flipped=axis)) for t in found.terms))

    def _picked(self, step: Step, depth: int) -> Form | None:
        found = self(step.value, depth + 1)
        if found is None or found.constants or not found.terms or step.axis == (info(step.value).rank or 0) - 1:
            return None
        terms = []
        for term in found.terms:
            x, shape = term.x, info(term.x.value).shape
            if x.axis is not None or x.flipped not in (None, step.axis) or shape is None or step.axis is None:
                return None
            size = shape[step.axis]
            if len(shape) != info(step.value).rank or not isinstance(size, int):
                return None
            index = step.index if x.flipped is None else size - 1 - step.index
            terms.append(replace(term, x=Step(x.value, step.axis, index)))
        return replace(found, terms=tuple(terms))


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


# ---- steps of a sequence ----


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
    found, shape = cuts(node), info(node.inputs[0]).shape
    if found is None or shape is None or len(found) != 1 or found[0].step != -1:
        return None
    cut, size = found[0], shape[found[0].axis]
    if not isinstance(size, int) or not isinstance(cut.start, int) or not isinstance(cut.end, int):
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
