"""Metrics of torchmetrics for the loss of one output, by their names."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.byname import by_name
from onnxgen.training.data.samples import Batch
from onnxgen.training.goals.goal import Outputs, Scores
from onnxgen.training.goals.names import snake

if TYPE_CHECKING:
    import torchmetrics

    from onnxgen.training.losses import Objective

IGNORED_CLASS = -100  # a class index that counts neither in the loss nor in a metric; torch's default
# The metrics that an evaluation computes without being asked: of a map of classes, of a map of yes or no, of labels.
OF_A_MAP, OF_LABELS = ("JaccardIndex",), ("F1Score", "AveragePrecision")


def measured(objective: Objective) -> Scores:
    """Return the metrics that an objective names.

    Raises:
        OnnxgenError: there is no such metric for this kind of output, or it needs more than output and target.
    """
    metrics = {snake(name): _metric(name, objective) for name in objective.metrics}

    def arranged(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        return objective.compared(outputs[objective.output], batch[objective.column])

    return Scores(metrics, arranged)


def known_metrics(objective: Objective) -> dict[str, type[torchmetrics.Metric]]:
    """Return torchmetrics' classes that suit an objective, by name (without `Multiclass` and the like)."""
    import torchmetrics  # takes seconds, with matplotlib

    module = torchmetrics.classification if objective.classes else torchmetrics.regression
    return dict(_classes(module, _prefix(objective)))


def _prefix(objective: Objective) -> str:
    if not objective.classes:
        return ""
    return ("Multilabel" if objective.labels > 1 else "Binary") if objective.is_binary else "Multiclass"


def _classes(module: Any, prefix: str) -> list[tuple[str, type[torchmetrics.Metric]]]:
    from torchmetrics import Metric

    named = [(name, getattr(module, name)) for name in module.__all__ if name.startswith(prefix)]
    # A metric that says whether higher is better is one number: no curve, table or threshold.
    found = [(name.removeprefix(prefix), one) for name, one in named if issubclass(one, Metric)]
    return [(name, one) for name, one in found if one.higher_is_better is not None and _takes_two(one)]


def _takes_two(metric: type[torchmetrics.Metric]) -> bool:
    """Return True if a metric needs output and target alone (not the group of each sample, as Fairness does)."""
    takes = [*inspect.signature(metric.update).parameters.values()][1:]
    return sum(one.default is one.empty for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD) <= 2


def _metric(name: str, objective: Objective) -> torchmetrics.Metric:
    found = known_metrics(objective)
    chosen = by_name(name, found | {snake(n): one for n, one in found.items()}, f"metric of {_named(objective)}")
    takes = inspect.signature(chosen).parameters
    given: dict[str, Any] = {
        "num_classes": objective.classes,
        "num_labels": objective.labels,
        "num_outputs": objective.labels,
        "ignore_index": None if objective.is_binary else IGNORED_CLASS,
        "thresholds": None,  # all of them: bins would make ties of different predictions
        "average": "macro",
        "validate_args": False,
    }
    try:
        return chosen(**{key: value for key, value in given.items() if key in takes})
    except (TypeError, ValueError) as error:
        raise OnnxgenError(f"metric {name} can't be made: {error}", help="leave it out of --metric") from None


def _named(objective: Objective) -> str:
    kinds = {"Multilabel": "several labels", "Binary": "yes or no", "Multiclass": "classes", "": "numbers"}
    return kinds[_prefix(objective)]
