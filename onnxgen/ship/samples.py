"""Samples of a run's data, as arguments of its module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.record.signature import Port
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data import feed
from onnxgen.training.data.arrays import unaugmented
from onnxgen.training.data.feeding import fed, says_batch
from onnxgen.training.data.scaling import by_width
from onnxgen.training.loader import Loader
from onnxgen.training.model import fixed_batch
from onnxgen.training.runs.learner import Learner


def batch_axes(model: nn.Module) -> list[int | None]:
    """Return the axis of the batch in each input and then in each output of a module; None if it has none.

    Where nothing is known of the axes, it is the first one.
    """
    taken, signature = fed(model).inputs, signature_of(model)
    firsts = [port.dims[0] for port in taken if port.dims]
    names = [dim for dim in firsts if isinstance(dim, str)]
    batch = next((name for name in names if says_batch(name)), names[0] if names else fixed_batch(model))
    fixed = [p.name for p in signature.inputs if isinstance(batch, int) and p.name not in {q.name for q in taken}]

    def axis(port: Port) -> int | None:
        if port.dims is None:
            return 0
        if isinstance(batch, int):  # other axes may have this size by chance
            return 0 if port.dims[:1] == (batch,) and port.name not in fixed else None
        return port.dims.index(batch) if batch in port.dims else None

    return [axis(port) for port in (*signature.inputs, *signature.outputs)]


def arguments_of(learner: Learner, part: str, data: Any, most: int) -> Iterator[list[Tensor]]:
    """Yield the arguments of `forward` for batches of a part of the run's data, in order, up to `most` samples.

    Raises:
        OnnxgenError: the run's data is gone, or is not what it was.
    """
    held = learner.held(data, part)
    feeding = feed(held, learner.model, learner.settings)
    for _, some in by_width(unaugmented(held.parts[part])):
        with closing(Loader(some, learner.settings.batch)) as loader:
            for batch in loader:
                yield feeding.arguments(batch)
                most -= len(batch[feeding.inputs[0]])
                if most <= 0:
                    return


def in_batches(batches: Iterable[list[Tensor]], axes: Sequence[int | None], size: int) -> Iterator[list[Tensor]]:
    """Yield the same arguments in batches of another size; what is left over is left out."""
    for batch in batches:
        count = next((x.shape[axis] for x, axis in zip(batch, axes) if axis is not None), size)
        for start in range(0, count - size + 1, size):
            yield [x if axis is None else x.narrow(axis, start, size) for x, axis in zip(batch, axes)]


def filled(arguments: Sequence[Tensor], axes: Sequence[int | None], size: int) -> list[Tensor]:
    """Return the same arguments for `size` samples: the first ones, again and again if there are too few."""
    return [
        x if axis is None else x.index_select(axis, torch.arange(size, device=x.device) % x.shape[axis])
        for x, axis in zip(arguments, axes)
    ]


def resized(arguments: Sequence[Tensor], free: Sequence[Mapping[int, int]], share: float) -> list[Tensor]:
    """Return the same arguments with other sizes of their free axes: what they have, cut off or once more.

    Args:
        free: the axes of any size of each argument.
        share: of the sizes that they have.
    """
    made = []
    for x, axes in zip(arguments, free):
        for axis in axes:
            size = max(int(x.shape[axis] * share), 1)
            x = x.index_select(axis, torch.arange(size, device=x.device) % x.shape[axis])
        made.append(x)
    return made
