"""Makes learning-rate schedules by their torch names, and fills in arguments that follow from the run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.best import lower_is_better
from onnxgen.training.byname import by_name, check_arguments, subclasses_in
from onnxgen.training.settings import Settings

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
    check_arguments(chosen, arguments, given=("optimizer",))
    try:
        made = chosen(optimizer, **arguments)
    except (TypeError, ValueError, RuntimeError, AssertionError, KeyError, IndexError, AttributeError) as error:
        raise OnnxgenError(f"{chosen.__name__}: {one_line(error)}", help="use other arguments") from None
    return {"scheduler": made, **configuration}


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
    made = lr_scheduler.LinearLR(optimizer, 1 / steps, total_iters=steps - 1)
    return {"scheduler": made, "interval": "step", "frequency": 1}


def schedule_class(name: str) -> type[LRScheduler]:
    """Return the class of `torch.optim.lr_scheduler` with this name. Raises `OnnxgenError` if there is none."""
    found = subclasses_in(lr_scheduler, LRScheduler)
    known = {key: one for key, one in found.items() if key not in _OF_OTHERS}
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
