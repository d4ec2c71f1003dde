"""Tensors that a network computes from sizes alone: Python computes their elements, and no tensor is made of a size.

`x.shape[2] == 1` is a condition and `x.shape[3] / 2` a number beside a tensor. An operator's function asks `formula`
first, and gives what it returns as its result. What only moves elements needs no formula (`moved`). Where something
takes such a value as a tensor after all, the tensor is made there.

Python computes floats in float64. So every operand must be a number that the tensor's own type holds exactly; then the
result is rounded once, where it meets a tensor, as the file rounds it (Figueroa, When is double rounding innocuous?,
1995).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.quote import SizeOf, literal, quote
from onnxgen.graph.operators import card, is_a, known
from onnxgen.graph.traits import FILLS, MOVES
from onnxgen.shapes.dims import Dim
from onnxgen.shapes.elements import operation_of
from onnxgen.shapes.float_sizes import one_axis
from onnxgen.shapes.info import NONSENSE, NodeFacts, Symbols, info

if TYPE_CHECKING:
    from onnxgen.lowering.builder import Arg

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
MAX_ELEMENTS = 64  # more are a tensor


@dataclass(frozen=True, eq=False)
class Sized:
    """A tensor that is computed from sizes.

    Attributes:
        elements: an expression for each, in the tensor's shape; None for the shape of a tensor of unknown rank.
        exact: the tensor's type holds each element as Python computes it. Else it must be rounded once.
        whole: the elements as one Python sequence, where their number is unknown.
    """

    elements: NDArray[Any] | None
    exact: bool = True
    whole: ast.expr | None = None

    @staticmethod
    def of(number: ast.expr) -> Sized:
        """Make a tensor of rank 0."""
        return Sized(_boxed(number))

    @property
    def one(self) -> ast.expr | None:
        """The only element, or None if there are several."""
        return self.elements.flat[0] if self.elements is not None and self.elements.size == 1 else None

    @property
    def dim(self) -> Dim | None:
        """The only element, if it is a size or a whole number."""
        one = self.one
        if isinstance(one, SizeOf):
            return one.dim
        value = one.value if isinstance(one, ast.Constant) else None
        return int(value) if isinstance(value, (int, float)) and float(value).is_integer() else None

    def map(self, change: Callable[[ast.expr], ast.expr]) -> Sized:
        """Return the same with each element changed."""
        return self if self.elements is None else replace(self, elements=each(change, self.elements))

    def listed(self) -> ast.expr:
        """Return the elements as nested lists, as `torch.tensor` takes them."""
        return literal(self.elements.tolist()) if self.elements is not None else literal(self.whole)


def elements(arg: Arg) -> Sized | None:
    """Return the known elements of an input as numbers and sizes; None if there are many, or if it is trained."""
    data = arg.info.data
    if data is None or not 0 < data.size <= MAX_ELEMENTS or data.dtype.kind not in "biufO":
        return None
    if data.dtype.kind == "f" and arg.dtype not in FLOATS:
        return None
    return Sized(each(literal, data))


def formula(template: str, *args: Arg, rounds: bool = False) -> Sized | None:
    """Return what Python computes by a template of `x` and `y`, if all inputs are computed from sizes, else None.

    `rounds`: the result may be a number that the tensors' type does not hold.
    """
    operands = [arg.sized for arg in args] if any(arg.is_sized for arg in args) else [None]
    if any(s is None or s.elements is None or not s.exact for s in operands):
        return None
    arrays = [s.elements for s in operands if s is not None and s.elements is not None]
    numbers = each(lambda *parts: quote(template, **dict(zip("xy", parts))), *arrays)
    return Sized(numbers, not rounds)


def as_float(arg: Arg, to: ir.DataType) -> Sized | None:
    """Return sizes as floats: the same Python numbers, since the type holds the size of an axis exactly."""
    sized = arg.sized if arg.is_sized and to in FLOATS else None
    if sized is None or sized.elements is None:
        return None
    if arg.dtype == to:
        return sized
    sizes = [e.dim for e in sized.elements.flat if isinstance(e, SizeOf)]
    others = [e for e in sized.elements.flat if not isinstance(e, (SizeOf, ast.Constant))]
    is_whole = arg.dtype is not None and arg.dtype.is_integer() and not others
    return Sized(sized.elements) if is_whole and all(map(one_axis, sizes)) else None


def moved(node: ir.Node, opset: int, args: Sequence[Arg | None]) -> list[Sized] | None:
    """Return the outputs of a node that only moves elements which are computed from sizes; None for other nodes."""
    if not is_a(node, MOVES) or is_a(node, FILLS) or not any(arg.is_sized for arg in filter(None, args)):
        return None
    rule = operation_of(card("", node.op_type)) if node.domain == "" else None
    data = known(node).data
    operands = list(filter(None, (_operand(arg, i in data) for i, arg in enumerate(args))))
    if rule is None or len(operands) < len(args):
        return None
    facts = NodeFacts(node, opset, [None if arg is None else arg.info for arg in args], Symbols({}))
    facts.inferred = [*map(info, node.outputs)]
    try:
        outputs = rule(facts, *(operand.elements for operand in operands))
    except NONSENSE:
        return None
    exact = all(operand.exact for operand in operands)
    return [Sized(_boxed(array), exact) for array in outputs]


def _operand(arg: Arg | None, is_data: bool) -> Sized | None:
    """Return the elements of an input, none for one that is left out; None if they are not known."""
    if arg is None:
        return None if is_data else Sized(None)
    operand = arg.sized if is_data else Sized(arg.info.data)
    return None if operand is None or operand.elements is None else operand


def each(function: Any, *arrays: NDArray[Any]) -> NDArray[Any]:
    """Apply a function to the elements of arrays, which broadcast. The result is an array, also of one element."""
    return _boxed(np.frompyfunc(function, len(arrays), 1)(*(a.astype(object) for a in arrays)))


def _boxed(array: Any) -> NDArray[Any]:
    if isinstance(array, np.ndarray):
        return array
    box = np.empty((), object)
    box[()] = array
    return box
