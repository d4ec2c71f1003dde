"""Compute one side of a claim on drawn inputs, node by node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.graph.annotations import OWN_NORM
from onnxgen.graph.domains import DOMAIN
from onnxgen.graph.operators import card, is_a
from onnxgen.graph.traits import RANDOM, RECURRENT
from onnxgen.paranoid import single as stand_ins
from onnxgen.paranoid.claims import Broken, Cone, Untold
from onnxgen.paranoid.draws import MICROSOFT, adapted
from onnxgen.paranoid.picture import Made, Picture
from onnxgen.paranoid.single import NARROW, Single
from onnxgen.shapes import own
from onnxgen.shapes.dims import evaluate

MAX_LOOP_ITERATIONS = 64  # largest number of iterations of a loop
Values = dict[ir.Value, Any]
Special = Callable[["Side", Made, list[Any], Values], Sequence[Any]]
SPECIAL: dict[str, Special] = {}  # by operator


class Side:
    """Computes the value of a cone.

    Args:
        wide: compute in float64 instead of narrower float types.
        sizes: the sizes of named dims.

    Attributes:
        narrowed: True if some node computed in a narrower type all the same.
    """

    def __init__(self, picture: Picture, single: Single, sizes: Mapping[str, int], wide: bool) -> None:
        self.picture, self.single, self.sizes, self.wide = picture, single, sizes, wide
        self.narrowed = False

    def value(self, cone: Cone, drawn: Mapping[ir.Value, Any]) -> Any:
        """Return the end of a cone. Raises `Untold`."""
        values: Values = {value: drawn[key] for value, key in cone.cuts.items()}
        for value in cone.constants:
            values[value] = self.constant(value)
        self._steps(cone.steps, values)
        return values[cone.end]

    def constant(self, value: ir.Value) -> Any:
        tensor = self.picture.stored.get(value)
        if tensor is not None:
            return self.widened(tensor_elements(tensor))
        facts = self.picture.facts[value]
        if facts.data is None:
            raise Untold(f"{value.name} has no elements")
        if facts.data.dtype != object:
            return self.widened(np.asarray(facts.data))
        try:
            flat = [evaluate(d, self.sizes) for d in facts.data.ravel().tolist()]
        except KeyError as error:
            raise Untold(f"a size that has no number: {error}") from None
        return np.array(flat, np.int64 if facts.dtype is None else facts.dtype.numpy()).reshape(facts.data.shape)

    def widened(self, array: Any) -> Any:
        if self.wide and array.dtype != object and int(ir.DataType.from_numpy(array.dtype)) in NARROW:
            return array.astype(np.float64)
        return array

    def _steps(self, steps: Sequence[Made], values: Values) -> None:
        for step in steps:
            outputs = self._node(step, [None if v is None else values[v] for v in step.inputs], values)
            values.update(zip(step.outputs, outputs))

    def _node(self, step: Made, inputs: list[Any], values: Values) -> Sequence[Any]:
        computed = self._made(step, inputs, values)
        outputs = [self.widened(v) if isinstance(v, np.ndarray) else v for v in computed]
        exact = step.op == "ConstantOfShape"  # its zeros have no type of their own
        self.narrowed |= not exact and any(a is not b for a, b in zip(outputs, computed))
        return outputs

    def _made(self, step: Made, inputs: list[Any], values: Values) -> Sequence[Any]:
        if step.domain == DOMAIN:
            return _own(step, inputs)
        if step.domain == "" and step.op in SPECIAL:
            return SPECIAL[step.op](self, step, inputs, values)
        if OWN_NORM.get(step.node):
            return _affine(self, step, inputs)
        if step.domain == "" and is_a(step.node, RECURRENT) and step.attribute("layout", 0):
            return _recurrent(self, step, inputs)
        if is_a(step.node, RANDOM):
            raise Untold(f"{step.op} draws random numbers")
        if step.bodies:
            raise Untold(f"{step.op} with a graph of its own")
        if step.domain == MICROSOFT:
            outputs = stand_ins.run(self.single, step, inputs, self.wide)
            if outputs is not None:
                return outputs
            inputs = adapted(step, inputs)
        return self.single.run(step, inputs, self.wide, [self._type(v) for v in step.outputs])

    def _type(self, value: ir.Value) -> ir.DataType | None:
        """Return the type of a value as known before, or else as the file declares it."""
        facts = self.picture.facts.get(value)
        return value.dtype if facts is None or facts.dtype is None else facts.dtype

    def body(self, graph: ir.Graph, args: Sequence[Any], values: Values) -> list[Any]:
        """Return the outputs of a subgraph, which may read values from outside."""
        inputs, outputs = self.picture.graphs[graph]
        inner = {**values, **dict(zip(inputs, args))}
        for value in graph.initializers.values():
            if value in self.picture.stored:
                inner[value] = self.constant(value)
        for step in self.picture.members.get(graph, ()):
            for one in step.inputs:
                if one is not None and one not in inner:
                    inner[one] = self.constant(one)
            self._steps([step], inner)
        return [inner[v] if v in inner else self.constant(v) for v in outputs]


def tensor_elements(tensor: ir.TensorProtocol) -> Any:
    if tensor.dtype == ir.DataType.STRING:
        flat = [t.decode() if isinstance(t, bytes) else t for t in np.asarray(tensor.numpy(), object).reshape(-1)]
        strings = np.empty(len(flat), object)
        strings[:] = flat
        return strings.reshape(tuple(tensor.shape.numpy()))
    return np.asarray(tensor.numpy())


def _own(step: Made, inputs: list[Any]) -> Sequence[Any]:
    function = card(DOMAIN, step.op).reference
    if function is None:
        raise Untold(f"{DOMAIN}.{step.op} has no definition here")
    try:
        with np.errstate(all="ignore"):
            outputs = function(*inputs, **{name: a.value for name, a in step.attributes.items()})
    except NotImplementedError as error:
        raise Untold(f"{DOMAIN}.{step.op}: {error}") from None
    except Exception as error:
        raise Broken(f"{DOMAIN}.{step.op}: {error}") from None
    return outputs if isinstance(outputs, list) else [outputs]


# ---- operators that are not run as they are --------------------------------------------------------------------------


def special(name: str) -> Callable[[Special], Special]:
    """Register a function as the meaning of a standard operator."""

    def register(function: Special) -> Special:
        SPECIAL[name] = function
        return function

    return register


@special("Constant")
def _constant(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    attribute = next((a for name, a in step.attributes.items() if name.startswith("value")), None)
    if attribute is None:
        return side.single.run(step, inputs, side.wide)
    if attribute.type == ir.AttributeType.TENSOR:
        return [side.widened(tensor_elements(attribute.value))]
    if attribute.type in (ir.AttributeType.STRING, ir.AttributeType.STRINGS):
        return [np.array(attribute.value, object)]
    floats = attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)
    return [side.widened(np.array(attribute.value, np.float32 if floats else np.int64))]


@special("Dropout")
def _dropout(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    """Compute Dropout in training mode, since a module's Dropout must match there, whatever mode was exported."""
    ratio = step.attribute("ratio", inputs[1] if len(inputs) > 1 and inputs[1] is not None else 0.5)
    return [own.dropped(inputs[0], float(ratio)), np.ones(inputs[0].shape, bool)][: len(step.outputs)]


@special("RandomUniformLike")
def _uniform(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    """Return one number for all random numbers (see `own.RANDOM_NUMBER`)."""
    low, high = float(step.attribute("low", 0.0)), float(step.attribute("high", 1.0))
    return [np.full_like(inputs[0], low + own.RANDOM_NUMBER * (high - low))]


@special("Bernoulli")
def _bernoulli(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    """Draw with the same number, which also decides for a comparison."""
    return [(inputs[0] > own.RANDOM_NUMBER).astype(inputs[0].dtype)]


def _affine(side: Side, step: Made, inputs: list[Any]) -> Sequence[Any]:
    """Compute a norm whose scale and bias keep axes of size 1, as parameters do."""
    shape = inputs[0].shape[int(step.attribute("axis", -1)) :]
    size = int(np.prod(shape))
    affine = [v.reshape(shape) if v is not None and v.ndim > len(shape) and v.size == size else v for v in inputs[1:]]
    return side.single.run(step, [inputs[0], *affine], side.wide)


def _recurrent(side: Side, step: Made, inputs: list[Any]) -> Sequence[Any]:
    """Compute layout 1 as layout 0 with batch and time (or direction) exchanged: onnxruntime has only layout 0."""
    turned = [v.swapaxes(0, 1) if v is not None and i in (0, 5, 6) else v for i, v in enumerate(inputs)]
    plain = replace(step, attributes={name: a for name, a in step.attributes.items() if name != "layout"})
    y, *states = side.single.run(plain, turned, side.wide)
    return [None if y is None else y.transpose(2, 0, 1, 3), *(s if s is None else s.swapaxes(0, 1) for s in states)]


@special("If")
def _if(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    if np.size(inputs[0]) != 1:
        raise Broken(f"{step.name} is given {np.size(inputs[0])} conditions")
    branch = "then_branch" if np.asarray(inputs[0]).item() else "else_branch"
    return side.body(step.attributes[branch].as_graph(), [], values)


@special("Loop")
def _loop(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    most, condition, *state = inputs
    going, body, rows = condition is None or bool(condition), step.attributes["body"].as_graph(), list[list[Any]]()
    while going and (most is None or len(rows) < int(most)):
        if len(rows) == MAX_LOOP_ITERATIONS:
            raise Untold(f"a loop of more than {MAX_LOOP_ITERATIONS} turns")
        kept, *results = side.body(body, [np.array(len(rows), np.int64), np.array(True), *state], values)
        going, state = bool(kept), results[: len(state)]
        rows.append(results[len(state) :])
    if len(step.outputs) > len(state) and not rows:
        raise Untold("a loop without a turn")
    return [*state, *map(np.stack, zip(*rows))]


@special("Scan")
def _scan(side: Side, step: Made, inputs: list[Any], values: Values) -> list[Any]:
    count = int(step.attributes["num_scan_inputs"].value)
    if step.version < 9 or set(step.attributes) - {"num_scan_inputs", "body"}:
        raise Untold("Scan over other axes")
    state, scanned, rows = inputs[: len(inputs) - count], inputs[len(inputs) - count :], list[list[Any]]()
    for turn in range(scanned[0].shape[0]):
        results = side.body(step.attributes["body"].as_graph(), [*state, *(s[turn] for s in scanned)], values)
        state = results[: len(state)]
        rows.append(results[len(state) :])
    if not rows:
        raise Untold("a scan without a turn")
    return [*state, *map(np.stack, zip(*rows))]
