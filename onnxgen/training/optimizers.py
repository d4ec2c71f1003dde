"""Makes optimizers and learning-rate schedules by their torch names.

Arguments of a schedule that follow from the run are filled in.

A step of an Adam moves each weight by about the rate, whatever the gradient. At its own rate the first steps move all
weights of a large network together, before the means of its gradients say anything, and much of what it knew is lost.
So the rate of trained weights is lower and rises over the first epoch (`settled`). Few samples are divided into more
batches, so that the model still learns.

`without_lerp` runs optimizers on devices without `lerp`, such as DirectML.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.overrides import TorchFunctionMode

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.byname import by_name, check_arguments, subclasses_in
from onnxgen.training.checkpoint.identity import peek
from onnxgen.training.devices.probe import Device
from onnxgen.training.runs.folder import CHECKPOINTS
from onnxgen.training.runs.metrics import lower_is_better
from onnxgen.training.settings import BATCH, Settings

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


def rate_of(settings: Settings) -> float:
    """Return the learning rate of a run: the optimizer's own if the settings have none."""
    return own_rate(settings.optimizer) if settings.lr is None else float(settings.lr)


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
    options = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    arguments = {**{k: v for k, v in options.items() if v is not None}, **settings.optimizer_args}
    check_arguments(chosen, arguments, preset=("params",))
    if device.plain_optimizers:
        arguments.update(dict.fromkeys({"foreach", "fused"} & set(takes), False))
        chosen = without_lerp(chosen) if chosen is not torch.optim.LBFGS else chosen
    elif not {"foreach", "fused", "differentiable"} & arguments.keys():
        arguments |= _kernels(chosen, [p for group in groups for p in group["params"]], settings, device)
    groups = _accepted(chosen, groups)
    try:
        return chosen(groups, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        what = f"{chosen.__name__}: {one_line(error)}"
        raise OnnxgenError(what, help="use another optimizer or other arguments") from None


def _kernels(
    chosen: type[torch.optim.Optimizer], parameters: list[Tensor], settings: Settings, device: Device
) -> dict[str, bool]:
    """Return the argument that chooses the fastest of an optimizer's implementations with the same result, if any."""
    if device.kind == "cpu" and chosen in _EXACT_FOREACH:
        return {"foreach": sum(p.numel() for p in parameters) <= _MAX_FOREACH_ELEMENTS}
    fused = _FUSED_SHARDED if settings.strategy == "fsdp" else _FUSED
    if device.type == "cuda" and chosen in fused and settings.precision != "16-mixed":
        return {"fused": all(p.is_floating_point() for p in parameters)}
    return {}


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


# The argument with a schedule's length. Without it the length is the whole run, and the rate changes with each step.
# If it is given, it counts epochs, as in torch's examples.
_LENGTH_ARGUMENTS = {"CosineAnnealingLR": "T_max", "LinearLR": "total_iters", "PolynomialLR": "total_iters"}
_STEPPED_BY_BATCH = ("OneCycleLR", "CyclicLR")  # whatever arguments they are given
# These set the rate itself. All others change the rate that is there, so that a warm-up may go before them.
_ABSOLUTE = (*_STEPPED_BY_BATCH, "CosineAnnealingWarmRestarts")
_OF_OTHERS = ("SequentialLR", "ChainedScheduler")  # they take schedules, which no option can give


def make_schedule(
    optimizer: torch.optim.Optimizer,
    settings: Settings,
    total_steps: int,
    monitor: str = "val_loss",
) -> dict[str, Any] | None:
    """Return Lightning's configuration of the schedule that `settings` name, or None if they name none.

    These arguments are filled in if they are not given: the length of CosineAnnealingLR, LinearLR and PolynomialLR and
    the steps of OneCycleLR (the whole run), and `max_lr` of OneCycleLR and CyclicLR (the optimizer's rates).

    Args:
        total_steps: optimizer steps in the whole run.
        monitor: the metric for ReduceLROnPlateau. It should fall if `lower_is_better`, else rise.

    Raises:
        OnnxgenError: there is no such schedule, or it does not accept an argument.
    """
    if settings.schedule is None:
        return None
    chosen = schedule_class(settings.schedule)
    arguments = dict(settings.schedule_args)
    by_step = chosen.__name__ in _STEPPED_BY_BATCH
    by_step |= _LENGTH_ARGUMENTS.get(chosen.__name__, "") not in {"", *arguments}
    _fill_in(chosen, arguments, optimizer, total_steps)
    configuration: dict[str, Any] = {"interval": "step" if by_step else "epoch", "frequency": 1}
    if issubclass(chosen, lr_scheduler.ReduceLROnPlateau):
        arguments.setdefault("mode", "min" if lower_is_better(monitor) else "max")
        configuration["monitor"] = monitor
    check_arguments(chosen, arguments, preset=("optimizer",))
    try:
        scheduler = chosen(optimizer, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError, IndexError, AttributeError) as error:
        raise OnnxgenError(f"{chosen.__name__}: {one_line(error)}", help="use other arguments") from None
    return {"scheduler": scheduler, **configuration}


def make_warmup(optimizer: torch.optim.Optimizer, settings: Settings, total_steps: int) -> dict[str, Any] | None:
    """Return Lightning's configuration of `settings.warmup`, or None. Step i of N has i/N of the rate.

    A number below 1 is a share of the steps in the whole run.

    Raises:
        OnnxgenError: the schedule sets the rate itself.
    """
    warmup = settings.warmup or 0
    steps = int(warmup) or math.ceil(warmup * total_steps)
    if not steps:
        return None
    name = "" if settings.schedule is None else schedule_class(settings.schedule).__name__
    if name in _ABSOLUTE:
        way = "leave out --warmup; OneCycleLR begins low itself"
        raise OnnxgenError(f"{name} sets the learning rate itself, so that a warm-up has no effect", help=way)
    scheduler = lr_scheduler.LinearLR(optimizer, 1 / steps, total_iters=steps - 1)
    return {"scheduler": scheduler, "interval": "step", "frequency": 1}


def schedule_class(name: str) -> type[LRScheduler]:
    """Return the class of `torch.optim.lr_scheduler` with this name. Raises `OnnxgenError` if there is none."""
    classes = subclasses_in(lr_scheduler, LRScheduler)
    known = {key: one for key, one in classes.items() if key not in _OF_OTHERS}
    known["ReduceLROnPlateau"] = lr_scheduler.ReduceLROnPlateau
    return by_name(name, known, "schedule")


def _fill_in(chosen: type, arguments: dict[str, Any], optimizer: torch.optim.Optimizer, length: int) -> None:
    name = chosen.__name__
    if name in _LENGTH_ARGUMENTS:
        arguments.setdefault(_LENGTH_ARGUMENTS[name], length)
    if name == "OneCycleLR" and not {"total_steps", "epochs"} & set(arguments):
        arguments["total_steps"] = length
    if name in _STEPPED_BY_BATCH:
        arguments.setdefault("max_lr", [group["lr"] for group in optimizer.param_groups])
        if not {"momentum", "betas"} & set(optimizer.defaults):  # there is no momentum to cycle
            arguments.setdefault("cycle_momentum", False)


SHARE = 0.3  # of the own rate of an Adam
STEPS = 20  # of an epoch, at least, if batches of LEAST samples give as many
LEAST = 8
RISES = 100  # steps at most


def settled(settings: Settings, samples: int, trained: bool, batches_differ: bool) -> Settings:
    """Return the settings with a batch, a rate and a warm-up, where the user gave none.

    A run that goes on has those of its checkpoint.

    Args:
        samples: those of the train part.
        trained: the run begins with weights that have learned.
        batches_differ: True if the loss does not depend on which samples are in a batch together, and how many.
    """
    before = peek(settings.out / CHECKPOINTS).get("identity", {}) if settings.resume else {}
    if before:
        return _as_before(settings, before)
    trained = trained and not settings.lora  # an adapter begins without an effect
    batch = batch_of_few(settings, samples) if trained and batches_differ else BATCH
    settings = settings if settings.batch_size is not None else replace(settings, batch_size=batch)
    warmup: int | float = 0
    if trained and settings.lr is None and not settings.find_lr:
        warmup = min(steps_of(samples, settings), RISES) if settings.schedule is None else 0  # it may begin low itself
        settings = replace(settings, lr=low_rate(settings.optimizer)) if is_adam(settings.optimizer) else settings
    return settings if settings.warmup is not None else replace(settings, warmup=warmup)


def low_rate(optimizer: str) -> float:
    """Return a rate at which trained weights keep what they have learned: of an Adam a share of its own rate."""
    return float(f"{(SHARE if is_adam(optimizer) else 1) * own_rate(optimizer):.3g}")


def steps_of(samples: int, settings: Settings) -> int:
    """Return how many steps an epoch has."""
    return math.ceil(samples / (settings.batch * settings.accumulate * settings.processes))


def batch_of_few(settings: Settings, samples: int) -> int:
    """Return how many samples a batch has, so that few samples make enough steps of an epoch."""
    batch = BATCH
    while batch > LEAST and steps_of(samples, replace(settings, batch_size=batch)) < STEPS:
        batch //= 2
    return batch


def _as_before(settings: Settings, before: Mapping[str, str]) -> Settings:
    values: dict[str, Any] = {}
    with suppress(KeyError, ValueError):
        values["batch_size"] = max(int(before["batch_size"].split()[0]) // settings.processes, 1)
    with suppress(KeyError, ValueError):  # "None": the optimizer's own
        values["lr"] = float(before["lr"])
    with suppress(KeyError, ValueError):
        values["warmup"] = float(before["warmup"]) if "." in before["warmup"] else int(before["warmup"])
    return replace(settings, **{name: value for name, value in values.items() if getattr(settings, name) is None})


class WithoutLerp(TorchFunctionMode):
    """In this context, `lerp` is computed by additions and multiplications.

    The formula is that of torch's kernel (aten/src/ATen/native/Lerp.h), which starts from the nearer end.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.lerp, Tensor.lerp):
            return _lerp(*args, **(kwargs or {}))
        if func is Tensor.lerp_:
            return args[0].copy_(_lerp(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def _lerp(input: Tensor, end: Tensor, weight: float | Tensor) -> Tensor:
    near, far = input + (end - input) * weight, end - (end - input) * (1 - weight)
    if isinstance(weight, Tensor):
        return torch.where(weight.abs() < 0.5, near, far)
    return near if abs(weight) < 0.5 else far


def without_lerp(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Return a subclass of the optimizer whose step runs in `WithoutLerp`. Its state and results are the same.

    A closure runs before the step, as in the original, and outside the mode.
    """
    # torch wraps `step` for its hooks when the first instance is made. It wraps ours too, so unwrap the original.
    plain = inspect.unwrap(optimizer.step)

    def step(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad(), WithoutLerp():
            plain(self)
        return loss

    return type(optimizer.__name__, (optimizer,), {"step": step, "__doc__": optimizer.__doc__})
