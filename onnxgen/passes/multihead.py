"""Attention with its projections becomes `nn.MultiheadAttention` where PyTorch's names show that it was one.

    q, k, v = query @ Wq + bq, key @ Wk + bk, value @ Wv + bv        [length, batch, heads * size]
    y = (softmax(q @ k^T / sqrt(size) + masks) @ v) @ Wo + bo        of each head

The pass starts from the product with the probabilities. It follows views back to three projections, and forward to the
output's. The elements must lie as in torch's layer, which is compared position by position (`passes.layouts`). The
projections may be one matrix, or several. The layer's own probabilities may be a second result, per head or averaged.
What is found is written as `onnxgen.MultiheadAttention`.

A row without any key is NaN in the file. So it is in the layer while it returns the probabilities, and zeros otherwise
(without `no_grad`). So the layer is asked for them where a mask might hide a whole row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as combinations

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.nodes import FLOATS, made_by
from onnxgen.options import Options
from onnxgen.passes.attention import Operand, is_identity, logits_of, product, softmax_of_rows
from onnxgen.passes.attention_masks import Masks, masks_of
from onnxgen.passes.convolutions import added_vector
from onnxgen.passes.layouts import MAX_CHAIN, Positions, Sizes, arrangement, upwards
from onnxgen.passes.match import dropout_ratio, ints, is_plain_gemm, maker, shape_of, standard_nodes
from onnxgen.passes.rewrite import (
    input_at,
    insert,
    known_ints,
    note_replaced,
    only_user,
    own,
    permuted,
    replace,
    take_over,
)
from onnxgen.passes.views import arranges
from onnxgen.scopes.origin import param_path
from onnxgen.shapes.info import Info, info, set_info
from onnxgen.weights.stored import Finder, Place, Views, is_uniform

KEYS = {"in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"}
SCALE_ERROR = 1e-5  # relative


def multihead(model: ir.Model, options: Options) -> None:
    """Rewrite every attention whose output projection is `out_proj` of the module that has the input projections."""
    opset = model.graph.opset_imports.get("", 1)
    views, finder = Views(model, options), Finder(model)
    order = {node: i for i, node in enumerate(model.graph)}
    for node in standard_nodes(model, "MatMul", "Einsum"):
        end = _output_projection(node, views)
        if end is not None and (layer := _Search(node, end, views, opset).layer()) is not None:
            write(layer, order, finder, views)


def _downwards(value: ir.Value) -> Iterator[ir.Value]:
    """Yield a value, and then the values that views make of it for its only users."""
    for _ in range(MAX_CHAIN + 1):
        yield value
        user = only_user(value)
        if user is None or not arranges(user):
            return
        value = user.outputs[0]


def _output_projection(node: ir.Node, views: Views) -> End | None:
    """Return the layer `out_proj` that alone takes the result of a product, perhaps through views."""
    *_, value = _downwards(node.outputs[0])
    user = only_user(value, "Gemm", "MatMul")
    weight = None if user is None or user.inputs[0] is not value else user.inputs[1]
    module = () if user is None or weight is None else _module_of_weight(user, weight, views)
    if user is None or weight is None or not module:
        return None
    if user.op_type == "MatMul":
        added = added_vector(user, -1)
        last, bias = added if added is not None and views(added[1]) is not None else (user, None)
        return End(value, user, last, weight, bias, True, module)
    bias = input_at(user, 2)
    if not is_plain_gemm(user) or bias is not None and (views(bias) is None or info(bias).rank != 1):
        return None
    return End(value, user, user, weight, bias, not user.attributes.get_int("transB", 0), module)


def _module_of_weight(node: ir.Node, weight: ir.Value, views: Views) -> ModulePath:
    """Return the module that has a product as its `out_proj`, by the scope and the weight's names; () if none has."""
    scope, stored = SCOPE.get(node), views(weight)
    paths = [path for path in map(param_path, () if stored is None else stored.names) if path is not None]
    if stored is None or info(weight).rank != 2 or any(path[-2:] != ("out_proj", "weight") for path in paths):
        return ()
    return scope[:-1] if scope[-1:] == ("out_proj",) else () if paths else scope


def _probabilities(value: ir.Value, opset: int) -> Probabilities | None:
    dropout, rate, source = made_by(value, "Dropout"), 0.0, value
    if dropout is not None:
        ratio, x = dropout_ratio(dropout), dropout.inputs[0]
        if ratio is None or x is None or only_user(x) is not dropout:
            return None
        rate, source = ratio, x
    softmax = softmax_of_rows(source, opset)
    return None if softmax is None else Probabilities(value, softmax, rate)


class _Search:
    """One attention, while it is read."""

    def __init__(self, node: ir.Node, end: End, views: Views, opset: int) -> None:
        self.node, self.end, self.views, self.opset = node, end, views, opset

    def layer(self) -> MultiheadLayer | None:
        """Return the layer, or None if anything differs from torch's."""
        pv_product = product(self.node, by_result=False)
        if pv_product is None or not is_identity(pv_product.left.perm) or not is_identity(pv_product.order):
            return None
        weights = _probabilities(pv_product.left.value, self.opset)
        logits = None if weights is None else logits_of(weights.softmax.inputs[0])
        if weights is None or logits is None or logits.hidden:
            return None
        self.weights, self.logits = weights, logits
        self.operands = [logits.q, logits.k, pv_product.right]
        self.projections = [p for p in map(self._projection, self.operands) if p is not None]
        size = self._head_size()
        if len(self.projections) < 3 or not self._is_one_module() or not size:
            return None
        return next((layer for sizes in self._sizes() if (layer := self._fitted(sizes, size)) is not None), None)

    def _head_size(self) -> int:
        """Return the size of a head, if the scores are divided by its root; else 0."""
        size = (self.operands[2].shape or (0,))[-1]
        if not isinstance(size, int) or not math.isclose(self.logits.scale * math.sqrt(size), 1, rel_tol=SCALE_ERROR):
            return 0
        return size

    def _projection(self, operand: Operand) -> Projection | None:
        """Follow views from an operand back to the product with a stored matrix."""
        *_, value = upwards(operand.value)
        result, bias = _without_bias(value)
        matmul = made_by(result, "MatMul")
        x, weight = (None, None) if matmul is None else matmul.inputs
        if matmul is None or x is None or weight is None or info(value).rank != 3 or not self._is_stored(weight, 2):
            return None
        if result is not value and not self._is_stored(bias, 1):
            return None
        if SCOPE.get(matmul) != self.end.module or info(x).dtype not in FLOATS:
            return None
        return Projection(matmul, value, x, weight, bias)

    def _is_stored(self, value: ir.Value | None, rank: int) -> bool:
        return info(value).rank == rank and self.views(value) is not None

    def _is_one_module(self) -> bool:
        """True if no tensor has the name of another kind of parameter, and all layers have biases or none has.

        Exporters store equal biases of untrained layers once, so the name of one may be another layer's. They drop the
        output's bias of an untrained layer, which is zeros.
        """
        tensors = [t for p in self.projections for t in (p.weight, p.bias) if t is not None]
        pieces = [piece for source in map(self.views, tensors) if source is not None for piece in source.pieces]
        names = {piece.name for piece in pieces if not is_uniform(piece.tensor)}
        paths = [path for path in map(param_path, names) if path is not None]
        biased = {p.bias is not None for p in self.projections}
        return all(path[-1] in KEYS for path in paths) and biased in ({self.end.bias is not None}, {True})

    def _sizes(self) -> Iterator[Sizes]:
        """Yield numbers for the named dims, the likeliest first.

        An exporter may write a length as a number: then the name stands for that.
        """
        (length, *_), (source, *_), _ = (info(p.result).shape or (0, 0, 0) for p in self.projections)
        values = [v for o in self.operands for v in upwards(o.value)] + [self.end.taken]
        numbers = {d for v in values for d in shape_of(v) if isinstance(d, int)}
        for choice in combinations([None, *sorted(numbers)], repeat=2):
            sizes, lengths = Sizes(), [*zip((length, source), choice)]
            if all(n is None or not isinstance(dim, int) and sizes.equate(dim, n) for dim, n in lengths):
                if self._fit_each_other(sizes):
                    yield sizes

    def _fit_each_other(self, sizes: Sizes) -> bool:
        """True if keys and values have one length, and all have one batch. Names without a number get one."""
        (length, batch, _), *others = (info(p.result).shape or (0, 0, 0) for p in self.projections)
        sizes.name((length, batch, others[0][0]))
        for projection in self.projections:  # a matrix that is split unfolded has columns without a name
            columns = self.views(projection.weight)
            if columns is not None:
                sizes.equate((info(projection.result).shape or (0,))[-1], columns.shape[1])
        samples, keys = sizes.of(batch), sizes.of(others[0][0])
        if samples is None or keys is None:
            return False
        return all(sizes.equate(rows, keys) and sizes.equate(size, samples) for rows, size, _ in others)

    def _fitted(self, sizes: Sizes, size: int) -> MultiheadLayer | None:
        """Return the layer if all elements lie as in torch's with these sizes. `size`: of a head."""
        shapes = [shape for p in self.projections if (shape := sizes.shape(p.result)) is not None]
        width = (info(self.end.taken).shape or (0,))[-1]
        if len(shapes) < 3 or not isinstance(width, int) or width % size:
            return None
        (length, batch, _), (source, *_), _ = shapes
        heads = width // size
        full = (batch, heads, length, source)
        pairs = zip(self.projections, self.operands)
        starts = [start for p, o in pairs if (start := _start(p, o, sizes, heads, size)) is not None]
        if len(starts) < 3 or shape_of(self.projections[0].weight)[:1] != (width,):
            return None
        if not self._merges(sizes, full, size) or not sizes.fit_heads(self.weights.value, full):
            return None
        added, softmax = self.logits.added, self.weights.softmax
        masks = masks_of(added, full, sizes, softmax) if added else Masks()
        if masks is None:
            return None
        return MultiheadLayer(self.node, self.end, self.projections, starts, width, self.weights, masks, sizes, full)

    def _merges(self, sizes: Sizes, full: tuple[int, int, int, int], size: int) -> bool:
        """True if the output projection takes the heads side by side, for each position and then each sample."""
        y, (batch, heads, length, _) = self.node.outputs[0], full
        width = heads * size
        if info(self.end.weight).shape != (width, width) or not sizes.fit_heads(y, (*full[:-1], size)):
            return False
        taken = arrangement(self.end.taken, y, sizes)
        positions = np.arange(batch * length * width, dtype=np.int32).reshape(batch, heads, length, size)
        return taken is not None and taken.shape[-1] == width and _same(taken, positions.transpose(2, 0, 1, 3))


def _without_bias(value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Return the product and the bias that a value is the sum of; else the value, and no bias."""
    add = made_by(value, "Add")
    for result, bias in () if add is None else (add.inputs, add.inputs[::-1]):
        if result is not None and made_by(result, "MatMul") is not None and only_user(result) is add:
            return result, bias
    return value, None


def _start(projection: Projection, operand: Operand, sizes: Sizes, heads: int, size: int) -> int | None:
    """Return the first column of a projection that an operand takes; None if its heads are not `heads` from there."""
    shape, positions = sizes.shape(projection.result), arrangement(operand.value, projection.result, sizes)
    if shape is None or positions is None or positions.ndim != len(operand.perm):
        return None
    positions = positions.transpose(operand.perm)
    start = int(positions.flat[0])
    whole = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)[..., start : start + heads * size]
    if whole.shape[-1] != heads * size:
        return None
    wanted = whole.reshape(*shape[:2], heads, size).transpose(1, 2, 0, 3)
    return start if positions.shape[-2:] == wanted.shape[-2:] and _same(positions, wanted) else None


def _same(a: Positions, b: Positions) -> bool:
    return a.size == b.size and bool(np.array_equal(a.reshape(-1), b.reshape(-1)))


SWAP = (1, 0, 2)


@dataclass
class Projection:
    """`result = x @ weight + bias`, with the weight as [in, out]; `product` is the node without the bias."""

    product: ir.Node
    result: ir.Value
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


@dataclass
class End:
    """The projection of the output: its product, the node with its result, and the module that it belongs to."""

    taken: ir.Value
    product: ir.Node
    last: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    transposed: bool
    module: ModulePath


@dataclass
class Probabilities:
    """What the product with v takes, the softmax that makes it, and the Dropout between."""

    value: ir.Value
    softmax: ir.Node
    dropout: float


@dataclass
class MultiheadLayer:
    """A layer.

    Attributes:
        node: the product of the probabilities with v.
        starts: the first column of q, k and v in their projections.
        full: the shape of the scores.
    """

    node: ir.Node
    end: End
    projections: list[Projection]
    starts: list[int]
    width: int
    weights: Probabilities
    masks: Masks
    sizes: Sizes
    full: tuple[int, int, int, int]

    @property
    def users(self) -> list[ir.Node]:
        """The nodes that take the probabilities beside the product with v."""
        return [use.node for use in self.weights.value.uses() if use.node is not self.node]

    @property
    def returns_weights(self) -> bool:
        return bool(self.users) or self.weights.value.is_graph_output()


def write(layer: MultiheadLayer, order: dict[ir.Node, int], finder: Finder, views: Views) -> None:
    """Replace the nodes by one. It stands before the softmax, if what it takes is computed by then.

    `order`: the position of each node of the graph.
    """
    at, end, masks = layer.weights.softmax, layer.end, (layer.masks.attention, layer.masks.padding)
    xs = [p.x for p in layer.projections]
    if at.graph is not end.last.graph or any(_position(v, order) > order.get(at, -1) for v in (*xs, *masks)):
        return
    swapped = [s for s in map(_unswapped, xs) if s is not None]
    batch_first = len(swapped) == len(xs)
    averaged = _averages(layer)
    need_weights = layer.returns_weights or layer.masks.may_empty or info(layer.node.outputs[0]).rank != 4
    new = own(
        "MultiheadAttention",
        [*(swapped if batch_first else xs), *_tensors(layer), *masks],
        2 if layer.returns_weights else 1,
        heads=layer.full[1], starts=layer.starts, transposed=int(end.transposed), batch_first=int(batch_first),
        dropout=layer.weights.dropout, need_weights=int(need_weights), average=int(bool(averaged) or not layer.users),
    )  # fmt: skip
    new.name = end.last.name
    straight = Info(info(xs[0]).dtype, (*shape_of(xs[0])[:2], layer.width))
    y = insert(at, new, None, permuted(straight, SWAP) if batch_first else straight)
    SCOPE.set(new, end.module)
    finder.note(new, _places(layer, views))
    gone = [at, layer.node, end.last]
    _put_weights(layer, new, averaged)
    _put_result(layer, new, y, batch_first, straight)
    note_replaced(new, gone)


def _tensors(layer: MultiheadLayer) -> list[ir.Value | None]:
    weights, biases = [p.weight for p in layer.projections], [p.bias for p in layer.projections]
    return [*weights, *biases, layer.end.weight, layer.end.bias]


def _places(layer: MultiheadLayer, views: Views) -> Iterator[Place]:
    """Yield where the older nodes take the tensors (see `Finder.note`)."""
    takers = [(p.product, p.result.producer(), p.weight, p.bias) for p in layer.projections]
    takers.append((layer.end.product, layer.end.last, layer.end.weight, layer.end.bias))
    for i, (first, last, weight, bias) in enumerate(takers):
        at = (3 + i, 6 + i) if i < 3 else (9, 10)
        for index, node, value in zip(at, (first, last), (weight, bias)):
            source = views(value)
            if node is not None and value is not None and source is not None:
                yield index, node, node.inputs.index(value), source


def _position(value: ir.Value | None, order: dict[ir.Node, int]) -> int:
    node = maker(value)
    return -1 if node is None else order.get(node, -1)


def _unswapped(value: ir.Value) -> ir.Value | None:
    """Return the tensor [batch, length, size] that is transposed to a layer's input, else None."""
    node = made_by(value, "Transpose")
    return node.inputs[0] if node is not None and tuple(node.attributes.get_ints("perm", ())) == SWAP else None


def _averages(layer: MultiheadLayer) -> list[ir.Node]:
    """Return the nodes that average the probabilities over the heads, if nothing else uses these."""
    ends = []
    for node in layer.users:
        value = layer.weights.value
        if info(value).rank == 3:
            value = node.outputs[0]
            after = only_user(value) if arranges(node) else None
            if after is None:
                return []
            node = after
        positions = arrangement(value, layer.weights.value, layer.sizes)
        if node.op_type != "ReduceMean" or ints(node, "axes", 1) not in ([1], [-3]) or positions is None:
            return []
        is_whole = positions.shape == layer.full and bool((np.diff(positions.flat) == 1).all())
        if node.attributes.get_int("keepdims", 1) or not is_whole:
            return []
        ends.append(node)
    return [] if layer.weights.value.is_graph_output() else ends


def _put_weights(layer: MultiheadLayer, new: ir.Node, averaged: list[ir.Node]) -> None:
    if len(new.outputs) < 2:
        return
    old, weights = layer.weights.value, new.outputs[1]
    (length, batch), keys = shape_of(layer.projections[0].result)[:2], shape_of(old)[-1]
    if averaged:
        weights.name = averaged[0].outputs[0].name
        set_info(weights, Info(info(old).dtype, (batch, length, keys)))
        for node in averaged:
            take_over(node.outputs[0], weights)
        return
    weights.name = f"{old.name}.heads"
    set_info(weights, Info(info(old).dtype, (batch, layer.full[1], length, keys)))
    if info(old).rank == 3:
        shaped = ir.node("Reshape", [weights, known_ints(shape_of(old))], version=13)
        weights = insert(layer.weights.softmax, shaped, f"{old.name}.merged", info(old), new)
    for use in list(old.uses()):
        if use.node is not layer.node:
            use.node.replace_input_with(use.idx, weights)


def _put_result(layer: MultiheadLayer, new: ir.Node, y: ir.Value, batch_first: bool, straight: Info) -> None:
    """Let the users of the output projection take the new node's result, past the views that give it its shape."""
    last, old = layer.end.last, layer.end.last.outputs[0]
    target = _target(layer, batch_first)
    if target is not None:
        y.name = target.name
        return take_over(target, y)
    y.name = f"{old.name}.layer"
    if batch_first:
        turned = ir.node("Transpose", [y], {"perm": SWAP}, version=13)
        y = insert(last, turned, f"{old.name}.turned", straight, new)
    replace(last, ir.node("Reshape", [y, known_ints(shape_of(old))], version=13))


def _target(layer: MultiheadLayer, batch_first: bool) -> ir.Value | None:
    """Return the value after the output projection that has the shape of the layer's result, else None."""
    old = layer.end.last.outputs[0]
    batch, _, length, _ = layer.full
    wanted = np.arange(length * batch * layer.width).reshape(length, batch, layer.width)
    wanted = wanted.transpose(SWAP) if batch_first else wanted
    for value in reversed(list(_downwards(old))):
        if layer.sizes.shape(value) == wanted.shape:
            positions = arrangement(value, old, layer.sizes)
            if positions is not None and np.array_equal(positions, wanted):
                return value
    return None
