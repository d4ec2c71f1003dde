"""Losses that are no numbers, found without waiting for the device at each step."""

from __future__ import annotations

import torch
from torch import Tensor


class Losses:
    """The losses of the latest steps, as they are on the device."""

    def __init__(self) -> None:
        self._pending: list[tuple[int, Tensor]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, step: int, loss: Tensor) -> None:
        """Keep the loss of a step, a scalar, until it is looked at."""
        self._pending.append((step, loss.detach()))

    def first_bad(self) -> int | None:
        """The first step since the last call whose loss was infinite or not a number."""
        pending, self._pending = self._pending, []
        if not pending:
            return None
        finite = torch.stack([loss for _, loss in pending]).isfinite().tolist()
        return next((step for (step, _), good in zip(pending, finite, strict=True) if not good), None)
