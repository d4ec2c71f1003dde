"""Gradients of scatters that write one element several times.

Only the last value written counts, but PyTorch's backward gives each of them the element's gradient. The differences
show the gradient of the last one, so the copy of a module that is compared with differences has that gradient, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NOTE = (
    "a scatter writes one element several times: PyTorch gives each of these values its gradient, and the differences "
    "are compared with the gradient of the value that stays"
)
_SCATTERS = {torch.scatter, Tensor.scatter, Tensor.scatter_}
_PUTS = {torch.index_put, torch.index_put_, Tensor.index_put, Tensor.index_put_}


class LastWriters(TorchFunctionMode):
    """Gives a gradient only to the values that a scatter leaves. `note`: says so once a scatter had others."""

    def __init__(self) -> None:
        super().__init__()
        self.note = ""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _SCATTERS and len(args) == 4 and isinstance(args[3], Tensor) and not kwargs:
            x, axis, index, written = args
            if written.requires_grad:
                written = written[tuple(map(slice, index.shape))]
                places = _empty(x).scatter(axis, index, order := _order(index.shape))
                return function(x, axis, index, self._kept(written, places.gather(axis, index) == order))
        elif function in _PUTS and len(args) == 3 and not kwargs.get("accumulate") and args[2].requires_grad:
            x, at, written = args
            places = _empty(x)
            order = _order(places[at].shape)
            places = places.index_put(at, order)
            return function(x, at, self._kept(written.expand(order.shape), places[at] == order))
        return function(*args, **kwargs)

    def _kept(self, written: Tensor, stays: Tensor) -> Tensor:
        if stays.all():
            return written
        self.note = NOTE
        return torch.where(stays, written, written.detach())


def _empty(like: Tensor) -> Tensor:
    return torch.full(like.shape, -1)


def _order(shape: torch.Size) -> Tensor:
    return torch.arange(shape.numel()).reshape(shape)
