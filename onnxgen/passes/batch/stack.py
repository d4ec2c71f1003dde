"""What is known of values while the batch is freed, and the interface for the rules of operators.

A value is a *stack* over the batch (along one axis, which may hold other factors too), or it does not depend on the
batch. A rule proves for one node: if its inputs are stacks of the single results, so is its output.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.operators import is_a
from onnxgen.graph.traits import ELEMENTWISE, SAME
from onnxgen.passes.match import elements, maker, shape_of
from onnxgen.passes.rewrite import drop, insert, known_ints
from onnxgen.passes.rewrite import replace as replace_node
from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.info import Info, Shape, info, set_info


@dataclass(frozen=True)
class Stack:
    """A value with an axis of `outer * batch * inner` elements. Sample n has those at `(o * batch + n) * inner + i`.

    Attributes:
        axis: the axis, counted from the front.
        outer, inner: factors that a reshape merged with the batch.
    """

    axis: int
    outer: Dim = 1
    inner: Dim = 1

    def size(self, batch: Dim) -> Dim:
        return self.outer * batch * self.inner

    @property
    def is_pure(self) -> bool:
        return self.outer == 1 and self.inner == 1

    def moved(self, axis: int) -> Stack:
        return replace(self, axis=axis)


class Refusal(Exception):
    """It cannot be proven that a node keeps samples apart. The message is the reason."""


@dataclass
class Batch:
    """The batch of one model.

    Attributes:
        size: its fixed size in the file.
        symbol: the dim that replaces it.
        stacks: the values that are stacks over it.
        notes: notes for the user.
        repeated: the values made by `RuleNode.repeat`, by original and stack.
    """

    size: int
    symbol: Sym
    stacks: dict[ir.Value, Stack]
    notes: list[str]
    repeated: dict[tuple[ir.Value, Stack], ir.Value]

    def free(self, shape: Shape, stack: Stack) -> Shape:
        """Return a shape of the file with the batch size replaced by the symbol."""
        return (*shape[: stack.axis], stack.size(self.symbol), *shape[stack.axis + 1 :])


class RuleNode:
    """One node as its rule sees it.

    Shapes are those of the file, with the fixed batch size. They stay so when a rule changes the node's inputs.
    """

    def __init__(self, node: ir.Node, batch: Batch, opset: int) -> None:
        self.node, self.batch, self.opset = node, batch, opset

    # what is known

    @property
    def given(self) -> list[int]:
        """Return the positions of the inputs that are present."""
        return [i for i, value in enumerate(self.node.inputs) if value is not None]

    def value(self, i: int) -> ir.Value:
        value = self.node.inputs[i] if i < len(self.node.inputs) else None
        if value is None:
            raise Refusal(f"input {i} is missing")
        return value

    def has(self, i: int) -> bool:
        return i in self.given

    def stack(self, i: int) -> Stack | None:
        return self.batch.stacks.get(self.value(i)) if self.has(i) else None

    def need(self, i: int) -> Stack:
        """Return the stack of an input. Raises `Refusal` if it is not one."""
        stack = self.stack(i)
        if stack is None:
            raise Refusal(f"{self.name(i)} is the same for every sample, but the other inputs are not")
        return stack

    def only_stack(self) -> Stack:
        """Return the stack of input 0. Raises `Refusal` if any other input depends on the batch."""
        self.only(0)
        return self.need(0)

    def shape(self, i: int) -> Shape:
        shape = info(self.value(i)).shape
        if shape is None:
            raise Refusal(f"the rank of {self.name(i)} is unknown")
        return shape

    def result(self, output: int = 0) -> Shape:
        shape = info(self.node.outputs[output]).shape
        if shape is None:
            raise Refusal("the rank of the result is unknown")
        return shape

    def name(self, i: int) -> str:
        return f"{printable(self.value(i).name or '', 80)!r}"

    def attribute(self, name: str, default: Any = None) -> Any:
        attribute = self.node.attributes.get(name)
        return default if attribute is None else attribute.value

    def ints(self, name: str, i: int) -> list[int] | None:
        """Return an attribute of old opsets that is an input in new ones. None if neither is given."""
        if name in self.node.attributes:
            return [int(v) for v in self.node.attributes[name].value]
        if not self.has(i):
            return None
        return self.elements(i)

    def elements(self, i: int) -> list[int]:
        """Return the elements of a constant integer input as a flat list."""
        return [int(v) for v in self.numbers(i).reshape(-1)]

    def numbers(self, i: int) -> np.ndarray[Any, Any]:
        """Return the elements of a constant input."""
        array = elements(self.value(i), sys.maxsize)
        if array is None:
            raise Refusal(f"{self.name(i)} is not a constant")
        return array

    def only(self, *allowed: int) -> None:
        """Raise `Refusal` if any other input depends on the batch."""
        for i in self.given:
            if i not in allowed and self.stack(i) is not None:
                raise Refusal(f"{self.name(i)} differs between samples, but must be the same for all")

    # changes

    def set_input(self, i: int, value: ir.Value) -> None:
        """Replace an input. Nodes that only served the old one are removed."""
        producer = maker(self.node.inputs[i])
        self.node.replace_input_with(i, value)
        if producer is not None:
            drop(producer)

    def integers(self, array: np.ndarray[Any, Any], hint: str) -> ir.Value:
        """Return a constant of integers."""
        value = ir.Value(name=f"{self.node.outputs[0].name}.{hint}", type=ir.TensorType(ir.DataType.INT64))
        set_info(value, Info(ir.DataType.INT64, array.shape, array.astype(np.int64)))
        return value

    def sizes(self, dims: Iterable[Dim], hint: str = "shape") -> ir.Value:
        """Return an integer vector with known elements: numbers, or sizes that contain the batch."""
        value = known_ints(list(dims))
        value.name = f"{self.node.outputs[0].name}.{hint}"
        return value

    def add(
        self, op: str, inputs: list[ir.Value], shape: Shape, hint: str, attributes: Iterable[ir.Attr] = (),
        like: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """Add a node before this one. `shape` is the shape of its result in the file, `like` has its type."""
        like = like or inputs[0]
        node = ir.Node("", op, inputs, attributes, version=13, name=self.node.name)
        SCOPE.set(node, SCOPE.get(self.node))
        return insert(self.node, node, f"{like.name}.{hint}", Info(info(like).dtype, shape))

    def into_reshape(self, stack: Stack) -> None:
        """Replace this node, which only arranges elements, by a Reshape to its own shape with the symbolic batch."""
        self.into("Reshape", [self.value(0), self.sizes(self.batch.free(self.result(), stack))])

    def into(self, op: str, inputs: list[ir.Value], attributes: Iterable[ir.Attr] = ()) -> None:
        """Replace this node, which has one result, by another."""
        node = ir.Node("", op, inputs, attributes, version=13)
        replace_node(self.node, node)
        self.node = node

    # values that are the same for every sample, used together with a stack

    def broadcast(self, i: int, stack: Stack, rank: int) -> None:
        """Make an input that does not depend on the batch broadcast with a stack in a result of `rank` axes."""
        shape = self.shape(i)
        at = stack.axis - (rank - len(shape))
        if at < 0 or shape[at] == 1:
            return
        if shape[at] != stack.size(self.batch.size):
            raise Refusal(f"{self.name(i)} has {shape[at]} elements where the batch is")
        if stack.is_pure:
            self.set_input(i, self._one_slice(i, at))
        else:
            self.repeat(i, stack.moved(at))

    def repeat(self, i: int, stack: Stack) -> None:
        """Repeat an input that does not depend on the batch, so that it becomes a stack."""
        value, shape = self.value(i), self.shape(i)
        if not 0 <= stack.axis < len(shape) or shape[stack.axis] != stack.size(self.batch.size):
            raise Refusal(f"{self.name(i)} does not have the batch's size on axis {stack.axis}")
        repeated = self.batch.repeated.get((value, stack))
        if repeated is None:
            repeated = self.batch.repeated[value, stack] = self._repeated(i, stack)
            self.batch.stacks[repeated] = stack
        self.set_input(i, repeated)

    def _repeated(self, i: int, stack: Stack) -> ir.Value:
        shape = self.shape(i)
        free = self.batch.free(shape, stack)
        if stack.is_pure:
            return self.add("Expand", [self._one_slice(i, stack.axis), self.sizes(free)], shape, "batch")
        if self.batch.size != 1:
            raise Refusal(f"{self.name(i)} has the batch's size on an axis that holds more than the batch")
        before, after = shape[: stack.axis], shape[stack.axis + 1 :]
        apart = (*before, stack.outer, 1, stack.inner, *after)
        wide = (*before, stack.outer, self.batch.symbol, stack.inner, *after)
        value = self.add("Reshape", [self.value(i), self.sizes(apart)], apart, "apart")
        value = self.add("Expand", [value, self.sizes(wide)], apart, "batch")
        return self.add("Reshape", [value, self.sizes(free)], shape, "merged")

    def _one_slice(self, i: int, axis: int) -> ir.Value:
        """Return one slice of an input whose slices along an axis are all equal."""
        value, shape = self.value(i), self.shape(i)
        if shape[axis] == 1:
            return value
        if not is_uniform(value, axis):
            raise Refusal(f"{self.name(i)} has an element of its own for each of the file's {shape[axis]} samples")
        one = (*shape[:axis], 1, *shape[axis + 1 :])
        array, node = elements(value, sys.maxsize), value.producer()
        if array is not None:
            tensor = ir.tensor(np.take(array, [0], axis), name=f"{value.name}.one")
            return self.add("Constant", [], one, "one", [ir.AttrTensor("value", tensor)], value)
        if node is not None and node.op_type == "ConstantOfShape":
            return self.add("ConstantOfShape", [self.sizes(one)], one, "one", node.attributes.values(), value)
        source = node.inputs[0] if node is not None and node.op_type == "Expand" else None
        if source is not None and shape_of(source)[axis - len(shape) :][:1] in ((), (1,)):
            return self.add("Expand", [source, self.sizes(one)], one, "one", like=value)
        return self.add("Slice", [value, *(self.sizes([n], "bound") for n in (0, 1, axis))], one, "one")


def is_uniform(value: ir.Value, axis: int) -> bool:
    """Return True if all slices of a value along an axis are certainly equal."""
    shape = info(value).shape
    if shape is None or shape[axis] == 1:
        return shape is not None
    node, constant = value.producer(), elements(value, sys.maxsize)
    if constant is not None:
        return bool((constant == np.take(constant, [0], axis)).all())
    if node is None or node.domain != "":
        return False
    source = node.inputs[0] if node.inputs else None
    return node.op_type == "ConstantOfShape" or source is not None and _repeats(node, source, len(shape), axis)


def _repeats(node: ir.Node, source: ir.Value, rank: int, axis: int) -> bool:
    """Return True if a node makes equal slices of its data, or keeps them equal."""
    shape = info(source).shape
    if node.op_type == "Tile" or is_a(node, SAME) and is_a(node, ELEMENTWISE):
        return is_uniform(source, axis)
    if shape is not None and node.op_type == "Expand":
        at = axis - (rank - len(shape))
        return at < 0 or is_uniform(source, at)
    indices = node.inputs[1] if node.op_type == "Gather" else None
    if indices is None or shape is None or info(indices).shape is None:
        return False
    first = node.attributes["axis"].as_int() % len(shape) if "axis" in node.attributes else 0
    return first <= axis < first + (info(indices).rank or 0) and is_uniform(indices, axis - first)


Rule = Callable[[RuleNode], "list[Stack | None] | Stack"]
