"""Facts that are known before anything runs: dtype, dims and small integer elements of values.

`NodeFacts` is what a rule uses of one node: facts about its inputs, its attributes, and symbols for
unknown dims. `shape_option` says which inputs of the file must be given a shape so that a value has
a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.common.names import printable
from onnxgen.graph.annotations import INFO, RANKLESS
from onnxgen.graph.nodes import all_nodes, subgraphs
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import SELECTS
from onnxgen.shapes.dims import Dim, Sym, as_size, atoms, symbol, symbols

Shape = tuple[Dim, ...]

MOST_ELEMENTS = 2**63


@dataclass(frozen=True)
class Info:
    """Facts about one value, proven from the graph and never guessed.

    Attributes:
        dtype: element type; None where unknown (strings are `ir.DataType.STRING`).
        shape: one `Dim` (int or symbolic) an axis; None where the rank is unknown.
        data: the elements, where they are known at generation. A numeric array for a constant; an object array of
            `Dim` for an integer tensor computed from shapes. Never there for trainable values.
        kind: "tensor"; "sequence" or "optional", where `dtype` and `shape` are those of the elements; "map", or "maps"
            for a sequence of maps, where `dtype` is that of the values.
        key: the type of a map's keys.
    """

    dtype: ir.DataType | None = None
    shape: Shape | None = None
    data: NDArray[np.generic] | None = None
    kind: str = "tensor"
    key: ir.DataType | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def constant(self) -> NDArray[np.generic] | None:
        """Return the elements if they are all numbers (nothing symbolic), else None."""
        if self.data is None or self.data.dtype != object:
            return self.data
        if all(isinstance(d, int) for d in self.data.flat):
            return self.data.astype(np.int64)
        return None

    @property
    def truth(self) -> bool | None:
        """Return whether the only element is true, if it is known, else None."""
        constant = self.constant
        return bool(constant.item()) if constant is not None and constant.size == 1 else None


UNKNOWN = Info()


def info(value: ir.Value | None) -> Info:
    """Return the facts that `propagate` recorded for a value (`UNKNOWN` if none)."""
    facts = None if value is None else INFO.get(value)
    return UNKNOWN if facts is None else facts


def infos(values: Iterable[ir.Value]) -> list[Info]:
    """Return `info` of each value."""
    return [facts or UNKNOWN for facts in map(INFO.get, values)]


def named_dims(value: ir.Value) -> set[str]:
    """Return the named dims that occur in a value's shape and elements."""
    facts = info(value)
    elements = facts.data.flat if facts.data is not None and facts.data.dtype == object else ()
    return {name for dim in (*(facts.shape or ()), *elements) for name in symbols(dim)}


def shown_dims(value: ir.Value) -> set[str]:
    """Return the named dims that first appear in this value. Sizes may depend on it even if no tensor does."""
    occurring = (s for dim in info(value).shape or () for s in symbols(dim).values())
    return {s.name for s in occurring if s.source is not None and s.source[0] == value.name}


def set_info(value: ir.Value, facts: Info) -> None:
    """Record facts about a value. Dims with more elements than int64 can count are impossible and become unknown."""
    size = 1
    for dim in facts.shape or ():
        if isinstance(dim, int) and dim:
            size *= dim
    INFO.set(value, facts if size < MOST_ELEMENTS else replace(facts, shape=None, data=None))


Array: TypeAlias = NDArray[Any]  # elements of a tensor: numbers, or objects that are dims
Fact = TypeVar("Fact")

MAX_RANK = 64  # largest rank that torch and numpy support


class Unknown(Exception):
    """A rule lacks a fact about an input. The node may be valid."""


class Contradiction(Exception):
    """The node cannot run on such inputs (Add of 3 and 4 elements), so nothing is known of its outputs."""


class Symbols:
    """The symbols of one propagation: each made-up name belongs to one axis of one value.

    Attributes:
        elements: names of dims in declared types of lists. They may differ between the elements of a list.
    """

    def __init__(self, known: Mapping[str, Dim]) -> None:
        self.elements: set[str] = set()
        self._known = known
        self._owner: dict[str, object] = {}
        self._made: dict[tuple[int, int], Sym] = {}
        self._bodies: list[set[str]] = []

    def declared(self, name: str, source: tuple[str, int]) -> Dim:
        """Return the dim that the file calls `name`."""
        self._owner.setdefault(name, "file")
        return self._known.get(name, symbol(name, source))

    def unnamed(self, value: ir.Value, axis: int) -> Dim:
        """Return the dim of an axis that the file does not name."""
        dim = self.fresh(value, axis)
        return self._known.get(next(iter(symbols(dim))), dim)

    def fresh(self, value: ir.Value, axis: int) -> Sym:
        """Return the symbol for the length of an axis of a value; always the same one for the same value and axis."""
        dim = self._made.get((id(value), axis))
        if dim is None:
            base = name = f"{value.name}.{axis}"
            tries = 1
            # Two branches may use the same value name, and a dim_param may look like a made-up name.
            while name in self._owner:
                tries += 1
                name = f"{base}.{tries}"
            self._owner[name] = value
            maker = value.producer()
            selected = maker is not None and is_a(maker, SELECTS)
            dim = self._made[id(value), axis] = symbol(name, (value.name or "", axis), selected)
        if self._bodies:
            self._bodies[-1].add(next(iter(atoms(dim))).key)
        return dim

    def enter_body(self) -> None:
        """Begin a loop body: symbols of `fresh` may differ in every iteration from now on."""
        self._bodies.append(set())

    @property
    def depth(self) -> int:
        """Return how many bodies are entered and not yet left."""
        return len(self._bodies)

    def leave_to(self, depth: int) -> None:
        """Leave bodies until `depth` of them remain (after a failure inside one)."""
        del self._bodies[depth:]

    def leave_body(self) -> Callable[[Dim], bool]:
        """Leave a body. Returns a test that is True for dims that are also valid outside it."""
        local = self._bodies.pop()
        return lambda dim: not any(atom.key in local for atom in atoms(dim))


def _required(fact: Fact | None, what: str) -> Fact:
    if fact is None:
        raise Unknown(what)
    return fact


class NodeFacts:
    """One node with what is known of its inputs.

    Attributes:
        node: the node; `op` its type.
        opset: the version of its domain that it is written in.
        inputs: facts by input position; None for an absent optional input.
        inferred: facts of the outputs, once dtypes and shapes are inferred: what the evaluation starts from.
    """

    __slots__ = ("inferred", "inputs", "node", "op", "opset", "symbols")

    def __init__(self, node: ir.Node, opset: int, inputs: list[Info | None], symbols: Symbols) -> None:
        self.node = node
        self.op = node.op_type
        self.opset = opset
        self.inputs = inputs
        self.symbols = symbols
        self.inferred: list[Info] = []

    # -------------------------------------------------------------------------------------------- inputs

    def has(self, i: int) -> bool:
        """Return True if input i is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int) -> Info:
        """Return the facts of input i; `UNKNOWN` if it is absent."""
        return (self.inputs[i] or UNKNOWN) if i < len(self.inputs) else UNKNOWN

    def dtype(self, *indices: int) -> ir.DataType | None:
        """Return the first known dtype among some inputs (default: input 0), which all have the same dtype."""
        return next((d for i in indices or (0,) if (d := self.input(i).dtype) is not None), None)

    def shape(self, i: int = 0) -> Shape:
        """Return the shape of input i. Raises `Unknown`."""
        return _required(self.input(i).shape, f"the shape of input {i}")

    def data(self, i: int) -> Array:
        """Return the elements of input i. Raises `Unknown`."""
        return _required(self.input(i).data, f"the elements of input {i}")

    def constant(self, i: int) -> Array:
        """Return the elements of input i as numbers. Raises `Unknown`."""
        return _required(self.input(i).constant, f"the elements of input {i}")

    def dims(self, i: int) -> list[Dim]:
        """Return the elements of the integer input i as a flat list. Raises `Unknown`."""
        return [d if isinstance(d, Sym) else int(d) for d in self.data(i).flat]

    # ---------------------------------------------------------------------------------------- attributes

    def int_(self, name: str, default: int = 0) -> int:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_int()

    def str_(self, name: str, default: str = "") -> str:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.as_string()

    def ints(self, name: str) -> list[int] | None:
        """Return a list attribute, or None if it is not given."""
        attribute = self.node.attributes.get(name)
        return None if attribute is None else list(attribute.as_ints())

    def graph(self, name: str) -> ir.Graph:
        return self.node.attributes[name].as_graph()

    def stated_axes(self) -> list[int] | None:
        """Return axes that are an attribute in old opsets and input 1 in new ones, else None. Raises `Unknown`."""
        axes = self.ints("axes")
        return [int(d) for d in self.constant(1).flat] if axes is None and self.has(1) else axes

    def axes(self, axes: Iterable[int], rank: int) -> list[int]:
        """Return axes counted from the front. Raises `Contradiction` if one is out of range."""
        result = [a + rank if a < 0 else a for a in axes]
        if any(not 0 <= a < rank for a in result):
            raise Contradiction(f"axis out of range for rank {rank}")
        return result

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        return self.axes([self.int_(name, default)], rank)[0]

    # ------------------------------------------------------------------------------------------- outputs

    def fresh(self, axis: int, output: int = 0) -> Sym:
        """Return a new symbol for an axis of an output."""
        return self.symbols.fresh(self.node.outputs[output], axis)

    def fresh_shape(self, rank: int) -> Shape:
        if rank > MAX_RANK:
            raise Contradiction(f"a tensor of {rank} dims")
        return tuple(self.fresh(axis) for axis in range(rank))


# Errors that a rule may raise for an invalid node: wrong attributes, missing inputs, wrong subgraphs.
NONSENSE = (Unknown, Contradiction, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

Rule: TypeAlias = Callable[[NodeFacts], list[Info]]


def tensor(dtype: ir.DataType | None, shape: Iterable[Dim] | None) -> Info:
    """Make the facts of a tensor; its dims count as >= 0 from now on. Raises `Contradiction` for a negative int."""
    if shape is None:
        return Info(dtype)
    dims = tuple(as_size(d) if isinstance(d, Sym) else int(d) for d in shape)
    if any(isinstance(d, int) and d < 0 for d in dims):
        raise Contradiction(f"negative dim in {dims}")
    return Info(dtype, dims)


def integer(dtype: ir.DataType | None) -> bool:
    return dtype is not None and dtype.is_integer()


def as_objects(array: Array) -> Array:
    """Return the same elements as Python numbers (and dims)."""
    return array if array.dtype == object else array.astype(object)


def numbers_if_possible(array: Array, dtype: ir.DataType | None) -> Array | None:
    """Convert an object array to numbers of `dtype` unless it has dims. Returns None if a number does not fit int64."""
    if array.dtype != object:
        return array
    flat = [d if isinstance(d, Sym) else int(d) for d in array.flat]
    if any(isinstance(d, int) and not -(2**63) <= d < 2**63 for d in flat):
        return None
    if all(isinstance(d, int) for d in flat):
        target = (dtype or ir.DataType.INT64).numpy()
        return np.array(flat, np.int64).astype(target).reshape(array.shape)
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(array.shape)


MAX_INPUTS_SHOWN = 3


def shape_option(value: ir.Value | None) -> str:
    """Return the way out that gives a value a rank, or "" if no input of the file without a rank leads to it."""
    inputs, seen, todo = dict[str, None](), {value}, [value]
    while todo:
        current = todo.pop()
        if current is None or info(current).rank is not None:
            continue
        if RANKLESS.get(current):
            inputs[printable(current.name or "")] = None
        if (node := current.producer()) is not None:
            nodes = [node, *(n for graph in subgraphs(node) for n in all_nodes(graph))]
            new = [v for v in dict.fromkeys(v for n in nodes for v in n.inputs) if v not in seen]
            todo += new
            seen.update(new)
    if not inputs:
        return ""
    options = " ".join(f"--input-shape {name}=2,3" for name in list(inputs)[:MAX_INPUTS_SHOWN])
    names = ", ".join(inputs)
    return f"the file declares no rank for {names}: give all dims, such as {options} (-1 for a free one)"
