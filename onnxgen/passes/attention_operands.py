"""The operands of attention's two products, which may be MatMul or Einsum (see `passes.attention`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import scalar
from onnxgen.passes.rewrite import beside, replace
from onnxgen.passes.steps import insert, known_ints, permuted
from onnxgen.shapes.info import Info, Shape, info, set_info

Perm = tuple[int, ...]


@dataclass
class Operand:
    """`value.permute(perm) * scale`."""

    value: ir.Value
    perm: Perm
    scale: float = 1.0

    @property
    def shape(self) -> Shape | None:
        return permuted(info(self.value), self.perm).shape


@dataclass
class Product:
    """`(left @ right).permute(order)`; both operands have the same rank and the same leading axes."""

    left: Operand
    right: Operand
    order: Perm


def product(node: ir.Node | None, by_result: bool) -> Product | None:
    """Return a MatMul or Einsum as a product, else None.

    `by_result`: the leading axes of an Einsum are in the order of its result, not of `left`.
    """
    if node is None or len(node.inputs) != 2 or None in node.inputs:
        return None
    left, right = (Operand(v, tuple(range(info(v).rank or 0))) for v in node.inputs if v is not None)
    if len(left.perm) != len(right.perm) or len(left.perm) < 3:
        return None
    if node.op_type == "MatMul":
        return Product(left, right, left.perm)
    equation = node.attributes["equation"].as_string().replace(" ", "")
    terms, arrow, result = equation.partition("->")
    parts = terms.split(",")
    if not arrow or "." in equation or any(len(set(p)) != len(p) for p in (*parts, result)):
        return None
    return _einsum(left, right, parts, result, by_result)


def _einsum(left: Operand, right: Operand, parts: list[str], result: str, by_result: bool) -> Product | None:
    a, b = parts
    summed = [c for c in a if c in b and c not in result]
    rows, columns = ([c for c in p if c not in q] for p, q in ((a, b), (b, a)))
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or len(result) != len(a) or len(a) != len(b):
        return None
    if by_result and result[-2:] == columns[0] + rows[0]:
        return _einsum(right, left, [b, a], result, by_result)
    leading = [c for c in (result if by_result else a) if c in a and c in b and c != summed[0]]
    natural = [*leading, *rows, *columns]
    first = Operand(left.value, tuple(a.index(c) for c in [*leading, *rows, *summed]))
    second = Operand(right.value, tuple(b.index(c) for c in [*leading, *summed, *columns]))
    return Product(first, second, tuple(natural.index(c) for c in result))


def unscaled(operand: Operand) -> Operand:
    """Return an operand with numeric factors moved into its scale, and the Transposes between them into its perm."""
    while True:
        (value, number), perm = without_number(operand.value), operand.perm
        if value is operand.value:
            node = made_by(value, "Transpose")
            if node is None or node.inputs[0] is None or "perm" not in node.attributes:
                return operand
            inner = node.attributes["perm"].as_ints()
            value, perm = node.inputs[0], tuple(inner[p] for p in perm)
        operand = Operand(value, perm, operand.scale * number)


def without_number(value: ir.Value) -> tuple[ir.Value, float]:
    """Return (x, c) of a value that is x * c for a positive number c, else (value, 1)."""
    node = made_by(value, "Mul", "Div")
    if node is None:
        return value, 1.0
    for index in (1, 0) if node.op_type == "Mul" else (1,):
        number, x = scalar(node.inputs[index]), node.inputs[1 - index]
        if number is not None and number > 0 and x is not None and info(x).rank == info(value).rank:
            return x, number if node.op_type == "Mul" else 1 / number
    return value, 1.0


def is_no_number(value: ir.Value) -> bool:
    """Return True if a value is multiplied by NaN or an infinity."""
    node = made_by(value, "Mul", "Div")
    factors = [] if node is None else [scalar(x) for x in node.inputs]
    return any(factor is not None and not math.isfinite(factor) for factor in factors)


def lifted(operand: Operand) -> Operand | None:
    """Return an operand before its batch and heads were merged into one leading axis, else None."""
    node = made_by(operand.value, "Reshape")
    source = None if node is None else node.inputs[0]
    before, after = info(source).shape, info(operand.value).shape
    if source is None or before is None or after is None or operand.perm[0] != 0:
        return None
    if len(before) != 4 or len(after) != 3 or before[2:] != after[1:]:
        return None
    return unscaled(Operand(source, (0, *(p + 1 for p in (0, *operand.perm[1:]))), operand.scale))


def swapped(operand: Operand) -> Operand:
    """Return an operand with its last two axes swapped."""
    *leading, rows, columns = operand.perm
    return Operand(operand.value, (*leading, columns, rows), operand.scale)


def as_value(operand: Operand, before: ir.Node) -> ir.Value:
    """Return an operand without its scale. If a Transpose is needed, it is inserted after the operand's producer."""
    value, graph, producer = operand.value, before.graph, operand.value.producer()
    assert graph is not None
    if operand.perm == tuple(range(len(operand.perm))):
        return value
    made = ir.node("Transpose", [value], {"perm": operand.perm}, version=13)
    beside(made, before)
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, made)
    else:
        graph.insert_before(before, made)
    made.outputs[0].name = f"{value.name}.turned"
    set_info(made.outputs[0], permuted(info(value), operand.perm))
    return made.outputs[0]


def replace_permuted(node: ir.Node, new: ir.Node, order: Perm) -> None:
    """Replace `node` by `new` and the permutation of its result."""
    if order == tuple(range(len(order))):
        replace(node, new)
        return
    straight = permuted(info(node.outputs[0]), [order.index(i) for i in range(len(order))])
    made = _insert_result(node, new, "straight", straight.shape)
    replace(node, ir.node("Transpose", [made], {"perm": order}, version=13))


def merge_heads(node: ir.Node, new: ir.Node, operands: list[Operand]) -> None:
    """Replace `node` by `new`, which has batch and heads as two axes, and a Reshape that merges them."""
    shape, values = operands[0].shape or (), operands[2].shape or ()
    made = _insert_result(node, new, "heads", (*shape[:-1], values[-1]))
    replace(node, ir.node("Reshape", [made, known_ints(info(node.outputs[0]).shape or ())], version=13))


def _insert_result(node: ir.Node, new: ir.Node, suffix: str, shape: Shape | None) -> ir.Value:
    new.name = node.name
    return insert(node, new, f"{node.outputs[0].name}.{suffix}", Info(info(node.outputs[0]).dtype, shape), node)
