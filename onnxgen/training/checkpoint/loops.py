"""Lightning's loops between two batches: the one place where a run is saved, and from where it goes on.

Lightning saves counters as they happen to be within one of its hooks, and guesses from them where that was; some
guesses skip a scheduler's step or a validation. Here the counters are those of a run that has finished a batch, or an
epoch with all that belongs to it, and begun nothing else.
"""

from __future__ import annotations

from typing import Any

import lightning

Counters = dict[str, Any]


def settled(trainer: lightning.Trainer, saved: Counters) -> Counters:
    """The state of the fit loop, as saved after a batch or epoch, put between that and the next."""
    batches = saved["epoch_loop.batch_progress"]
    done = batches["current"]["processed"]
    within = done < trainer.num_training_batches
    for side in ("total", "current"):
        epochs = saved["epoch_progress"][side]
        finished = epochs["started"] - within  # max_steps may end a run within an epoch, which then is as good as open
        epochs.update(ready=epochs["started"], processed=finished, completed=finished)
        count = batches[side]["processed"] if side == "total" else done * within
        batches[side] = dict.fromkeys(batches[side], count)
    batches["is_last_batch"] = False
    # Lightning counts this after the hooks at a batch's end.
    steps = saved["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"]
    saved["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    return saved


def go_on(trainer: lightning.Trainer) -> bool:
    """At the start of a resumed training: let it be as if it had not been interrupted. True if within an epoch."""
    loop = trainer.fit_loop
    loop._load_combined_loader_states()  # nobody did if a schedule asked for the number of steps before
    within = loop.epoch_loop.batch_progress.current.ready > 0
    if not within:
        loop.epoch_loop.restarting = False  # of the fit loop it can't be set where `max_steps` is
    loop._restarting = False  # else the schedules that watch a metric miss the end of this epoch
    return within
