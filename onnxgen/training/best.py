"""Which epoch is the best: one rule for the weights that are kept and for what the reports say."""

from __future__ import annotations

import math
from collections.abc import Mapping

LOW = ("loss", "error", "mse", "mae", "perplexity")  # in the names of metrics of which less is better


def lower_is_better(metric: str) -> bool:
    """Of losses and errors; of anything else more is."""
    return any(word in metric for word in LOW)


def goodness(metrics: Mapping[str, float], monitor: str) -> tuple[float, float] | None:
    """How good an epoch is; of two the greater is better, and of equals the first.

    The monitored metric decides, and of those who are equal in it (an accuracy of a few samples often is) the loss of
    the same part of the data.

    Returns:
        None if the metric is missing, or no finite number.
    """
    value = metrics.get(monitor, math.nan)
    if not math.isfinite(value):
        return None
    loss = metrics.get("train_loss" if monitor.startswith("train_") else "val_loss", math.inf)
    return -value if lower_is_better(monitor) else value, -loss if math.isfinite(loss) else -math.inf
