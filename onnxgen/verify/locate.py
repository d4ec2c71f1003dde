"""Locate the first node where a module and its ONNX file differ, its line in the module, and the difference.

A freshly generated module is right, or the file could not have been generated. It and the module that is looked into
run on the same inputs, and what their PyTorch functions return is kept; the first result of the right one that the
other never has is looked up among the results of the ONNX graph's nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.common.names import printable
from onnxgen.graph.catalogue import having
from onnxgen.graph.traits import VIEW
from onnxgen.options import Options
from onnxgen.runtime.load import load
from onnxgen.verify import torch_side
from onnxgen.verify.convert import to_torch
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import intermediate
from onnxgen.verify.report import Located

MOST = 1 << 28  # bytes of results that a trace keeps; later ones are not looked at
SAME = 1e-4  # relative: results of a right module and of onnxruntime that are one
Alike = Callable[[NDArray[Any], NDArray[Any], float], bool]
DISTINCT = 3  # different numbers, up to which arrays are the same by chance
PARTS = 1e-5  # relative: results of two modules that part; the same code gives the same bits


@dataclass(frozen=True)
class Event:
    """The arguments and results of one call of a PyTorch function, and the line of the module that made it."""

    function: str
    line: int
    arguments: list[NDArray[Any]]
    results: list[NDArray[Any]]


class _Trace(TorchFunctionMode):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.events, self.room = file, list[Event](), MOST

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        taken = [_numbers(t) for t in args if isinstance(t, Tensor) and self.room > 0]  # before it changes them
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, Tensor)]
        self.room -= sum(t.numel() * 8 for t in tensors) + sum(a.nbytes for a in taken)
        name = getattr(function, "__name__", str(function))
        if tensors and self.room > 0 and name != "__get__":
            self.events.append(Event(name, self._line(), taken, [_numbers(t) for t in tensors]))
        return result

    def _line(self) -> int:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)


def _numbers(tensor: Tensor) -> NDArray[Any]:
    plain = tensor.detach()
    return (plain.to(torch.complex128) if plain.is_complex() else plain.double()).numpy().copy()


def locate(
    path: Path,
    model: onnx.ModelProto,
    options: Options,
    graph: Graph,
    module: nn.Module,
    feeds: Mapping[str, Any],
    moved: Sequence[str],
) -> Located | None:
    """The first place where a module parts from its ONNX file on some inputs; None if none was found.

    Args:
        model: the file's graph, or the part of it that the module is.
        moved: initializers of which the module's weights hold other values; the first node that takes one is it.
    """
    if moved:
        return _user(model, moved[0])
    right = load(path, options)
    expected, got = _traced(right, graph, feeds), _traced(module, graph, feeds)
    for alike in (_alike, _in_order):  # a layout of its own is no fault, unless nothing else is one
        parted = next(_strange(expected, got, alike), None)
        if parted is not None:
            at = next(i for i, event in enumerate(expected) if event is parted)
            return _looked_up(path, model, feeds, expected, at, got, next(_strange(got, expected, alike), None))
    return None


def _strange(events: Sequence[Event], others: Sequence[Event], alike: Alike) -> Iterator[Event]:
    """The events of which a result is none of the others', whatever the order: two modules may compute in two.

    A few numbers, or zeros and ones, can be another function's by chance.
    """
    known = _Results(others)
    for event in events:
        if not all(
            known.takes(event.function, r) if _is_plain(r) else known.has(r, PARTS, alike) for r in event.results
        ):
            yield event


class _Results:
    """The results of a trace: is an array one of them, perhaps in another layout?"""

    def __init__(self, events: Sequence[Event]) -> None:
        self.by_size: dict[int, list[NDArray[Any]]] = {}
        self.by_function: dict[str, list[NDArray[Any]]] = {}
        for event in events:
            for result in event.results:
                self.by_size.setdefault(result.size, []).append(result)
                self.by_function.setdefault(event.function, []).append(result)

    def has(self, array: NDArray[Any], rtol: float, alike: Alike) -> bool:
        return any(alike(array, result, rtol) for result in self.by_size.get(array.size, []))

    def takes(self, function: str, array: NDArray[Any]) -> bool:
        """Whether it is one that the function returned, which no other array is then."""
        found = self.by_function.get(function, [])
        at = next((i for i, result in enumerate(found) if _close(array, result, PARTS)), None)
        if at is not None:
            del found[at]
        return at is not None


def _traced(module: nn.Module, graph: Graph, feeds: Mapping[str, Any]) -> list[Event]:
    file = sys.modules[type(module).__module__].__file__ if type(module).__module__ in sys.modules else None
    file = module.forward.__code__.co_filename if hasattr(module.forward, "__code__") else file
    trace = _Trace(file or "")
    with torch_side.in_mode(module, graph), torch.no_grad(), trace, suppress(Exception):
        module(*map(to_torch, feeds.values()))  # if it fails, what it did until then is what is asked for
    return trace.events


def _close(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    if a.shape != b.shape:
        return False
    finite = a[np.isfinite(a)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol * 0.1 * scale, equal_nan=True))


def _looked_up(
    path: Path,
    model: onnx.ModelProto,
    feeds: Mapping[str, Any],
    expected: Sequence[Event],
    at: int,
    got: Sequence[Event],
    strange: Event | None,
) -> Located | None:
    """The first node of those that the parting event stands for, which may be many: a whole norm is one function.

    They end at the node whose result the right module has there, or has next. They begin behind the results that the
    module does have: it may compute one by one what a right module computes at once.

    Args:
        expected: what a right module computes; from the event `at` on the module does not have it.
        strange: the first event of the module that a right one does not have.
    """
    values = intermediate(path, model, feeds)
    had = _Had(model, values, _Results(got))
    line = 0 if strange is None else strange.line
    for event in expected[at:]:
        nodes = [n for n in model.graph.node if _given(n, event, values) is not None]
        if not nodes:
            continue
        found = [value for n in nodes if (value := _given(n, event, values)) is not None]
        order = [
            (_is_others(value, event, found, expected), -_taken(n, event, values)) for n, value in zip(nodes, found)
        ]
        first = _first(nodes[min(range(len(nodes)), key=order.__getitem__)], had)
        name = printable(first.name or first.output[0])
        return Located(name, first.op_type, line, _largest(expected[at], strange))
    return None


def _given(node: onnx.NodeProto, event: Event, values: Mapping[str, NDArray[Any]]) -> NDArray[Any] | None:
    """The result of a node that is one of an event, too."""
    results = (values[name] for name in node.output if name in values)
    return next((value for value in results if any(_alike(value, r, SAME) for r in event.results)), None)


def _is_others(value: NDArray[Any], event: Event, rivals: Sequence[NDArray[Any]], events: Sequence[Event]) -> bool:
    """Whether a value is another event's: it is nearer to that one, which no rival of the value is nearer to."""
    own = min(_distance(value, r) for r in event.results if r.size == value.size)
    others = (r for e in events if e is not event for r in e.results if r.shape == value.shape)
    nearer = (r for r in others if _distance(value, r) < own)
    return any(
        all(_distance(value, r) <= _distance(rival, r) for rival in rivals if rival.size == r.size) for r in nearer
    )


def _taken(node: onnx.NodeProto, event: Event, values: Mapping[str, NDArray[Any]]) -> int:
    """How many of a node's inputs are arguments of a function: of several nodes with one result the likeliest."""
    inputs = [values[name] for name in node.input if name in values]
    return sum(any(_alike(value, argument, SAME) for argument in event.arguments) for value in inputs)


def _distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    with np.errstate(all="ignore"):
        return float(np.nan_to_num(np.abs(np.sort(a, axis=None) - np.sort(b, axis=None))).max()) if a.size else 0.0


def _largest(expected: Event, got: Event | None) -> float:
    """The largest difference of two events' results, where they have the same shapes."""
    pairs = zip(expected.results, () if got is None else got.results, strict=False)
    with np.errstate(all="ignore"):
        found = [float(np.nan_to_num(np.abs(a - b)).max()) for a, b in pairs if a.shape == b.shape and a.size]
    return max(found, default=float("inf"))


class _Had:
    """The values of an ONNX graph that a module computes, found among the results of its functions."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, NDArray[Any]], results: _Results) -> None:
        self.values, self.results = values, results
        self.order = {name: i for i, node in enumerate(model.graph.node) for name in node.output}
        self.made = {name: node for node in model.graph.node for name in node.output}
        self.constant = {tensor.name for tensor in model.graph.initializer}
        for node in model.graph.node:
            if all(name in self.constant or not name for name in node.input):
                self.constant.update(node.output)

    def __call__(self, name: str, alike: Alike) -> bool:
        """Whether the module has a value, or it depends on no input, or it is none that can be compared.

        What only arranges a value's elements a module need not do: it has the one if it has the other.
        """
        node = self.made.get(name)
        if node is None or name in self.constant or name not in self.values:
            return True
        if self.results.has(self.values[name], SAME, alike):
            return True
        return (
            (node.op_type in having(VIEW) or node.op_type in ("Split", "Expand"))
            and node.input[0] in self.made
            and self(node.input[0], alike)
        )


def _first(last: onnx.NodeProto, had: _Had) -> onnx.NodeProto:
    """The first node, in the graph's order, on the way to the last one whose result the module does not have."""
    todo, region = [last], [last]
    while todo:
        for name in todo.pop().input:
            if not had(name, _alike) and had.made[name] not in region:
                region.append(had.made[name])
                todo.append(had.made[name])
    if region != [last]:
        return min(region, key=lambda node: had.order[next(filter(None, node.output))])
    while made := next((had.made[name] for name in last.input if not had(name, _in_order)), None):
        last = made  # it is right, and is given the right elements in a wrong order
    return last


def _alike(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """The same numbers, perhaps in another layout."""
    if a.size != b.size:
        return False
    return _close(a, b, rtol) or (not _is_plain(a) and _close(np.sort(a, axis=None), np.sort(b, axis=None), rtol))


def _in_order(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """The same numbers in the same order, perhaps in another shape."""
    return a.size == b.size and _close(a.ravel(), b.ravel(), rtol)


def _is_plain(array: NDArray[Any]) -> bool:
    """Whether there are so few different numbers in it that another array has the same by chance."""
    return bool(np.unique(array).size <= DISTINCT)


def _user(model: onnx.ModelProto, name: str) -> Located | None:
    """The first node that takes an initializer, through the copies and casts that only hand it on."""
    names = {name}
    for node in model.graph.node:
        if names.isdisjoint(node.input):
            continue
        if node.op_type not in ("Identity", "Cast", "DequantizeLinear", "Transpose"):
            return Located(printable(node.name or node.output[0]), node.op_type, 0, float("nan"))
        names.update(node.output)
    return None
