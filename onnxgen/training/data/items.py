"""Samples of a torch `Dataset`, or of any object with a length and items."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onnxgen.errors import OnnxgenError, typed
from onnxgen.training.checkpoint import generators
from onnxgen.training.data.arrays import spread
from onnxgen.training.data.draw import bits
from onnxgen.training.data.samples import Batch, Field
from onnxgen.training.data.source import target_called

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Items:
    """Items that are read when they are taken: each is a tensor, a tuple (see `by_position`), or a dict.

    An item's transforms may draw from the global generators of Python, numpy and torch. These are seeded by seed and
    index for each item, and restored afterwards.
    """

    dataset: Any
    fields: Mapping[str, Field]

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        read = []
        with _own_generators():
            for index in indices:
                _seed(int(bits(seed, [index], 1)[0, 0]))
                read.append(_read(self.dataset, int(index)))
        return {name: _stacked([item.get(name) for item in read], name, indices) for name in self.fields}

    def column(self, name: str) -> Tensor | None:
        """Return the dataset's own list of targets (torchvision's have one), if some items agree with it."""
        listed = getattr(self.dataset, "targets", None)
        if name != target_called(self.fields) or self.fields[name].shape or listed is None:
            return None
        try:
            found = torch.as_tensor(listed)
        except (TypeError, ValueError, RuntimeError):
            return None
        some = spread(self, 8)
        same = found.shape == (len(self),) and torch.equal(found[some], self.take(some, 0)[name])
        return found if same else None


def items(dataset: Any, what: str) -> Items:
    """Return the samples of a dataset, with the columns of its first item.

    Raises:
        OnnxgenError: the dataset has no length or no items, or its first item can't be read.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise OnnxgenError(
            f"{what} is {type(dataset).__name__}, which lacks a length or items by index",
            help="give a torch Dataset with __len__ and __getitem__ (an IterableDataset can't be shuffled or "
            "resumed), arrays, or a dict of columns",
        )
    if len(dataset) == 0:
        raise OnnxgenError(f"{what} has no samples")
    with _own_generators():
        _seed(0)
        first = _read(dataset, 0)
    classes = getattr(dataset, "classes", ())
    fields = {name: Field(value.dtype, tuple(value.shape)) for name, value in first.items()}
    target = target_called(fields)
    if target and not fields[target].shape and not fields[target].dtype.is_floating_point and classes:
        fields[target] = Field(fields[target].dtype, (), tuple(map(str, classes)))
    return Items(dataset, fields)


def _read(dataset: Any, index: int) -> dict[str, Tensor]:
    try:
        item = dataset[index]
    except Exception as error:
        said = typed(error, 200)
        raise OnnxgenError(f"item {index} of {type(dataset).__name__} can't be read: {said}") from error
    if isinstance(item, Mapping):
        named = {str(k): v for k, v in item.items()}
    else:
        named = by_position(item if isinstance(item, (tuple, list)) else [item])
    return {name: _tensor(value, name, index) for name, value in named.items()}


def by_position(values: Sequence[Any]) -> dict[str, Any]:
    """Name the values of a tuple: "0", "1", ...; the last of several is "target"."""
    last = len(values) - 1
    return {"target" if 0 < i == last else str(i): value for i, value in enumerate(values)}


def _tensor(value: Any, name: str, index: int) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if hasattr(value, "getbands"):  # a PIL image
        return torch.from_numpy(np.array(value))
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float32)
    try:
        return torch.as_tensor(np.asarray(value))
    except TypeError:
        raise OnnxgenError(
            f"column {name!r} of item {index} is {type(value).__name__}, which is not a number, array or image",
            help="let the dataset turn it into a tensor",
        ) from None


def _stacked(values: Sequence[Tensor | None], name: str, indices: Sequence[int]) -> Tensor:
    present = [v for v in values if v is not None]
    if len(present) < len(values):
        raise OnnxgenError(f"item {indices[values.index(None)]} has no column {name!r}, but the first item has")
    for value, index in zip(present, indices):
        if value.shape != present[0].shape or value.dtype != present[0].dtype:
            raise OnnxgenError(
                f"column {name!r} is {list(value.shape)} {value.dtype} in item {index}, "
                f"but {list(present[0].shape)} {present[0].dtype} in item {indices[0]}",
                help="let the dataset give all samples one shape",
            )
    return torch.stack(present)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed % 2**63)


@contextmanager
def _own_generators() -> Iterator[None]:
    """Restore the global generators afterwards, even after an error (Lightning's `isolate_rng` does not)."""
    states = generators.capture(_CPU)
    try:
        yield
    finally:
        generators.restore(states, _CPU)
