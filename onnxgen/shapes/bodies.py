"""Facts through the subgraphs of If, Loop, Scan and SequenceMap.

The facts that hold in every iteration of a loop are found by a fixed-point search. The state first has the dims of its
initial value. Each dim that the body changes becomes a new symbol, until nothing changes any more. Symbols of a
subgraph never appear outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxgen.graph.nodes import origin, subgraphs
from onnxgen.shapes.dims import Dim, dim_max
from onnxgen.shapes.infer import declared
from onnxgen.shapes.info import UNKNOWN, Contradiction, Info, NodeFacts, Shape, Symbols, info, set_info

TRAINING = "ai.onnx.preview.training"  # the domain of Gradient
MAX_LOOP_ROUNDS = 4  # iterations of the fixed point search, before the shapes of a loop's state become unknown
MAX_LOOP_DEPTH = 3  # nested loops in which the search runs; each level multiplies the iterations


class Walker(Protocol):
    """Visits the nodes of a graph and sets the facts of every value."""

    symbols: Symbols
    depth: int

    def walk(self, graph: ir.Graph) -> None: ...


Outside: TypeAlias = Callable[[Dim], bool]


def _export(n: NodeFacts, output: int, facts: Info, outside: Outside, keep_data: bool = True) -> Info:
    """Return facts of a subgraph's value for the node's output. Dims that are unknown outside become new symbols."""
    shape = facts.shape
    shape = _outer(n, output, shape, outside) if shape is not None and facts.kind == "tensor" else None
    data = facts.data if keep_data else None
    if data is not None and data.dtype == object and not all(map(outside, data.ravel().tolist())):
        data = None
    return Info(facts.dtype, shape, data, facts.kind)


def _outer(n: NodeFacts, output: int, dims: Iterable[Dim | None], outside: Outside) -> Shape:
    """Replace dims that are unknown outside a subgraph by new symbols of the node's output."""
    return tuple(n.fresh(i, output) if d is None or not outside(d) else d for i, d in enumerate(dims))


def _walk(walker: Walker, graph: ir.Graph, inputs: Iterable[Info] = ()) -> Outside:
    """Propagate through a body, given the facts of its inputs. Returns the test for dims that are valid outside."""
    walker.symbols.enter_body()
    for value, facts in zip(graph.inputs, inputs, strict=False):
        set_info(value, declared(value, facts, walker.symbols))
    walker.walk(graph)
    return walker.symbols.leave_body()


def choice(walker: Walker, n: NodeFacts) -> list[Info]:
    branches = []
    for graph in (n.graph("then_branch"), n.graph("else_branch")):
        outside = _walk(walker, graph)
        branches.append([_export(n, i, info(v), outside) for i, v in enumerate(graph.outputs)])
    then, other = branches
    condition = n.input(0).truth
    if condition is not None:
        return then if condition else other
    return [_join(n, i, a, b) for i, (a, b) in enumerate(zip(then, other, strict=False))]


def _join(n: NodeFacts, output: int, a: Info, b: Info) -> Info:
    """Return the facts that hold for both values."""
    shape = None
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape):
        pairs = enumerate(zip(a.shape, b.shape, strict=True))
        shape = tuple(x if x == y else n.fresh(axis, output) for axis, (x, y) in pairs)
    same = a.data is not None and b.data is not None and a.data.dtype == b.data.dtype
    data = a.data if same and np.array_equal(a.data, b.data) else None  # type: ignore[arg-type]
    return Info(a.dtype if a.dtype == b.dtype else None, shape, data, a.kind if a.kind == b.kind else "tensor")


# --------------------------------------------------------------------------------------------------------- loops


def _without_data(walker: Walker, value: ir.Value, facts: Info) -> Info:
    shape = facts.shape if facts.kind == "tensor" and walker.depth <= MAX_LOOP_DEPTH else None
    return declared(value, Info(facts.dtype, shape, None, facts.kind), walker.symbols)


def _iterate(
    walker: Walker,
    body: ir.Graph,
    fixed: Sequence[tuple[ir.Value, Info]],
    states: Sequence[ir.Value],
    initial: Sequence[Info],
    results: Sequence[ir.Value],
) -> tuple[list[Info], Outside]:
    """Propagate through a loop body until the facts of its state hold in every iteration.

    Args:
        fixed: body inputs that are not state, with their facts.
        states: body inputs that hold the state; `initial`: its facts before the first iteration; `results`: body
            outputs that hold the next state.
    Returns:
        The state's facts in every iteration, and a test that tells which dims are valid outside.
    """
    walker.depth += 1
    held = [_without_data(walker, v, f) for v, f in zip(states, initial, strict=True)]
    for round_ in range(MAX_LOOP_ROUNDS + 1):  # the last iteration cannot change anything
        walker.symbols.enter_body()
        for value, facts in (*fixed, *zip(states, held, strict=True)):
            set_info(value, facts)
        walker.walk(body)
        wider = [_widened(walker, v, old, info(r)) for v, old, r in zip(states, held, results, strict=True)]
        outside = walker.symbols.leave_body()
        if wider == held:
            break
        held = [Info(f.dtype, None, None, f.kind) for f in wider] if round_ == MAX_LOOP_ROUNDS - 1 else wider
    walker.depth -= 1
    return held, outside


def _widened(walker: Walker, value: ir.Value, old: Info, new: Info) -> Info:
    """Return the facts of the state that hold both before and after one more iteration."""
    dtype = old.dtype or new.dtype
    if old.shape is None or new.shape is None or len(old.shape) != len(new.shape):
        return Info(dtype, None, None, old.kind)
    pairs = enumerate(zip(old.shape, new.shape, strict=True))
    own = [a if a == b else walker.symbols.fresh(value, axis) for axis, (a, b) in pairs]
    return Info(dtype, tuple(own), None, old.kind)


def loop(walker: Walker, n: NodeFacts) -> list[Info]:
    body = n.graph("body")
    states = list(body.inputs[2:])
    count, condition = len(states), body.outputs[0]
    fixed = [(v, Info(t, _scalar(v))) for v, t in zip(body.inputs, (ir.DataType.INT64, ir.DataType.BOOL))]
    initial = [n.input(i + 2) for i in range(count)]
    held, outside = _iterate(walker, body, fixed, states, initial, body.outputs[1 : count + 1])
    last = [info(v) for v in body.outputs[1 : count + 1]] if _runs(n) else held
    outputs = [_export(n, i, facts, outside, keep_data=False) for i, facts in enumerate(last)]
    trips = _trips(n, body.inputs[1], condition)
    for i, value in enumerate(body.outputs[count + 1 :], count):
        outputs.append(_stacked(n, i, info(value), outside, trips, 0))
    return outputs


def _scalar(value: ir.Value) -> tuple[int, ...]:
    """Return the shape of the iteration number or the condition: () unless the body declares one axis."""
    return (1,) if value.shape is not None and len(value.shape) == 1 else ()


def _runs(n: NodeFacts) -> bool:
    """True if there is an iteration for certain, so that the state after the loop is what the body returns."""
    first = [n.input(i).constant if n.has(i) else np.array(1) for i in (0, 1)]
    return all(value is not None and value.size == 1 and value.item() > 0 for value in first)


def _trips(n: NodeFacts, before: ir.Value, after: ir.Value) -> Dim | None:
    """Return the number of iterations if it equals input M: the condition starts true and never changes."""
    starts = n.input(1).truth if n.has(1) else True
    always = origin(after) is before or info(after).truth
    if not starts or not always or n.input(0).data is None:
        return None
    dims = n.dims(0)
    return dim_max(dims[0], 0) if len(dims) == 1 else None


def _stacked(n: NodeFacts, output: int, facts: Info, outside: Outside, length: Dim | None, axis: int) -> Info:
    """Return the facts of the values of all iterations, stacked along an axis (counted in the stacked shape)."""
    if facts.shape is None:
        return Info(facts.dtype)
    dims: list[Dim | None] = [*facts.shape]
    dims.insert(axis + len(dims) + 1 if axis < 0 else axis, length)
    return Info(facts.dtype, _outer(n, output, dims, outside))


def scan(walker: Walker, n: NodeFacts) -> list[Info]:
    """Infer Scan. Opset 8 has a batch axis before all others, and the sequences' lengths as first input."""
    if n.opset < 9:
        return _scan_batched(walker, n)
    held, outside, length = _scanned(walker, n, [n.input(i) for i in range(len(n.inputs))])
    outputs = [_export(n, i, facts, outside, keep_data=False) for i, facts in enumerate(held)]
    values = n.graph("body").outputs[len(held) :]
    axes = n.ints("scan_output_axes") or [0] * len(values)
    for i, (value, axis) in enumerate(zip(values, axes, strict=True), len(held)):
        outputs.append(_stacked(n, i, info(value), outside, length, axis))
    return outputs


def _scan_batched(walker: Walker, n: NodeFacts) -> list[Info]:
    inputs = [n.input(i) for i in range(1, len(n.inputs))]
    batch = next((f.shape[0] for f in inputs if f.shape), None)
    held, outside, length = _scanned(walker, n, [_drop(f, 0)[0] for f in inputs])
    outputs = [(facts, [batch]) for facts in held]
    outputs += [(info(value), [batch, length]) for value in n.graph("body").outputs[len(held) :]]
    return [
        Info(f.dtype, None if f.shape is None else _outer(n, i, [*before, *f.shape], outside))
        for i, (f, before) in enumerate(outputs)
    ]


def _scanned(walker: Walker, n: NodeFacts, inputs: list[Info]) -> tuple[list[Info], Outside, Dim | None]:
    """Propagate through a Scan's body. Returns the facts of its state, a test of dims, and the number of slices."""
    body, scans = n.graph("body"), n.int_("num_scan_inputs")
    count = len(inputs) - scans
    if scans < 0 or count < 0:
        raise Contradiction("Scan with fewer inputs than it says")
    axes = n.ints("scan_input_axes") or [0] * scans
    slices = [_drop(f, axis) for f, axis in zip(inputs[count:], axes, strict=True)]
    length = next((size for _, size in slices if size is not None), None)
    fixed = [(v, f) for v, (f, _) in zip(body.inputs[count:], slices, strict=True)]
    held, outside = _iterate(walker, body, fixed, list(body.inputs[:count]), inputs[:count], body.outputs[:count])
    return held, outside, length


def _drop(facts: Info, axis: int) -> tuple[Info, Dim | None]:
    """Return the facts of one slice along an axis, and the number of slices."""
    if facts.shape is None or not -len(facts.shape) <= axis < len(facts.shape):
        return Info(facts.dtype), None
    shape = list(facts.shape)
    size = shape.pop(axis)
    return Info(facts.dtype, tuple(shape)), size


def sequence_map(walker: Walker, n: NodeFacts) -> list[Info]:
    body = n.graph("body")
    facts = [n.input(i) for i in range(len(body.inputs))]
    _walk(walker, body, (Info(f.dtype) if f.kind == "sequence" else f for f in facts))
    return [Info(info(value).dtype, None, None, "sequence") for value in body.outputs]


def gradient(walker: Walker, n: NodeFacts) -> list[Info]:
    """Infer Gradient: each output has the type and shape of the variable it belongs to."""
    facts = [replace(n.input(i), data=None) for i in range(len(n.node.inputs))]
    _walk(walker, n.graph("body"), facts)
    return facts[: len(n.node.outputs)]


def unknown_bodies(walker: Walker, n: NodeFacts) -> list[Info]:
    """Infer an unknown operator: nothing. The values of its subgraphs get the facts that do not depend on it."""
    for graph in subgraphs(n.node):
        _walk(walker, graph, [UNKNOWN] * len(graph.inputs))
    return []
