"""Linear layers and matrix products: `nn.Linear`, `onnxgen.Affine`, and products without needless
Reshapes.

ONNX has no linear operator for tensors of any rank (Gemm takes rank 2 only), so `linear` writes
`onnxgen.Linear(x, weight, bias)` with a weight of [in, out], which `ops/linear.py` lowers.
TensorFlow's Tensordot and the layers of GPT-2 make rows of all axes but the last before the
product, and axes of the rows behind it: a linear layer takes the axes as they are. `tensordot` does
the same for products:

    Reshape(MatMul(Reshape(x, (-1, k)), w), (*leading, m))    is   MatMul(x, w)
    Reshape(MatMul(Reshape(a, (-1, n, k)), Reshape(b, ...)))  is   MatMul(a, b)
    Einsum(x, w), "abc,cde->abde"                             is   Reshape(MatMul(x, Reshape(w)))

TensorFlow's Dense layers compute with matrices only, and so do converters of Einsum. If the last
Reshape also makes heads of the last axis, these are made of the product; a bias of heads is added
before, as a vector. `turned` takes a product that is transposed as the product of both operands,
transposed, the other way round:

    Transpose(MatMul(a, b))                      is    MatMul(b.T, a.T)
    Transpose(Softmax(MatMul(a, b), axis=-2))    is    Softmax(MatMul(b.T, a.T), axis=-1)

Keras computes the scores of attention as keys times queries, so that what is transposed at the end
is the keys.

A Mul and an Add with learned numbers are one layer, `onnxgen.Affine(x, scale, bias)`, if there are
several. PaddleOCR's networks have one behind each convolution and activation (LearnableAffineBlock
of PP-HGNet and PP-LCNetV3).
"""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, VARIES, is_trained
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.nodes import made_by
from onnxgen.graph.operators import having, is_a
from onnxgen.graph.traits import RESHAPE, WEIGHT
from onnxgen.options import Options
from onnxgen.passes.convolutions import added_vector
from onnxgen.passes.match import other, standard_nodes
from onnxgen.passes.rewrite import flattened, input_at, insert, known_ints, only_user, own, replace
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import param_path
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
        if views(node.inputs[1]) is not None and _is_plain_product(node):
            _of_rows(node, last)
        elif node.op_type == "MatMul":
            _of_matrices(node, last)


def _is_plain_product(node: ir.Node) -> bool:
    """True if a product of matrices is nothing else. (A Gemm has Reshapes around it only where it adds nothing.)"""
    gemm = node.attributes.get_float("alpha", 1.0), node.attributes.get_int("transA", 0), input_at(node, 2)
    return gemm == (1.0, 0, None) and all(info(value).rank == 2 for value in node.inputs[:2])


def _of_rows(node: ir.Node, last: ir.Node) -> None:
    """Multiply a tensor whose rows are multiplied by a stored matrix."""
    rows, output, columns = made_by(node.inputs[0], "Reshape", "Flatten"), last.outputs[0], _shape(node.outputs[0])[-1:]
    x, weight = None if rows is None else rows.inputs[0], node.inputs[1]
    sizes, before, after = _shape(node.inputs[0])[-1:], _shape(x), _shape(output)
    at = next((n for n in range(len(after) - 1, 1, -1) if columns == _size(after[n:])), 0)
    if x is None or weight is None or not at or before[:at] != after[:at] or _size(before[at:]) != sizes:
        return
    if len(before) > at + 1:
        x = _reshaped(node, x, (*before[:at], *sizes), f"{output.name}.x")
    if node.attributes.get_int("transB", 0):
        turned = ir.node("Transpose", [weight], {"perm": [1, 0]}, version=13)
        weight = insert(node, turned, f"{output.name}.w", Info(info(weight).dtype, _shape(weight)[::-1]), node)
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
    output = insert(last, product, f"{name}.product", facts, node)
    add = only_user(last.outputs[0], "Add")
    bias = None if add is None else other(add, last.outputs[0])
    if add is not None and bias is not None and bias.is_initializer() and _shape(bias) == heads:
        total = ir.node("Add", [output, flattened(bias, add)], version=14)
        output, last = insert(add, total, f"{name}.sum", facts, add), add
    replace(last, ir.node("Reshape", [output, known_ints([*leading, *heads])], version=14))


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


def linear(model: ir.Model, options: Options) -> None:
    """Rewrite every MatMul whose right operand is a stored matrix, a view of one, or computed of one."""
    views = Views(model, options, through=[(DOMAIN, op) for op in having(WEIGHT)])
    for node in standard_nodes(model, "Gemm"):
        axes = _around(node.inputs[0], node) if node.inputs[0] is not None and _is_plain(node, views) else None
        if axes is not None:
            replace(axes[1], own("Linear", [axes[0], *node.inputs[1:]]), origin=node)
    for node in standard_nodes(model, "MatMul"):
        x, weight = node.inputs
        facts = info(weight)
        if x is None or (info(x).rank or 0) < 2 or facts.rank != 2 or views(weight) is None:
            continue
        if facts.dtype is not None and not facts.dtype.is_floating_point():
            continue
        added = added_vector(node, -1)
        if added is not None and (views(added[1]) is None or _is_outside(added[0], node)):
            added = None
        last, bias = added if added is not None else (node, None)
        if (axes := _around(x, last)) is not None:
            x, last = axes
            added = added_vector(last, -1) if bias is None else None
            if added is not None and views(added[1]) is not None and not _is_outside(added[0], node):
                last, bias = added
        # An exporter that transposes the matrix drops its name; then only the bias's name tells the scope.
        origin = max(node, last, key=lambda n: len(SCOPE.get(n)))
        replace(last, own("Linear", [x, weight] if bias is None else [x, weight, bias]), origin=origin)


def _is_plain(node: ir.Node, views: Views) -> bool:
    """True for a Gemm of a matrix that is stored as [in, out], and of a vector, without factors."""
    factors = {a.name: a.value for a in node.attributes.values()}
    if factors.get("transA") or factors.get("transB") or {factors.get(f, 1.0) for f in ("alpha", "beta")} != {1.0}:
        return False
    _, matrix, vector = (*node.inputs, None)[:3]
    return views(matrix) is not None and (vector is None or views(vector) is not None and info(vector).rank == 1)


def _around(rows: ir.Value, last: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return what a Reshape makes rows of, with the axes that a Reshape makes of the results, and that Reshape."""
    before, after = rows.producer(), only_user(last.outputs[0])
    if before is None or after is None or not is_a(before, RESHAPE) or not is_a(after, RESHAPE):
        return None
    x, facts, target = before.inputs[0], info(rows), info(after.outputs[0]).shape or ()
    results = info(last.outputs[0]).shape
    if x is None or {before.graph, after.graph} != {last.graph} or facts.rank != 2 or facts.shape is None:
        return None
    if (
        not results
        or len(target) < 3
        or target[-1] != results[-1]
        or (info(x).shape or ())[: len(target) - 1] != target[:-1]
    ):
        return None  # other axes than x has
    shape = (*target[:-1], facts.shape[-1])
    if info(x).shape != shape:
        new = ir.node("Reshape", [x, known_ints(shape)], version=13)
        x = insert(before, new, f"{rows.name}.axes", Info(facts.dtype, shape), before)
    return x, after


def _is_outside(add: ir.Node, product: ir.Node) -> bool:
    """True if a module around the product's adds a vector of its own, as `lm_head(x) + final_logits_bias`.

    Only PyTorch's TorchScript exporter writes both nodes of a layer under the layer's own name.
    """
    if not all((node.name or "").startswith("/") and SCOPE.has(node) for node in (add, product)):
        return False
    around, scope = SCOPE.get(add), SCOPE.get(product)
    return around != scope and scope[: len(around)] == around


LEAST = 2  # layers


def affine(model: ir.Model, options: Options) -> None:
    """Rewrite the products and sums of single numbers that `passes/roles.py` takes for parameters."""
    layers = []
    for node in standard_nodes(model, "Mul"):
        scale = next(filter(_is_learned, node.inputs), None)
        add = only_user(node.outputs[0], "Add")
        bias = None if add is None else other(add, node.outputs[0])
        x = None if scale is None else other(node, scale)
        if add is None or scale is None or x is None or bias is None or scale is bias or not _is_learned(bias):
            continue
        rank = info(x).rank or 0
        # the layer's numbers have one axis, and a number of more axes than x gives its axes to the result
        if rank and all((info(number).rank or 0) <= rank for number in (scale, bias)):
            layers.append((add, node, [x, scale, bias]))
    if layers:
        paths = [path for value in stored_values(model.graph) if (path := param_path(value.name or "")) is not None]
        layers = [one for one in layers if not any(_is_of_block(number, paths) for number in one[2][1:])]
    for add, node, inputs in layers if len(layers) >= LEAST else ():
        replace(add, own("Affine", inputs), origin=node)


def _is_learned(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_output() or len(value.uses()) != 1:
        return False
    return bool(VARIES.get(value)) and is_trained(value) and info(value).rank is not None


def _is_of_block(number: ir.Value, paths: list[ModulePath]) -> bool:
    """True for a number whose name places it beside other layers of a module: `blocks.0.scale`, `blocks.0.conv.weight`.

    It is a parameter of that module. A name that only counts (`constant.177`) places nothing.
    """
    path = param_path(number.name or "")
    if path is None or path[-1].isdigit():
        return False
    around = path[:-1]
    return any(other[: len(around)] == around and len(other) > len(path) for other in paths)
