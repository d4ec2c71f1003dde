"""The operands of attention's two products, whether MatMul or Einsum spells them (see `passes.attention`)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.passes.match import scalar
from onnxgen.passes.rewrite import beside, replace
from onnxgen.passes.steps import known_ints
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
        shape = info(self.value).shape
        return None if shape is None else tuple(shape[p] for p in self.perm)


@dataclass
class Product:
    """`(left @ right).permute(order)`: both of the same rank, the leading axes alike."""

    left: Operand
    right: Operand
    order: Perm


def product(node: ir.Node | None, by_result: bool) -> Product | None:
    """The product that a MatMul or an Einsum is; an Einsum's leading axes in the order of its result, or of `left`."""
    if node is None or len(node.inputs) != 2 or None in node.inputs:
        return None
    left, right = (Operand(v, tuple(range(info(v).rank or 0))) for v in node.inputs if v is not None)
    if len(left.perm) != len(right.perm) or len(left.perm) < 3 or info(left.value).shape is None:
        return None
    if node.op_type == "MatMul":
        return Product(left, right, left.perm)
    equation = str(node.attributes["equation"].value).replace(" ", "")
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
    """The operand without its factors that are numbers; a permutation that one stands before is the operand's own."""
    while True:
        node = made_by(operand.value, "Mul", "Div")
        found = None if node is None else _without_number(node)
        if found is not None:
            operand = Operand(found[0], operand.perm, operand.scale * found[1])
            continue
        node = made_by(operand.value, "Transpose")
        if node is None or node.inputs[0] is None or "perm" not in node.attributes:
            return operand
        inner = [int(p) for p in node.attributes["perm"].value]
        operand = Operand(node.inputs[0], tuple(inner[p] for p in operand.perm), operand.scale)


def without_number(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """(x, c), if a value is x * c for a positive number c (1 if it is not)."""
    node = made_by(value, "Mul", "Div")
    found = None if node is None else _without_number(node)
    return (value, 1.0) if found is None else found


def _without_number(node: ir.Node) -> tuple[ir.Value, float] | None:
    for index in (1, 0) if node.op_type == "Mul" else (1,):
        number, x = scalar(node.inputs[index]), node.inputs[1 - index]
        if number is not None and number > 0 and x is not None and info(x).rank == info(node.outputs[0]).rank:
            return x, number if node.op_type == "Mul" else 1 / number
    return None


def lifted(operand: Operand) -> Operand | None:
    """The operand before its batch and heads were merged into one axis, which stands first."""
    node = made_by(operand.value, "Reshape")
    before, after = (None, None) if node is None else (info(node.inputs[0]).shape, info(operand.value).shape)
    if node is None or node.inputs[0] is None or before is None or after is None or operand.perm[0] != 0:
        return None
    if len(before) != 4 or len(after) != 3 or before[2:] != after[1:]:
        return None
    return unscaled(Operand(node.inputs[0], (0, *(p + 1 for p in (0, *operand.perm[1:]))), operand.scale))


def turned(operand: Operand) -> Operand:
    """The last two axes swapped."""
    return Operand(operand.value, (*operand.perm[:-2], operand.perm[-1], operand.perm[-2]), operand.scale)


def as_value(operand: Operand, before: ir.Node) -> ir.Value:
    """The operand without its scale: a Transpose beside what it belongs to, or none if there is nothing to turn."""
    value, graph = operand.value, before.graph
    assert graph is not None
    if operand.perm == tuple(range(len(operand.perm))):
        return value
    made = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", operand.perm)], version=13, num_outputs=1)
    beside(made, before)
    producer = value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, made)
    else:
        graph.insert_before(before, made)
    made.outputs[0].name = f"{value.name}.turned"
    set_info(made.outputs[0], Info(info(value).dtype, operand.shape))
    return made.outputs[0]


def replace_turned(node: ir.Node, new: ir.Node, order: Perm) -> None:
    """Put `new`, and the permutation of its result, in the place of `node`."""
    if order == tuple(range(len(order))):
        replace(node, new)
        return
    assert node.graph is not None
    node.graph.insert_before(node, new)
    new.name = node.name
    beside(new, node)
    facts, straight = info(node.outputs[0]), [order.index(i) for i in range(len(order))]
    new.outputs[0].name = f"{node.outputs[0].name}.straight"
    shape = None if facts.shape is None else tuple(facts.shape[i] for i in straight)
    set_info(new.outputs[0], Info(facts.dtype, shape))
    replace(node, ir.Node("", "Transpose", [new.outputs[0]], [ir.AttrInt64s("perm", order)], version=13))


def merge_heads(node: ir.Node, new: ir.Node, operands: list[Operand]) -> None:
    """Put `new`, of batch and heads, and the Reshape that merges the two, in the place of `node`."""
    assert node.graph is not None
    node.graph.insert_before(node, new)
    new.name = node.name
    beside(new, node)
    facts, shape, values = info(node.outputs[0]), operands[0].shape or (), operands[2].shape or ()
    new.outputs[0].name = f"{node.outputs[0].name}.heads"
    set_info(new.outputs[0], Info(facts.dtype, (*shape[:-1], values[-1])))
    replace(node, ir.Node("", "Reshape", [new.outputs[0], known_ints(facts.shape or ())], version=13))
