"""What a rule sees of one node: facts about its inputs, its attributes, and a way to name dims that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.shapes.dims import Dim, Sym, as_size, atoms, symbol, symbols
from onnxgen.shapes.info import UNKNOWN, Info, Shape

Array: TypeAlias = NDArray[Any]  # the elements of a tensor: numbers, or objects that are dims


RANK = 64  # dims that a tensor of torch and of numpy can have


class Unknown(Exception):
    """A rule lacks a fact about an input; nothing is wrong."""


class Contradiction(Exception):
    """The node cannot run on such inputs (Add of 3 and 4 elements): nothing true can be said of its outputs."""


class Symbols:
    """The symbols of one propagation: each made-up name belongs to one axis of one value.

    Attributes:
        elements: names of dims that lists are declared with, which may be other numbers in each of their elements.
    """

    def __init__(self, known: Mapping[str, Dim]) -> None:
        self.elements: set[str] = set()
        self._known = known
        self._owner: dict[str, object] = {}
        self._made: dict[tuple[int, int], Sym] = {}
        self._bodies: list[set[str]] = []

    def declared(self, name: str, source: tuple[str, int]) -> Dim:
        """The dim that the file calls `name`."""
        self._owner.setdefault(name, "file")
        return self._known.get(name, symbol(name, source))

    def unnamed(self, value: ir.Value, axis: int) -> Dim:
        """The dim of an axis that the file has no name for."""
        made = self.fresh(value, axis)
        return self._known.get(next(iter(symbols(made))), made)

    def fresh(self, value: ir.Value, axis: int) -> Sym:
        """The symbol for the length of an axis of a value: always the same one for the same value and axis."""
        made = self._made.get((id(value), axis))
        if made is None:
            base = name = f"{value.name}.{axis}"
            tries = 1
            while name in self._owner:  # two branches may use one value name; a dim_param may look like ours
                tries += 1
                name = f"{base}.{tries}"
            self._owner[name] = value
            made = self._made[id(value), axis] = symbol(name, (value.name or "", axis))
        if self._bodies:
            self._bodies[-1].add(next(iter(atoms(made))).key)
        return made

    def enter_body(self) -> None:
        """From here on fresh symbols belong to the body of a loop: another number every iteration."""
        self._bodies.append(set())

    @property
    def depth(self) -> int:
        """How many bodies are entered and not left."""
        return len(self._bodies)

    def leave_to(self, depth: int) -> None:
        """Ends bodies until `depth` of them are left (after a failure inside one)."""
        del self._bodies[depth:]

    def leave_body(self) -> Callable[[Dim], bool]:
        """Ends a body; returns the test whether a dim means something outside it."""
        local = self._bodies.pop()
        return lambda dim: not any(atom.key in local for atom in atoms(dim))


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
        """Whether input i is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def input(self, i: int) -> Info:
        """The facts of input i; `UNKNOWN` if it is absent."""
        return (self.inputs[i] or UNKNOWN) if i < len(self.inputs) else UNKNOWN

    def dtype(self, *indices: int) -> ir.DataType | None:
        """The first known dtype among some inputs (default: input 0), which all have the same."""
        return next((d for i in indices or (0,) if (d := self.input(i).dtype) is not None), None)

    def shape(self, i: int = 0) -> Shape:
        """The shape of input i. Raises `Unknown`."""
        shape = self.input(i).shape
        if shape is None:
            raise Unknown(f"the shape of input {i}")
        return shape

    def data(self, i: int) -> Array:
        """The elements of input i. Raises `Unknown`."""
        data = self.input(i).data
        if data is None:
            raise Unknown(f"the elements of input {i}")
        return data

    def constant(self, i: int) -> Array:
        """The elements of input i as numbers. Raises `Unknown`."""
        data = self.input(i).constant
        if data is None:
            raise Unknown(f"the elements of input {i}")
        return data

    def dims(self, i: int) -> list[Dim]:
        """The elements of the integer input i, flat. Raises `Unknown`."""
        return [d if isinstance(d, Sym) else int(d) for d in self.data(i).flat]

    # ---------------------------------------------------------------------------------------- attributes

    def int_(self, name: str, default: int = 0) -> int:
        found = self.node.attributes.get(name)
        return default if found is None else found.as_int()

    def str_(self, name: str, default: str = "") -> str:
        found = self.node.attributes.get(name)
        return default if found is None else found.as_string()

    def ints(self, name: str) -> list[int] | None:
        """A list attribute; None if it is not given."""
        found = self.node.attributes.get(name)
        return None if found is None else list(found.as_ints())

    def graph(self, name: str) -> ir.Graph:
        return self.node.attributes[name].as_graph()

    def ints_or_input(self, name: str, i: int) -> list[int] | None:
        """What was an attribute in old opsets and is input i in new ones; None if given nowhere. Raises `Unknown`."""
        found = self.ints(name)
        if found is not None or not self.has(i):
            return found
        return [int(d) for d in self.constant(i).flat]

    def axes(self, axes: Iterable[int], rank: int) -> list[int]:
        """Axes counted from the front. Raises `Contradiction` where one is out of range."""
        result = [a + rank if a < 0 else a for a in axes]
        if any(not 0 <= a < rank for a in result):
            raise Contradiction(f"axis out of range for rank {rank}")
        return result

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        return self.axes([self.int_(name, default)], rank)[0]

    # ------------------------------------------------------------------------------------------- outputs

    def fresh(self, axis: int, output: int = 0) -> Sym:
        """A symbol for an axis of an output."""
        return self.symbols.fresh(self.node.outputs[output], axis)

    def fresh_shape(self, rank: int, output: int = 0) -> Shape:
        if rank > RANK:
            raise Contradiction(f"a tensor of {rank} dims")
        return tuple(self.fresh(axis, output) for axis in range(rank))


# What a rule may raise on a node that makes no sense: wrong attributes, missing inputs, subgraphs of another arity.
NONSENSE = (Unknown, Contradiction, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

Rule: TypeAlias = Callable[[NodeFacts], list[Info]]


def tensor(dtype: ir.DataType | None, shape: Iterable[Dim] | None) -> Info:
    """Facts of a tensor; its dims count as >= 0 from here on. A negative int raises `Contradiction`."""
    if shape is None:
        return Info(dtype)
    dims = tuple(as_size(d) if isinstance(d, Sym) else int(d) for d in shape)
    if any(isinstance(d, int) and d < 0 for d in dims):
        raise Contradiction(f"negative dim in {dims}")
    return Info(dtype, dims)


def integer(dtype: ir.DataType | None) -> bool:
    return dtype is not None and dtype.is_integer()


def as_objects(array: Array) -> Array:
    """The same elements as Python numbers (and dims)."""
    return array if array.dtype == object else array.astype(object)


def numbers_if_possible(array: Array, dtype: ir.DataType | None) -> Array | None:
    """An object array as numbers of its dtype if nothing in it is symbolic; None where a number does not fit int64."""
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
