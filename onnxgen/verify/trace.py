"""Record arguments and results of a module's PyTorch functions, and decide if two arrays hold the same numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.verify import torch_side
from onnxgen.verify.convert import to_torch
from onnxgen.verify.graph import Graph

MAX_TRACE_BYTES = 1 << 30  # bytes of results that a trace keeps; later results are ignored
MAX_CHANCE_NUMBERS = 3  # arrays with at most this many distinct numbers may be equal by chance
MIN_UNORDERED_ELEMENTS = 64  # arrays of this many elements with the same numbers count as the same, in any order
MAX_PERMUTED_AXES = 6  # largest rank for which every order of axes is tried
SAME_RTOL = 1e-4  # relative tolerance between results of a correct module and of onnxruntime
HALF_RTOL = {"float16": 4e-3, "bfloat16": 3e-2}  # the same for computations in half precision
Alike = Callable[[NDArray[Any], NDArray[Any], float], bool]


@dataclass(frozen=True)
class Event:
    """One call of a PyTorch function: arguments, results, and the line of the module that made it."""

    function: str
    line: int
    arguments: list[NDArray[Any]]
    results: list[NDArray[Any]]


class _Trace(TorchFunctionMode):
    def __init__(self, file: str) -> None:
        super().__init__()
        self.file, self.events, self.room = file, list[Event](), MAX_TRACE_BYTES
        self.kept: dict[int, tuple[Tensor, int, NDArray[Any]]] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # The numbers are copied before the call, which may change them.
        taken = [self._numbers(t) for t in args if isinstance(t, Tensor) and self.room > 0]
        result = function(*args, **(kwargs or {}))
        tensors = [t for t in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(t, Tensor)]
        name = getattr(function, "__name__", str(function))
        if tensors and self.room > 0 and name != "__get__":
            self.events.append(Event(name, self._line(), taken, [self._numbers(t) for t in tensors]))
        return result

    def _numbers(self, tensor: Tensor) -> NDArray[Any]:
        """Return a copy of a tensor's numbers; the same copy for every function that takes it."""
        known = self.kept.get(id(tensor))
        if known is not None and known[1] == tensor._version:
            return known[2]
        plain = tensor.detach()
        wide = torch.complex128 if plain.is_complex() else plain.dtype if _is_single(plain) else torch.float64
        array: NDArray[Any] = plain.to(wide).numpy().copy()
        self.kept[id(tensor)] = tensor, tensor._version, array  # keep the tensor, or its id may be reused
        self.room -= array.nbytes
        return array

    def _line(self) -> int:
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        return 0 if frame is None else int(frame.f_lineno)


def _is_single(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


def traced(module: nn.Module, graph: Graph, feeds: Mapping[str, Any]) -> list[Event]:
    """Return the calls of a module's functions on some inputs, up to a failure if there is one."""
    file = sys.modules[type(module).__module__].__file__ if type(module).__module__ in sys.modules else None
    file = module.forward.__code__.co_filename if hasattr(module.forward, "__code__") else file
    trace = _Trace(file or "")
    with torch_side.in_mode(module, graph), torch.no_grad(), trace, suppress(Exception):
        module(*map(to_torch, feeds.values()))
    return trace.events


def same(graph: Graph) -> float:
    """Return the relative difference that is allowed between results of a correct module and of onnxruntime."""
    return max([SAME_RTOL, *(HALF_RTOL.get(str(dtype.numpy()), SAME_RTOL) for dtype in graph.halves)])


class Results:
    """The arrays of a trace, searchable in any layout."""

    def __init__(self, events: Sequence[Event], *, arguments: bool = False) -> None:
        """`arguments`: include the arguments of functions."""
        self.by_size: dict[int, dict[int, NDArray[Any]]] = {}
        self.by_function: dict[str, list[NDArray[Any]]] = {}
        for event in events:
            self.by_function.setdefault(event.function, []).extend(event.results)
            for array in event.results + (event.arguments if arguments else []):
                self.by_size.setdefault(array.size, {})[id(array)] = array

    def has(self, array: NDArray[Any], rtol: float, alike: Alike) -> bool:
        return any(alike(array, result, rtol) for result in self.by_size.get(array.size, {}).values())

    def takes(self, function: str, array: NDArray[Any], rtol: float) -> bool:
        """Return True if the function returned this array. The match is used up: it matches no other array."""
        found = self.by_function.get(function, [])
        at = next((i for i, result in enumerate(found) if close(array, result, rtol)), None)
        if at is not None:
            del found[at]
        return at is not None


def alike(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """Return True if two arrays have the same numbers, perhaps in another layout.

    Arrays with few elements, or symmetric about 0, may have equal numbers by chance or up to sign. For these the
    elements must also be equal in some order of the axes.
    """
    if a.size != b.size:
        return False
    if close(a, b, rtol) or is_plain(a):
        return close(a, b, rtol)
    ordered = np.sort(a, axis=None)
    if not close(ordered, np.sort(b, axis=None), rtol):
        return False
    if a.size >= MIN_UNORDERED_ELEMENTS and not close(ordered, -ordered[::-1], rtol):
        return True
    return in_order(a, b, rtol) or _in_other_axes(a, b, rtol) or _in_other_axes(b, a, rtol)


def _in_other_axes(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    squeezed = a.squeeze()
    if squeezed.ndim > MAX_PERMUTED_AXES:
        return True
    return any(in_order(squeezed.transpose(order), b, rtol) for order in permutations(range(squeezed.ndim)))


def in_order(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """Return True if two arrays have the same numbers in the same order, perhaps in another shape."""
    return a.size == b.size and close(a.ravel(), b.ravel(), rtol)


def close(a: NDArray[Any], b: NDArray[Any], rtol: float) -> bool:
    """Return True if two arrays have the same shape and the same numbers at the same places."""
    if a.shape != b.shape:
        return False
    finite = a[np.isfinite(a)]
    scale = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(a, b, rtol=rtol, atol=rtol * 0.1 * scale, equal_nan=True))


def is_plain(array: NDArray[Any]) -> bool:
    """Return True if an array has so few distinct numbers that another one may have the same by chance."""
    return bool(np.unique(array).size <= MAX_CHANCE_NUMBERS)
