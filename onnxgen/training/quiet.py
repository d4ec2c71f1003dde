"""Silences Lightning and seeds the generators, as Lightning does, before Lightning is imported: that takes seconds."""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_SEED, _OF_WORKERS = "PL_GLOBAL_SEED", "PL_SEED_WORKERS"  # Lightning tells the processes that it starts


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    os.environ |= {_SEED: str(seed), _OF_WORKERS: "0"}
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Lightning's messages on devices, tips and workers."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric", "lightning")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\..*")
            # `Divided` draws the numbers of whole tensors there.
            warnings.filterwarnings("ignore", message="DTensor random operators may not have complete support")
            # Generated code changes no tensor in place.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
