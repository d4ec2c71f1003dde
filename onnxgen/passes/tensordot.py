"""Matrix products of tensors whose leading axes are merged before and come back after, as products of the tensors.

    Reshape(MatMul(Reshape(x, (-1, k)), w), (*leading, m))       is    MatMul(x, w)
    Reshape(MatMul(Reshape(a, (-1, n, k)), Reshape(b, ...)))     is    MatMul(a, b)
    Einsum(x, w), "abc,cde->abde"                                is    Reshape(MatMul(x, Reshape(w)))

TensorFlow's Dense layers compute with matrices only (`Tensordot`), and so do converters of Einsum. If the last Reshape
also makes heads of the last axis, these are made of the product; a bias of heads is added before, as a vector.
"""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import flattened, input_at, insert, known_ints
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.info import Info, info
from onnxgen.weights.stored import Views

Shape = tuple[Dim, ...]


def tensordot(model: ir.Model, options: Options) -> None:
    """Rewrite every such product."""
    views = Views(model, options)
    for node in standard_nodes(model, "Einsum"):
        if len(node.inputs) == 2 and views(node.inputs[1]) is not None:
            _of_letters(node)
    for node in standard_nodes(model, "MatMul", "Gemm"):
        last = only_user(node.outputs[0], "Reshape")
        if last is None:
            continue
        if views(node.inputs[1]) is not None and _is_plain(node):
            _of_rows(node, last)
        elif node.op_type == "MatMul":
            _of_matrices(node, last)


def _is_plain(node: ir.Node) -> bool:
    """True if a product of matrices is nothing else. (A Gemm has Reshapes around it only where it adds nothing.)"""
    gemm = node.attributes.get_float("alpha", 1.0), node.attributes.get_int("transA", 0), input_at(node, 2)
    return gemm == (1.0, 0, None) and all(info(value).rank == 2 for value in node.inputs[:2])


def _of_rows(node: ir.Node, last: ir.Node) -> None:
    """Multiply a tensor whose rows are multiplied by a stored matrix."""
    rows, made, columns = made_by(node.inputs[0], "Reshape", "Flatten"), last.outputs[0], _shape(node.outputs[0])[-1:]
    x, weight = None if rows is None else rows.inputs[0], node.inputs[1]
    sizes, before, after = _shape(node.inputs[0])[-1:], _shape(x), _shape(made)
    at = next((n for n in range(len(after) - 1, 1, -1) if columns == _size(after[n:])), 0)
    if x is None or weight is None or not at or before[:at] != after[:at] or _size(before[at:]) != sizes:
        return
    if len(before) > at + 1:
        x = _reshaped(node, x, (*before[:at], *sizes), f"{made.name}.x")
    if node.attributes.get_int("transB", 0):
        turned = ir.node("Transpose", [weight], {"perm": [1, 0]}, version=13)
        weight = insert(node, turned, f"{made.name}.w", Info(info(weight).dtype, _shape(weight)[::-1]), node)
    _write(node, x, weight, last, before[:at], after[at:])


def _of_letters(node: ir.Node) -> None:
    """Multiply by a stored tensor as by a matrix, whose first axes are the last ones of the other operand."""
    terms = re.fullmatch(r"(\w+),(\w+)->(\w+)", node.attributes.get_string("equation", "").replace(" ", ""))
    x, weight = node.inputs
    if terms is None or x is None or weight is None or any(len({*term}) < len(term) for term in terms.groups()):
        return
    count = next((n for n in range(1, len(terms[1])) if terms[2].startswith(terms[1][-n:])), 0)
    at, sizes, heads = len(terms[1]) - count, _size(_shape(weight)[:count]), _shape(weight)[count:]
    if not count or not sizes or not heads or not _size(heads) or terms[3] != terms[1][:at] + terms[2][count:]:
        return
    leading, name = _shape(x)[:at], node.outputs[0].name
    if len(_shape(x)) != at + count or len({*terms[1], *terms[2]}) != at + len(terms[2]):
        return
    if count > 1:
        x = _reshaped(node, x, (*leading, *sizes), f"{name}.x")
    if len(_shape(weight)) != 2:
        weight = _reshaped(node, weight, (*sizes, *_size(heads)), f"{name}.w")
    _write(node, x, weight, node, leading, heads)


def _reshaped(node: ir.Node, value: ir.Value, shape: Shape, name: str) -> ir.Value:
    new = ir.node("Reshape", [value, known_ints(shape)], version=14)
    return insert(node, new, name, Info(info(value).dtype, shape), node)


def _write(node: ir.Node, x: ir.Value, weight: ir.Value, last: ir.Node, leading: Shape, heads: Shape) -> None:
    """Replace a product, whose result is that of `last`. A bias of heads, added behind it, is added to the product."""
    product, name = ir.node("MatMul", [x, weight], version=13), last.outputs[0].name
    if len(heads) == 1:
        return replace(last, product, origin=node)
    facts = Info(info(last.outputs[0]).dtype, (*leading, *_size(heads)))
    made = insert(last, product, f"{name}.product", facts, node)
    add = only_user(last.outputs[0], "Add")
    bias = None if add is None else other(add, last.outputs[0])
    if add is not None and bias is not None and bias.is_initializer() and _shape(bias) == heads:
        total = ir.node("Add", [made, flattened(bias, add)], version=14)
        made, last = insert(add, total, f"{name}.sum", facts, add), add
    replace(last, ir.node("Reshape", [made, known_ints([*leading, *heads])], version=14))


def _of_matrices(node: ir.Node, last: ir.Node) -> None:
    """Multiply two tensors whose matrices are multiplied in a row."""
    a, b = (_unmerged(value) for value in node.inputs)
    if a is None or b is None or _shape(a)[:-2] != _shape(b)[:-2]:
        return
    if _shape(last.outputs[0]) == (*_shape(a)[:-1], _shape(b)[-1]):
        replace(last, ir.node("MatMul", [a, b], version=13), origin=node)


def _unmerged(value: ir.Value | None) -> ir.Value | None:
    """Return what a value was before all axes but the last two of at least four became one; None if none did."""
    node, after = made_by(value, "Reshape", "Flatten"), _shape(value)
    x = None if node is None else node.inputs[0]
    if x is None or len(after) != 3 or len(_shape(x)) < 4 or _shape(x)[-2:] != after[-2:]:
        return None
    return x if all(isinstance(d, int) and d > 0 for d in after[-2:]) else None


def _size(shape: Shape) -> Shape:
    """Return the product of sizes that are numbers, () if one is none."""
    numbers = [d for d in shape if isinstance(d, int)]
    return (math.prod(numbers),) if len(numbers) == len(shape) and all(numbers) else ()


def _shape(value: ir.Value | None) -> Shape:
    return info(value).shape or ()
