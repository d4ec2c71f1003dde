"""The first steps of weights that are trained already: their defaults keep what the weights have learned.

A step of an Adam moves each weight by about the rate, whatever the gradient. At its own rate the first steps move all
weights of a large network together, before the means of its gradients say anything, and much of what it knew is lost.
So the rate is lower and rises over the first epoch. Few samples are divided into more batches, so that it still learns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onnxgen.training.checkpoint.peek import peek
from onnxgen.training.optimizers import is_adam, own_rate
from onnxgen.training.runs.folder import CHECKPOINTS
from onnxgen.training.settings import BATCH, Settings

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
    found: dict[str, Any] = {}
    with suppress(KeyError, ValueError):
        found["batch_size"] = max(int(before["batch_size"].split()[0]) // settings.processes, 1)
    with suppress(KeyError, ValueError):  # "None": the optimizer's own
        found["lr"] = float(before["lr"])
    with suppress(KeyError, ValueError):
        found["warmup"] = float(before["warmup"]) if "." in before["warmup"] else int(before["warmup"])
    return replace(settings, **{name: value for name, value in found.items() if getattr(settings, name) is None})
