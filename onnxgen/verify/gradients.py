"""Check gradients: they reach every parameter that they must, and agree with finite differences.

The directional derivative from backward is compared with that from a small step. Both use a copy of
the module in float64, where a step of a millionth still leaves ten digits. At a kink (a ReLU at 0,
a tie of a maximum) the two one-sided quotients differ, and any number between them is a gradient.

A scatter may write one element several times. Only the last value written counts, but PyTorch's
backward gives each of them the element's gradient. The differences show the gradient of the last
one, so the copy of a module that is compared with differences has that gradient, too
(`LastWriters`).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.common.names import printable
from onnxgen.errors import OnnxgenError, counted, typed
from onnxgen.graph.annotations import is_trained
from onnxgen.options import Options
from onnxgen.passes.trainable import differentiable, stored_values
from onnxgen.pipeline import read_and_simplify
from onnxgen.verify.convert import to_torch
from onnxgen.verify.oracle import limited, nan_node
from onnxgen.verify.report import Gradients
from onnxgen.verify.torch_side import Backward, flat_outputs


def finish(network: nn.Module, backward: Backward, expected: set[str], report: Gradients) -> None:
    """Sum up the backward passes of all runs. `expected`: see `expected_keys`."""
    names = [n for n, p in network.named_parameters() if p.requires_grad]
    report.parameters = len(names)
    report.not_finite = [n for n in names if n in backward.not_finite]
    report.reached = sum(n in backward.reached and n not in backward.not_finite for n in names)
    without = [n for n in names if n not in backward.reached | backward.not_finite | backward.excused]
    expected = set() if report.error else expected
    report.missing = [n for n in without if n in expected - backward.idle]
    report.unreached = [n for n in without if n not in report.missing]


def without_nans(
    path: Path, model: Callable[[], onnx.ModelProto], feeds: Mapping[str, Any], backward: Backward
) -> list[str]:
    """Excuse gradients that are not finite because the file itself computes a NaN that a Where discards.

    PyTorch multiplies the NaN derivative of the discarded value by 0, which is NaN. So the author's module has the same
    gradient. Returns a note.
    """
    node = nan_node(path, model(), feeds) if backward.not_finite else None
    if node is None:
        return []
    names, name = ", ".join(sorted(backward.not_finite)), printable(node.name or node.output[0])
    backward.excused |= backward.not_finite
    backward.not_finite.clear()
    return [f"the file computes NaN at {name} ({node.op_type}): there is no gradient of {names} for such inputs"]


def excuse_idle(network: nn.Module, feeds: Mapping[str, Any], backward: Backward, seconds: float | None = None) -> None:
    """Excuse missing gradients of parameters whose value does not change any output.

    For example, a file may compute attention, but return only the cache that it fills.
    """
    known = backward.reached | backward.not_finite | backward.excused
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and name not in known and _is_idle(network, parameter, feeds, seconds):
            backward.idle.add(name)


def _is_idle(network: nn.Module, parameter: nn.Parameter, feeds: Mapping[str, Any], seconds: float | None) -> bool:
    stored = parameter.detach().clone()
    try:
        with torch.no_grad(), limited(seconds):
            before = flat_outputs(network, feeds)
            parameter.copy_(stored * 1.5 + torch.randn(stored.shape, generator=torch.Generator().manual_seed(0)))
            after = flat_outputs(network, feeds)
            return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    except Exception:  # the module fails; its runs report that
        return False
    finally:
        with torch.no_grad():
            parameter.copy_(stored)


def expected_keys(path: Path, options: Options, record: Mapping[str, Any]) -> set[str]:
    """Return the state-dict keys that must get a gradient: those with tensors in the graph's differentiable part.

    `record`: the rules that rebuild the file's tensors from the state dict (`provenance.way_back`).
    """
    try:
        model = read_and_simplify(path, replace(options, trainable=None, frozen=None))
    except OnnxgenError:
        return set()
    reached = differentiable(model.graph)
    required: set[str] = set()
    for value in stored_values(model.graph):
        keys = _keys(record.get(value.name or "", []))
        if is_trained(value) and (len(keys) == 1 or _is_reached_everywhere(value, reached)):
            required |= keys
    return required


def _is_reached_everywhere(value: ir.Value, reached: set[ir.Value]) -> bool:
    """Return True if every layer that uses the tensor gives it a gradient. A layer that ends in integers does not."""
    return all(any(o in reached for o in use.node.outputs) for use in value.uses())


def _keys(entry: Any) -> set[str]:
    """Return the state-dict keys in one entry of the weight provenance."""
    if isinstance(entry, str):
        return {entry}
    if isinstance(entry, list):
        return set().union(*map(_keys, entry))
    return {part["key"] for part in entry["parts"]}


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
        args = tuple(torch.float64 if _is_narrow(a) else a for a in args)
        kwargs = {key: torch.float64 if _is_narrow(a) else a for key, a in (kwargs or {}).items()}
        return function(*args, **kwargs)


def _is_narrow(argument: Any) -> bool:
    return isinstance(argument, torch.dtype) and argument in _NARROW


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
    module: nn.Module, feeds: Mapping[str, Any], fixed: Set[str], report: Gradients, seconds: float | None = None
) -> str:
    """Compare the gradients of a module with differences, on one set of inputs.

    Args:
        module: in the mode that it is compared in; it is not changed.
        feeds: the graph's inputs, in order.
        fixed: inputs that are not changed by a step.
        report: receives the counts, and the names of the groups that differ.
        seconds: the limit for all runs, if they may run on.

    Returns:
        for the notes: the reason why nothing was compared, or what was compared otherwise; else empty.
    """
    try:
        inputs = {name: to_torch(value) for name, value in feeds.items()}  # numpy bfloat16 is recognised by name
        with _float64(), limited(seconds):
            return _Held(module, inputs, fixed).compare(report)
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
        named = {n: p for n, p in self.module.named_parameters() if p.requires_grad and _is_float(p)}
        floats = {n: v for n, v in self.inputs.items() if n not in fixed and _is_float(v) and v.numel()}
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
            outputs = self.module(*self.inputs.values())
        floats = [torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in _floats([outputs])]
        if not self.weights:
            self.weights = [torch.randn(t.shape, generator=self.generator) for t in floats]
        self.size = sum(float((t.detach() * w).abs().sum()) for t, w in zip(floats, self.weights, strict=True))
        return torch.stack([(t * w).sum() for t, w in zip(floats, self.weights, strict=True)]).sum() if floats else None

    def compare(self, report: Gradients) -> str:
        loss = self.loss()
        if loss is None or not loss.requires_grad:
            return ""
        gradients = dict(zip(self.leaves, torch.autograd.grad(loss, self.leaves, allow_unused=True), strict=True))
        report.groups = len(self.groups)
        end = time.monotonic() + MAX_SECONDS
        with torch.no_grad():
            for number, (name, tensors) in enumerate(self.groups):
                if number and time.monotonic() > end:
                    report.not_compared = len(self.groups) - number
                    break
                self._compare_group(name, tensors, gradients, float(loss), report)
        return self.writers.note

    def _compare_group(
        self,
        name: str,
        tensors: list[Tensor],
        gradients: Mapping[Tensor, Tensor | None],
        loss: float,
        report: Gradients,
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
                    report.wrong.append(suspect)
                else:
                    report.held += 1
                return
            if abs(left - right) <= SMOOTH * largest + noise:
                # many kinks, as close on one side as on the other, look smooth until a step meets none of them
                suspect = f"{name}: backward gives {slope:.4g} along a direction, a finite difference {right:.4g}"
                if abs(right - before) <= EQUAL * largest + noise or step == STEP_SIZES[-1]:
                    report.wrong.append(suspect)
                    return
                before = right
        report.unclear.append(name)

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
    return value.double() if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _floats(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _floats(value)
        elif isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
            yield torch.view_as_real(value).double() if value.is_complex() else value.double()


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
