"""Find the tensors that belong to a classifier: those with one entry for each class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from onnxgen.surgery.owners import Owner, owners
from onnxgen.surgery.trace import Operation, Trace, Value, is_view, source

PRODUCTS = {"addmm", "mm", "linear", "convolution", "bmm", "baddbmm", "matmul", "addmv", "mv"}
NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm"}
NORMS |= {"cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_no_update", "_batch_norm_with_update"}
ARITHMETIC = {"add", "sub", "mul", "div"}

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

_TRANSPOSED = 6  # index of the argument `transposed` of aten's `convolution`
# for the arguments of a norm: x, weight, bias, running mean, running variance
_FILLS = (None, "ones", "zeros", "zeros", "ones")


@dataclass(frozen=True)
class ClassTensor:
    """A tensor with one entry for each class.

    Attributes:
        axis: the axis of the classes.
        fill: the initial values of a new class: "weight", "bias" (both by the chosen initialisation), "zeros", "ones".
    """

    owner: Owner
    axis: int
    fill: str


class Parts:
    """The parameters and buffers of a model, located in a forward pass."""

    def __init__(self, model: nn.Module, traced: Trace) -> None:
        self._owners = owners(model)
        self._operations = traced.operations
        self.products = [operation for operation in traced.operations if self.weight(operation) is not None]

    def weight(self, made: Operation) -> ClassTensor | None:
        """Return the stored tensor that a product multiplies with and its output axis, or None if it has none."""
        if made.name not in PRODUCTS or (made.name == "convolution" and made.arguments[_TRANSPOSED]):
            return None
        for value in made.inputs:
            stored, turns = source(value)
            held = self._owner(value)
            if held is None or stored.tensor.ndim < 2:
                continue
            if made.name in ("linear", "convolution"):
                return ClassTensor(held, 0, "weight")
            columns = (value is made.inputs[-1]) != (turns % 2 == 1)
            return ClassTensor(held, stored.tensor.ndim - 1 if columns else 0, "weight")
        return None

    def of(self, made: Operation) -> tuple[ClassTensor, ...]:
        """Return the weight and bias of a product, and other tensors with one value per class up to the next layer."""
        weight = self.weight(made)
        assert weight is not None
        classes = getattr(weight.owner.module, weight.owner.name).shape[weight.axis]
        found = [weight, *self._sized(((value, "bias") for value in made.inputs), classes)]
        behind = {made}
        for operation in self._operations:
            if operation.name in PRODUCTS or not any(value.made_by in behind for value in operation.inputs):
                continue
            behind.add(operation)
            if operation.name in NORMS:
                found += self._sized(zip(operation.arguments, _FILLS, strict=False), classes)
            elif operation.name in ARITHMETIC:
                fill = "zeros" if operation.name in ("add", "sub") else "ones"
                found += self._sized(((value, fill) for value in operation.inputs), classes)
        return tuple({(id(part.owner.module), part.owner.name): part for part in reversed(found)}.values())[::-1]

    def sharing(self, made: Operation) -> str:
        """Return the path of another user of a product's weight, or ""."""
        weight = self.weight(made)
        assert weight is not None
        tensor = getattr(weight.owner.module, weight.owner.name)
        others = [owner.path for owner in self._owners[id(tensor)] if owner.path != weight.owner.path]
        for operation in self._operations:
            if operation.name not in PRODUCTS and not is_view(operation):
                others += [operation.name for value in operation.inputs if source(value)[0].tensor is tensor]
        return others[0] if others else ""

    def _owner(self, value: Value) -> Owner | None:
        """Return the owner of the tensor that a value is a view of, or None."""
        held = () if value.varies else self._owners.get(id(source(value)[0].tensor), ())
        return next((o for o in held if isinstance(o.module, LAYERS)), next(iter(held), None))

    def _sized(self, values: Iterable[tuple[Any, str | None]], classes: int) -> Iterator[ClassTensor]:
        """Yield the stored tensors among some arguments that hold exactly one value per class."""
        for value, fill in values:
            held = self._owner(value) if isinstance(value, Value) and fill else None
            shape = source(value)[0].shape if held else ()
            if held and classes in shape and prod(shape) == classes:
                yield ClassTensor(held, shape.index(classes), fill or "")
