"""Locate the first node where a module and its ONNX file differ, its line in the module, and the difference.

A freshly generated module is correct, since generation validates it. It runs on the same inputs as the examined module,
and the results of all PyTorch functions are recorded. The first result that only the correct module has is looked up
among the results of the ONNX graph's nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from torch import nn

from onnxgen.common.names import printable
from onnxgen.graph.catalogue import having
from onnxgen.graph.traits import SAME, VIEW
from onnxgen.options import Options
from onnxgen.runtime.load import load
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import intermediate
from onnxgen.verify.report import Located
from onnxgen.verify.trace import Alike, Event, Results, alike, close, in_order, is_plain, same, traced

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
        found = [value for n in nodes if (value := had.given(n, event)) is not None]
        order = [(_is_others(value, event, found, expected), -had.taken(n, event)) for n, value in zip(nodes, found)]
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
        found = [float(np.nan_to_num(np.abs(a - b)).max()) for a, b in pairs if a.shape == b.shape and a.size]
    return max(found, default=float("inf"))


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
        results = (self.values[name] for name in node.output if name in self.values)
        return next((value for value in results if any(alike(value, r, self.same) for r in event.results)), None)

    def taken(self, node: onnx.NodeProto, event: Event) -> int:
        """Return the number of a node's inputs that are arguments of an event. Ranks nodes with the same result."""
        inputs = [self.values[name] for name in node.input if name in self.values]
        return sum(any(alike(value, argument, self.same) for argument in event.arguments) for value in inputs)

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
        inputs = [self.values[name] for name in names if name in self.values]
        numbers = [argument for argument in event.arguments if argument.size > 1]
        pairs = [[in_order(value, a, self.same) for a in numbers] for value in inputs]
        taken = all(map(any, pairs)) and (len(pairs) < len(names) or all(map(any, zip(*pairs))))
        sizes = {self.values[name].size for name in node.output if name in self.values}
        is_size = any(result.size in sizes for result in event.results)
        return bool(inputs) and taken and is_size and self.given(node, event) is None


def _first(last: onnx.NodeProto, had: _Had, strange: Event | None) -> onnx.NodeProto:
    """Return the first node, in graph order, whose result the module lacks, on the path to the last one.

    The module may compute nodes one by one that a correct module computes in one call. So the path begins after the
    values that the module has.
    """
    todo, region = [last], [last]
    while todo:
        for name in todo.pop().input:
            if not had(name, alike) and had.made[name] not in region:
                region.append(had.made[name])
                todo.append(had.made[name])
    if strange is not None and had.miscomputes(last, strange):
        return last
    # nodes that are correct may get the right elements in a wrong order
    misplaced = [node for user in region for name in user.input for node in _misplaced(name, had)]
    first = min(misplaced or region, key=lambda node: had.order[next(filter(None, node.output))])
    # another node with the same result is correct, so this one is wrong
    twins = [had.made[name] for name in first.input if name in had.made and name not in had.constant]
    return next((node for node in twins if strange is not None and had.miscomputes(node, strange)), first)


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
