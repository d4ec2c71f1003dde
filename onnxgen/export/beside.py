"""Adapters beside weights that the file stores as integers: the integers keep their bytes, and a low-rank product with
the operator's input is added to its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.export.integers import Integers
from onnxgen.export.origin import Origin
from onnxgen.export.places import Array, places_of
from onnxgen.reader.protos import with_inner
from onnxgen.weights.dequantised import Dequantised
from onnxgen.weights.provenance import rebuild

PRODUCTS = {"MatMulNBits": 5, "MatMulBnb4": None}  # of packed matrices [N, K]; which input is the bias
NARROW = 64  # rows or columns
WAY = "merge it in Python, which rounds the weights: onnxgen.export(module, weights=open_model(run))"
Factors = Callable[[Array, Array], "tuple[Array, Array] | None"]


@dataclass(frozen=True)
class Moved:
    """A float tensor that the file stores as integers, and that training changed.

    Attributes:
        how: which integers, and what they stand for.
        before, after: the floats.
    """

    how: Dequantised
    before: Array
    after: Array

    @property
    def shown(self) -> str:
        return printable(self.how.tensor)


def moved_weights(origin: Origin, state: Mapping[str, Array]) -> list[Moved]:
    """Return the tensors that are stored as integers and differ from the state dict."""
    record, folder = origin.record, origin.onnx.absolute().parent
    stored = places_of(origin.onnx)

    def before(name: str) -> Array:
        return stored[name].read(folder).numpy()

    found = []
    for name, how in Integers(record.tensors, record.quantised, state.__getitem__, before).floats.items():
        floats = how.floats(before)
        now = np.asarray(rebuild(record.tensors, name, state.__getitem__, floats))
        if not np.array_equal(now, floats):
            found.append(Moved(how, floats, now))
    return found


def optional_input(model: onnx.ModelProto, name: str, shape: Sequence[int | str]) -> None:
    """Add an input of floats that is zero by default. A named size is 1 then."""
    zeros = np.zeros([size if isinstance(size, int) else 1 for size in shape], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(zeros, name))
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def add_beside(model: onnx.ModelProto, moved: Sequence[Moved], factors: Factors, values: dict[str, Array]) -> None:
    """Add to the users of each tensor's floats what the change of the floats adds to their results.

    Args:
        model: the original, which is changed.
        factors: returns two matrices whose product is the difference of two tensors, or None.
        values: gets the values of the new optional inputs.

    Raises:
        OnnxgenError: a change has no low rank, or the operator computes with the integers themselves.
    """
    for one in moved:
        if one.before.dtype != np.float32:
            raise OnnxgenError(f"the scales of {one.shown} are {one.before.dtype}: an adapter needs float32", help=WAY)
        found = factors(one.before, one.after) or _narrow(one.after - one.before)
        if found is None:
            what = f"the change of {one.shown} has no low rank, as after --dora"
            raise OnnxgenError(what, help=f"train with --lora alone, or {WAY}")
        names = tuple(f"{one.how.tensor}.lora_{letter}" for letter in "AB")
        users = _users(model, one)
        packed = any(node.op_type in PRODUCTS for node in users)
        # The product is [rows, r] @ [r, columns]. `x @ A @ B` needs it transposed if the matrix is [N, K].
        first, second = (found[1].T, found[0].T) if packed else found
        rank = f"{one.how.tensor}.rank"
        for name, factor, shape in ((names[0], first, (len(first), rank)), (names[1], second, (rank, second.shape[1]))):
            values[name] = np.ascontiguousarray(factor, np.float32)
            optional_input(model, name, shape)
        for node in users:
            if packed:
                place = _place(model, node)
                _insert(model, place + 1, _product(node, *names))
            else:
                _beside_floats(model, node, one, *names)


def _narrow(difference: Array) -> tuple[Array, Array] | None:
    """Return a matrix with few rows or columns, such as a head's, as a product with the identity."""
    matrix = difference.reshape(len(difference), -1)
    rows, columns = matrix.shape
    if min(rows, columns) > NARROW:
        return None
    return (np.eye(rows), matrix) if rows < columns else (matrix, np.eye(columns))


def _users(model: onnx.ModelProto, one: Moved) -> list[onnx.NodeProto]:
    """Return the nodes that make floats of the integers, or multiply with them."""
    everywhere = [*with_inner(model.graph.node), *with_inner(n for f in model.functions for n in f.node)]
    users = [node for node in model.graph.node if one.how.tensor in node.input]
    kinds = {node.op_type for node in users}
    if not users or len(users) < sum(one.how.tensor in node.input for node in everywhere):
        raise OnnxgenError(f"{one.shown} is in a subgraph or a local function: an adapter has no place", help=WAY)
    if len(kinds) > 1 or not kinds <= {"DequantizeLinear", *PRODUCTS}:
        what = f"{' and '.join(sorted(kinds))} computes with the integers {one.shown}: an adapter has no place"
        raise OnnxgenError(what, help=WAY)
    return users


def _place(model: onnx.ModelProto, node: onnx.NodeProto) -> int:
    return next(i for i, other in enumerate(model.graph.node) if other.output[:] == node.output[:])


def _insert(model: onnx.ModelProto, place: int, nodes: Iterable[onnx.NodeProto]) -> None:
    for number, node in enumerate(nodes):
        model.graph.node.insert(place + number, node)


def _product(node: onnx.NodeProto, a: str, b: str) -> list[onnx.NodeProto]:
    """Return nodes that add `x @ A @ B` to the result of a node, whose own result is renamed."""
    y = node.output[0]
    node.output[0] = base = f"{y}.base"
    return [
        helper.make_node("MatMul", [node.input[0], a], [f"{y}.lora_A"]),
        helper.make_node("MatMul", [f"{y}.lora_A", b], [f"{y}.lora"]),
        helper.make_node("Add", [base, f"{y}.lora"], [y]),
    ]


def _gemm(node: onnx.NodeProto, a: str, b: str) -> list[onnx.NodeProto]:
    """Like `_product`, for `alpha * x @ W + C`, in which x and W may be transposed."""
    y, given = node.output[0], {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    node.output[0] = base = f"{y}.base"
    flipped = given.get("transB", 0)
    first, second = (b, a) if flipped else (a, b)
    down = {"transA": given.get("transA", 0), "transB": flipped}
    return [
        helper.make_node("Gemm", [node.input[0], first], [f"{y}.lora_A"], **down),
        helper.make_node("Gemm", [f"{y}.lora_A", second, base], [y], transB=flipped, alpha=given.get("alpha", 1.0)),
    ]


def _beside_floats(model: onnx.ModelProto, node: onnx.NodeProto, one: Moved, a: str, b: str) -> None:
    """Add the change to the result of each product with the floats that a DequantizeLinear makes.

    Other users, such as a convolution, get the floats with the change in them.
    """
    w, others = node.output[0], 0
    if w in {value.name for value in model.graph.output}:
        raise OnnxgenError(f"the floats of {one.shown} are an output: an adapter has no place", help=WAY)
    for user in [user for user in with_inner(model.graph.node) if w in user.input]:
        is_product = len(one.how.shape) == 2 and user.op_type in ("MatMul", "Gemm")
        own = any(user.output[:] == other.output[:] for other in model.graph.node)
        if own and is_product and [i for i, name in enumerate(user.input) if name == w] == [1]:
            place = _place(model, user)
            _insert(model, place + 1, (_product if user.op_type == "MatMul" else _gemm)(user, a, b))
        else:
            user.input[:] = [f"{w}.adapted" if name == w else name for name in user.input]
            others += 1
    if others:
        _insert(model, _place(model, node) + 1, sum_of(model, w, (a, b), one.how.shape))


def sum_of(model: onnx.ModelProto, name: str, factors: Sequence[str], shape: Sequence[int]) -> list[onnx.NodeProto]:
    """Return the nodes that add the product of two factors to a tensor: `{name}.adapted`."""
    nodes = [helper.make_node("MatMul", factors, [f"{name}.lora"])]
    if len(shape) != 2:
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), f"{name}.shape"))
        nodes.append(helper.make_node("Reshape", [f"{name}.lora", f"{name}.shape"], [f"{name}.lora.shaped"]))
    return [*nodes, helper.make_node("Add", [name, nodes[-1].output[0]], [f"{name}.adapted"])]


def with_floats(model: onnx.ModelProto, moved: Sequence[Moved]) -> None:
    """Replace integers by the trained floats: what the base computes with its adapter."""
    for one in moved:
        for node in _users(model, one):
            place, packed = _place(model, node), node.op_type in PRODUCTS
            name = f"{node.output[0]}.weight" if packed else node.output[0]
            floats = np.ascontiguousarray(one.after.T if packed else one.after)
            model.graph.initializer.append(numpy_helper.from_array(floats, name))
            made = [*_with_bias(node, name)] if packed else []
            del model.graph.node[place]
            _insert(model, place, made)


def _with_bias(node: onnx.NodeProto, weight: str) -> Iterator[onnx.NodeProto]:
    place = PRODUCTS[node.op_type]
    bias = node.input[place] if place is not None and len(node.input) > place else ""
    product = f"{node.output[0]}.product" if bias else node.output[0]
    yield helper.make_node("MatMul", [node.input[0], weight], [product])
    if bias:
        yield helper.make_node("Add", [product, bias], [node.output[0]])
