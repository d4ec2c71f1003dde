"""Makes optimizers by their torch names."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.byname import by_name, check_arguments, subclasses_in
from onnxgen.training.devices.device import Device
from onnxgen.training.lerp import without_lerp
from onnxgen.training.settings import Settings

# A fused step is one kernel: the time of a small network is that of its launches. Beside a scaler Lightning clips no
# gradients of a fused optimizer.
_FUSED = {getattr(torch.optim, name) for name in ("Adagrad", "Adam", "AdamW", "SGD")}
# What DTensor lacks: the fused kernels of Adagrad and SGD, and operators of these optimizers (torch 2.13).
_FUSED_SHARDED = {torch.optim.Adam, torch.optim.AdamW}
NOT_SHARDED = {torch.optim.Adafactor, torch.optim.Rprop}
# The foreach form of these computes the same bits as the plain form.
_EXACT_FOREACH = {getattr(torch.optim, name) for name in ("Adadelta", "Adam", "AdamW", "Adamax", "RMSprop", "SGD")}
_MAX_FOREACH_ELEMENTS = 1 << 19  # these fit in a cache; with more, foreach is up to twice as slow on a CPU


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """Return the class of `torch.optim` with this name, ignoring case.

    Raises:
        OnnxgenError: there is none (the error lists near matches).
    """
    return by_name(name, subclasses_in(torch.optim, torch.optim.Optimizer), "optimizer")


def own_rate(name: str) -> float:
    """Return the learning rate that an optimizer has by default."""
    return float(inspect.signature(optimizer_class(name)).parameters["lr"].default)


def is_adam(name: str) -> bool:
    """Return True for Adam and its kind: a step is about as large as the rate, whatever the gradient."""
    return "betas" in inspect.signature(optimizer_class(name)).parameters


def make_optimizer(groups: list[dict[str, Any]], settings: Settings, device: Device) -> torch.optim.Optimizer:
    """Return the optimizer that `settings` name, for parameter groups.

    On a device without lerp, foreach and fused kernels, it computes the same without them. On CUDA it is fused. On the
    CPU it uses foreach for a small network if the result is the same: the calls would take longer than the arithmetic.

    Args:
        groups: one dict for each parameter group. Its values (`lr`, `weight_decay`) override `settings`.

    Raises:
        OnnxgenError: there is no such optimizer, or it does not accept an argument, a group or a parameter.
    """
    chosen = optimizer_class(settings.optimizer)
    takes = inspect.signature(chosen).parameters
    given = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    arguments = {**{k: v for k, v in given.items() if v is not None}, **settings.optimizer_args}
    check_arguments(chosen, arguments, given=("params",))
    if device.plain_optimizers:
        arguments.update(dict.fromkeys({"foreach", "fused"} & set(takes), False))
        chosen = without_lerp(chosen) if chosen is not torch.optim.LBFGS else chosen
    elif not {"foreach", "fused", "differentiable"} & arguments.keys():
        parameters = [p for group in groups for p in group["params"]]
        fused = _FUSED_SHARDED if settings.strategy == "fsdp" else _FUSED
        if device.kind == "cpu" and chosen in _EXACT_FOREACH:
            arguments["foreach"] = sum(p.numel() for p in parameters) <= _MAX_FOREACH_ELEMENTS
        elif device.type == "cuda" and chosen in fused and settings.precision != "16-mixed":
            arguments["fused"] = all(p.is_floating_point() for p in parameters)
    groups = _accepted(chosen, groups)
    try:
        return chosen(groups, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise OnnxgenError(
            f"{chosen.__name__}: {one_line(error)}", help="use another optimizer or other arguments"
        ) from None


def check_half(settings: Settings, device: Device, own: bool) -> None:
    """Check that a step of the optimizer keeps float16 weights finite on the device. `own`: the module has such.

    In float16 the `eps` of Adam and similar optimizers is 0, so a weight whose gradient is 0 becomes NaN.

    Raises:
        OnnxgenError: a weight became NaN.
    """
    parameter = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float16, device=device.torch_device))
    optimizer = make_optimizer([{"params": [parameter]}], settings, device)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step(lambda: 0.0)
    if bool(parameter.isfinite().all()):
        return
    name, eps = optimizer_class(settings.optimizer).__name__, optimizer.defaults.get("eps")
    why = "" if eps is None else f": its eps of {eps:g} is 0 there"
    other = "generate the module with --dtype float32"
    ways = [other if own else f"--precision {'bf16-mixed' if device.kind == 'cpu' else '16-mixed'}", "--optimizer sgd"]
    ways += [] if eps is None else ["--optimizer-arg eps=1e-4"]
    raise OnnxgenError(f"{name} makes weights of float16 NaN{why}", help=", or ".join(ways))


def _accepted(chosen: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups in a form that the optimizer accepts: LBFGS takes a single group."""
    if issubclass(chosen, torch.optim.SparseAdam):
        raise OnnxgenError("SparseAdam needs sparse gradients, but these are dense", help="--optimizer adam")
    if not issubclass(chosen, torch.optim.LBFGS) or len(groups) == 1:
        return groups
    if len({group.get("lr") for group in groups}) > 1:
        raise OnnxgenError("LBFGS has one learning rate for all parameters", help="leave --head-lr at 1")
    # The groups differ in weight decay only, which LBFGS does not have.
    return [{**groups[0], "params": [p for group in groups for p in group["params"]]}]
