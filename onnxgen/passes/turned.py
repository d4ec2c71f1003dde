"""A product of two results that is transposed is the product of both, transposed, the other way round.

    Transpose(MatMul(a, b))                      is    MatMul(b.T, a.T)
    Transpose(Softmax(MatMul(a, b), axis=-2))    is    Softmax(MatMul(b.T, a.T), axis=-1)

Keras computes the scores of attention as keys times queries, so that what is transposed at the end is the keys.
"""

from __future__ import annotations

import onnx_ir as ir

from onnxgen.graph.nodes import made_by
from onnxgen.options import Options
from onnxgen.passes.match import standard_nodes
from onnxgen.passes.rewrite import only_user, replace
from onnxgen.passes.steps import insert
from onnxgen.shapes.info import Info, info
from onnxgen.weights.stored import Views


def turned(model: ir.Model, options: Options) -> None:
    """Rewrite every such product, if it takes fewer transposes."""
    views = Views(model, options)
    for node in standard_nodes(model, "Transpose"):
        rank = info(node.outputs[0]).rank or 0
        softmax = made_by(node.inputs[0], "Softmax")
        source = node.inputs[0] if softmax is None else softmax.inputs[0]
        product = made_by(source, "MatMul")
        if product is None or source is None or rank < 3 or list(node.attributes.get_ints("perm", [])) != _swap(rank):
            continue
        if softmax is not None and softmax.attributes.get_int("axis", -1) % rank != rank - 2:
            continue
        is_alone = all(only_user(v) is not None for v in (source, node.inputs[0]) if v is not None)
        if not is_alone or any(views(v) is not None or info(v).rank != rank for v in product.inputs):
            continue
        perms = [_perm(value, rank) for value in reversed(product.inputs)]
        if 1 + sum(made_by(v, "Transpose") is not None for v in product.inputs) > sum(
            p != [*range(rank)] for p in perms
        ):
            sides = [_turned(node, v, p) for v, p in zip(reversed(product.inputs), perms) if v is not None]
            new = ir.node("MatMul", sides, version=13)
            if softmax is not None:
                scores = insert(node, new, f"{source.name}.turned", info(node.outputs[0]), product)
                new = ir.node("Softmax", [scores], {"axis": -1}, version=13)
            replace(node, new, origin=softmax or product)


def _swap(rank: int) -> list[int]:
    return [*range(rank - 2), rank - 1, rank - 2]


def _perm(value: ir.Value | None, rank: int) -> list[int]:
    """Return how the axes of a value are permuted from before its own Transpose, if the last two are swapped."""
    before = made_by(value, "Transpose")
    perm = [*range(rank)] if before is None else list(before.attributes.get_ints("perm", [*range(rank)][::-1]))
    return [*perm[:-2], perm[-1], perm[-2]]


def _turned(node: ir.Node, value: ir.Value, perm: list[int]) -> ir.Value:
    before = made_by(value, "Transpose")
    source = value if before is None or before.inputs[0] is None else before.inputs[0]
    if perm == [*range(len(perm))]:
        return source
    shape = info(value).shape
    facts = Info(info(value).dtype, None if shape is None else (*shape[:-2], shape[-1], shape[-2]))
    return insert(node, ir.node("Transpose", [source], {"perm": perm}, version=13), f"{value.name}.turned", facts, node)
