"""What freeing a batch knows of each value, and what a rule for an operator may ask and change.

A value either is a *stack* over the batch (along one axis, perhaps together with other factors) or does not depend on
the batch at all. The rules prove for every node: if its inputs are stacks of what single runs compute, its output is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.graph.annotations import SCOPE, is_trained
from onnxgen.passes.rewrite import drop
from onnxgen.passes.rewrite import replace as replace_node
from onnxgen.passes.steps import insert
from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.info import Info, Shape, info, set_info
from onnxgen.weights.stored import stored


@dataclass(frozen=True)
class Stack:
    """A value whose axis has `outer * batch * inner` elements: of sample n those at `(o * batch + n) * inner + i`.

    Attributes:
        axis: which of the value's axes, counted from the front.
        outer, inner: factors that the axis has besides; a reshape merged them with the batch.
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
    """A node for which it can't be proven that it keeps samples apart: the reason."""


@dataclass
class Batch:
    """The batch of one model.

    Attributes:
        size: what the file fixes it at.
        symbol: what it becomes.
        stacks: the values that are stacks over it.
        notes: what a person should know.
    """

    size: int
    symbol: Sym
    stacks: dict[ir.Value, Stack]
    notes: list[str]
    lifted: dict[tuple[ir.Value, Stack], ir.Value]

    def free(self, shape: Shape, stack: Stack) -> Shape:
        """A shape of the file with the batch free."""
        return (*shape[: stack.axis], stack.size(self.symbol), *shape[stack.axis + 1 :])


class Here:
    """One node, for its rule.

    Shapes are those of the file, with the batch at its fixed size; a rule that changes the node's inputs keeps them.
    """

    def __init__(self, node: ir.Node, batch: Batch, opset: int) -> None:
        self.node, self.batch, self.opset = node, batch, opset

    # what is known

    @property
    def given(self) -> list[int]:
        """The positions of the inputs that are there."""
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
        """The stack of an input that must be one."""
        found = self.stack(i)
        if found is None:
            raise Refusal(f"{self.name(i)} is the same for every sample, but the other inputs are not")
        return found

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
        found = self.node.attributes.get(name)
        return default if found is None else found.value

    def ints(self, name: str, i: int) -> list[int] | None:
        """What is an attribute in old opsets and an input in new ones; None if it is given nowhere."""
        if name in self.node.attributes:
            return [int(v) for v in self.node.attributes[name].value]
        if not self.has(i):
            return None
        return [int(v) for v in self.numbers(i).reshape(-1)]

    def numbers(self, i: int) -> np.ndarray[Any, Any]:
        """The elements of a constant input."""
        found = _elements(self.value(i))
        if found is None:
            raise Refusal(f"{self.name(i)} is not a constant")
        return found

    def only(self, *allowed: int) -> None:
        """Refuse where another input than these depends on the batch."""
        for i in self.given:
            if i not in allowed and self.stack(i) is not None:
                raise Refusal(f"{self.name(i)} differs between samples, but must be the same for all")

    # changes

    def set_input(self, i: int, value: ir.Value) -> None:
        """Let the node take another value; what only made the old one goes."""
        old = self.node.inputs[i]
        self.node.replace_input_with(i, value)
        producer = None if old is None else old.producer()
        if producer is not None:
            drop(producer)

    def integers(self, array: np.ndarray[Any, Any], hint: str) -> ir.Value:
        """A constant of integers."""
        value = ir.Value(name=f"{self.node.outputs[0].name}.{hint}", type=ir.TensorType(ir.DataType.INT64))
        set_info(value, Info(ir.DataType.INT64, array.shape, array.astype(np.int64)))
        return value

    def sizes(self, dims: Iterable[Dim], hint: str = "shape") -> ir.Value:
        """An integer tensor whose elements are known: numbers, or sizes with the batch in them."""
        elements = np.empty(len(found := list(dims)), object)
        elements[:] = found
        value = ir.Value(name=f"{self.node.outputs[0].name}.{hint}", type=ir.TensorType(ir.DataType.INT64))
        data = elements if any(isinstance(d, Sym) for d in found) else elements.astype(np.int64)
        set_info(value, Info(ir.DataType.INT64, (len(found),), data))
        return value

    def add(
        self,
        op: str,
        inputs: list[ir.Value],
        shape: Shape,
        hint: str,
        attributes: Mapping[str, ir.Attr] | None = None,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """A further node before this one; `shape` is that of its result in the file, its type that of `like`."""
        like = like or inputs[0]
        node = ir.Node("", op, inputs, list((attributes or {}).values()), version=13)
        node.name = self.node.name
        SCOPE.set(node, SCOPE.get(self.node))
        insert(self.node, node)
        made = node.outputs[0]
        made.name = f"{like.name}.{hint}"
        set_info(made, Info(info(like).dtype, shape))
        return made

    def into_reshape(self, stack: Stack) -> None:
        """Turn this node, which only arranges elements, into a Reshape to its own shape with the batch free."""
        self.into("Reshape", [self.value(0), self.sizes(self.batch.free(self.result(), stack))])

    def into(self, op: str, inputs: list[ir.Value], attributes: Mapping[str, ir.Attr] | None = None) -> None:
        """Put another node in the place of this one, which has one result."""
        node = ir.Node("", op, inputs, list((attributes or {}).values()), version=13)
        replace_node(self.node, node)
        self.node = node

    # values that are the same for every sample, where a stack is wanted

    def meet(self, i: int, stack: Stack, rank: int) -> None:
        """Let an input that does not depend on the batch broadcast with a stack in a result of `rank` axes."""
        shape = self.shape(i)
        at = stack.axis - (rank - len(shape))
        if at < 0 or shape[at] == 1:
            return
        if shape[at] != stack.size(self.batch.size):
            raise Refusal(f"{self.name(i)} has {shape[at]} elements where the batch is")
        if stack.is_pure:
            self.set_input(i, self._one(i, at))
        else:
            self.lift(i, stack.moved(at))

    def lift(self, i: int, stack: Stack) -> None:
        """Repeat an input that does not depend on the batch, so that it is a stack like the others."""
        value, shape = self.value(i), self.shape(i)
        if not 0 <= stack.axis < len(shape) or shape[stack.axis] != stack.size(self.batch.size):
            raise Refusal(f"{self.name(i)} does not have the batch's size on axis {stack.axis}")
        made = self.batch.lifted.get((value, stack))
        if made is None:
            made = self._lifted(i, stack)
            self.batch.lifted[value, stack] = made
            self.batch.stacks[made] = stack
        self.set_input(i, made)

    def _lifted(self, i: int, stack: Stack) -> ir.Value:
        shape = self.shape(i)
        free = self.batch.free(shape, stack)
        if stack.is_pure:
            return self.add("Expand", [self._one(i, stack.axis), self.sizes(free)], shape, "batch")
        if self.batch.size != 1:
            raise Refusal(f"{self.name(i)} has the batch's size on an axis that holds more than the batch")
        before, after = shape[: stack.axis], shape[stack.axis + 1 :]
        apart = (*before, stack.outer, 1, stack.inner, *after)
        wide = (*before, stack.outer, self.batch.symbol, stack.inner, *after)
        value = self.add("Reshape", [self.value(i), self.sizes(apart)], apart, "apart")
        value = self.add("Expand", [value, self.sizes(wide)], apart, "batch")
        return self.add("Reshape", [value, self.sizes(free)], shape, "merged")

    def _one(self, i: int, axis: int) -> ir.Value:
        """One slice of an input whose slices along an axis are all the same."""
        value, shape = self.value(i), self.shape(i)
        if shape[axis] == 1:
            return value
        if not is_uniform(value, axis):
            raise Refusal(f"{self.name(i)} has an element of its own for each of the file's {shape[axis]} samples")
        one = (*shape[:axis], 1, *shape[axis + 1 :])
        elements, node = _elements(value), value.producer()
        if elements is not None:
            tensor = ir.tensor(np.take(elements, [0], axis), name=f"{value.name}.one")
            return self.add("Constant", [], one, "one", {"value": ir.AttrTensor("value", tensor)}, value)
        if node is not None and node.op_type == "ConstantOfShape":
            return self.add("ConstantOfShape", [self.sizes(one)], one, "one", dict(node.attributes), value)
        source = node.inputs[0] if node is not None and node.op_type == "Expand" else None
        if source is not None and (info(source).shape or ())[axis - len(shape) :][:1] in ((), (1,)):
            return self.add("Expand", [source, self.sizes(one)], one, "one", {}, value)
        return self.add("Slice", [value, *(self.sizes([n], "bound") for n in (0, 1, axis))], one, "one")


def _elements(value: ir.Value) -> np.ndarray[Any, Any] | None:
    """The elements of a constant that is not trained."""
    found, tensor = info(value).constant, stored(value)
    if found is None and tensor is not None and not is_trained(value):
        found = tensor.numpy()
    return found


def is_uniform(value: ir.Value, axis: int) -> bool:
    """Whether all slices of a value along an axis are certainly the same."""
    facts = info(value)
    if facts.shape is None:
        return False
    if facts.shape[axis] == 1:
        return True
    node, constant = value.producer(), _elements(value)
    if constant is not None:
        return bool((constant == np.take(constant, [0], axis)).all())
    if node is None or node.domain != "":
        return False
    if node.op_type == "ConstantOfShape":
        return True
    source = node.inputs[0] if node.inputs else None
    shape = info(source).shape
    if node.op_type == "Expand" and source is not None and shape is not None:
        at = axis - (len(facts.shape) - len(shape))
        return at < 0 or is_uniform(source, at)
    if node.op_type == "Tile" and source is not None and shape is not None:
        return is_uniform(source, axis)
    if node.op_type in ("Identity", "Cast") and source is not None:
        return is_uniform(source, axis)
    indices = node.inputs[1] if node.op_type == "Gather" else None
    if indices is not None and shape is not None and info(indices).shape is not None:
        first = node.attributes["axis"].as_int() % len(shape) if "axis" in node.attributes else 0
        return first <= axis < first + len(info(indices).shape or ()) and is_uniform(indices, axis - first)
    return False


Rule = Callable[[Here], "list[Stack | None] | Stack | None"]
