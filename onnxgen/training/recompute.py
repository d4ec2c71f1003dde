"""Gradient checkpointing: the backward pass computes each block again, instead of keeping all that is inside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint


def recompute(model: nn.Module) -> None:
    """Let the blocks of a model keep their inputs alone for the backward pass (Chen et al. 1604.06174).

    Blocks are the items of lists of modules, and what is outside such lists. Results and gradients are the same: the
    second computation begins with the same random numbers and buffers. `keep_all` undoes it.
    """
    for block in _blocks(model):
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=partial(_contexts, block))


def keep_all(model: nn.Module) -> None:
    """Undo `recompute`."""
    for block in _blocks(model):
        vars(block).pop("forward", None)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules below that are computed again as a whole. A single layer keeps little but its input."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or _repeats(child):
            yield from _blocks(child)
        elif _has_parts(child):
            yield child


def _repeats(module: nn.Module) -> bool:
    """Return True if the module has a list of at least two modules that have parts of their own."""
    lists = (m for m in module.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)))
    return any(sum(map(_has_parts, items)) >= 2 for items in lists)


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first and of the second computation.

    The second one begins with the buffers (running statistics, vectors of a spectral norm) that the first one began
    with, and leaves no trace.
    """
    before: dict[tuple[nn.Module, str], Tensor] = {}
    return _first(block, before), _second(before)


@contextmanager
def _first(block: nn.Module, before: dict[tuple[nn.Module, str], Tensor]) -> Iterator[None]:
    """Add the former values of the buffers that change to `before`."""
    found = [(m, n, b, b._version, b.clone()) for m in block.modules() for n, b in m._buffers.items() if b is not None]
    yield
    for module, name, buffer, version, value in found:
        # torch does not count the changes that F.batch_norm makes.
        counted = not (isinstance(module, _NormBase) and module.training)
        if not counted or module._buffers[name] is not buffer or buffer._version != version:
            before[module, name] = value


@contextmanager
def _second(before: dict[tuple[nn.Module, str], Tensor]) -> Iterator[None]:
    now = {(module, name): module._buffers[name] for module, name in before}
    for (module, name), value in before.items():
        module._buffers[name] = value.clone()
    try:
        yield
    finally:
        for (module, name), buffer in now.items():
            module._buffers[name] = buffer
