"""A network as the rules see it: which inputs and outputs are images, tokens, vectors, maps.

Words in the names of outputs and inputs say what these are. A rule returns a `Vote`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.nodes import all_nodes, has_subgraphs
from onnxgen.graph.operators import is_a, known
from onnxgen.graph.traits import ELEMENTWISE, FILLS, JOINS, POOL, RECURRENT, RESAMPLES, SHUFFLES, STRIDES, VIEW
from onnxgen.purpose import names
from onnxgen.purpose.ends import End, behind, end_of, first_live, is_convolution, is_norm_of_channels, op_of
from onnxgen.purpose.names import called, words
from onnxgen.shapes.dims import Dim, TooComplex, evaluate, symbols
from onnxgen.shapes.info import Shape, info

_STEPS = 24  # nodes between an input and the layer that shows what it is
SIZES = (640, 1280)  # stand for sizes that may be any


@dataclass(frozen=True)
class Image:
    """An input of images: its value, the axis and the number of its channels, height and width."""

    value: ir.Value
    axis: int
    channels: Dim
    height: Dim
    width: Dim


@dataclass(frozen=True)
class Map:
    """An output over the pixels of an image: the axis and number of its channels, its size divided by the image's."""

    end: End
    image: Image
    axis: int
    channels: Dim
    ratio: Fraction


@dataclass(frozen=True)
class Tokens:
    """An input of numbers of tokens: its value, and the rows of the embedding that it is looked up in."""

    value: ir.Value
    rows: int


class Network:
    """A simplified graph.

    Attributes:
        inputs: without those that have initializers.
        nodes: also those of subgraphs.
        live: the values that depend on the inputs.
        ends: of the outputs that are no states and not computed from another output.
    """

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self.model = model
        self.inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        self.nodes = all_nodes(graph)
        self.live: set[ir.Value] = set(self.inputs)
        for node in graph:
            if has_subgraphs(node) or any(v in self.live for v in node.inputs):
                self.live.update(node.outputs)
        self.outputs = list(graph.outputs)
        self.ends = [end_of(v, self.live) for v in self.outputs if v in self.live and not self._is_state(v)]

    @cached_property
    def is_learned(self) -> bool:
        """True if a node computes with a stored matrix or table: else the graph is a formula, not a network."""
        return any(
            node.domain == "ai.onnx.ml"
            or any(v is not None and v not in self.live and (info(v).rank or 0) > 1 for v in node.inputs)
            for node in self.nodes
        )

    # ---- outputs ----

    @cached_property
    def derived(self) -> frozenset[str]:
        """The names of outputs that are computed from other outputs."""
        return frozenset(end.name for end in self.ends if self._reaches(end))

    def _reaches(self, end: End) -> bool:
        others = {other.value for other in self.ends if other.value is not end.value}
        waiting, seen = [end.value], {end.value}
        for _ in range(_STEPS * 4):
            if not waiting:
                return False
            node = waiting.pop(0).producer()
            for value in () if node is None else node.inputs:
                if value is not None and value in self.live and value not in seen:
                    if value in others:
                        return True
                    seen.add(value)
                    waiting.append(value)
        return False

    def _is_state(self, value: ir.Value) -> bool:
        """Return True for an output that the next call takes: a cache, or the last state of a recurrent layer."""
        name_words = words(value.name)
        if "last" not in name_words and name_words & names.STATES:
            return bool(name_words & {"past", "present", "cache"}) or any(
                info(v).shape == info(value).shape for v in self.inputs
            )
        waiting, steps = [value], 0
        while waiting and steps < _STEPS:
            steps += 1
            origin = behind(waiting.pop(), (), self.live)[0]
            node = origin.producer()
            if node is None:
                return False
            if is_a(node, JOINS):
                waiting += [v for v in node.inputs if v is not None]
            elif not is_a(node, RECURRENT) or node.outputs[0] is origin:
                return False
        return not waiting and steps > 0

    def vector(self, end: End) -> tuple[int, int] | None:
        """Return axis and width if the output has one list of numbers for each sample: [N, C], [N, C, 1, 1], [N, 1]."""
        if end.shape is None or len(end.shape) < 2 or not self.is_batch(end.shape[0]):
            return None
        long = [(axis, dim) for axis, dim in enumerate(end.shape[1:], 1) if dim != 1] or [(1, 1)]
        axis, width = long[0]
        return (axis, width) if len(long) == 1 and isinstance(width, int) else None

    def is_batch(self, dim: Dim) -> bool:
        """Return True if a size is one of an input's sizes, as the batch is."""
        return any(dim in (info(v).shape or ()) for v in self.inputs)

    def is_length(self, width: int) -> bool:
        """Return True if a number is the length of an input sequence: a score for each position has that width."""
        shapes = [(info(v).shape or (), info(v).dtype) for v in self.inputs]
        return any(
            width in (shape[1:] if dtype is not None and dtype.is_integer() else shape[1:2])
            for shape, dtype in shapes
            if len(shape) in (2, 3) and (len(shape) == 3 or dtype is not None and dtype.is_integer())
        )

    def map(self, end: End) -> Map | None:
        """Return the output as a map over the pixels of an image, or None."""
        if end.shape is None or len(end.shape) != 4:
            return None
        for image in self.images:
            for axis, (h, w) in sorted({1: (2, 3), 3: (1, 2)}.items(), key=lambda layout: layout[0] != image.axis):
                if end.shape[h] == 1 == end.shape[w]:
                    continue
                tall, wide = ratio(end.shape[h], image.height), ratio(end.shape[w], image.width)
                if tall is not None and tall == wide and (tall.denominator == 1 or tall.numerator == 1):
                    return Map(end, image, axis, end.shape[axis], tall)
        return None

    # ---- inputs ----

    @cached_property
    def images(self) -> list[Image]:
        """The inputs of rank 4 that a convolution, or another operator over two spatial axes, takes."""
        return [image for value in self.inputs if (image := self._image(value)) is not None]

    def _image(self, value: ir.Value) -> Image | None:
        shape = info(value).shape
        if shape is None or len(shape) != 4 or not any(_is_spatial(node) for node in self._first(value)):
            return None
        last = isinstance(shape[3], int) and shape[3] <= 4 and not (isinstance(shape[1], int) and shape[1] <= 4)
        axis, (h, w) = (3, (1, 2)) if last else (1, (2, 3))
        return Image(value, axis, shape[axis], shape[h], shape[w])

    @cached_property
    def tokens(self) -> list[Tokens]:
        """The inputs of whole numbers that are looked up in a stored table."""
        tokens = []
        for value in self.inputs:
            dtype = info(value).dtype
            if dtype is not None and dtype.is_integer() and not called(value, *names.BESIDE_TOKENS):
                rows = [self._rows(node) for node in self._first(value)]
                tokens += [Tokens(value, max(rows))] if any(rows) else []
        return tokens

    def _rows(self, node: ir.Node) -> int:
        table = node.inputs[0] if known(node).matrix == 0 else None
        shape = None if table is None or table in self.live else info(table).shape
        if shape is None or len(shape) != 2 or node.attributes.get_int("axis", 0) != 0:
            return 0
        return shape[0] if isinstance(shape[0], int) else 0

    def _first(self, value: ir.Value) -> Iterator[ir.Node]:
        """Yield the first nodes that do more with an input than move it, join its parts or compute with elements."""
        waiting, seen = [value], {value}
        for _ in range(_STEPS):
            if not waiting:
                return
            for node in waiting.pop(0).consumers():
                moved = is_a(node, VIEW, ELEMENTWISE, FILLS) or is_a(node, JOINS) and seen.issuperset(node.inputs)
                if moved or is_a(node, STRIDES) and known(node).matrix is None:
                    waiting += [v for v in node.outputs if v not in seen]
                    seen.update(node.outputs)
                    continue
                yield node

    def has_input(self, *parts: str) -> bool:
        """Return True if the name of an input contains one of these texts."""
        return any(called(v, *parts) for v in self.inputs)

    # ---- nodes ----

    def has(self, *ops: str) -> bool:
        """Return True if the graph has a node of one of these operators."""
        return any(op_of(node) in ops for node in self.nodes)

    @cached_property
    def is_recurrent(self) -> bool:
        return any(is_a(node, RECURRENT) for node in self.nodes)

    def tail(self, end: End) -> list[ir.Node]:
        """Return the nodes that an output is made of along the first live inputs, from the last on."""
        nodes: list[ir.Node] = []
        value: ir.Value | None = end.value
        while value is not None and (node := value.producer()) is not None and len(nodes) < _STEPS:
            nodes.append(node)
            value = first_live(node, self.live)
        return nodes


def ratio(size: Dim, whole: Dim) -> Fraction | None:
    """Return one size divided by another, if that is the same for every size; else None."""
    pairs = [(size_of(size, number), size_of(whole, number)) for number in SIZES]
    ratios = {Fraction(a, b) for a, b in pairs if a and b}
    return ratios.pop() if len(ratios) == 1 and all(map(all, pairs)) else None


def size_of(dim: Dim, number: int = SIZES[0]) -> int:
    """Return a size, with this number for every size that may be any; 0 if it can't be computed or is below 1."""
    try:
        return max(evaluate(dim, dict.fromkeys(symbols(dim), number)), 0)
    except (KeyError, ArithmeticError, ValueError, TooComplex):
        return 0


def is_float(value: ir.Value) -> bool:
    dtype = info(value).dtype
    return dtype is not None and dtype.is_floating_point()


def shown(value: ir.Value | None) -> str:
    """Return a value's name and shape for people."""
    if value is None:
        return "?"
    dims = info(value).shape
    text = "?" if dims is None else ", ".join(printable(str(dim), 24) for dim in dims)
    return f"'{printable(value.name or '', 40)}' [{text}]"


def count(shape: Shape | None) -> int | None:
    """Return the number of elements for one sample, if it is known."""
    dims = [dim for dim in (shape or ())[1:] if isinstance(dim, int)]
    return math.prod(dims) if shape is not None and len(dims) >= len(shape) - 1 else None


def _is_spatial(node: ir.Node) -> bool:
    if is_convolution(node):
        return any(info(v).rank == 4 for v in node.inputs[1:])
    return is_a(node, RESAMPLES, SHUFFLES, POOL) or is_norm_of_channels(node) and not known(node).still


# How strong a vote is.
FITS, NAMED, BUILT = 1, 2, 3


@dataclass(frozen=True)
class Vote:
    """One reason to think that a network is of a kind.

    Attributes:
        kind: one of `KINDS`.
        weight: `FITS`: shapes allow it. `NAMED`: a name of the file says so. `BUILT`: the graph is built like it, and
            hardly anything else is.
        evidence: plain sentences, which name nodes and outputs with their shapes.
        facts: see `Purpose.facts`.
        outputs: the names of the outputs that it explains; all of them if `whole`.
    """

    kind: str
    weight: int
    evidence: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    outputs: frozenset[str] = frozenset()
    whole: bool = False

    @classmethod
    def on(cls, end: End, kind: str, weight: int, facts: Mapping[str, Any], *evidence: str) -> Vote:
        """Return a vote that explains one output."""
        return cls(kind, weight, evidence, facts, frozenset({end.name}))
