"""Puts Lightning's loop counters between two batches, where a run is saved and resumed.

Lightning saves the counters as they are within a hook, and when it resumes it guesses from them where that was. Some
guesses skip a scheduler's step or a validation. Here the counters are those of a run that has finished a batch, or an
epoch with everything that belongs to it, and has not begun the next.
"""

from __future__ import annotations

from typing import Any

import lightning

Counters = dict[str, Any]


def between_batches(trainer: lightning.Trainer, saved: Counters) -> Counters:
    """Change the saved state of the fit loop to the state between this batch or epoch and the next."""
    batches = saved["epoch_loop.batch_progress"]
    done = batches["current"]["processed"]
    within = done < trainer.num_training_batches
    for side in ("total", "current"):
        epochs = saved["epoch_progress"][side]
        finished = epochs["started"] - within  # if max_steps ended the run within an epoch, that counts as unfinished
        epochs.update(ready=epochs["started"], processed=finished, completed=finished)
        count = batches[side]["processed"] if side == "total" else done * within
        batches[side] = dict.fromkeys(batches[side], count)
    batches["is_last_batch"] = False
    # Lightning counts this after the hooks at a batch's end.
    steps = saved["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"]
    saved["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    return saved


def resume_loops(trainer: lightning.Trainer) -> bool:
    """Correct the loops at the start of a resumed training. Return True if it resumes within an epoch.

    No public hook does it: the loader's state is put back within `Trainer.fit` alone, and with `max_steps` the setter
    of `restarting` makes True of False.
    """
    loop = trainer.fit_loop
    loop._load_combined_loader_states()  # Lightning skips this if the number of steps was asked for before
    within = loop.epoch_loop.batch_progress.current.ready > 0
    if not within:
        loop.epoch_loop.restarting = False
    loop._restarting = False  # else schedules that watch a metric miss the end of this epoch
    return within
