"""Tensors of a head with another number of classes, in the form in which the original graph stores them.

`replace_head` resizes tensors of the state dict on one axis each, that of the classes. The weight provenance says which
axis of an ONNX tensor that is: it moves elements, and so it can also move the number of each element's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxgen.common.names import printable
from onnxgen.export.places import Array
from onnxgen.export.shared import CannotWriteBack
from onnxgen.record.way_back import parts
from onnxgen.weights.provenance import rebuild

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Head:
    """A head with another number of classes than the file has.

    Attributes:
        axes: the axis of the classes of each resized tensor, by state-dict key.
        sizes: of this axis, in the file and now. The head of a detector may have several: with the channels of boxes
            and anchors.
    """

    axes: Mapping[str, int]
    sizes: Mapping[str, tuple[int, int]]

    @classmethod
    def between(cls, generated: Shapes, given: Shapes) -> Head | None:
        """Return the head if shapes of a state dict differ in one axis of each tensor; else None."""
        if generated.keys() != given.keys() or any(len(generated[key]) != len(given[key]) for key in given):
            return None
        axes: dict[str, int] = {}
        sizes: list[tuple[str, tuple[int, int]]] = []
        for key, shape in given.items():
            for axis, pair in enumerate(zip(generated[key], shape, strict=True)):
                if pair[0] != pair[1]:
                    axes[key] = axis
                    sizes.append((key, pair))
        is_head = sizes and len(sizes) == len(axes) and not any(0 in pair for _, pair in sizes)
        return cls(axes, dict(sizes)) if is_head else None

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return the sizes that changed, in the file and now, each once."""
        return [*dict.fromkeys(self.sizes.values())]

    @property
    def told(self) -> str:
        """Return what changed, for a message."""
        found = " and ".join(f"from {old} to {new}" for old, new in self.pairs)
        return f"only {'one size was' if len(self.pairs) == 1 else 'these sizes were'} changed, {found}"

    def has(self, entries: Any) -> bool:
        """Return True if a tensor with this record (see `provenance.way_back`) holds elements of the head."""
        return any(part["key"] in self.axes for part in parts(entries))

    def resized(self, tensors: Mapping[str, Any], name: str, get: Callable[[str], Array], before: Array) -> Array:
        """Return the ONNX tensor `name` with the new number of classes.

        Args:
            tensors: the weight record.
            get: the state-dict tensor of a key.
            before: the tensor in the file.

        Raises:
            CannotWriteBack: the classes are not an axis of the tensor.
        """
        old, new = self._sizes(tensors[name])
        blocks = []
        for first in range(0, new, old):  # as many classes at a time as the file has, the last one repeated
            rows = np.minimum(np.arange(first, first + old), new - 1)
            some = {key: get(key).take(rows, axis) for key, axis in self.axes.items() if self.sizes[key] == (old, new)}
            blocks.append(rebuild(tensors, name, lambda key, some=some: some[key] if key in some else get(key), before))  # type: ignore[misc]
        axis = self._axis(tensors[name], get, before)
        if axis is None:
            raise CannotWriteBack(f"the {old} classes are no axis of {printable(name)}")
        return np.concatenate(blocks, axis).take(np.arange(new), axis)

    def _sizes(self, entry: Any) -> tuple[int, int]:
        """Return the sizes of the parts that are of the head."""
        found = {self.sizes[part["key"]] for part in parts(entry) if part["key"] in self.axes}
        if len(found) > 1:
            raise CannotWriteBack("one tensor of the file holds layers of several sizes")
        return found.pop()

    def _axis(self, entry: Any, get: Callable[[str], Array], before: Array) -> int | None:
        """Return the axis of an ONNX tensor that the classes are. Several fit only if they all have size 1."""

        old = self._sizes(entry)[0]

        def numbers(key: str) -> Array:
            """Return a state-dict tensor of the old size that has in each element the number of its class, or -1."""
            own = self.axes.get(key)
            shape = [old if axis == own else size for axis, size in enumerate(get(key).shape)]
            return np.zeros(shape) + (-1.0 if own is None else np.indices(shape, sparse=True)[own])

        if not isinstance(entry, str):  # a norm that is folded in computes, for each class alone
            plain = [{key: value for key, value in part.items() if key != "fold"} for part in entry["parts"]]
            entry = {**entry, "parts": plain}
        found = rebuild({"": entry}, "", numbers, np.full(before.shape, -1.0))
        sized = [axis for axis, size in enumerate(found.shape) if size == old]
        fitting = [axis for axis in sized if np.all(np.moveaxis(found, axis, -1) == np.arange(old))]
        own = next(self.axes[part["key"]] for part in parts(entry) if part["key"] in self.axes)
        return own if own in fitting else next(iter(fitting), None)
