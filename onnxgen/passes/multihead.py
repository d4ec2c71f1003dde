"""Attention with its projections becomes `nn.MultiheadAttention` where PyTorch's names show that it
was one.

    q, k, v = query @ Wq + bq, key @ Wk + bk, value @ Wv + bv        [length, batch, heads * size]
    y = (softmax(q @ k^T / sqrt(size) + masks) @ v) @ Wo + bo        of each head

The pass starts from the product with the probabilities. It follows views back to three projections,
and forward to the output's. The elements must lie as in torch's layer, which is compared position
by position (`passes.layouts`). The projections may be one matrix, or several. The layer's own
probabilities may be a second result, per head or averaged. What is found is written as
`onnxgen.MultiheadAttention`.

A row without any key is NaN in the file. So it is in the layer while it returns the probabilities,
and zeros otherwise (without `no_grad`). So the layer is asked for them where a mask might hide a
whole row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import ModulePath
from onnxgen.graph.annotations import SCOPE, STANDS_FOR
from onnxgen.graph.nodes import FLOATS, made_by
from onnxgen.options import Options
from onnxgen.passes.attention import Logits, Operand, logits_of, product
from onnxgen.passes.attention_masks import Masks, masks_of
from onnxgen.passes.convolutions import added_vector
from onnxgen.passes.layouts import MAX_CHAIN, Positions, Sizes, arrangement, upwards
from onnxgen.passes.match import dropout_ratio, ints, other, standard_nodes
from onnxgen.passes.rewrite import drop, insert, known_ints, names_of, only_user, own, permuted, replace, replace_uses
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


def _output_projection(node: ir.Node, views: Views) -> End | None:
    """Return the layer `out_proj` that alone takes the result of a product, perhaps through views."""
    value = node.outputs[0]
    for _ in range(MAX_CHAIN):
        user = only_user(value)
        if user is None or not arranges(user):
            break
        value = user.outputs[0]
    if user is None or user.op_type not in ("Gemm", "MatMul") or user.domain != "" or user.inputs[0] is not value:
        return None
    scope, weight = SCOPE.get(user), user.inputs[1]
    stored = views(weight)
    paths = [] if stored is None else [path for path in map(param_path, stored.names) if path is not None]
    module = scope[:-1] if scope[-1:] == ("out_proj",) else scope if not paths else ()
    if not module or weight is None or stored is None or info(weight).rank != 2:
        return None
    if any(path[-2:] != ("out_proj", "weight") for path in paths):
        return None
    if user.op_type == "MatMul":
        added = added_vector(user, -1)
        last, bias = added if added is not None and views(added[1]) is not None else (user, None)
        return End(value, user, last, weight, bias, True, module)
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    if any(name in user.attributes and user.attributes[name].value != usual for name, usual in plain.items()):
        return None
    bias = user.inputs[2] if len(user.inputs) > 2 else None
    if bias is not None and (views(bias) is None or info(bias).rank != 1):
        return None
    return End(value, user, user, weight, bias, not user.attributes.get_int("transB", 0), module)


def _probabilities(value: ir.Value, opset: int) -> Probabilities | None:
    node, ratio, taken = made_by(value, "Dropout"), 0.0, value
    if node is not None:
        rate = dropout_ratio(node)
        if rate is None or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]) or node.inputs[0] is None:
            return None
        ratio, taken = rate, node.inputs[0]
        if only_user(taken) is not node:
            return None
    softmax, rank = made_by(taken, "Softmax"), info(taken).rank
    if softmax is None or rank is None:
        return None
    axis = softmax.attributes.get_int("axis", -1 if (softmax.version or opset) >= 13 else 1)
    return Probabilities(value, softmax, ratio) if axis in (-1, rank - 1) else None


class _Search:
    """One attention, while it is read."""

    def __init__(self, node: ir.Node, end: End, views: Views, opset: int) -> None:
        self.node, self.end, self.views, self.opset = node, end, views, opset

    def layer(self) -> MultiheadLayer | None:
        """Return the layer, or None if anything differs from torch's."""
        pv_product = product(self.node, by_result=False)
        if (
            pv_product is None
            or [*pv_product.left.perm] != sorted(pv_product.left.perm)
            or [*pv_product.order] != sorted(pv_product.order)
        ):
            return None
        weights = _probabilities(pv_product.left.value, self.opset)
        logits = None if weights is None else logits_of(weights.softmax.inputs[0])
        if weights is None or logits is None or logits.hidden:
            return None
        operands = [Operand(logits.q.value, logits.q.perm), Operand(logits.k.value, logits.k.perm), pv_product.right]
        projections = [self._projection(operand) for operand in operands]
        known = [p for p in projections if p is not None]
        if len(known) < 3 or not self._is_one_module(known):
            return None
        size = (operands[2].shape or (0,))[-1]
        if (
            not isinstance(size, int)
            or not size
            or not math.isclose(logits.scale * math.sqrt(size), 1, rel_tol=SCALE_ERROR)
        ):
            return None
        for sizes in self._sizes(known, operands):
            if (layer := self._fitted(sizes, known, operands, logits, weights, size)) is not None:
                return layer
        return None

    # ---- the projections ----

    def _projection(self, operand: Operand) -> Projection | None:
        """Follow views from an operand back to the product with a stored matrix."""
        *_, value = upwards(operand.value)
        bias, matmul = None, made_by(value, "MatMul")
        added = made_by(value, "Add")
        for index in (0, 1) if added is not None else ():
            matrix = made_by(added.inputs[index], "MatMul") if added is not None else None
            if added is not None and matrix is not None and only_user(matrix.outputs[0]) is added:
                matmul, bias = matrix, other(added, matrix.outputs[0])
        if matmul is None or matmul.inputs[0] is None or matmul.inputs[1] is None:
            return None
        x, weight = matmul.inputs[0], matmul.inputs[1]
        if info(value).rank != 3 or info(weight).rank != 2 or self.views(weight) is None:
            return None
        if added is not None and (bias is None or info(bias).rank != 1 or self.views(bias) is None):
            return None
        if SCOPE.get(matmul) != self.end.module or info(x).dtype not in FLOATS:
            return None
        return Projection(matmul, value, x, weight, bias)

    def _is_one_module(self, projections: Sequence[Projection]) -> bool:
        """True if no tensor has the name of another kind of parameter, and all layers have biases or none has.

        Exporters store equal biases of untrained layers once, so the name of one may be another layer's. They drop the
        output's bias of an untrained layer, which is zeros.
        """
        tensors = [t for p in projections for t in (p.weight, p.bias) if t is not None]
        pieces = [piece for source in map(self.views, tensors) if source is not None for piece in source.pieces]
        names = {piece.name for piece in pieces if not is_uniform(piece.tensor)}
        paths = [path for path in map(param_path, names) if path is not None]
        biased = {p.bias is not None for p in projections}
        return all(path[-1] in KEYS for path in paths) and biased in ({self.end.bias is not None}, {True})

    # ---- where each element lies ----

    def _sizes(self, known: Sequence[Projection], operands: Sequence[Operand]) -> list[Sizes]:
        """Return numbers for the named dims, the likeliest first.

        An exporter may write a length as a number: then the name stands for that.
        """
        (length, batch, _), *others = (info(p.result).shape or (0, 0, 0) for p in known)
        source = others[0][0]
        values = [v for o in operands for v in upwards(o.value)] + [self.end.taken]
        numbers = {d for v in values for d in info(v).shape or () if isinstance(d, int)}
        tries = []
        for a, b in combinations([None, *sorted(numbers)], repeat=2):
            sizes = Sizes()
            if a is not None and (isinstance(length, int) or not sizes.equate(length, a)):
                continue
            if b is not None and (isinstance(source, int) or not sizes.equate(source, b)):
                continue
            sizes.name((length, batch, source))
            for projection in known:  # a matrix that is split unfolded has columns without a name
                columns = self.views(projection.weight)
                if columns is not None:
                    sizes.equate((info(projection.result).shape or (0,))[-1], columns.shape[1])
            number = sizes.of(batch)
            keys = sizes.of(source)
            if number is None or keys is None:
                continue
            if all(sizes.equate(rows, keys) and sizes.equate(samples, number) for rows, samples, _ in others):
                tries.append(sizes)
        return tries

    def _fitted(
        self,
        sizes: Sizes,
        known: Sequence[Projection],
        operands: Sequence[Operand],
        logits: Logits,
        weights: Probabilities,
        size: int,
    ) -> MultiheadLayer | None:
        shapes = [sizes.shape(p.result) for p in known]
        width = (info(self.end.taken).shape or (0,))[-1]
        if None in shapes or not isinstance(width, int) or width % size:
            return None
        (length, batch, _), (source, *_), _ = ((s or (0, 0, 0)) for s in shapes)
        heads = width // size
        full = (batch, heads, length, source)
        starts = [_start(p, o, sizes, heads, size) for p, o in zip(known, operands)]
        firsts = [start for start in starts if start is not None]
        inputs = (info(known[0].weight).shape or (0,))[0]
        if (
            len(firsts) < 3
            or inputs != width
            or info(self.end.weight).shape != (width, width)
            or not self._merges(sizes, full, size)
        ):
            return None
        if not sizes.fit_heads(weights.value, full):
            return None
        masks = masks_of(logits.added, full, sizes, weights.softmax) if logits.added else Masks()
        if masks is None:
            return None
        return MultiheadLayer(self.node, self.end, list(known), firsts, heads, width, weights, masks, sizes, full)

    def _merges(self, sizes: Sizes, full: tuple[int, int, int, int], size: int) -> bool:
        """True if the output projection takes the heads side by side, for each position and then each sample."""
        y, (batch, heads, length, _) = self.node.outputs[0], full
        if not sizes.fit_heads(y, (*full[:-1], size)):
            return False
        taken = arrangement(self.end.taken, y, sizes)
        positions = np.arange(batch * heads * length * size, dtype=np.int32).reshape(batch, heads, length, size)
        width = None if taken is None else taken.shape[-1]
        return taken is not None and width == heads * size and _same(taken, positions.transpose(2, 0, 1, 3))


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
    heads: int
    width: int
    weights: Probabilities
    masks: Masks
    sizes: Sizes
    full: tuple[int, int, int, int]


def write(layer: MultiheadLayer, order: dict[ir.Node, int], finder: Finder, views: Views) -> None:
    """Replace the nodes by one. It stands before the softmax, if what it takes is computed by then.

    `order`: the position of each node of the graph.
    """
    at = layer.weights.softmax
    xs = [p.x for p in layer.projections]
    taken = [*xs, *(m for m in (layer.masks.attention, layer.masks.padding) if m is not None)]
    if at.graph is not layer.end.last.graph or any(_position(v, order) > order.get(at, -1) for v in taken):
        return
    sources = [_unswapped(x) for x in xs]
    swapped = [s for s in sources if s is not None]
    batch_first = len(swapped) == len(xs)
    users = [use.node for use in layer.weights.value.uses() if use.node is not layer.node]
    averaged = _averages(layer, users)
    rank4 = info(layer.node.outputs[0]).rank == 4
    wanted = bool(users) or layer.weights.value.is_graph_output() or layer.masks.may_empty or not rank4
    new = own(
        "MultiheadAttention",
        [*(swapped if batch_first else xs), *_tensors(layer), layer.masks.attention, layer.masks.padding],
        2 if users or layer.weights.value.is_graph_output() else 1,
        heads=layer.heads, starts=layer.starts, transposed=int(layer.end.transposed), batch_first=int(batch_first),
        dropout=layer.weights.dropout, need_weights=int(wanted), average=int(bool(averaged) or not users),
    )  # fmt: skip
    new.name = layer.end.last.name
    facts = info(xs[0])
    straight = Info(facts.dtype, (*(facts.shape or ())[:2], layer.width))
    gone = [layer.weights.softmax, layer.node, layer.end.last]
    y = insert(at, new, None, permuted(straight, SWAP) if batch_first else straight)
    SCOPE.set(new, layer.end.module)
    finder.note(new, _places(layer, views))
    _put_weights(layer, new, averaged)
    _put_result(layer, new, y, batch_first, straight)
    STANDS_FOR.set(new, tuple(dict.fromkeys(name for node in gone for name in names_of(node))))


def _tensors(layer: MultiheadLayer) -> list[ir.Value | None]:
    weights, biases = [p.weight for p in layer.projections], [p.bias for p in layer.projections]
    return [*weights, *biases, layer.end.weight, layer.end.bias]


def _places(layer: MultiheadLayer, views: Views) -> Iterator[Place]:
    """Yield where the older nodes take the tensors (see `Finder.note`)."""
    projections = [(p.product, p.result.producer(), p.weight, p.bias) for p in layer.projections]
    projections.append((layer.end.product, layer.end.last, layer.end.weight, layer.end.bias))
    for i, (first, last, weight, bias) in enumerate(projections):
        at = (3 + i, 6 + i) if i < 3 else (9, 10)
        for index, node, value in zip(at, (first, last), (weight, bias)):
            source = views(value)
            if node is not None and value is not None and source is not None:
                yield index, node, node.inputs.index(value), source


def _position(value: ir.Value, order: dict[ir.Node, int]) -> int:
    node = value.producer()
    return -1 if node is None else order.get(node, -1)


def _unswapped(value: ir.Value) -> ir.Value | None:
    """Return the tensor [batch, length, size] that is transposed to a layer's input, else None."""
    node = made_by(value, "Transpose")
    return node.inputs[0] if node is not None and tuple(node.attributes.get_ints("perm", ())) == SWAP else None


def _averages(layer: MultiheadLayer, users: list[ir.Node]) -> list[ir.Node]:
    """Return the nodes that average the probabilities over the heads, if nothing else uses these."""
    ends = []
    for node in users:
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
        if (
            node.attributes.get_int("keepdims", 1)
            or positions.shape != layer.full
            or (np.diff(positions.flat) != 1).any()
        ):
            return []
        ends.append(node)
    return [] if layer.weights.value.is_graph_output() else ends


def _put_weights(layer: MultiheadLayer, new: ir.Node, averaged: list[ir.Node]) -> None:
    if len(new.outputs) < 2:
        return
    old, weights = layer.weights.value, new.outputs[1]
    (length, batch), keys = (info(layer.projections[0].result).shape or ())[:2], (info(old).shape or ())[-1]
    whole = Info(info(old).dtype, (batch, layer.heads, length, keys))
    if averaged:
        weights.name = averaged[0].outputs[0].name
        set_info(weights, Info(whole.dtype, (batch, length, keys)))
        for node in averaged:
            replace_uses(node.outputs[0], weights)
            drop(node)
        return
    weights.name = f"{old.name}.heads"
    set_info(weights, whole)
    if info(old).rank == 3:
        shaped = ir.node("Reshape", [weights, known_ints(info(old).shape or ())], version=13)
        weights = insert(layer.weights.softmax, shaped, f"{old.name}.merged", info(old), new)
    for use in list(old.uses()):
        if use.node is not layer.node:
            use.node.replace_input_with(use.idx, weights)


def _put_result(layer: MultiheadLayer, new: ir.Node, y: ir.Value, batch_first: bool, straight: Info) -> None:
    """Let the users of the output projection take the new node's result, past the views that give it its shape."""
    last, old = layer.end.last, layer.end.last.outputs[0]
    y.name = f"{old.name}.layer"
    target = _target(layer, batch_first)
    if target is not None:
        y.name = target.name
        producer = target.producer()
        replace_uses(target, y)
        if producer is not None:
            drop(producer)
        return
    if batch_first:
        turned = ir.node("Transpose", [y], {"perm": SWAP}, version=13)
        y = insert(last, turned, f"{old.name}.turned", straight, new)
    replace(last, ir.node("Reshape", [y, known_ints(info(old).shape or ())], version=13))


def _target(layer: MultiheadLayer, batch_first: bool) -> ir.Value | None:
    """Return the value after the output projection that has the shape of the layer's result, else None."""
    old = layer.end.last.outputs[0]
    batch, _, length, _ = layer.full
    wanted = np.arange(length * batch * layer.width).reshape(length, batch, layer.width)
    wanted = wanted.transpose(SWAP) if batch_first else wanted
    value, chain = old, [old]
    for _ in range(MAX_CHAIN):
        user = only_user(value)
        if user is None or not arranges(user):
            break
        value = user.outputs[0]
        chain.append(value)
    for value in reversed(chain):
        if layer.sizes.shape(value) == wanted.shape:
            positions = arrangement(value, old, layer.sizes)
            if positions is not None and np.array_equal(positions, wanted):
                return value
    return None
