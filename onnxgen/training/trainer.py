"""Turns off the output and other defaults of Lightning's Trainer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning
from lightning.pytorch.profilers import PassThroughProfiler

# No progress bar, summary and checkpoints of Lightning, and no validation before the first step.
QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}


class Unmeasured(PassThroughProfiler):
    """Lightning's profiler that measures nothing, without the generator that it makes about twenty times a step."""

    _nothing: AbstractContextManager[None] = nullcontext()

    def profile(self, action_name: str) -> Any:
        return self._nothing


# The hooks that Lightning calls at every step, for each callback and the module.
EACH_STEP = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


def lean(*hooked: lightning.Callback | lightning.LightningModule) -> None:
    """Remove the hooks of `EACH_STEP` that do nothing, so that Lightning does not call them.

    A call (with a profiler's context and a note of the hook's name) takes longer than a layer of a small network.
    Lightning skips a hook that is not callable.
    """
    for one in hooked:
        base = lightning.Callback if isinstance(one, lightning.Callback) else lightning.LightningModule
        for name in EACH_STEP:
            if getattr(type(one), name) is getattr(base, name):
                setattr(one, name, None)


def ends_epoch(trainer: lightning.Trainer) -> bool:
    """Return True at the end of an epoch's last batch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return progress.is_last_batch or progress.current.ready == trainer.num_training_batches


def ends_run(trainer: lightning.Trainer) -> bool:
    """Return True after the last step, if the number of steps was asked for."""
    return trainer.max_steps != -1 and trainer.global_step >= trainer.max_steps


def stepped(trainer: lightning.Trainer) -> bool:
    """Return True at the end of a batch after which the optimizer made a step; else more gradients are added first."""
    ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return ready % trainer.accumulate_grad_batches == 0 or ends_epoch(trainer)


def metrics(trainer: lightning.Trainer) -> dict[str, float]:
    """Return the currently logged metrics as numbers."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}
