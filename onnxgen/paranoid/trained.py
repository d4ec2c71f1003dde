"""Decide a second time which stored tensors are trained, without code of the pass `trainable`.

The rules are those of docs/EXTENDING.md. Where these here are silent (`None`), either decision is
right. Some of them ask the elements of a tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.graph.annotations import BLOCKED, ROOT, STILL, TRAINABLE, VARIES
from onnxgen.graph.domains import is_foreign
from onnxgen.graph.nodes import FLOATS, subgraphs
from onnxgen.graph.operators import is_a, known, reason
from onnxgen.graph.traits import (
    ADDS,
    CONVOLUTION,
    ELEMENTWISE,
    JOINS,
    NORM,
    PASSES_ON,
    SAME,
    SAMPLES,
    SCALES,
    STANDARDISES,
    STRIDES,
    VIEW,
    Trait,
)
from onnxgen.options import Options
from onnxgen.paranoid.picture import STANDARD
from onnxgen.scopes.origin import param_path, parameter_name
from onnxgen.shapes.info import info
from onnxgen.weights.stored import folded_from, peaks_in_order, stored

PRECISE = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
MAX_EXAMINED_ELEMENTS = 4096  # elements of a tensor; only this many are examined


def is_written(tensor: ir.TensorProtocol) -> bool:
    """Return True for a number of five digits at most, or a small whole one."""
    number = np.float32(_numbers(tensor)[0])
    return bool(number == np.float32(f"{number:.5g}"))


def is_row(tensor: ir.TensorProtocol) -> bool:
    shape = tensor.shape.numpy()
    return 1 < math.prod(shape) == max(shape)


def elements(tensor: ir.TensorProtocol) -> set[float]:
    return set(np.unique(_numbers(tensor)).tolist())


def _numbers(tensor: ir.TensorProtocol) -> NDArray[np.float64]:
    return tensor.numpy().reshape(-1).astype(np.float64)


def follows(tensor: ir.TensorProtocol) -> bool:
    """Return True if a tensor is a mask, evenly spaced, or powers of one number: such tensors are not learned."""
    if tensor.size < 2:
        return False
    numbers = _numbers(tensor)
    if np.unique(numbers[:MAX_EXAMINED_ELEMENTS]).size <= 4 and _masks(numbers):
        return True
    if tensor.size < 3 or not is_row(tensor):
        return _is_table(tensor)
    steps = numbers[1:] - numbers[:-1]
    if steps[0] and bool((steps == steps[0]).all()):
        return True
    if tensor.dtype not in PRECISE or not bool((numbers > 0).all()):
        return False
    factors = numbers[1:] / numbers[:-1] * (numbers[0] / numbers[1])
    near = 32 * np.finfo(tensor.dtype.numpy()).eps
    return numbers[0] != numbers[1] and bool((factors < 1 + near).all() and (factors > 1 - near).all())


def _is_table(tensor: ir.TensorProtocol) -> bool:
    """Return True for an even row or column that is repeated, and for rows with one number each, which is the same."""
    table = _numbers(tensor).reshape([n for n in tensor.shape.numpy() if n != 1])
    if table.ndim != 2 or not 4 < table.size <= MAX_EXAMINED_ELEMENTS or tensor.dtype not in PRECISE:
        return False
    if not np.isfinite(table).all() or np.unique(table).size > table.size // 2:
        return False
    if np.unique(table).size == 2 and np.count_nonzero(table) == max(table.shape):
        return bool((np.count_nonzero(table, 0) == 1).all() or (np.count_nonzero(table, 1) == 1).all())
    lines = [rows[0] for rows in (table, table.T) if (rows == rows[0]).all() and len(rows[0]) >= 3]
    return any(map(_is_even, lines))


def _is_even(line: NDArray[np.float64]) -> bool:
    return bool(line[0] != line[1] and (np.diff(line) == line[1] - line[0]).all())


def may_follow(tensor: ir.TensorProtocol) -> bool:
    """Return True if a tensor may be a rounded progression, the points of a grid, or a table of sines."""
    some = _numbers(tensor)[:MAX_EXAMINED_ELEMENTS]
    if some.size < 4 or not np.isfinite(some).all():
        return False
    if some.min() == some.max():
        return tensor.size > some.size  # the strides of the cells of a detector begin with thousands of equal ones
    if is_row(tensor):
        return np.unique(some).size <= min(8, some.size // 2) or bool(
            np.ptp(np.diff(some)) < 0.05 * np.ptp(some) / some.size
        )
    if np.unique(some).size <= some.size // 2:
        return True
    columns = next(n for n in reversed(tensor.shape.numpy()) if n != 1)
    rows = some[columns : 5 * columns]
    if rows.size < 4 * columns:
        return False
    rows = rows.reshape(-1, columns)
    gaps = np.abs((rows[0] + rows[2]) * rows[2] - (rows[1] + rows[3]) * rows[1])
    return bool((gaps < 0.01 * np.abs(rows).max() ** 2).all())


def may_be_fixed(name: str, tensor: ir.TensorProtocol) -> bool:
    """Return True for what is called a buffer, and for kernels without a layer's name of which some taps are those of
    the other end, or close to them: they may be buffers, which some exporters do not tell from parameters.
    """
    if "buffer" in name.rpartition(".")[2]:
        return True
    if len(tensor.shape) > 2 and peaks_in_order(tensor):
        return True
    if len(tensor.shape) < 3 or "weight" in name.rpartition(".")[2]:
        return False
    sizes = np.sort(np.abs(_numbers(tensor)[:MAX_EXAMINED_ELEMENTS]))
    pairs = np.diff(sizes) <= 1e-5 * sizes[1:]
    return bool(pairs.mean() > 0.25) if pairs.size else False


def counts(tensor: ir.TensorProtocol) -> bool:
    return is_row(tensor) and tensor.size >= 4 and np.array_equal(_numbers(tensor), range(tensor.size))


def _masks(numbers: NDArray[np.float64]) -> bool:
    lowest = numbers.min()
    barred = lowest if lowest <= -100 and 0 in numbers else -np.inf
    return bool((np.isin(numbers, (0, 1, barred)) | (numbers <= np.finfo(np.float32).min)).all())


KIND = "pkg.torch.export.graph_signature.InputSpec.kind"  # torch's dynamo exporter, on each initializer
SECOND = "a second set of rules says so"  # why a tensor is trained or not, where these were followed
_AFFINE = (JOINS, VIEW, STRIDES, SAME, STANDARDISES, ADDS, SCALES)


@dataclass
class Reach:
    """The values from which a gradient surely reaches an output, and those from which one may."""

    sure: set[ir.Value] = field(default_factory=set)
    perhaps: set[ir.Value] = field(default_factory=set)

    def walk(self, graph: ir.Graph, is_sure: bool = True) -> None:
        """Add the values that the outputs of a graph are computed from."""
        self.perhaps.update(v for v in graph.outputs if _dtype(v) in (None, *FLOATS))
        self.sure.update(v for v in graph.outputs if is_sure and _dtype(v) in FLOATS)
        for node in reversed(graph):
            if not _is_barrier(node) and not self.perhaps.isdisjoint(node.outputs):
                self._through(node)

    def _through(self, node: ir.Node) -> None:
        op = _op(node)
        blocked = BLOCKED.get(node) or known(node).still
        is_sure = bool(op) and not self.sure.isdisjoint(node.outputs)
        for i, value in enumerate(node.inputs):
            if value is None or i in blocked:
                continue
            self.perhaps.add(value)
            if is_sure and _dtype(value) in FLOATS:
                self.sure.add(value)
        for body in subgraphs(node):
            self.perhaps.update(body.outputs)
            carried = {"Loop": body.outputs[1:], "Scan": body.outputs}.get(op, ())
            self.sure.update(v for out, v in zip(node.outputs, carried) if out in self.sure and _dtype(v) in FLOATS)
            self.walk(body, is_sure and op == "If")


def _dtype(value: ir.Value) -> ir.DataType | None:
    known = info(value).dtype
    return value.dtype if known is None else known


def _op(node: ir.Node) -> str:
    return "" if is_foreign(node.domain) else node.op_type


def _is_barrier(node: ir.Node) -> bool:
    to = node.attributes.get("to") if _op(node) == "Cast" and node.domain in STANDARD else None
    return reason(node.domain, node.op_type) is not None or to is not None and to.value not in FLOATS


@dataclass(frozen=True)
class Doubt:
    """A decision of the pass `trainable` that differs from a second one.

    Attributes:
        value: the stored tensor.
        text: what is in doubt.
        wanted: the second decision; None if it may be the same, but not for the reason that the pass gives.
    """

    value: ir.Value
    text: str
    wanted: bool | None = None

    def __str__(self) -> str:
        return self.text


def wrong_decisions(model: ir.Model, options: Options, most: int | None = None) -> Iterator[Doubt]:
    """Yield the decisions of the pass `trainable` that differ from these rules.

    Args:
        model: as the pass left it, which changes nothing but what is noted; types are known by now.
        options: `trainable` and `frozen`.
        most: elements of a tensor that are looked at; of larger ones they decide nothing. None: of any.
    """
    reach = Reach()
    reach.walk(model.graph)
    rules = Rules(model, options, reach, most)
    for value in _all_stored(model.graph):
        tensor = stored(value)
        if tensor is None or tensor.dtype not in FLOATS:
            continue
        decided, why = TRAINABLE.get(value)
        if why == SECOND:  # those of quantised files, which know what these do not
            continue
        text, wanted = f"{value.name!r} is {'' if decided else 'not '}trained: {why}", rules.wanted(value, tensor)
        if not TRAINABLE.has(value):
            yield Doubt(value, f"{value.name!r} was not decided", wanted)
        elif wanted is (not decided):
            yield Doubt(value, text, wanted)
        elif rules.is_unfounded(value, str(why)):
            other = None if wanted is not None else rules.unless_excepted(value, tensor)
            yield Doubt(value, f"{text}, which is not so", other)


def _all_stored(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs if node.op_type == "Constant" else ()
        for body in subgraphs(node):
            yield from _all_stored(body)


class Rules:
    """Decides for each stored tensor of a model. The first rule that applies wins."""

    def __init__(self, model: ir.Model, options: Options, reach: Reach, most: int | None = None) -> None:
        self.options, self.reach, self.most = options, reach, most
        tensors = model.graph.initializers.values()
        self.by_pytorch = model.producer_name in ("pytorch", "optimum-onnx")
        self.has_state = self.by_pytorch and any(param_path(v.name or "") for v in tensors)
        self.is_recorded = any(KIND in v.metadata_props for v in tensors)
        self.divided = {(v.name or "").removesuffix("_orig") for v in tensors if (v.name or "").endswith("_orig")}
        self.inputs = set(model.graph.inputs).difference(tensors)

    def wanted(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool | None:
        """Return True if a tensor is to be trained, False if not, None if no rule applies."""
        name, kind = value.name or "", value.metadata_props.get(KIND)
        if tensor.size == 0 or name in self.options.const:  # an input that is a constant
            return False
        for pattern, decided in ((self.options.frozen, False), (self.options.trainable, True)):
            if pattern and re.search(pattern, name):
                return decided
        if value not in self.reach.perhaps:
            return False
        if value not in self.reach.sure or STILL.has(value):
            return None
        if any(is_a(node, CONVOLUTION) and i == known(node).matrix for node, i in _uses(value)) and counts(tensor):
            return False
        return True if kind == "PARAMETER" else self._by_records(value, tensor)

    def _by_records(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool | None:
        """Return the decision by names, by what the exporter recorded, and by the layers that take a tensor."""
        path, uses = _path(value), list(_uses(value))
        if path is None and self._is_no_affine(tensor, uses):
            return False
        if self.has_state and value.producer() is not None:
            return False
        if any(i in known(node).weights for node, i in uses):
            return True if self._is_weight(value, tensor, uses) else None  # it may have been merged into a buffer
        if str(value.name).rpartition(".")[2] in ("running_mean", "running_var"):
            return None if any(i == known(node).matrix for node, i in uses) else False
        if self._is_buffer(value, tensor):
            return False
        if self._is_folded(value):
            return None  # of constants, or of a parameter of the root
        is_large = self.most is not None and tensor.size > self.most
        return None if is_large else self._by_elements(value, tensor, path)

    def _is_weight(self, value: ir.Value, tensor: ir.TensorProtocol, uses: list[tuple[ir.Node, int]]) -> bool:
        """Return True if what a layer takes as its weight is surely one."""
        if value.metadata_props.get(KIND) in ("BUFFER", "CONSTANT_TENSOR") or self._is_folded(value):
            return False
        if may_be_fixed(value.name or "", tensor):
            return False
        is_own = tensor.size > 1 or _path(value) is not None or all(_op(u.node) != "Expand" for u in value.uses())
        is_shared = not self.by_pytorch and len(uses) > 1 and elements(tensor) == {0.0}
        return is_own and not is_shared

    def _is_buffer(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool:
        """Return True if a tensor is recorded as a buffer, or is a vector of spectral_norm's power iteration."""
        name = value.name or ""
        is_iterated = name.endswith(("_u", "_v")) and tensor.shape.rank() == 1 and name[:-2] in self.divided
        return is_iterated or value.metadata_props.get(KIND) == "BUFFER"

    def _is_folded(self, value: ir.Value) -> bool:
        """Return True if the exporter, which records kinds, computed a tensor of others and named none of them."""
        is_unnamed = KIND not in value.metadata_props and _path(value) is None
        return self.is_recorded and is_unnamed and "folded_from" in str(value.metadata_props)

    def is_unfounded(self, value: ir.Value, why: str) -> bool:
        """Return True if a reason surely does not apply."""
        if "no gradient reaches" in why:
            return value in self.reach.sure
        if "the exporter" in why or "forward made" in why:
            return not self.is_recorded
        if "deviation of the input" in why:
            shifts = any(_op(node) in ("Sub", "Div") for node, _ in _uses(value))
            return not shifts and not _may_precede_layer(value)
        return "statistic of a BatchNorm" in why and not any(_may_be_statistic(*use) for use in _uses(value))

    def unless_excepted(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool | None:
        """Return True if a tensor whose reason does not apply is trained as any other one: a gradient reaches it, and
        its elements are no exception. None if that is not sure.
        """
        return True if value in self.reach.sure and tensor.size > 1 and not follows(tensor) else None

    def _is_no_affine(self, tensor: ir.TensorProtocol, uses: list[tuple[ir.Node, int]]) -> bool:
        """Return True if it is a scale of ones or bias of zeros of a layer without parameters."""
        uses = [(node, i) for node, i in uses if not is_a(node, PASSES_ON)]
        if not uses or any(not is_a(node, NORM) or i not in (1, 2) for node, i in uses):
            return False
        if not self.by_pytorch and any(node.op_type != "InstanceNormalization" for node, _ in uses):
            return False
        numbers = set(np.unique(tensor.numpy()).tolist())
        return all(numbers == {2.0 - i} for _, i in uses)

    def _by_elements(self, value: ir.Value, tensor: ir.TensorProtocol, path: tuple[str, ...] | None) -> bool | None:
        is_bias = _is_bias(value, tensor)
        if is_bias is not False:
            return is_bias
        if any(_may_be_statistic(node, i) for node, i in _uses(value)):
            return None
        is_named = path is not None or ROOT.has(value)
        is_open = self._is_unrecorded(value) and (is_named or tensor.size > 1)
        if is_open and _is_chosen(value):
            return False
        if path is not None and {"weight", "bias"} & set(path[-1].split("_")):
            return True
        if tensor.size == 1 and (is_open or not is_named):
            return _of_number(value, tensor, is_named)
        return self._by_place(value, tensor)

    def _is_unrecorded(self, value: ir.Value) -> bool:
        """Return True if neither the exporter nor the names of a state dict say what a tensor is."""
        return not self.has_state and KIND not in value.metadata_props

    def _by_place(self, value: ir.Value, tensor: ir.TensorProtocol) -> bool | None:
        """Return the decision for a tensor that no name tells of."""
        if any(_scales_input(use.node, value, self.inputs) for use in value.uses()):
            return False
        is_line = tensor.size == max(tensor.shape.numpy(), default=1)
        if is_line and _may_scale_input(value, self.inputs, 4) and _may_precede_layer(value):
            return None  # the scaler of an input, or the weights of a layer that is spelled out
        if elements(tensor) == {0.0} and any(_multiplies(*use) for use in _uses(value)):
            return True  # LoRA's second matrix before training
        if self.has_state and not self.is_recorded and is_row(tensor) and elements(tensor) in ({0.0}, {1.0}):
            return True  # as a layer begins
        if follows(tensor):
            return False
        return None if may_follow(tensor) else True


def _of_number(value: ir.Value, tensor: ir.TensorProtocol, is_named: bool) -> bool | None:
    """Return the decision for a single number."""
    if is_named:
        return False if is_written(tensor) and not elements(tensor) <= {0.0, 1.0} else None
    return None if VARIES.get(value) else False


def _multiplies(node: ir.Node, place: int) -> bool:
    return node.op_type in ("MatMul", "Gemm") and place == 1


def _path(value: ir.Value) -> tuple[str, ...] | None:
    """Return the parameter that a tensor is, or was folded from, by its name."""
    return parameter_name(folded_from(value) or value.name or "")


def _is_bias(value: ir.Value, tensor: ir.TensorProtocol) -> bool | None:
    """Return True if a tensor is added to a product or a convolution as its bias. None if it may be."""
    for verdicts in (
        {_adds_to_product(use.node, use.idx, tensor) for use in value.uses()},
        {_adds_to_convolution(node, i, tensor) for node, i in _uses(value)},
    ):
        if verdicts - {False}:
            return True if True in verdicts else None
    return False


def _is_chosen(value: ir.Value) -> bool:
    """Return True if all that takes a tensor takes it as a number that a person chooses."""
    slots = [i in known(node).chosen for node, i in _uses(value) if not is_a(node, PASSES_ON)]
    return bool(slots) and all(slots)


def _uses(value: ir.Value, depth: int = 0) -> Iterator[tuple[ir.Node, int]]:
    for use in value.uses():
        yield use.node, use.idx
        if is_a(use.node, PASSES_ON) and depth < 8:
            for output in use.node.outputs:
                yield from _uses(output, depth + 1)


def _adds_to_product(node: ir.Node, place: int, tensor: ir.TensorProtocol) -> bool | None:
    """Return True if a learned row is added to a product with a stored matrix of as many columns.

    None if the matrix may follow a rule: then it may be no weight, and the row no bias.
    """
    other = node.inputs[1 - place] if _op(node) == "Add" else None
    product = other.producer() if other is not None else None
    if product is None or _op(product) != "MatMul" or not len(tensor.shape) or tensor.shape[-1] != tensor.size:
        return False
    matrix = stored(product.inputs[1])
    if matrix is None or len(matrix.shape) != 2 or matrix.shape[1] != tensor.size or follows(matrix):
        return False
    return None if may_follow(matrix) else True


def _adds_to_convolution(node: ir.Node, place: int, tensor: ir.TensorProtocol) -> bool | None:
    """Return True if one number for each of several channels is added to a convolution that has no bias of its own.

    None if it may be.
    """
    other = node.inputs[1 - place] if _op(node) == "Add" else None
    producer = other.producer() if other is not None else None
    if producer is None or not _lacks_bias(producer):
        return False
    shape, own = (None if v is None else info(v).shape for v in (other, node.inputs[place]))
    if shape is None or own is None or stored(producer.inputs[1]) is None or tensor.size == 1:
        return None
    return own[1 - len(shape) :] == (shape[1], *(1,) * (len(shape) - 2)) and tensor.size == shape[1]


def _lacks_bias(node: ir.Node) -> bool:
    """Return True for a convolution without the bias that its operator may have."""
    card = known(node)
    if not is_a(node, SAMPLES) or card.matrix != 1 or len(card.weights) != 2:
        return False
    last = max(card.weights)
    return len(node.inputs) <= last or node.inputs[last] is None


def _may_be_statistic(node: ir.Node, place: int) -> bool:
    """Return True for what may be the mean or the variance of a norm that is spelled out."""
    after = {_op(use.node) for use in node.outputs[0].uses()}
    return _op(node) == "Add" and after == {"Sqrt"} or _op(node) == "Sub" and place == 1 and "Div" in after


def _scales_input(node: ir.Node, value: ir.Value, inputs: set[ir.Value]) -> bool:
    """Return True if network inputs are shifted or divided by a tensor before anything else."""
    scales = _op(node) in ("Sub", "Div") and node.inputs[1] is value
    return scales and _is_input(node.inputs[0], inputs, 8, (JOINS, VIEW, STRIDES, SAME, STANDARDISES))


def _may_scale_input(value: ir.Value, inputs: set[ir.Value], depth: int) -> bool:
    """Return True if network inputs meet a tensor, or what is computed from it alone, elementwise."""
    if not depth:
        return False
    for node in (use.node for use in value.uses()):
        others = _beside(node, {value})
        scales = is_a(node, ELEMENTWISE) or _op(node) == "Scaler"
        if scales and any(_is_input(other, inputs, 8) for other in others):
            return True
        is_of_it = is_a(node, ELEMENTWISE, PASSES_ON) and all(v.producer() is None or stored(v) for v in others)
        if is_of_it and any(_may_scale_input(output, inputs, depth - 1) for output in node.outputs):
            return True
    return False


def _beside(node: ir.Node, values: set[ir.Value]) -> list[ir.Value]:
    """Return the inputs of a node that are none of these values."""
    return [value for value in node.inputs if value is not None and value not in values]


def _may_precede_layer(value: ir.Value) -> bool:
    """Return True if a layer with stored floats may take what is computed from a tensor."""
    todo, seen = [value], {value}
    while todo:
        for use in todo.pop().uses():
            others = _beside(use.node, seen)
            is_layer = not is_a(use.node, ELEMENTWISE, STANDARDISES, PASSES_ON)
            if is_layer and any(_dtype(v) in FLOATS and _is_of_stored(v, value) for v in others):
                return True
            todo += (new := [v for v in use.node.outputs if v not in seen])
            seen.update(new)
    return False


def _is_of_stored(value: ir.Value, but: ir.Value, depth: int = 8) -> bool:
    """Return True for a stored tensor `but` one, and for what is computed from stored ones alone."""
    maker = value.producer()
    if stored(value) is not None or maker is None or not depth:
        return value is not but and stored(value) is not None
    return all(_is_of_stored(v, but, depth - 1) for v in maker.inputs if v is not None)


def _is_input(data: ir.Value | None, inputs: set[ir.Value], depth: int, through: tuple[Trait, ...] = _AFFINE) -> bool:
    """Return True for an input of the network, and what operators of some kinds make of it."""
    maker = None if data is None else data.producer()
    if data in inputs or maker is None or not depth:
        return data in inputs
    if not is_a(maker, *through):
        return _op(maker) in ("Sub", "Div") and _is_input(maker.inputs[0], inputs, depth - 1, through)
    if is_a(maker, JOINS):
        return all(_is_input(v, inputs, depth - 1, through) for v in maker.inputs)
    of = maker.inputs if is_a(maker, ADDS, SCALES) else maker.inputs[:1]
    return any(_is_input(v, inputs, depth - 1, through) for v in of)
