"""Optimizers by their torch names."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.byname import by_name, check_arguments, classes_of
from onnxgen.training.devices.device import Device
from onnxgen.training.lerp import without_lerp
from onnxgen.training.schedules import make_schedule
from onnxgen.training.settings import Settings

# Whose foreach form computes the very same bits as the plain one does.
_SAME_TOGETHER = {getattr(torch.optim, name) for name in ("Adadelta", "Adam", "AdamW", "Adamax", "RMSprop", "SGD")}
_SMALL = 1 << 19  # elements, which stay in a cache: with more of them, all at once is up to twice as slow

__all__ = ["check_half", "make_optimizer", "make_schedule", "optimizer_class"]


def optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    """The class of `torch.optim` of that name, whatever its case.

    Raises:
        OnnxgenError: there is none (the error lists near matches).
    """
    return by_name(name, classes_of(torch.optim, torch.optim.Optimizer), "optimizer")


def make_optimizer(groups: list[dict[str, Any]], settings: Settings, device: Device) -> torch.optim.Optimizer:
    """The optimizer that `settings` name, over parameter groups.

    On a device without lerp, foreach and fused kernels it computes the same without them. On the CPU it updates a small
    network's parameters all at once, where that gives the very same numbers: calls then take longer than arithmetic.

    Args:
        groups: dicts of a parameter group each; what one sets (`lr`, `weight_decay`) goes before `settings`.

    Raises:
        OnnxgenError: there is no such optimizer, or it does not take an argument, a group or a parameter.
    """
    chosen = optimizer_class(settings.optimizer)
    takes = inspect.signature(chosen).parameters
    given = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    arguments = {**{k: v for k, v in given.items() if v is not None}, **settings.optimizer_args}
    check_arguments(chosen, arguments, given=("params",))
    if device.plain_optimizers:
        arguments.update(dict.fromkeys({"foreach", "fused"} & set(takes), False))
        chosen = without_lerp(chosen) if chosen is not torch.optim.LBFGS else chosen
    elif device.kind == "cpu" and chosen in _SAME_TOGETHER and not {"foreach", "fused"} & arguments.keys():
        arguments["foreach"] = sum(p.numel() for group in groups for p in group["params"]) <= _SMALL
    groups = _as_taken(chosen, groups)
    try:
        return chosen(groups, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise OnnxgenError(
            f"{chosen.__name__}: {one_line(error)}", help="use another optimizer or other arguments"
        ) from None


def check_half(settings: Settings, device: Device) -> None:
    """See that the optimizer leaves weights of float16 finite on a device, by a step of it there.

    In float16 the `eps` of Adam and its like is 0, and a weight whose gradient is 0 becomes NaN.

    Raises:
        OnnxgenError: it does not.
    """
    parameter = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float16, device=device.torch_device))
    optimizer = make_optimizer([{"params": [parameter]}], settings, device)
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step(lambda: 0.0)
    if bool(parameter.isfinite().all()):
        return
    name, eps = optimizer_class(settings.optimizer).__name__, optimizer.defaults.get("eps")
    why = "" if eps is None else f": its eps of {eps:g} is 0 there"
    ways = [f"--precision {'bf16-mixed' if device.kind == 'cpu' else '16-mixed'}", "--optimizer sgd"]
    ways += [] if eps is None else ["--optimizer-arg eps=1e-4"]
    raise OnnxgenError(f"{name} makes weights of float16 NaN{why}", help=", or ".join(ways))


def _as_taken(chosen: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The groups as the class takes them: LBFGS has a single one, and SparseAdam none of ours."""
    if issubclass(chosen, torch.optim.SparseAdam):
        raise OnnxgenError("SparseAdam needs sparse gradients, but these are dense", help="--optimizer adam")
    if not issubclass(chosen, torch.optim.LBFGS) or len(groups) == 1:
        return groups
    if len({group.get("lr") for group in groups}) > 1:
        raise OnnxgenError("LBFGS has one learning rate for all", help="leave the rate of the head at 1")
    # What differs is weight decay, which LBFGS has not at all.
    return [{**groups[0], "params": [p for group in groups for p in group["params"]]}]
