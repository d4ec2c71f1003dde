"""Record results of a module's PyTorch functions, and compare them with the file's, node by node.

*Step by step*, if one comparison from inputs to outputs is not conclusive. A network that ranks,
rounds or normalises nearly equal numbers turns rounding errors into large differences. So the file
runs on the module's intermediate results. The file computes each such value from the module's
earlier values, and later nodes take the module's value. If every step agrees, the module's outputs
differ from the file's by at most one rounding error per step. It does not matter which result of
the module is chosen for a value: a wrong choice fails in the next comparison.

*Located*: the first node where a module and its ONNX file differ, its line in the module, and the
difference. A freshly generated module is correct, since generation validates it. It runs on the
same inputs as the examined module. The first result that only the correct module has is looked up
among the results of the ONNX graph's nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.common.names import printable
from onnxgen.graph.operators import having
from onnxgen.graph.traits import SAME, VIEW
from onnxgen.options import Options
from onnxgen.runtime.load import load
from onnxgen.verify import torch_side
from onnxgen.verify.convert import to_torch
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import Onnxruntime, Refused, intermediate
from onnxgen.verify.report import Located

MAX_TRACE_BYTES = 1 << 30  # bytes of results that a trace keeps; later results are ignored
MAX_CHANCE_NUMBERS = 3  # arrays with at most this many distinct numbers may be equal by chance
MIN_UNORDERED_ELEMENTS = 64  # arrays of this many elements with the same numbers count as the same, in any order
MAX_PERMUTED_AXES = 6  # largest rank for which every order of axes is tried
SAME_RTOL = 1e-4  # relative tolerance between results of a correct module and of onnxruntime
HALF_RTOL = {"float16": 4e-3, "bfloat16": 3e-2}  # the same for computations in half precision
Alike = Callable[[NDArray[Any], NDArray[Any], float], bool]


@dataclass(frozen=True)
class Event:
    """One call of a PyTorch function: arguments, results, and the line of the module that made it."""

    function: str
    line: int
    arguments: list[NDArray[Any]]
    results: list[NDArray[Any]]


class _Trace(TorchFunctionMode):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.events, self.room = file, list[Event](), MAX_TRACE_BYTES
        self.kept: dict[int, tuple[Tensor, int, NDArray[Any]]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # The numbers are copied before the call, which may change them.
        taken = [self._numbers(t) for t in args if isinstance(t, Tensor) and self.room > 0]
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, Tensor)]
        name = getattr(function, "__name__", str(function))
        if tensors and self.room > 0 and name != "__get__":
            self.events.append(Event(name, self._line(), taken, [self._numbers(t) for t in tensors]))
        return result

    def _numbers(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a tensor's numbers; the same copy for every function that takes it."""
        known = self.kept.get(id(tensor))
        if known is not None and known[1] == tensor._version:
            return known[2]
        plain = tensor.detach()
        wide = torch.complex128 if plain.is_complex() else torch.float64
        wide = plain.dtype if plain.dtype in (torch.float32, torch.float64) else wide
        array: NDArray[Any] = plain.to(wide).numpy().copy()
        self.kept[id(tensor)] = tensor, tensor._version, array  # keep the tensor, or its id may be reused
        self.room -= array.nbytes
        return array

    def _line(self) -> int:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)


def traced(module: nn.Module, graph: Graph, feeds: Mapping[str, Any]) -> list[Event]:
    """Return the calls of a module's functions on some inputs, up to a failure if there is one."""
    file = sys.modules[type(module).__module__].__file__ if type(module).__module__ in sys.modules else None
    file = module.forward.__code__.co_filename if hasattr(module.forward, "__code__") else file
    trace = _Trace(file or "")
    with torch_side.in_mode(module, graph), torch.no_grad(), trace, suppress(Exception):
        module(*map(to_torch, feeds.values()))
    return trace.events


def same(graph: Graph) -> float:
    """Return the relative difference that is allowed between results of a correct module and of onnxruntime."""
    return max([SAME_RTOL, *(HALF_RTOL.get(str(dtype.numpy()), SAME_RTOL) for dtype in graph.halves)])


class Results:
    """The arrays of a trace, searchable in any layout."""

    def __init__(self, events: Sequence[Event], *, arguments: bool = False) -> None:
        """`arguments`: include the arguments of functions."""
        self.by_size: dict[int, dict[int, NDArray[Any]]] = {}
        self.by_function: dict[str, list[NDArray[Any]]] = {}
        for event in events:
            self.by_function.setdefault(event.function, []).extend(event.results)
            for array in event.results + (event.arguments if arguments else []):
                self.by_size.setdefault(array.size, {})[id(array)] = array

    def has(self, array: NDArray[Any], rtol: float, alike: Alike) -> bool:
        return any(alike(array, result, rtol) for result in self.by_size.get(array.size, {}).values())

    def takes(self, function: str, array: NDArray[Any], rtol: float) -> bool:
        """Return True if the function returned this array. The match is used up: it matches no other array."""
        unmatched = self.by_function.get(function, [])
        at = next((i for i, result in enumerate(unmatched) if close(array, result, rtol)), None)
        if at is not None:
            del unmatched[at]
        return at is not None


def alike(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """Return True if two arrays have the same numbers, perhaps in another layout.

    Arrays with few elements, or symmetric about 0, may have equal numbers by chance or up to sign. For these the
    elements must also be equal in some order of the axes.
    """
    if a.size != b.size:
        return False
    if close(a, b, rtol) or is_plain(a):
        return close(a, b, rtol)
    ordered = np.sort(a, axis=None)
    if not close(ordered, np.sort(b, axis=None), rtol):
        return False
    if a.size >= MIN_UNORDERED_ELEMENTS and not close(ordered, -ordered[::-1], rtol):
        return True
    return in_order(a, b, rtol) or _in_other_axes(a, b, rtol) or _in_other_axes(b, a, rtol)


def _in_other_axes(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    squeezed = a.squeeze()
    if squeezed.ndim > MAX_PERMUTED_AXES:
        return True
    return any(in_order(squeezed.transpose(order), b, rtol) for order in permutations(range(squeezed.ndim)))


def in_order(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """Return True if two arrays have the same numbers in the same order, perhaps in another shape."""
    return a.size == b.size and close(a.ravel(), b.ravel(), rtol)


def close(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """Return True if two arrays have the same shape and the same numbers at the same places."""
    if a.shape != b.shape:
        return False
    finite = a[np.isfinite(a)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol * 0.1 * scale, equal_nan=True))


def is_plain(array: NDArray[Any]) -> bool:
    """Return True if an array has so few distinct numbers that another one may have the same by chance."""
    return bool(np.unique(array).size <= MAX_CHANCE_NUMBERS)


MAX_DISTANCE = 0.5  # results at this distance are another value; a part of the value's size, in root mean square
_TYPES: dict[int, type[np.floating[Any]]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.FLOAT16: np.float16,
}
MODULE = "/of the module"


def stepwise(
    path: Path, model: onnx.ModelProto, graph: Graph, module: nn.Module, feeds: Mapping[str, Any]
) -> tuple[int, list[Any]] | None:
    """Run the file on the module's intermediate results. `model`: the file's graph; it is changed.

    Returns:
        the number of those results and the file's outputs; None if a step differs, or there are no such results.
    """
    values = _of_module(intermediate(path, model, feeds), module, graph, feeds)
    outputs = {value.name for value in model.graph.output}
    steps = {
        name: value.astype(_TYPES[graph.types[name]])
        for name, value in values.items()
        if graph.types.get(name) in _TYPES and name not in outputs
    }
    if not steps:
        return None
    _force(model, steps)
    try:
        results = Onnxruntime(path, model, ()).run({**feeds, **{name + MODULE: value for name, value in steps.items()}})
    except Refused:
        return None
    named = dict(zip((value.name for value in model.graph.output), results, strict=True))
    rtol = same(graph)
    if not all(_agree(named[name], value, rtol) for name, value in steps.items()):
        return None
    return len(steps), results[: len(outputs)]


def _of_module(
    values: Mapping[str, NDArray[Any]], module: nn.Module, graph: Graph, feeds: Mapping[str, Any]
) -> dict[str, NDArray[Any]]:
    """Return the module's nearest result for each value of the file, in the value's shape."""
    by_size: dict[int, list[NDArray[Any]]] = {}
    for event in traced(module, graph, feeds):
        for result in event.results:
            by_size.setdefault(result.size, []).append(result)
    nearest = {}
    for name, value in values.items():
        near = [result.reshape(value.shape) for result in by_size.get(value.size, []) if result.dtype.kind == "f"]
        distances = [_ulp_distance(value, result) for result in near]
        if value.size > 1 and distances and min(distances) < MAX_DISTANCE:
            nearest[name] = near[distances.index(min(distances))]
    return nearest


def _ulp_distance(value: NDArray[Any], result: NDArray[Any]) -> float:
    """Return the distance relative to the value's size, both in root mean square."""
    with np.errstate(all="ignore"):
        size, far = float(np.square(value).sum()), float(np.square(value - result).sum())
    return np.inf if not np.isfinite(far) or not size else float(np.sqrt(far / size))


def _force(model: onnx.ModelProto, steps: Mapping[str, NDArray[Any]]) -> None:
    """Add main graph inputs for values, and let nodes use these. The file still computes the values, as outputs."""
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name in steps:
                node.input[i] = name + MODULE
    for name, value in steps.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name + MODULE, kind, value.shape))
        model.graph.output.append(onnx.ValueInfoProto(name=name))


def _agree(expected: Any, got: NDArray[Any], rtol: float) -> bool:
    if not isinstance(expected, np.ndarray) or expected.shape != got.shape:
        return False
    a, b = expected.astype(np.float64), got.astype(np.float64)
    size = float(np.sqrt(np.mean(np.square(a[np.isfinite(a)])))) if np.isfinite(a).any() else 0.0
    return bool(np.allclose(b, a, rtol=rtol, atol=rtol * size, equal_nan=True))


PARTS = 1e-5  # relative difference above which results of two modules differ; equal code gives equal bits


def locate(
    path: Path,
    model: onnx.ModelProto,
    options: Options,
    graph: Graph,
    module: nn.Module,
    feeds: Mapping[str, Any],
    moved: Sequence[str],
    wrong: Sequence[str],
) -> Located | None:
    """Return the first place where a module differs from its ONNX file on some inputs, or None if there is none.

    Args:
        model: the file's graph, or the part of it that the module was generated from.
        moved: initializers that differ from the module's weights; the first node that uses one is the result.
        wrong: the outputs that differ.
    """
    if moved:
        return _user(model, moved[0])
    right = load(path, options)
    expected, got = traced(right, graph, feeds), traced(module, graph, feeds)
    values = intermediate(path, model, feeds)
    had = _Had(model, values, expected, got, same(graph))
    for equal in (alike, in_order):  # another layout is not a fault, unless there is no other fault
        at = next(_strange(expected, got, equal), None)
        strange = had.fault(got[i] for i in _strange(got, expected, equal))
        if at is not None:
            last = _looked_up(had, expected, at)
            return None if last is None else _located(_first(last, had, strange), expected[at], strange)
    # all results of a correct module are there, so one of them is used in a wrong place
    strange = had.fault(got[i] for i in _strange(got, expected, close))
    last = next((had.made[name] for name in wrong if name in had.made), None)
    return None if last is None else _located(_first(last, had, strange), None, strange)


def _located(node: onnx.NodeProto, expected: Event | None, strange: Event | None) -> Located:
    """Describe a node. `strange`: the first event of the module that a correct module does not have."""
    line = 0 if strange is None else strange.line
    name = printable(node.name or node.output[0])
    return Located(name, node.op_type, line, float("nan") if expected is None else _largest(expected, strange))


def _strange(events: Sequence[Event], others: Sequence[Event], equal: Alike) -> Iterator[int]:
    """Yield the indices of events with a result that `others` lack. The order of events does not count.

    A result of very few distinct numbers may be equal by chance, so it must come from the same function.
    """
    known = Results(others)
    for i, event in enumerate(events):
        if not all(
            known.takes(event.function, r, PARTS) if is_plain(r) else known.has(r, PARTS, equal) for r in event.results
        ):
            yield i


def _looked_up(had: _Had, expected: Sequence[Event], at: int) -> onnx.NodeProto | None:
    """Return the node that computes the result of an event, or of the first event after it that a node computes.

    Args:
        expected: the events of a correct module.
        at: the index of the first event that the module lacks.
    """
    for event in expected[at:]:
        nodes = [n for n in had.nodes if had.given(n, event) is not None]
        if not nodes:
            continue
        values = [value for n in nodes if (value := had.given(n, event)) is not None]
        order = [(_is_others(value, event, values, expected), -had.taken(n, event)) for n, value in zip(nodes, values)]
        last: onnx.NodeProto = nodes[min(range(len(nodes)), key=order.__getitem__)]
        return last
    return None


def _is_others(value: NDArray[Any], event: Event, rivals: Sequence[NDArray[Any]], events: Sequence[Event]) -> bool:
    """Return True if a value belongs to another event, whose result is nearer to it than to any rival value."""
    own = min(_distance(value, r) for r in event.results if r.size == value.size)
    others = (r for e in events if e is not event for r in e.results if r.shape == value.shape)
    nearer = (r for r in others if _distance(value, r) < own)
    return any(
        all(_distance(value, r) <= _distance(rival, r) for rival in rivals if rival.size == r.size) for r in nearer
    )


def _distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.abs(np.sort(a, axis=None) - np.sort(b, axis=None))).max()) if a.size else 0.0


def _largest(expected: Event, got: Event | None) -> float:
    """Return the largest difference between two events' results of the same shapes."""
    pairs = zip(expected.results, () if got is None else got.results, strict=False)
    with np.errstate(all="ignore"):
        differences = [float(np.nan_to_num(np.abs(a - b)).max()) for a, b in pairs if a.shape == b.shape and a.size]
    return max(differences, default=float("inf"))


class _Had:
    """The values of an ONNX graph that a module computes, found among the results of its functions."""

    def __init__(
        self,
        model: onnx.ModelProto,
        values: Mapping[str, NDArray[Any]],
        expected: Sequence[Event],
        got: Sequence[Event],
        rtol: float,
    ) -> None:
        """`expected`: the events of a correct module. `rtol`: the relative difference of results that are the same."""
        self.nodes, self.values, self.same = model.graph.node, values, rtol
        self.results, self.right = Results(got, arguments=True), Results(expected, arguments=True)
        self.order = {name: i for i, node in enumerate(self.nodes) for name in node.output}
        self.made = {name: node for node in self.nodes for name in node.output}
        self.constant = {tensor.name for tensor in model.graph.initializer}
        for node in self.nodes:
            if all(name in self.constant or not name for name in node.input):
                self.constant.update(node.output)

    def __call__(self, name: str, equal: Alike) -> bool:
        """Return True if the module has a value, or if the value cannot be compared or depends on no input.

        A module need not rearrange elements as the file does: it has a rearranged value if it has the original.
        """
        node = self.made.get(name)
        if node is None or name in self.constant or name not in self.values:
            return True
        if self.results.has(self.values[name], self.same, equal):
            return True
        return _arranges(node) and equal is alike and self(node.input[0], equal)

    def given(self, node: onnx.NodeProto, event: Event) -> NDArray[Any] | None:
        """Return the result of a node that is also a result of an event, or None."""
        return next(
            (value for value in self._known(node.output) if any(alike(value, r, self.same) for r in event.results)),
            None,
        )

    def taken(self, node: onnx.NodeProto, event: Event) -> int:
        """Return the number of a node's inputs that are arguments of an event. Ranks nodes with the same result."""
        inputs = self._known(node.input)
        return sum(any(alike(value, argument, self.same) for argument in event.arguments) for value in inputs)

    def _known(self, names: Iterable[str]) -> list[NDArray[Any]]:
        """Return the values of these names that were computed."""
        return [self.values[name] for name in names if name in self.values]

    def out_of_order(self, name: str) -> bool:
        """Return True if a correct module has the value with its elements in order, and this module does not."""
        return not self(name, in_order) and self.right.has(self.values[name], self.same, in_order)

    def fault(self, strange: Iterable[Event]) -> Event | None:
        """Return the first unexpected event whose result the file does not have, else the first unexpected event."""
        events = list(strange)
        known: dict[int, list[NDArray[Any]]] = {}
        for value in self.values.values():
            if not is_plain(value):
                known.setdefault(value.size, []).append(value)
        own = (e for e in events if not any(alike(v, r, self.same) for r in e.results for v in known.get(r.size, ())))
        return next(own, next(iter(events), None))

    def miscomputes(self, node: onnx.NodeProto, event: Event) -> bool:
        """Return True if an event takes the inputs of a node and returns a different result of the same size."""
        names = [name for name in node.input if name and name not in self.constant]
        inputs = self._known(names)
        numbers = [argument for argument in event.arguments if argument.size > 1]
        pairs = [[in_order(value, a, self.same) for a in numbers] for value in inputs]
        taken = all(map(any, pairs)) and (len(pairs) < len(names) or all(map(any, zip(*pairs))))
        sizes = {value.size for value in self._known(node.output)}
        is_size = any(result.size in sizes for result in event.results)
        return bool(inputs) and taken and is_size and self.given(node, event) is None


def _first(last: onnx.NodeProto, had: _Had, strange: Event | None) -> onnx.NodeProto:
    """Return the first node, in graph order, whose result the module lacks, on the path to the last one.

    The module may compute nodes one by one that a correct module computes in one call. So the path begins after the
    values that the module has.
    """
    region = _lacking(last, had)
    if strange is not None and had.miscomputes(last, strange):
        return last
    # nodes that are correct may get the right elements in a wrong order
    misplaced = [node for user in region for name in user.input for node in _misplaced(name, had)]
    first = min(misplaced or region, key=lambda node: had.order[next(filter(None, node.output))])
    # another node with the same result is correct, so this one is wrong
    twins = [had.made[name] for name in first.input if name in had.made and name not in had.constant]
    return next((node for node in twins if strange is not None and had.miscomputes(node, strange)), first)


def _lacking(last: onnx.NodeProto, had: _Had) -> list[onnx.NodeProto]:
    """Return a node, and those on the way to it whose results the module lacks."""
    todo, region = [last], [last]
    while todo:
        for name in todo.pop().input:
            if not had(name, alike) and had.made[name] not in region:
                region.append(had.made[name])
                todo.append(had.made[name])
    return region


def _arranges(node: onnx.NodeProto) -> bool:
    return node.op_type in having(VIEW) or node.op_type in ("Split", "Expand")


def _misplaced(name: str, had: _Had) -> Iterator[onnx.NodeProto]:
    """Yield the nodes on the way to a value that only rearrange elements, if the module orders them differently."""
    node = had.made.get(name)
    while node is not None and (_arranges(node) or had.out_of_order(name)):
        if had.out_of_order(name):
            yield node
        name = node.input[0] if node.input else ""
        node = had.made.get(name)


def _user(model: onnx.ModelProto, name: str) -> Located | None:
    """Return the first node that takes an initializer, following copies and casts."""
    names = {name}
    for node in model.graph.node:
        if names.isdisjoint(node.input):
            continue
        if node.op_type not in having(SAME, VIEW):
            return Located(printable(node.name or node.output[0]), node.op_type, 0, float("nan"))
        names.update(node.output)
    return None
