"""What belongs to a classifier: the tensors that hold a value a class."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from onnxgen.surgery.owners import Owner, owners
from onnxgen.surgery.trace import VIEWS, Operation, Trace, Value, source

PRODUCTS = {"addmm", "mm", "linear", "convolution", "bmm", "baddbmm", "matmul", "addmv", "mv"}
NORMS = {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "batch_norm"}
NORMS |= {"cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_no_update", "_batch_norm_with_update"}
ARITHMETIC = {"add", "sub", "mul", "div"}

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)

_TRANSPOSED = 6  # the argument of `convolution`
_FILLS = (None, "ones", "zeros", "zeros", "ones")  # a norm's arguments: x, weight, bias, running mean and variance


@dataclass(frozen=True)
class Part:
    """A tensor with an entry a class.

    Attributes:
        axis: of the classes.
        fill: how a new class starts: "weight", "bias" (as the initialisation says), "zeros", "ones".
    """

    owner: Owner
    axis: int
    fill: str


class Parts:
    """The parameters and buffers of a model, where a forward pass uses them."""

    def __init__(self, model: nn.Module, traced: Trace) -> None:
        self._owners = owners(model)
        self._operations = traced.operations
        self.products = [operation for operation in traced.operations if self.weight(operation) is not None]

    def weight(self, made: Operation) -> Part | None:
        """What a product multiplies with, if it is one of a stored tensor, with the axis that comes out of it."""
        if made.name not in PRODUCTS or (made.name == "convolution" and made.arguments[_TRANSPOSED]):
            return None
        for value in made.inputs:
            stored, turns = source(value)
            held = self._owner(value)
            if held is None or stored.tensor.ndim < 2:
                continue
            if made.name in ("linear", "convolution"):
                return Part(held, 0, "weight")
            columns = (value is made.inputs[-1]) != (turns % 2 == 1)
            return Part(held, stored.tensor.ndim - 1 if columns else 0, "weight")
        return None

    def of(self, made: Operation) -> tuple[Part, ...]:
        """The weight of a product, its bias, and what else holds a value a class until the next layer."""
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
        """The path of what else uses a product's weight; "" if nothing does."""
        weight = self.weight(made)
        assert weight is not None
        tensor = getattr(weight.owner.module, weight.owner.name)
        others = [owner.path for owner in self._owners[id(tensor)] if owner.path != weight.owner.path]
        for operation in self._operations:
            if operation.name not in PRODUCTS | VIEWS:
                others += [operation.name for value in operation.inputs if source(value)[0].tensor is tensor]
        return others[0] if others else ""

    def _owner(self, value: Value) -> Owner | None:
        """Who holds the tensor that a value is a view of."""
        held = () if value.varies else self._owners.get(id(source(value)[0].tensor), ())
        return next((o for o in held if isinstance(o.module, LAYERS)), next(iter(held), None))

    def _sized(self, values: Iterable[tuple[Any, str | None]], classes: int) -> Iterator[Part]:
        """Of some arguments the stored tensors that have one value a class, and nothing else."""
        for value, fill in values:
            held = self._owner(value) if isinstance(value, Value) and fill else None
            shape = source(value)[0].shape if held else ()
            if held and classes in shape and prod(shape) == classes:
                yield Part(held, shape.index(classes), fill or "")
