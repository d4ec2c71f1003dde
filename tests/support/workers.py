"""Worker processes of torch's loaders, ended where nobody uses them any more.

A run keeps its workers (`persistent_workers`), in a cycle of references. The garbage collector ends them at some time,
in whatever test it happens to run: by then their queues are gone, so no worker hears that it should end, and torch
waits five seconds for each.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_running: WeakSet[Any] = WeakSet()
_begin = _MultiProcessingDataLoaderIter.__init__


def _noted(self: Any, *args: Any, **given: Any) -> None:
    _running.add(self)
    _begin(self, *args, **given)


_MultiProcessingDataLoaderIter.__init__ = _noted


def end() -> None:
    """End the workers of all loaders that began since this module was imported."""
    for iterator in list(_running):
        iterator._shutdown_workers()
        _running.discard(iterator)
