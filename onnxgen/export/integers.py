"""Convert trained floats to the integers that the file stores for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError
from onnxgen.export.places import Array
from onnxgen.export.shared import CannotWriteBack, same
from onnxgen.weights.dequantised import Dequantised
from onnxgen.weights.provenance import rebuild

Get = Callable[[str], Array]


class Integers:
    """The file's integer tensors that float tensors of the record represent, and their new values.

    Args:
        tensors: the weight record: how each tensor is made of the state dict.
        record: for each float tensor that the file stores as integers, its recorded `Dequantised`.
        state: returns the state-dict tensor of a key.
        before: returns the file's tensor of a name.

    Attributes:
        moved: the float tensors that training changed.
    """

    def __init__(
        self, tensors: Mapping[str, Any], record: Mapping[str, Mapping[str, Any]], state: Get, before: Get
    ) -> None:
        self.tensors, self.state, self.before = tensors, state, before
        self.floats = {name: Dequantised.of_record(how) for name, how in record.items() if name in tensors}
        self.moved: set[str] = set()
        self.by_tensor: dict[str, list[str]] = {}
        for name, how in self.floats.items():
            self.by_tensor.setdefault(how.tensor, []).append(name)
        self.products = {how.scales[0]: how for how in self.floats.values() if how.product}

    def rank(self, name: str) -> int:
        """Return the position in the order of writing: a tensor comes after those that are computed from it."""
        return 0 if name in self.by_tensor else 1 if name in self.products else 2

    def now(self, name: str) -> Array:
        """Return a tensor of the file that is not integers, with its trained value if it was trained."""
        before = self.before(name)
        if name in self.tensors:
            return np.asarray(rebuild(self.tensors, name, self.state, before)).astype(before.dtype, copy=False)
        how = self.products.get(name)
        if how is not None and not all(same(self.now(part), self.before(part)) for part in how.product):
            made = np.prod(np.broadcast_arrays(*(self.now(part) for part in how.product)), axis=0)
            return np.asarray(made, before.dtype).reshape(before.shape)
        return before

    def value(self, names: list[str]) -> Array:
        """Return the integers for float tensors. Raises `CannotWriteBack` if one tensor cannot hold them all."""
        values = [self._value(name) for name in names]
        if not all(same(value, values[0]) for value in values[1:]):
            tensor = printable(self.floats[names[0]].tensor)
            raise CannotWriteBack(
                f"the file stores {tensor} once for tensors with several scales, but the values now differ"
            )
        return values[0]

    def _value(self, name: str) -> Array:
        how = self.floats[name]
        original = how.floats(self.before)
        floats = rebuild(self.tensors, name, self.state, original)
        entries = self.tensors[name]
        for index in range(1, len(entries) if isinstance(entries, list) else 1):
            if not np.array_equal(rebuild(self.tensors, name, self.state, floats, index), floats):
                raise CannotWriteBack(
                    f"the file stores {printable(how.tensor)} once for several tensors, but the values now differ"
                )
        if not np.array_equal(floats, original.astype(np.asarray(floats).dtype)):
            self.moved.add(name)
        try:
            return how.integers(np.asarray(floats), self.now, self.before)
        except FloatingPointError as error:
            raise OnnxgenError(f"{printable(how.tensor)} cannot be written as integers: {error}") from None
