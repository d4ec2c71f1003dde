"""The rule for the best epoch. The kept weights, early stopping and the reports all follow it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

# Metrics of single outputs, whose name may follow: any word, as in val_auroc_distance.
HIGHER = """accuracy agreement auroc average_precision cohen_kappa concordance_corr_coef cosine_similarity
    critical_success_index exact_match explained_variance f1_score f_beta_score log_auc matthews_corr_coef mean_iou
    precision r2_score ranking_average_precision recall recall_at_1 spearman_corr_coef""".split()
# Parts of the names of all others.
LOWER_IS_BETTER = ("loss", "error", "mse", "mae", "perplexity", "distance", "divergence", "ranked_probability")


def lower_is_better(metric: str) -> bool:
    """Return True if a smaller value of the metric is better, as for losses and errors."""
    kind = re.sub("^(train|val|test)_", "", metric)
    if any(kind == name or kind.startswith(f"{name}_") for name in HIGHER):
        return False
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
