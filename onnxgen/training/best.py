"""The rule for the best epoch. The kept weights, early stopping and the reports all follow it."""

from __future__ import annotations

import math
from collections.abc import Mapping

# Parts of the names of metrics.
LOWER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity", "distance", "divergence", "ranked_probability")


def lower_is_better(metric: str) -> bool:
    """Return True if a smaller value of the metric is better, as for losses and errors."""
    kind = metric.partition("_accuracy")[0]  # an output's name may follow, and may be any word: val_accuracy_glossary
    return any(word in kind for word in LOWER_IS_BETTER)


def goodness(metrics: Mapping[str, float], monitor: str) -> tuple[float, float] | None:
    """Return a sort key for an epoch: the greater one is better, and of two equal epochs the earlier one.

    The monitored metric decides. If two epochs are equal in it (accuracies on few samples often are), the loss on the
    same part of the data decides.

    Returns:
        None if the metric is missing or not finite, or if the loss is NaN: then the accuracy means nothing.
    """
    value = metrics.get(monitor, math.nan)
    loss = metrics.get("train_loss" if monitor.startswith("train_") else "val_loss", math.inf)
    if not math.isfinite(value) or math.isnan(loss):
        return None
    return -value if lower_is_better(monitor) else value, -loss if math.isfinite(loss) else -math.inf
