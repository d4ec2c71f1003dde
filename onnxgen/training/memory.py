"""Less memory for a batch: computed in parts when memory runs out, or recomputed backwards.

The second is gradient checkpointing. `Micro` computes a batch in parts of half the size when memory
runs out; their gradients add up to the batch's. With `recompute` the backward pass computes each
block again, instead of keeping all that is inside it.
"""

from __future__ import annotations

import ctypes
import gc
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from onnxgen.errors import OnnxgenError, counted
from onnxgen.training.data.samples import Batch

Result = TypeVar("Result")
Compute = Callable[[Batch, Batch], tuple[Tensor, Any]]  # (part, whole batch) -> the part's share of the loss, and more

_M_MMAP_THRESHOLD = -3  # of malloc.h
# Error texts of allocators: CUDA and ROCm, MPS, XPU, DirectML, and the CPU's (on Linux, and on Windows).
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "out_of_memory",
    "out_of_device_memory",
    "out_of_resources",
    "could not allocate tensor",
    "not enough memory resources",
    "not enough gpu video memory",
    "can't allocate memory",
    "not enough memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that memory ran out, on any device."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):  # the latter is torch.OutOfMemoryError
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _OUT_OF_MEMORY_TEXTS)


@dataclass
class _Pending:
    """A batch between its forward and its backward pass."""

    batch: Batch
    parts: list[Batch]
    shown: Tensor
    loss: Tensor | None  # of the first part
    state: _State


class Micro:
    """Computes batches in parts that fit into memory.

    Attributes:
        size: samples in a part; None as long as whole batches fit. It never grows again.
    """

    def __init__(self) -> None:
        self.size: int | None = None
        self._pending: _Pending | None = None
        self._results: list[Any] = []

    def parts(self, batch: Batch) -> list[Batch]:
        """Split a batch into parts of nearly equal size, none larger than `size`."""
        count = _count(batch)
        if self.size is None or count <= self.size:
            return [batch]
        number = math.ceil(count / self.size)
        columns = {name: column.tensor_split(number) for name, column in batch.items()}
        return [{name: pieces[i] for name, pieces in columns.items()} for i in range(number)]

    def each(self, batch: Batch, compute: Callable[[Batch], Result]) -> list[Result]:
        """Return the results of `compute` for each part, without training.

        Raises:
            OnnxgenError: memory runs out with a single sample.
        """
        while True:
            results, parts = [], self.parts(batch)
            for part in parts:
                result = _attempt(compute, part)
                if result is None:
                    break
                results.append(result)
            else:
                return results
            results.clear()
            self._halve(parts[0])

    def forward(self, model: nn.Module, batch: Batch, compute: Compute) -> Tensor:
        """Return the first part's loss, detached: only this object may keep the graph alive.

        Raises:
            OnnxgenError: memory runs out with a single sample.
        """
        state = _State(model)
        while True:
            parts = self.parts(batch)
            result = _attempt(compute, parts[0], batch)
            if result is not None:
                break
            state.restore()
            self._halve(parts[0], model)
        loss, computed = result
        shown = loss.detach().requires_grad_()
        self._pending, self._results = _Pending(batch, parts, shown, loss, state), [computed]
        return shown

    def backward(
        self, model: nn.Module, shown: Tensor, compute: Compute, *, scaled: bool = True, first: bool = False
    ) -> list[Any]:
        """Add the gradients of the whole batch to the parameters. Return what `compute` returned for each part.

        Args:
            shown: the result of `forward`, after Lightning scaled it or divided it by the number of accumulated
                batches. Autograd tells the factor.
            scaled: False if `shown` was not changed, which saves the call of autograd.
            first: True if this is the first batch of a step, so that the parameters have no gradients yet.

        Raises:
            OnnxgenError: memory runs out with a single sample.
        """
        pending, self._pending = self._pending, None
        assert pending is not None
        factor = torch.autograd.grad(shown, pending.shown)[0] if scaled else None
        # Set the gradients of earlier batches aside, since those of a failed attempt are discarded.
        earlier = {} if first else {p: p.grad for p in _parameters(model) if p.grad is not None}
        _forget(earlier)
        while not self._summed(pending, compute, factor):
            pending.loss = None
            _forget(model.parameters())
            pending.state.restore()
            self._results = []
            self._halve(pending.parts[0], model)
            pending.parts = self.parts(pending.batch)
        for parameter, gradient in earlier.items():
            parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)
        return self._results

    def _summed(self, pending: _Pending, compute: Compute, factor: Tensor | None) -> bool:
        """Run all parts forward and backward. Return False if memory ran out."""
        for part in pending.parts:
            if pending.loss is None:
                result = _attempt(compute, part, pending.batch)
                if result is None:
                    return False
                pending.loss = result[0]
                self._results.append(result[1])
                del result
            if _attempt(_backward, pending.loss, factor) is None:
                return False
            pending.loss = None
        return True

    def _halve(self, part: Batch, model: nn.Module | None = None) -> None:
        count = _count(part)
        if count <= 1:
            way = "use smaller inputs, --precision bf16-mixed, or another device"
            raise OnnxgenError("out of memory with a single sample", help=way)
        self.size = math.ceil(count / 2)
        norms = any(isinstance(m, _NormBase) and m.training for m in model.modules()) if model is not None else False
        gc.collect()
        device = next(iter(part.values())).device
        getattr(getattr(torch, device.type, None), "empty_cache", lambda: None)()
        text = f"out of memory with {counted(count, 'sample')} at once: batches are computed in parts of {self.size}"
        text += ", whose gradients add up to the same" if model is not None else ""
        text += "; BatchNorm takes its statistics from the parts" if norms else ""
        warnings.warn(text, stacklevel=2)


class _State:
    """The state that a forward pass changes: random number generators and running statistics."""

    def __init__(self, model: nn.Module) -> None:
        norms = (m for m in _modules(model) if isinstance(m, _NormBase) and m.training)
        buffers = (buffer for norm in norms for buffer in norm._buffers.values())
        self._kept = [(buffer, buffer.clone()) for buffer in buffers if buffer is not None]
        self._cpu = torch.get_rng_state()
        device = next((p.device for p in _parameters(model)), torch.device("cpu"))
        # Other devices draw from the CPU's generator, or can't return the state of their own.
        self._module = getattr(torch, device.type) if device.type in ("cuda", "xpu", "mps") else None
        self._device = self._module.get_rng_state() if self._module is not None else None

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, kept in self._kept:
                buffer.copy_(kept)
        torch.set_rng_state(self._cpu)
        if self._module is not None:
            self._module.set_rng_state(self._device)


def _attempt(call: Callable[..., Result], *arguments: Any) -> Result | None:
    """Return the result of the call, or None if memory ran out. The error and the memory its frames hold are freed."""
    try:
        return call(*arguments)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    return None


def _backward(loss: Tensor, factor: Tensor | None) -> bool:
    loss.backward(factor)  # type: ignore[no-untyped-call]
    return True


def _modules(model: nn.Module) -> list[nn.Module]:
    """Return what `Module.modules` returns. Its generators take as long as a layer of a small network."""
    modules, seen = [model], {model}
    for module in modules:
        for inner in module._modules.values():
            if inner is not None and inner not in seen:
                seen.add(inner)
                modules.append(inner)
    return modules


def _parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield all parameters; those that modules share more than once."""
    return (p for module in _modules(model) for p in module._parameters.values() if p is not None)


def _forget(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _count(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def return_freed(least: int) -> None:
    """Tell glibc's allocator to return freed blocks of so many bytes, and larger ones, to the system (mallopt(3)).

    By default it keeps blocks of up to 32 MiB, and small tensors between them cut them up. Other allocators lack the
    function.
    """
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, least)


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
    saved = [(m, n, b, b._version, b.clone()) for m in block.modules() for n, b in m._buffers.items() if b is not None]
    yield
    for module, name, buffer, version, value in saved:
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
