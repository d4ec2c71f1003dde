"""What a graph computes behind its raw maps, and the same decoding in numpy.

`Response` has the values that a graph computes for given maps. `onnx.reference` computes them. `Probe` sees what it
computes of every point, for maps of zeros, of ones and of drawn numbers (`Seen`). `corners` and `scores` decode raw
maps as a record says: a reading of a head is checked with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.errors import FIX_SHAPE, OnnxgenError
from onnxgen.graph.nodes import subgraphs
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import SELECTS
from onnxgen.record.tail import Channels, Level, Tail
from onnxgen.shapes.info import info

Array = NDArray[Any]


class Response:
    """Computes what stands behind raw maps: every float value up to operators that choose among the points.

    Args:
        model: the graph, whose shapes are propagated.
        raw: the raw maps.
        nodes: the nodes behind them (`frontier.behind`).

    Attributes:
        names: the values that are computed, in the order of the graph.

    Raises:
        OnnxgenError: sizes are unknown, or a node can't be computed.
    """

    def __init__(self, model: ir.Model, raw: Sequence[ir.Value], nodes: Sequence[ir.Node]) -> None:
        self.shapes = {str(value.name): sizes(value) for value in raw}
        early = _before_choices(nodes)
        ends = [value for node in early for value in node.outputs]
        beside = {value for node in early for value in node.inputs if value is not None} - {*raw, *ends}
        self.beside = {str(v.name): sizes(v) for v in beside if v.const_value is None and v.name}
        self.names = [str(value.name) for value in ends if value.name]
        stored = [value for value in beside if value.const_value is not None]
        self.evaluator = _evaluator(model, early, stored, [*self.shapes, *self.beside], self.names)

    def __call__(self, maps: Mapping[str, Array]) -> dict[str, Array]:
        """Return the float values behind the raw maps of these names."""
        feeds = {**maps, **{name: np.zeros(shape, np.float32) for name, shape in self.beside.items()}}
        try:
            outputs = self.evaluator.run(None, feeds)
        except Exception as error:  # the evaluator raises errors of every kind
            what = f"what is behind the raw maps can't be computed: {printable(str(error), 200)}"
            raise OnnxgenError(what) from None
        return {name: value for name, value in zip(self.names, outputs) if getattr(value, "dtype", None) == np.float32}


def _before_choices(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes that are computed before anything is chosen, without those that run graphs."""
    early, late = list[ir.Node](), set[ir.Value | None]()
    for node in nodes:
        if is_a(node, SELECTS) or not late.isdisjoint(node.inputs) or any(True for _ in subgraphs(node)):
            late.update(node.outputs)
        else:
            early.append(node)
    return early


def sizes(value: ir.Value) -> tuple[int, ...]:
    """Return the sizes of a value. An open first axis counts as 1.

    Raises:
        OnnxgenError: another axis is open.
    """
    dims = info(value).shape
    if dims and not isinstance(dims[0], int):
        dims = (1, *dims[1:])
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        what = f"the sizes of {printable(value.name or '')} are not fixed"
        raise OnnxgenError(what, help=FIX_SHAPE)
    return tuple(int(dim) for dim in dims)  # type: ignore[arg-type]


def _evaluator(
    model: ir.Model, nodes: Sequence[ir.Node], stored: Sequence[ir.Value], inputs: Sequence[str], outputs: Sequence[str]
) -> Any:
    from onnx.reference import ReferenceEvaluator  # imported here: it takes half a second

    graph = onnx.GraphProto(name="tail", node=[ir.serde.serialize_node(node) for node in nodes])
    for value in stored:
        assert value.const_value is not None
        tensor = ir.serde.serialize_tensor(ir.tensor(value.const_value.numpy(), value.const_value.dtype))
        tensor.name = str(value.name)
        graph.initializer.append(tensor)
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    proto = onnx.ModelProto(ir_version=10, graph=graph)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    try:
        return ReferenceEvaluator(proto)
    except Exception as error:  # an operator that it does not know, say
        raise OnnxgenError(f"what is behind the raw maps can't be computed: {printable(str(error), 200)}") from None


SEED = 0  # of the drawn maps


@dataclass(frozen=True)
class Grid:
    """Rows, columns and anchors of each level of a head, from the finest to the coarsest."""

    sizes: tuple[tuple[int, int], ...]
    anchors: tuple[int, ...]

    @property
    def counts(self) -> list[int]:
        """Return the number of points of each level."""
        return [height * width * anchors for (height, width), anchors in zip(self.sizes, self.anchors)]

    def orders(self) -> Iterator[Array]:
        """Yield the orders in which a graph may have the points: where each point is, in the order of `decoding`."""
        starts = np.cumsum([0, *self.counts])
        parts = [np.arange(a, b) for a, b in zip(starts, starts[1:])]
        turned = [
            part.reshape(anchors, -1).T.ravel() for part, anchors in zip(parts, self.anchors)
        ]  # anchors come first in the graph
        yield np.concatenate(parts)
        if max(self.anchors) > 1:
            yield np.concatenate(turned)
        if len(parts) > 1:
            ends = [part + starts[-1] - start - stop for part, start, stop in zip(parts, starts, starts[1:])]
            yield np.concatenate(ends)
            if max(self.anchors) > 1:
                moved = [end[part - part.min()] for end, part in zip(ends, turned)]
                yield np.concatenate(moved)


@dataclass(frozen=True)
class Seen:
    """A value, or one of each level, as [points, columns] for the three kinds of maps."""

    name: str
    zeros: Array
    ones: Array
    drawn: Array

    def ordered(self, order: Array) -> Seen:
        """Return it with other rows."""
        return replace(self, zeros=self.zeros[order], ones=self.ones[order], drawn=self.drawn[order])


class Probe:
    """Asks a graph once for each kind of maps.

    Attributes:
        maps: the drawn maps by name.
    """

    def __init__(self, response: Response) -> None:
        drawn = np.random.default_rng(SEED)
        shapes = response.shapes
        self.maps = {name: drawn.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        feeds = ({n: np.full(shape, fill, np.float32) for n, shape in shapes.items()} for fill in (0, 1))
        with np.errstate(all="ignore"):
            self.values = [response(feed) for feed in (*feeds, self.maps)]
        self.names = [name for name in response.names if name in self.values[2]]

    def seen(self, counts: Sequence[int]) -> list[Seen]:
        """Return what has a row for each point of levels with so many points. Array of the whole graph come last."""
        joined: list[Seen] = []
        if len(set(counts)) == len(counts) > 1:
            each = [self._with_points(count) for count in counts]
            if len(set(map(len, each))) == 1:
                joined = [_joined(parts) for parts in zip(*each) if len({part.drawn.shape[1] for part in parts}) == 1]
        return joined + self._with_points(sum(counts))

    def _with_points(self, points: int) -> list[Seen]:
        """Return the values that have a row for each of some points."""
        return [one for name in self.names if (one := self._one(name, points)) is not None]

    def _one(self, name: str, points: int) -> Seen | None:
        tables = [_table(value[name], points) for value in self.values]
        return Seen(name, *tables) if all(table is not None for table in tables) else None  # type: ignore[arg-type]


def _table(value: Array, points: int) -> Array | None:
    """Return a value as [points, columns], or None."""
    table = np.squeeze(value)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[0] == table.shape[1] or points not in table.shape:
        return None
    return (table if table.shape[0] == points else table.T).astype(np.float64)


def _joined(parts: Sequence[Seen]) -> Seen:
    tables = (np.concatenate([getattr(part, kind) for part in parts]) for kind in ("zeros", "ones", "drawn"))
    return Seen(parts[0].name, *tables)


def corners(tail: Tail, maps: Sequence[Array]) -> Array:
    """Return the corners float64 [points, 4] in pixels of one image's raw maps [1, channels, height, width].

    Points are in the order of levels, then row, column and anchor.
    """
    return np.concatenate([_corners(tail, level, maps) for level in tail.levels])


def _corners(tail: Tail, level: Level, maps: Sequence[Array]) -> Array:
    raw, cells = taken(level.boxes, len(level.anchors), maps), cells_of(level)
    anchors = np.tile(np.array(level.anchors, np.float64), (level.height * level.width, 1))
    if tail.bins > 1:
        raw = softmax(raw.reshape(-1, 4, tail.bins)) @ np.arange(tail.bins)
    if tail.kind == "distances":
        if tail.distance != "identity":
            raw = np.maximum(raw, 0) if tail.distance == "relu" else np.exp(raw)
        return np.concatenate((cells + 0.5 - raw[:, :2], cells + 0.5 + raw[:, 2:]), 1) * level.stride
    place, size = raw[:, :2], raw[:, 2:]
    if tail.kind == "yolov5":
        middle, size = (sigmoid(place) * 2 - 0.5 + cells) * level.stride, (sigmoid(size) * 2) ** 2 * anchors
    else:
        size = np.exp(size * tail.variances[1]) * anchors
        if tail.kind == "priors":
            middle = (cells + 0.5) * level.stride + place * tail.variances[0] * anchors
        else:
            middle = ((sigmoid(place) if tail.kind == "yolov3" else place) + cells) * level.stride
    return np.concatenate((middle - size / 2, middle + size / 2), 1)


def scores(tail: Tail, maps: Sequence[Array]) -> tuple[Array, Array]:
    """Return the probabilities [points, classes] and of an object [points, 1], which are 1 without objectness."""
    classes = np.concatenate([taken(level.classes, len(level.anchors), maps) for level in tail.levels])
    classes = softmax(classes)[:, 1:] if tail.background else sigmoid(classes)
    objects = [
        (
            np.ones((level.height * level.width * len(level.anchors), 1))
            if level.objectness is None
            else sigmoid(taken(level.objectness, len(level.anchors), maps))
        )
        for level in tail.levels
    ]
    return classes, np.concatenate(objects)


def taken(channels: Channels, anchors: int, maps: Sequence[Array]) -> Array:
    """Return channels of a map as float64 [points, channels]."""
    raw_map = maps[channels.map]
    height, width = raw_map.shape[2:]
    apart = raw_map.reshape(anchors, channels.step, height * width).transpose(2, 0, 1)
    chosen: Array = apart[..., channels.first : channels.first + channels.count].reshape(-1, channels.count)
    return chosen.astype(np.float64)


def cells_of(level: Level) -> Array:
    """Return (column, row) of each point of a level, float64 [points, 2]."""
    row, column = np.mgrid[: level.height, : level.width].reshape(2, -1).astype(np.float64)
    return np.repeat(np.stack((column, row), 1), len(level.anchors), 0)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def softmax(x: Array) -> Array:
    """Return the softmax along the last axis."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))
