"""Compare gradients with finite differences: the directional derivative from backward and that from a small step.

Both use a copy of the module in float64, where a step of a millionth still leaves ten digits. At a kink (a ReLU at 0, a
tie of a maximum) the two one-sided quotients differ, and any number between them is a gradient.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.common.names import printable
from onnxgen.errors import counted, typed
from onnxgen.verify.convert import to_torch
from onnxgen.verify.limits import limited
from onnxgen.verify.report import Gradients
from onnxgen.verify.writers import LastWriters

STEP_SIZES = (1e-6, 1e-7, 1e-8)  # a smaller one is used if one meets a kink, and to confirm what differs
MAX_GROUPS = 24  # groups of parameters; each takes two runs per step
MAX_SECONDS = 10.0  # time for all groups; at least one is compared
# allowed relative difference of the two one-sided quotients, and of the gradient from a quotient
SMOOTH, EQUAL = 1e-3, 1e-2
ROUNDING_ERROR = 1e-14  # float64 rounding error of a run, as a part of the sum of the outputs' absolute values
# A score plus a mask of -3e38 is rounded to the mask, even in float64. If all scores are masked alike, backward gives
# a gradient that no difference shows. Numbers above VAST become LARGE; the exponential of -LARGE is also 0.
VAST, LARGE = 1e8, 1e6
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_NARROWING = {Tensor.float, Tensor.half, Tensor.bfloat16}

_Group = tuple[str, list[Tensor]]


class _Bounded(TorchFunctionMode):
    """Replaces numbers above `VAST` by `LARGE`, with their sign. Infinities stay."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or result.dtype != torch.float64 or not result.numel():
            return result
        with torch.no_grad():
            is_vast = (result.abs() > VAST) & result.isfinite()
            if not is_vast.any():
                return result
        return torch.where(is_vast, result.sign() * LARGE, result)


class _Wide(TorchFunctionMode):
    """Creates float64 where code asks for a narrower float type."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in _NARROWING:
            return args[0].double()
        args = tuple(torch.float64 if a in _NARROW else a for a in args) if _names_type(args) else args
        kwargs = {key: torch.float64 if _is_narrow(a) else a for key, a in (kwargs or {}).items()}
        return function(*args, **kwargs)


def _is_narrow(argument: Any) -> bool:
    return isinstance(argument, torch.dtype) and argument in _NARROW


def _names_type(args: Sequence[Any]) -> bool:
    return any(map(_is_narrow, args))


@contextmanager
def _float64() -> Iterator[None]:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Wide():
            yield
    finally:
        torch.set_default_dtype(usual)


def hold(
    module: nn.Module, feeds: Mapping[str, Any], fixed: Set[str], found: Gradients, seconds: float | None = None
) -> str:
    """Compare the gradients of a module with differences, on one set of inputs.

    Args:
        module: in the mode that it is compared in; it is not changed.
        feeds: the graph's inputs, in order.
        fixed: inputs that are not changed by a step.
        found: receives the counts, and the names of the groups that differ.
        seconds: the limit for all runs, if they may run on.

    Returns:
        for the notes: the reason why nothing was compared, or what was compared otherwise; else empty.
    """
    try:
        inputs = {name: to_torch(value) for name, value in feeds.items()}  # numpy bfloat16 is recognised by name
        with _float64(), limited(seconds):
            return _Held(module, inputs, fixed).compare(found)
    except Exception as error:  # an operator without float64 support, or out of memory
        return f"finite differences are not compared: {typed(error, 200)}"


class _Held:
    """A copy of a module in float64, with its inputs."""

    def __init__(self, module: nn.Module, inputs: Mapping[str, Any], fixed: Set[str]) -> None:
        self.module = copy.deepcopy(module).double()
        for layer in self.module.modules():
            if isinstance(layer, nn.Embedding):  # it gives one row no gradient, whatever the outputs do
                layer.padding_idx = None
        self.inputs = {name: _wide(value) for name, value in inputs.items()}
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad and p.is_floating_point()}
        floats = {
            n: v
            for n, v in self.inputs.items()
            if n not in fixed and isinstance(v, Tensor) and v.is_floating_point() and v.numel()
        }
        self.groups = [*_grouped(named), *((f"input {printable(name)}", [v]) for name, v in floats.items())]
        self.leaves = [tensor.requires_grad_() for _, tensors in self.groups for tensor in tensors]
        self.generator = torch.Generator().manual_seed(0)
        self.weights: list[Tensor] = []
        self.writers = LastWriters()
        self.buffers = {name: b.clone() for name, b in self.module.named_buffers()}

    def loss(self) -> Tensor | None:
        """Return the sum of all outputs' elements with fixed random weights, or None if no output is floating point."""
        with torch.no_grad():  # a BatchNorm in training changed its statistics in the last run
            for name, buffer in self.module.named_buffers():
                buffer.copy_(self.buffers[name])
        with _Bounded(), self.writers:
            made = self.module(*self.inputs.values())
        floats = [torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in _floats([made])]
        if not self.weights:
            self.weights = [torch.randn(t.shape, generator=self.generator) for t in floats]
        self.size = sum(float((t.detach() * w).abs().sum()) for t, w in zip(floats, self.weights, strict=True))
        return torch.stack([(t * w).sum() for t, w in zip(floats, self.weights, strict=True)]).sum() if floats else None

    def compare(self, found: Gradients) -> str:
        loss = self.loss()
        if loss is None or not loss.requires_grad:
            return ""
        gradients = dict(zip(self.leaves, torch.autograd.grad(loss, self.leaves, allow_unused=True), strict=True))
        found.groups = len(self.groups)
        end = time.monotonic() + MAX_SECONDS
        with torch.no_grad():
            for number, (name, tensors) in enumerate(self.groups):
                if number and time.monotonic() > end:
                    found.not_compared = len(self.groups) - number
                    break
                self._compare_group(name, tensors, gradients, float(loss), found)
        return self.writers.note

    def _compare_group(
        self, name: str, tensors: list[Tensor], gradients: Mapping[Tensor, Tensor | None], loss: float, found: Gradients
    ) -> None:
        directions = [torch.randn(t.shape, generator=self.generator) * _scale(t) for t in tensors]
        pairs = [(gradients[t], d) for t, d in zip(tensors, directions, strict=True)]
        slope = sum(float((g * d).sum()) for g, d in pairs if g is not None)
        suspect, before = "", math.inf
        for step in STEP_SIZES:
            right = (self._after(tensors, directions, step) - loss) / step
            left = (loss - self._after(tensors, directions, -step)) / step
            if not all(map(math.isfinite, (left, right, slope))):
                break
            largest, noise = max(abs(left), abs(right), abs(slope)), ROUNDING_ERROR * self.size / step
            if min(left, right) - EQUAL * largest - noise <= slope <= max(left, right) + EQUAL * largest + noise:
                if suspect and noise > EQUAL * largest:  # too small a step to show anything
                    found.wrong.append(suspect)
                else:
                    found.held += 1
                return
            if abs(left - right) <= SMOOTH * largest + noise:
                # many kinks, as close on one side as on the other, look smooth until a step meets none of them
                suspect = f"{name}: backward gives {slope:.4g} along a direction, a finite difference {right:.4g}"
                if abs(right - before) <= EQUAL * largest + noise or step == STEP_SIZES[-1]:
                    found.wrong.append(suspect)
                    return
                before = right
        found.unclear.append(name)

    def _after(self, tensors: list[Tensor], directions: list[Tensor], step: float) -> float:
        before = [t.detach().clone() for t in tensors]
        try:
            for tensor, direction in zip(tensors, directions, strict=True):
                tensor.add_(direction, alpha=step)
            moved = self.loss()
            return float("nan") if moved is None else float(moved)
        finally:
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def _scale(tensor: Tensor) -> float:
    return float(tensor.detach().square().mean().sqrt()) or 1.0


def _grouped(named: Mapping[str, Tensor]) -> Iterator[_Group]:
    """Yield groups of parameters: one each, or several neighbours if there are many."""
    names = list(named)
    size = -(-len(names) // MAX_GROUPS) if names else 1
    for start in range(0, len(names), size):
        part = names[start : start + size]
        more = f" and {counted(len(part) - 1, 'parameter')} after it" if len(part) > 1 else ""
        yield f"parameter {part[0]}{more}", [named[name] for name in part]


def _wide(value: Any) -> Any:
    if isinstance(value, list):
        return [_wide(v) for v in value]
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _floats(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _floats(value)
        elif isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            yield torch.view_as_real(value).double() if value.is_complex() else value.double()
