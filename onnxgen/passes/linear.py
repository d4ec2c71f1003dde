"""Linear layers and matrix products: `nn.Linear`, `onnxgen.Affine`, and products without needless Reshapes.

ONNX has no linear operator for tensors of any rank (Gemm takes rank 2 only), so `linear` writes
`onnxgen.Linear(x, weight, bias)` with a weight of [in, out], which `ops/linear.py` lowers. TensorFlow's Tensordot and
the layers of GPT-2 make rows of all axes but the last before the product, and axes of the rows behind it: a linear
layer takes the axes as they are. `tensordot` does the same for products:

    Reshape(MatMul(Reshape(x, (-1, k)), w), (*leading, m))    is   MatMul(x, w)
    Reshape(MatMul(Reshape(a, (-1, n, k)), Reshape(b, ...)))  is   MatMul(a, b)
    Einsum(x, w), "abc,cde->abde"                             is   Reshape(MatMul(x, Reshape(w)))

TensorFlow's Dense layers compute with matrices only, and so do converters of Einsum. If the last Reshape also makes
heads of the last axis, these are made of the product; a bias of heads is added before, as a vector. `turned` takes a
product that is transposed as the product of both operands, transposed, the other way round:

    Transpose(MatMul(a, b))                      is    MatMul(b.T, a.T)
    Transpose(Softmax(MatMul(a, b), axis=-2))    is    Softmax(MatMul(b.T, a.T), axis=-1)

Keras computes the scores of attention as keys times queries, so that what is transposed at the end is the keys.

A Mul and an Add with learned numbers are one layer, `onnxgen.Affine(x, scale, bias)`, if there are several. PaddleOCR's
networks have one behind each convolution and activation (LearnableAffineBlock of PP-HGNet and PP-LCNetV3).
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
from onnxgen.passes.match import is_plain_gemm, other, shape_of, source_of, standard_nodes
from onnxgen.passes.rewrite import flattened, input_at, insert, known_ints, only_user, own, permuted, replace, reshaped
from onnxgen.passes.trainable import stored_values
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import Info, Shape, info
from onnxgen.weights.stored import Views


def tensordot(model: ir.Model, options: Options) -> None:
    """Rewrite every such product."""
    views = Views(model, options)
    for node in standard_nodes(model, "Einsum"):
        if len(node.inputs) == 2 and views(node.inputs[1]) is not None:
            _of_letters(node)
    for node in standard_nodes(model, "MatMul", "Gemm"):
        last = only_user(node.outputs[0], "Reshape")
        if last is not None and views(node.inputs[1]) is not None and _is_plain_product(node):
            _of_rows(node, last)
        elif last is not None and node.op_type == "MatMul":
            _of_matrices(node, last)


def _is_plain_product(node: ir.Node) -> bool:
    """True if a product of matrices is nothing else. (A Gemm has Reshapes around it only where it adds nothing.)"""
    gemm = node.attributes.get_float("alpha", 1.0), node.attributes.get_int("transA", 0), input_at(node, 2)
    return gemm == (1.0, 0, None) and all(info(value).rank == 2 for value in node.inputs[:2])


def _of_rows(node: ir.Node, last: ir.Node) -> None:
    """Multiply a tensor whose rows are multiplied by a stored matrix."""
    x, weight, name = source_of(node.inputs[0], "Reshape", "Flatten"), node.inputs[1], last.outputs[0].name
    columns, sizes = shape_of(node.outputs[0])[-1:], shape_of(node.inputs[0])[-1:]
    before, after = shape_of(x), shape_of(last.outputs[0])
    at = next((n for n in range(len(after) - 1, 1, -1) if columns == _size(after[n:])), 0)
    if x is None or weight is None or not at or before[:at] != after[:at] or _size(before[at:]) != sizes:
        return
    if len(before) > at + 1:
        x = reshaped(node, x, (*before[:at], *sizes), f"{name}.x")
    if node.attributes.get_int("transB", 0):
        turned = ir.node("Transpose", [weight], {"perm": [1, 0]}, version=13)
        weight = insert(node, turned, f"{name}.w", Info(info(weight).dtype, shape_of(weight)[::-1]), node)
    _write(node, x, weight, last, before[:at], after[at:])


def _of_letters(node: ir.Node) -> None:
    """Multiply by a stored tensor as by a matrix, whose first axes are the last ones of the other operand."""
    (x, weight), (left, right, result) = node.inputs, _letters(node)
    if x is None or weight is None or not left:
        return
    count = next((n for n in range(1, len(left)) if right.startswith(left[-n:])), 0)
    at, sizes, heads = len(left) - count, _size(shape_of(weight)[:count]), shape_of(weight)[count:]
    if not count or not sizes or not heads or not _size(heads) or result != left[:at] + right[count:]:
        return
    leading, name = shape_of(x)[:at], node.outputs[0].name
    if len(shape_of(x)) != at + count or len({*left, *right}) != at + len(right):
        return
    if count > 1:
        x = reshaped(node, x, (*leading, *sizes), f"{name}.x")
    if len(shape_of(weight)) != 2:
        weight = reshaped(node, weight, (*sizes, *_size(heads)), f"{name}.w")
    _write(node, x, weight, node, leading, heads)


def _letters(node: ir.Node) -> tuple[str, ...]:
    """Return the letters of both operands and of the result; "" if one stands twice or the axes have other names."""
    match = re.fullmatch(r"(\w+),(\w+)->(\w+)", node.attributes.get_string("equation", "").replace(" ", ""))
    terms = ("", "", "") if match is None else match.groups()
    return terms if all(len({*term}) == len(term) for term in terms) else ("", "", "")


def _write(node: ir.Node, x: ir.Value, weight: ir.Value, last: ir.Node, leading: Shape, heads: Shape) -> None:
    """Replace a product, whose result is that of `last`. A bias of heads, added behind it, is added to the product."""
    product, name = ir.node("MatMul", [x, weight], version=13), last.outputs[0].name
    if len(heads) == 1:
        return replace(last, product, origin=node)
    facts = Info(info(last.outputs[0]).dtype, (*leading, *_size(heads)))
    output = insert(last, product, f"{name}.product", facts, node)
    add = only_user(last.outputs[0], "Add")
    bias = None if add is None else other(add, last.outputs[0])
    if add is not None and bias is not None and bias.is_initializer() and shape_of(bias) == heads:
        total = ir.node("Add", [output, flattened(bias, add)], version=14)
        output, last = insert(add, total, f"{name}.sum", facts, add), add
    replace(last, ir.node("Reshape", [output, known_ints([*leading, *heads])], version=14))


def _of_matrices(node: ir.Node, last: ir.Node) -> None:
    """Multiply two tensors whose matrices are multiplied in a row."""
    a, b = map(_unmerged, node.inputs)
    if a is not None and b is not None and shape_of(a)[:-2] == shape_of(b)[:-2]:
        if shape_of(last.outputs[0]) == (*shape_of(a)[:-1], shape_of(b)[-1]):
            replace(last, ir.node("MatMul", [a, b], version=13), origin=node)


def _unmerged(value: ir.Value | None) -> ir.Value | None:
    """Return what a value was before all axes but the last two of at least four became one; None if none did."""
    x, after = source_of(value, "Reshape", "Flatten"), shape_of(value)
    if x is None or len(after) != 3 or len(shape_of(x)) < 4 or shape_of(x)[-2:] != after[-2:]:
        return None
    return x if all(isinstance(d, int) and d > 0 for d in after[-2:]) else None


def _size(shape: Shape) -> Shape:
    """Return the product of sizes that are numbers, () if one is none."""
    numbers = [d for d in shape if isinstance(d, int)]
    return (math.prod(numbers),) if len(numbers) == len(shape) and all(numbers) else ()


def turned(model: ir.Model, options: Options) -> None:
    """Rewrite every such product, if it takes fewer transposes."""
    views = Views(model, options)
    for node in standard_nodes(model, "Transpose"):
        rank = info(node.outputs[0]).rank or 0
        softmax = made_by(node.inputs[0], "Softmax")
        source = node.inputs[0] if softmax is None else softmax.inputs[0]
        product = made_by(source, "MatMul")
        if product is None or rank < 3 or list(node.attributes.get_ints("perm", [])) != _swapped([*range(rank)]):
            continue
        is_along_rows = softmax is None or softmax.attributes.get_int("axis", -1) % rank == rank - 2
        is_alone = all(v is not None and only_user(v) is not None for v in (source, node.inputs[0]))
        if is_along_rows and is_alone and all(views(v) is None and info(v).rank == rank for v in product.inputs):
            _turn(node, softmax, product)


def _turn(node: ir.Node, softmax: ir.Node | None, product: ir.Node) -> None:
    """Swap the operands of a product in the place of a Transpose behind it, if both need fewer Transposes then."""
    sides = [(v, *_swapped_axes(v)) for v in reversed(product.inputs) if v is not None]
    needed = sum(perm != sorted(perm) for _, _, perm in sides)
    if needed > sum(source is not value for value, source, _ in sides):
        return
    new = ir.node("MatMul", [_transposed(node, *side) for side in sides], version=13)
    if softmax is not None:
        scores = insert(node, new, f"{product.outputs[0].name}.turned", info(node.outputs[0]), product)
        new = ir.node("Softmax", [scores], {"axis": -1}, version=13)
    replace(node, new, origin=softmax or product)


def _swapped(axes: list[int]) -> list[int]:
    return [*axes[:-2], axes[-1], axes[-2]]


def _swapped_axes(value: ir.Value) -> tuple[ir.Value, list[int]]:
    """Return what a value's own Transpose takes, and how its axes are permuted if the last two are swapped then."""
    before, axes = made_by(value, "Transpose"), [*range(info(value).rank or 0)]
    source = None if before is None else before.inputs[0]
    if before is None or source is None:
        return value, _swapped(axes)
    return source, _swapped(list(before.attributes.get_ints("perm", axes[::-1])))


def _transposed(node: ir.Node, value: ir.Value, source: ir.Value, perm: list[int]) -> ir.Value:
    """Return a value with its last two axes swapped."""
    if perm == sorted(perm):
        return source
    facts = permuted(info(value), _swapped([*range(len(perm))]))
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
        dtype = info(weight).dtype
        if x is not None and (info(x).rank or 0) >= 2 and info(weight).rank == 2 and views(weight) is not None:
            if dtype is None or dtype.is_floating_point():
                _linear_of(node, x, views)


def _linear_of(node: ir.Node, x: ir.Value, views: Views) -> None:
    """Replace a product with a matrix, the bias that is added, and the Reshapes around both."""
    last, bias = _with_bias(node, node, views)
    if (axes := _around(x, last)) is not None:
        x, last = axes
        last, bias = (last, bias) if bias is not None else _with_bias(last, node, views)
    # An exporter that transposes the matrix drops its name; then only the bias's name tells the scope.
    origin = max(node, last, key=lambda n: len(SCOPE.get(n)))
    replace(last, own("Linear", [x, node.inputs[1]] if bias is None else [x, node.inputs[1], bias]), origin=origin)


def _with_bias(last: ir.Node, product: ir.Node, views: Views) -> tuple[ir.Node, ir.Value | None]:
    """Return the Add of a stored bias behind a node, with the bias; else the node, and no bias."""
    added = added_vector(last, -1)
    return (last, None) if added is None or views(added[1]) is None or _is_outside(added[0], product) else added


def _is_plain(node: ir.Node, views: Views) -> bool:
    """True for a Gemm of a matrix that is stored as [in, out], and of a vector, without factors."""
    _, matrix, vector = (*node.inputs, None)[:3]
    if not is_plain_gemm(node) or node.attributes.get_int("transB", 0) != 0 or views(matrix) is None:
        return False
    return vector is None or views(vector) is not None and info(vector).rank == 1


def _around(rows: ir.Value, last: ir.Node) -> tuple[ir.Value, ir.Node] | None:
    """Return what a Reshape makes rows of, with the axes that a Reshape makes of the results, and that Reshape."""
    before, after = rows.producer(), only_user(last.outputs[0])
    if before is None or after is None or not is_a(before, RESHAPE) or not is_a(after, RESHAPE):
        return None
    x, target = before.inputs[0], shape_of(after.outputs[0])
    if x is None or {before.graph, after.graph} != {last.graph} or info(rows).rank != 2 or len(target) < 3:
        return None
    if target[-1:] != shape_of(last.outputs[0])[-1:] or shape_of(x)[: len(target) - 1] != target[:-1]:
        return None  # other axes than x has
    shape = (*target[:-1], shape_of(rows)[-1])
    return x if info(x).shape == shape else reshaped(before, x, shape, f"{rows.name}.axes"), after


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
    layers = [layer for node in standard_nodes(model, "Mul") if (layer := _affine_of(node)) is not None]
    if layers:
        paths = [path for value in stored_values(model.graph) if (path := param_path(value.name or "")) is not None]
        layers = [layer for layer in layers if not any(_is_of_block(number, paths) for number in layer[2][1:])]
    for add, node, inputs in layers if len(layers) >= LEAST else ():
        replace(add, own("Affine", inputs), origin=node)


def _affine_of(node: ir.Node) -> tuple[ir.Node, ir.Node, list[ir.Value]] | None:
    """Return the Add behind a Mul, the Mul, and (x, scale, bias), if scale and bias are learned numbers."""
    scale, add = next(filter(_is_learned, node.inputs), None), only_user(node.outputs[0], "Add")
    if add is None or scale is None:
        return None
    x, bias = other(node, scale), other(add, node.outputs[0])
    if x is None or bias is None or scale is bias or not _is_learned(bias):
        return None
    # the layer's numbers have one axis, and a number of more axes than x gives its axes to the result
    rank = info(x).rank or 0
    is_layer = rank > 0 and all((info(number).rank or 0) <= rank for number in (scale, bias))
    return (add, node, [x, scale, bias]) if is_layer else None


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
