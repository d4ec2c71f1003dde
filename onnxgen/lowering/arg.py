"""`Arg`: an input of an operator, as the operator's function gets it."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxgen.code.formula import computed
from onnxgen.code.quote import literal, quote, shortest
from onnxgen.errors import INFER
from onnxgen.graph.annotations import is_trained
from onnxgen.lowering.from_sizes import Sized, elements
from onnxgen.lowering.parameter_paths import NOISE
from onnxgen.passes.exporters import is_function_name
from onnxgen.shapes.dims import Dim, Sym
from onnxgen.shapes.info import Info, Shape
from onnxgen.shapes.rankless import shape_option
from onnxgen.weights.provenance import Source

UNKNOWN_SHAPE = f"{INFER}; after an operator of a plugin, give the plugin an infer rule (docs/EXTENDING.md)"

MAX_WHOLE = 10_000  # a larger number keeps its point: it is a limit or a mask, not a count

if TYPE_CHECKING:
    from onnxgen.lowering.builder import Builder


class Arg:
    """An input: the known facts about it, and the expression that computes it.

    Attributes:
        name: the value's name in the file ("" for an attribute that later opsets made an input).
        info: dtype, shape and elements, as far as they are known.
        value: the graph's value (None for an attribute).
        index: its index among the node's inputs, if known.
    """

    def __init__(self, builder: Builder, info: Info, value: ir.Value | None = None, index: int | None = None) -> None:
        self.builder, self.info, self.value, self.index = builder, info, value, index
        self.name = (value.name or "") if value is not None else ""

    @property
    def dtype(self) -> ir.DataType | None:
        return self.info.dtype

    @property
    def shape(self) -> Shape | None:
        """The dims, ints or symbolic; None if the rank is unknown."""
        return self.info.shape

    @property
    def rank(self) -> int | None:
        return self.info.rank

    @property
    def known_rank(self) -> int:
        """The rank, for operators that need it. Raises `OnnxgenError` if it is unknown."""
        if self.info.rank is None:
            way_out = shape_option(self.value) or UNKNOWN_SHAPE
            raise self.builder.error(f"the rank of input {self.name} is unknown", way_out)
        return self.info.rank

    @property
    def is_float(self) -> bool:
        return self.dtype is not None and self.dtype.is_floating_point()

    @property
    def constant(self) -> NDArray[Any] | None:
        """The elements, if they are numbers known at generation; None for trainable tensors."""
        return self.info.constant if self.info.data is not None else self.builder.constant(self.value)

    @property
    def ints(self) -> list[Dim] | None:
        """The elements of a small integer tensor as dims (ints or symbolic), flattened; None if unknown."""
        if self.info.data is None:
            constant = self.constant
            return None if constant is None or constant.size > 4096 else [int(v) for v in constant.flat]
        return [v if isinstance(v, Sym) else int(v) for v in self.info.data.flat]

    def known_ints(self, what: str) -> list[int]:
        """Return the elements as plain ints, for operators that need them. Raises `OnnxgenError` if unknown."""
        found = self.ints
        if found is None or not all(isinstance(v, int) for v in found):
            help = "fold it into a constant, e.g. with onnx-simplifier"
            raise self.builder.error(f"{what} is computed at run time", help)
        return [v for v in found if isinstance(v, int)]

    @property
    def source(self) -> Source | None:
        """How this value is made of stored tensors, if it is an initializer or a view of initializers."""
        return self.builder.source(self.value)

    @property
    def is_trainable(self) -> bool:
        return self.value is not None and is_trained(self.value)

    @property
    def expr(self) -> ast.expr:
        """The expression for this input as a tensor."""
        return self.builder.tensor(self)

    @property
    def number(self) -> ast.expr | None:
        """A Python number if this is one element known at generation (a literal, or an int from shapes), else None."""
        if self.info.data is not None and self.info.data.dtype == object:
            return literal(self.info.data.flat[0]) if self.info.data.size == 1 else None
        scalar = self.scalar
        if scalar is None and (sized := self.builder.sized(self.value)) is not None and sized.one is not None:
            return quote("float(n)", n=sized.one) if self.is_float else sized.one
        return None if scalar is None else literal(scalar)

    @property
    def beside(self) -> ast.expr | None:
        """`number` as it stands beside a tensor of this type, which decides the result's: `x * 8`, not `x * 8.0`.

        A number that was computed is what its formula gives (`code.formula`).
        """
        scalar, sized = self.scalar, self.builder.sized(self.value)
        if sized is not None and sized.one is not None:
            return sized.one
        if not isinstance(scalar, float):
            return self.number
        if scalar.is_integer() and abs(scalar) <= MAX_WHOLE:
            return self.number if math.copysign(1, scalar) < 0 and not scalar else literal(int(scalar))
        return literal(computed(scalar)) if self.dtype == ir.DataType.FLOAT else self.number

    @property
    def uniform(self) -> float | None:
        """The float that all elements are, if they are known and equal, and the tensor has no name of its own."""
        is_nameless = NOISE.match(self.name) or "/" in self.name or is_function_name(self.name)
        constant = self.constant if is_nameless else None
        if constant is None or constant.size == 0 or constant.dtype.kind != "f":
            return None
        first = constant.reshape(-1)[0]
        is_one = bool((constant == first).all()) and bool((np.signbit(constant) == np.signbit(first)).all())
        return shortest(first.item(), self.dtype) if is_one else None

    @property
    def scalar(self) -> float | int | None:
        """The one element as a plain Python number, or None."""
        constant = self.constant
        if constant is None or constant.size != 1 or constant.dtype.kind not in "biuf":
            return None
        item = constant.reshape(-1)[0].item()
        return shortest(item, self.dtype) if isinstance(item, float) else item

    @property
    def is_sized(self) -> bool:
        """True if Python computes the elements from sizes (`lowering.from_sizes`)."""
        return self.builder.sized(self.value) is not None or self.info.data is not None and self.constant is None

    @property
    def sized(self) -> Sized | None:
        """The elements as Python computes them from sizes; also those that are known."""
        return self.builder.sized(self.value) or elements(self)

    @property
    def truth(self) -> ast.expr:
        """The condition that a tensor of one element is: Python's own if it is computed from sizes."""
        sized = self.builder.sized(self.value)
        return self.expr if sized is None or sized.one is None else sized.one

    def as_int(self) -> ast.expr:
        """Return a Python int: a literal, a size, or `.item()` of a tensor that is computed."""
        return self.number if self.number is not None else quote("x.item()", x=self.expr)

    def as_ints(self) -> ast.expr:
        """Return a Python sequence of ints: a tuple of literals and sizes, or `.tolist()` of the tensor."""
        ints = self.ints
        return literal(tuple(ints)) if ints is not None else quote("x.tolist()", x=self.expr)
