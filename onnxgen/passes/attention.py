"""Scaled dot product attention spelled out becomes torch's (Vaswani et al. 2017, arXiv 1706.03762).

    softmax(q @ k^T * scale + mask) @ v          q, k, v: [..., length, size]

- The scale is applied to the product (Div or Mul), to q or k alone, or its root to both. The products may be MatMul or
  Einsum (`product`).
- Masks are added, or Where hides scores. A mask that is exactly causal becomes `is_causal`.
- Where batch and heads are one axis, the scores may get them as two while masks are added.
- Between softmax and v may be Dropout, and a step that sets rows without any key to zero: torch's exporters write
  `Where(IsNaN(p), 0, p)` after a mask of -inf. Without that step such rows are NaN in the file but zeros in torch's
  function. So a mask of -inf is then only accepted if it hides no whole row.

ONNX's Attention supports neither Dropout nor operands of other ranks. So the pass writes
`onnxgen.Attention(q, k, v, mask)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import onnx_ir as ir

from onnxgen.graph.annotations import DROPOUT, SCOPE
from onnxgen.graph.nodes import FLOATS, made_by
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import RESHAPE
from onnxgen.options import Options
from onnxgen.passes.attention_masks import Causal, causal
from onnxgen.passes.match import dropout_ratio, scalar, shape_of, source_of, standard_nodes, uniform
from onnxgen.passes.rewrite import beside, insert, known_ints, only_user, own, permuted, replace
from onnxgen.shapes.dims import Call, Dim, atoms, dim_min
from onnxgen.shapes.info import Info, Shape, info, set_info

Perm = tuple[int, ...]


def is_identity(perm: Sequence[int]) -> bool:
    """True for a permutation that leaves all axes where they are."""
    return list(perm) == sorted(perm)


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
    terms, arrow, result = node.attributes["equation"].as_string().replace(" ", "").partition("->")
    parts = terms.split(",")
    if not arrow or "." in terms + result or any(len(set(p)) != len(p) for p in (*parts, result)):
        return None
    return _einsum(left, right, parts, result, by_result)


def _einsum(left: Operand, right: Operand, parts: list[str], result: str, by_result: bool) -> Product | None:
    a, b = parts
    shared = set(a) & set(b)
    summed = [c for c in a if c in shared - set(result)]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if {len(summed), len(rows), len(columns)} != {1} or not len(result) == len(a) == len(b):
        return None
    if by_result and result[-2:] == columns[0] + rows[0]:
        return _einsum(right, left, [b, a], result, by_result)
    leading = [c for c in (result if by_result else a) if c in shared and c != summed[0]]
    first = Operand(left.value, tuple(map(a.index, [*leading, *rows, *summed])))
    second = Operand(right.value, tuple(map(b.index, [*leading, *summed, *columns])))
    return Product(first, second, tuple(map([*leading, *rows, *columns].index, result)))


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
    source = source_of(operand.value, "Reshape")
    before, after = shape_of(source), shape_of(operand.value)
    if source is None or operand.perm[0] != 0 or (len(before), len(after)) != (4, 3) or before[2:] != after[1:]:
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
    if is_identity(operand.perm):
        return value
    transpose = ir.node("Transpose", [value], {"perm": operand.perm}, version=13)
    beside(transpose, before)
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, transpose)
    else:
        graph.insert_before(before, transpose)
    transpose.outputs[0].name = f"{value.name}.turned"
    set_info(transpose.outputs[0], permuted(info(value), operand.perm))
    return transpose.outputs[0]


def replace_permuted(node: ir.Node, new: ir.Node, order: Perm) -> None:
    """Replace `node` by `new` and the permutation of its result."""
    if is_identity(order):
        replace(node, new)
        return
    straight = permuted(info(node.outputs[0]), [order.index(i) for i in range(len(order))])
    output = _insert_result(node, new, "straight", straight.shape)
    replace(node, ir.node("Transpose", [output], {"perm": order}, version=13))


def merge_heads(node: ir.Node, new: ir.Node, operands: list[Operand]) -> None:
    """Replace `node` by `new`, which has batch and heads as two axes, and a Reshape that merges them."""
    shape, values = operands[0].shape or (), operands[2].shape or ()
    output = _insert_result(node, new, "heads", (*shape[:-1], values[-1]))
    replace(node, ir.node("Reshape", [output, known_ints(shape_of(node.outputs[0]))], version=13))


def _insert_result(node: ir.Node, new: ir.Node, suffix: str, shape: Shape | None) -> ir.Value:
    new.name = node.name
    return insert(node, new, f"{node.outputs[0].name}.{suffix}", Info(info(node.outputs[0]).dtype, shape), node)


HIDING = -1e30  # a score gets no weight if it is at most this, or if this is added to it


@dataclass
class Logits:
    """The input of the softmax: `q @ k^T * scale`, the masks added to it, and the conditions that hide scores.

    Attributes:
        hidden: (condition, True if the condition shows scores and False if it hides them, number for hidden scores).
        leading: batch and heads, if they are one axis of q and k but two axes where masks are added.
    """

    q: Operand
    k: Operand
    scale: float
    added: list[ir.Value] = field(default_factory=list)
    hidden: list[tuple[ir.Value, bool, float]] = field(default_factory=list)
    leading: Shape = ()

    @property
    def shape(self) -> Shape:
        """The shape of the scores where masks are added."""
        q, k = self.q.shape or (), self.k.shape or ()
        return (*(self.leading or q[:-2]), q[-2], k[-2])

    @property
    def masks(self) -> list[ir.Value]:
        return [*self.added, *(condition for condition, _, _ in self.hidden)]


@dataclass
class _Weights:
    """The left operand of the product with v: a softmax, perhaps with zeros for NaN (`guarded`) and with Dropout."""

    softmax: ir.Node
    guarded: bool
    dropout: float
    dropout_scope: tuple[str, ...]


def attention(model: ir.Model, options: Options) -> None:
    """Rewrite every product with a softmax over scores, if nothing else uses the probabilities."""
    opset = model.graph.opset_imports.get("", 1)
    for node in standard_nodes(model, "MatMul", "Einsum"):
        _rewrite(node, opset)


def _rewrite(node: ir.Node, opset: int) -> None:
    pv_product = product(node, by_result=False)
    if pv_product is None or not is_identity(pv_product.left.perm):
        return
    weights = _weights(pv_product.left.value, opset)
    logits = None if weights is None else logits_of(weights.softmax.inputs[0])
    if weights is None or logits is None or not _fits(logits, pv_product.right):
        return
    logits.added = [mask for mask in logits.added if uniform(mask) != 0]
    mask = _mask(logits, weights, node)
    if mask is not None:
        _write(node, pv_product, logits, weights, mask)


def _write(node: ir.Node, pv_product: Product, logits: Logits, weights: _Weights, masked: _Mask) -> None:
    """Replace the product with v, unless a mask has other batch and heads than the operands."""
    mask, is_causal = masked
    operands = [logits.q, logits.k, pv_product.right]
    if mask is None or logits.leading:
        operands = _with_heads(operands, pv_product.order)
    if mask is not None and logits.leading and (operands[0].shape or ())[:2] != logits.leading:
        return
    scale = logits.scale * math.prod(o.scale for o in operands)
    inputs = [as_value(operand, node) for operand in operands] + ([mask] if mask is not None else [])
    new = own("Attention", inputs, is_causal=int(is_causal), dropout=weights.dropout, scale=scale)
    DROPOUT.set(new, weights.dropout_scope)
    if len(operands[0].perm) > len(pv_product.order):
        merge_heads(node, new, operands)
    else:
        replace_permuted(node, new, pv_product.order)


def _with_heads(operands: list[Operand], order: Sequence[int]) -> list[Operand]:
    """Return q, k and v before batch and heads were merged into one axis; unchanged unless that is true of all."""
    kept = [o for o in map(lifted, operands) if o is not None and o.shape is not None]
    shapes = {(o.shape or ())[:2] for o in kept}
    together = len(kept) == 3 and len(shapes) == 1 and kept[2].scale == 1 and is_identity(order)
    return kept if together else operands


# ---- from v to the softmax ----


def _weights(value: ir.Value, opset: int) -> _Weights | None:
    """Return the softmax that makes a value which only one product uses, else None."""
    rate, scope, is_guarded = 0.0, tuple[str, ...](), False
    dropout = made_by(value, "Dropout")
    if dropout is not None and only_user(value) is not None:
        ratio, source = dropout_ratio(dropout), dropout.inputs[0]
        if ratio is None or source is None:
            return None
        rate, scope, value = ratio, SCOPE.get(dropout), source
    where = made_by(value, "Where")
    if where is not None and only_user(value) is not None:
        is_guarded, source = True, _unguarded(where)
        if source is None:
            return None
        value = source
    softmax = softmax_of_rows(value, opset)
    if softmax is None or not (is_guarded or only_user(value) is not None):
        return None
    return _Weights(softmax, is_guarded, rate, scope)


def _unguarded(where: ir.Node) -> ir.Value | None:
    """Return the probabilities of which a Where makes zeros if they are NaN, and that nothing else takes."""
    probabilities, test = where.inputs[2], made_by(where.inputs[0], "IsNaN")
    if probabilities is None or test is None or test.inputs[0] is not probabilities or scalar(where.inputs[1]) != 0:
        return None
    is_alone = {use.node for use in probabilities.uses()} == {where, test} and not probabilities.is_graph_output()
    return probabilities if is_alone and only_user(test.outputs[0]) is where else None


def softmax_of_rows(value: ir.Value, opset: int) -> ir.Node | None:
    """Return the softmax over the last axis that makes a value, else None."""
    softmax, rank = made_by(value, "Softmax"), info(value).rank
    if softmax is None or rank is None:
        return None
    axis = softmax.attributes.get_int("axis", -1 if (softmax.version or opset) >= 13 else 1)
    return softmax if axis in (-1, rank - 1) else None


# ---- from the softmax to q and k ----


def logits_of(value: ir.Value | None, depth: int = 6) -> Logits | None:
    """Return the scores and masks that make a value which only the softmax uses, else None."""
    if value is None or only_user(value) is None or depth == 0:
        return None
    node = made_by(value, "Add", "Where")
    if node is None:
        merged = _before_reshape(value, 4, 3)
        return _scores(value) if merged is None else logits_of(merged, depth - 1)
    if node.op_type == "Where":
        return _hidden_logits(node, depth - 1)
    for scores, added in (node.inputs, node.inputs[::-1]):
        logits = logits_of(scores, depth - 1)
        if logits is not None and added is not None:
            logits.added.append(added)
            return logits
    return None


def _hidden_logits(where: ir.Node, depth: int) -> Logits | None:
    """Return the scores of which a Where hides some, if no mask is added to them before."""
    condition, first, second = where.inputs
    for shows, scores, number in ((True, first, second), (False, second, first)):
        instead = scalar(number)
        if instead is not None and instead <= HIDING and condition is not None:
            logits = logits_of(scores, depth)
            if logits is not None and not logits.added:
                logits.hidden.append((condition, shows, instead))
                return logits
    return None


def _before_reshape(value: ir.Value, rank: int, after: int) -> ir.Value | None:
    """Return what a reshape makes a value of that merges or splits the leading axes of scores, else None."""
    node = value.producer()
    source = node.inputs[0] if node is not None and is_a(node, RESHAPE) else None
    shape, target = shape_of(source), shape_of(value)
    return source if (len(shape), len(target)) == (rank, after) and shape[-2:] == target[-2:] else None


def _scores(value: ir.Value) -> Logits | None:
    merged = _before_reshape(value, 3, 4)
    if merged is not None:
        inner = _scores(merged) if only_user(merged) is not None else None
        return None if inner is None else dataclasses.replace(inner, leading=shape_of(value)[:2])
    scores, scale = without_number(value)
    qk_product = product(made_by(scores, "MatMul", "Einsum"), by_result=True)
    if qk_product is None or only_user(scores) is None or not is_identity(qk_product.order):
        return None
    value, factor = without_number(qk_product.left.value)
    q = Operand(value, qk_product.left.perm, factor) if factor != 1 else unscaled(qk_product.left)
    q = q if q.scale != 1 else qk_product.left
    k = swapped(unscaled(qk_product.right))
    if is_no_number(q.value) or is_no_number(k.value):  # torch's fused attention makes numbers of NaN
        return None
    return Logits(Operand(q.value, q.perm), Operand(k.value, k.perm), scale * q.scale * k.scale)


def _fits(logits: Logits, v: Operand) -> bool:
    """True if the shapes are those of attention, and the leading axes of all operands are equal."""
    q, k, values, dtype = logits.q.shape, logits.k.shape, v.shape, info(logits.q.value).dtype
    if q is None or k is None or values is None or not 3 <= len(q) == len(k) == len(values):
        return False
    if dtype not in FLOATS or {info(logits.k.value).dtype, info(v.value).dtype} != {dtype}:
        return False
    return q[:-2] == k[:-2] == values[:-2] and q[-1] == k[-1] and k[-2] == values[-2]


# ---- masks ----

_Mask = tuple[ir.Value | None, bool]  # attn_mask, is_causal


def _mask(logits: Logits, weights: _Weights, node: ir.Node) -> _Mask | None:
    """Return the arguments of torch's function that mask the same scores; None if there are none."""
    full, masks = logits.shape, logits.masks
    if not all(_broadcasts(mask, full) for mask in masks):
        return None
    triangle = _triangle(logits, full) if len(masks) == 1 else None
    if not masks or triangle is not None and not triangle.kept:
        return None, triangle is not None
    if len(masks) == 1 and logits.hidden:
        condition, shows, instead = logits.hidden[0]
        keeps_rows = triangle is not None or weights.guarded and instead == -math.inf
        return (condition if shows else _not(condition, node), False) if keeps_rows else None
    if triangle is not None:
        return logits.added[0], False
    return None if logits.hidden else _added(logits.added, weights, node, info(logits.q.value).dtype)


def _broadcasts(mask: ir.Value, full: Shape) -> bool:
    shape = info(mask).shape
    if shape is None or not 2 <= len(shape) <= len(full):
        return False
    return all(d == 1 or _fills(d, f) for d, f in zip(reversed(shape), reversed(full)))


def _fills(size: Dim, length: Dim) -> bool:
    """True if an axis of a mask is as long as that of the scores, for every length that the network can take.

    A slice of a stored mask has the size `min(1024, length)`. It fits, as the network can take no greater length.
    """
    limits = [a for atom in atoms(size) if isinstance(atom, Call) for a in atom.args if isinstance(a, int) and a > 1]
    return size == length or any(size == dim_min(limit, length) for limit in limits)


def _triangle(logits: Logits, full: Shape) -> Causal | None:
    """Return the only mask if it hides exactly the keys after each query."""
    triangle = causal((logits.added or [logits.hidden[0][0]])[0])
    if triangle is None or not _fills(triangle.rows, full[-2]) or not _fills(triangle.columns, full[-1]):
        return None
    if logits.added:
        return triangle if triangle.inside == 0 and triangle.outside <= HIDING else None
    shows = logits.hidden[0][1]
    return triangle if (bool(triangle.inside), bool(triangle.outside)) == (shows, not shows) else None


def _added(added: list[ir.Value], weights: _Weights, node: ir.Node, dtype: ir.DataType | None) -> _Mask | None:
    """Return the sum of the masks that are added; if the only one is -inf by a condition, the condition itself."""
    if any(info(mask).dtype != dtype for mask in added):
        return None
    hiding = [_hidden_by(mask) for mask in added]
    if any(h is not None for h in hiding):
        first = hiding[0]
        if len(added) > 1 or first is None or not weights.guarded:
            return None
        return (first[0] if first[1] else _not(first[0], node)), False
    total = added[-1]
    for mask in reversed(added[:-1]):
        total = _sum(total, mask, node)
    return total, False


def _hidden_by(mask: ir.Value) -> tuple[ir.Value, bool] | None:
    """Return (condition, True if it shows scores) of a mask that is 0 or -inf by a condition, else None."""
    node = made_by(mask, "Where")
    if node is None or node.inputs[0] is None:
        return None
    values = uniform(node.inputs[1]), uniform(node.inputs[2])
    return (node.inputs[0], values[0] == 0) if set(values) == {0.0, -math.inf} else None


def _not(condition: ir.Value, node: ir.Node) -> ir.Value:
    negated = source_of(condition, "Not")
    return negated or _insert_mask(node, ir.node("Not", [condition], version=1), info(condition))


def _sum(a: ir.Value, b: ir.Value, node: ir.Node) -> ir.Value:
    pairs = zip_longest(reversed(shape_of(a)), reversed(shape_of(b)), fillvalue=1)
    shape = tuple(y if x == 1 else x for x, y in pairs)[::-1]
    return _insert_mask(node, ir.node("Add", [a, b], version=14), Info(info(a).dtype, shape))


def _insert_mask(before: ir.Node, new: ir.Node, facts: Info) -> ir.Value:
    return insert(before, new, f"{before.outputs[0].name}.mask", facts, before)
