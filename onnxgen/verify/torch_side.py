"""The generated module's side of a comparison: its mode, its forward pass, its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from onnxgen.errors import typed
from onnxgen.verify.convert import to_numpy, to_torch
from onnxgen.verify.graph import Graph
from onnxgen.verify.oracle import TimedOut, limited

_DROPOUTS = {
    getattr(torch.nn.functional, name)
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
} | {torch.dropout, torch.dropout_}


class Failed(Exception):
    """The module failed on inputs that the oracle accepted."""


class _NoDropout(TorchFunctionMode):
    """Sets the ratio of every dropout to 0: in `nn.Dropout`, in function calls and in attention."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in _DROPOUTS:
            if len(args) > 1:
                args = (args[0], 0.0, *args[2:])
            else:
                kwargs["p"] = 0.0
        elif function is torch.nn.functional.scaled_dot_product_attention:
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs |= {} if len(args) > 4 else {"dropout_p": 0.0}
        return function(*args, **kwargs)


@contextmanager
def in_mode(module: nn.Module, graph: Graph) -> Iterator[None]:
    """Put the module into the mode that the graph records. Afterwards all of its state is restored.

    In training mode no Dropout drops anything. A BatchNorm uses batch statistics, unless no BatchNormalization of the
    graph does (the model was trained with frozen statistics). Running statistics are restored, too. A network with a
    loop runs on one thread: its many small products otherwise wait for each other.
    """
    threads = torch.get_num_threads()
    if graph.loops:
        torch.set_num_threads(1)
    modes = {m: m.training for m in module.modules()}
    inside = {m: m.dropout for m in module.modules() if isinstance(m, nn.RNNBase | nn.MultiheadAttention)}
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()} if graph.training else {}
    module.train(graph.training)
    if not graph.trains_norm:
        for m in module.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                m.eval()
    for layer in inside:  # these are not made by an observable function call
        layer.dropout = 0.0
    try:
        with _NoDropout():
            yield
    finally:
        for layer, ratio in inside.items():
            layer.dropout = ratio
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])
        for m, training in modes.items():
            m.training = training
        torch.set_num_threads(threads)


def forward(
    module: nn.Module, feeds: Mapping[str, Any], cast: torch.dtype | None, count: int, seconds: float | None = None
) -> list[Any]:
    """Return the module's outputs in graph order. A single output is not a tuple. Raises `Failed`, `TimedOut`."""
    arguments = [_cast(to_torch(v), cast) for v in feeds.values()]
    try:
        with torch.enable_grad(), limited(seconds):
            result = module(*arguments)
    except TimedOut:
        raise
    except Exception as error:
        raise Failed(f"forward raised {typed(error)}") from error
    return [result] if not isinstance(result, tuple) or len(result) == count == 1 else list(result)


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    if isinstance(value, list):
        return [_cast(v, dtype) for v in value]
    return value.to(dtype) if dtype is not None and isinstance(value, Tensor) and value.is_floating_point() else value


def as_onnx(outputs: list[Any]) -> list[Any]:
    """Convert outputs to ONNX values. Raises `Failed` if that is not possible."""
    values = []
    for i, output in enumerate(outputs):
        try:
            values.append(to_numpy(output))
        except TypeError as error:
            raise Failed(f"output {i} is {error}") from None
    return values


@dataclass
class Backward:
    """The results of several backward passes, by parameter name.

    Attributes:
        reached: parameters with a finite gradient, or with any gradient if an output is not finite.
        not_finite: parameters with a gradient that is not finite, although all outputs are finite.
        excused: the same, but the file itself computes a NaN in between.
        idle: parameters without a gradient, because no output depends on them.
    """

    reached: set[str] = field(default_factory=set)
    not_finite: set[str] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)

    def add(self, module: nn.Module, outputs: list[Any]) -> None:
        """Run backward from the sum of the floating point outputs, or from their mean. Raises `Failed`.

        The mean is taken where a parameter is float16: gradients of a sum over many elements are larger than 65,504.
        """
        parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        floats = [t for t in _flat(outputs) if t.is_floating_point()]
        differentiable = [t for t in floats if t.requires_grad]
        if not parameters or not differentiable:
            return
        clean = all(bool(torch.isfinite(t.detach()).all()) for t in floats)
        try:
            gradients = _gradients(differentiable, list(parameters.values()))
        except Exception as error:
            raise Failed(typed(error)) from error
        for name, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                is_wrong = clean and not bool(torch.isfinite(gradient).all())
                (self.not_finite if is_wrong else self.reached).add(name)


def _gradients(outputs: list[Tensor], parameters: list[nn.Parameter]) -> tuple[Tensor | None, ...]:
    loss = torch.stack([t.to(torch.promote_types(t.dtype, torch.float32)).sum().double() for t in outputs]).sum()
    if any(p.dtype == torch.float16 for p in parameters):
        loss = loss / max(1, sum(t.numel() for t in outputs))
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def _flat(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from _flat(value.values() if isinstance(value, dict) else value)


def flat_outputs(network: nn.Module, feeds: Mapping[str, Any]) -> list[Tensor]:
    """Return all tensors that a module computes for the graph's inputs, in order."""
    return list(_flat([network(*map(to_torch, feeds.values()))]))


def whole_dtype(module: nn.Module, stored: set[str]) -> torch.dtype | None:
    """Return the dtype that all weights were cast to at generation (`--dtype`), or None.

    `stored`: the floating point dtypes of the ONNX file's weights.
    """
    dtypes = {p.dtype for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()}
    if len(dtypes) != 1 or not stored:
        return None
    dtype = dtypes.pop()
    return None if str(dtype).removeprefix("torch.") in stored else dtype


def dtype_of(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as "float16"."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def cast_numpy(value: Any, dtype: torch.dtype | None) -> Any:
    """Convert an oracle's output to the dtype that a cast module computes in."""
    if dtype is None or value is None:
        return value
    if isinstance(value, list):
        return [cast_numpy(v, dtype) for v in value]
    if value.dtype == object or not to_torch(np.zeros(0, value.dtype)).is_floating_point():
        return value
    with np.errstate(all="ignore"):
        return to_numpy(to_torch(value).to(dtype))
