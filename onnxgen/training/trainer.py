"""Lightning's Trainer without what Lightning does by itself."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning

# Its own bar, summary and checkpoints; and a validation before the first step, which would draw random numbers that a
# resumed run does not draw.
QUIET: dict[str, Any] = {
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "logger": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}


def metrics(trainer: lightning.Trainer) -> dict[str, float]:
    """All that is logged now, as numbers."""
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Without what Lightning says to people who wrote a Trainer by hand: devices, tips, workers."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
