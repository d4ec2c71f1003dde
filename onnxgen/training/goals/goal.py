"""The interface of a goal: the loss that is trained, and the metrics of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from onnxgen.training.data.samples import Batch

if TYPE_CHECKING:
    from onnxgen.training.runs.record import Target

Outputs: TypeAlias = tuple[Tensor, ...]  # of the model, in the graph's order
Made: TypeAlias = tuple[Tensor, Tensor, Tensor]  # the loss of a batch, and what `Goal.row` counts


@dataclass(frozen=True)
class Shown:
    """What a goal shows of one sample in the report.

    Attributes:
        truth, said: the target and the model's answer in words.
        right: whether they agree; None if that is not yes or no.
        maps: class indices [H, W]: the target's and the model's.
        boxes: [n, 4] as (x1, y1, x2, y2), in shares of width and height: the target's and the model's.
        pictures: uint8 [H, W, 1 or 3]: the target and the model's answer.
        points: [n, 2] as (x, y), in shares of width and height: the target's and the model's.
    """

    truth: str = ""
    said: str = ""
    right: bool | None = None
    maps: tuple[Tensor, Tensor] | None = None
    boxes: tuple[Tensor, Tensor] | None = None
    points: tuple[Tensor, Tensor] | None = None
    pictures: tuple[Tensor, Tensor] | None = None


class Scores:
    """Collects torchmetrics over one evaluation.

    Attributes:
        metrics: torchmetrics' metrics by name, in snake case.
        arranged: takes the outputs and the batch, and returns what `Metric.update` takes.
        names: of the numbers that `compute` returns.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        arranged: Callable[[Outputs, Batch], tuple[Any, ...]],
        names: Sequence[str] | None = None,
    ) -> None:
        """`names` must be given if a metric is a dict."""
        self.metrics, self.arranged = dict(metrics), arranged
        self.names = tuple(metrics) if names is None else tuple(names)

    def update(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch. All tensors are on the CPU."""
        given = self.arranged(outputs, batch)
        for metric in self.metrics.values():
            metric.update(*given)

    def compute(self, device: torch.device) -> dict[str, float]:
        """Return the metrics of all processes; `device` is where they can exchange tensors.

        A metric with one number for each output is their mean. A metric that is a dict has a name for each number, of
        which those in `names` are returned.
        """
        found: dict[str, float] = {}
        for name, metric in self.metrics.items():
            made = metric.to(device).compute()
            named = made if isinstance(made, Mapping) else {name: made}
            found |= {key: torch.as_tensor(value).double().mean().item() for key, value in named.items()}
        return {name: found[name] for name in self.names}


class Goal:
    """What the model is trained for. A subclass is a frozen dataclass, or an `nn.Module` if it has parameters.

    Attributes:
        name: in reports; empty if it is the only one.
        monitor: the metric that decides which weights are best, without the name of the part.
        columns: the data's columns that it reads beside the inputs.
        classes: the number of classes of a classifier whose accuracy is counted; else 0.
        said: facts for the user: what was chosen.
        uncounted: facts for the user of an evaluation: which samples don't count as the others do.
        settled: settings that the data decided, by name. They are kept, so that other data is treated alike.
        factor: the loss that is trained is multiplied by this; the loss that is shown is not.
        new_head: with so many classes a new head would begin, if nothing says what those of the model are; else 0.
        splits: False if the loss compares the samples of a batch, so that parts of it do not add up to the batch.
    """

    name: str
    classes: int
    monitor: str = "loss"
    columns: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    settled: Mapping[str, Any] = MappingProxyType({})
    factor: float = 1.0
    new_head: int = 0
    splits: ClassVar[bool] = True

    @property
    def counts(self) -> bool:
        """True if a batch may have another weight than its number of samples."""
        return type(self).weight is not Goal.weight

    def compute(self, outputs: Outputs, batch: Batch, training: bool = False) -> Made:
        """Return the mean loss, and what `row` counts: here the weight of the batch, twice."""
        weight = torch.as_tensor(self.weight(batch))
        return self.mean_loss(outputs, batch, training), weight, weight

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        """Return the mean loss of a batch."""
        raise NotImplementedError

    def weight(self, batch: Batch) -> Tensor | int:
        """Return the number of things in the mean: the weight of a batch in a mean over batches. Default: samples."""
        return len(next(iter(batch.values())))

    def row(self, loss: Tensor, output: Tensor, target: Tensor, chosen: Tensor | None) -> list[Tensor | int]:
        """Return the loss and its weight; a classifier also the number of right predictions, and of all of them.

        Args:
            loss, output, target: what `compute` returned.
            chosen: what `chosen` returned, if there are `classes`.
        """
        return [loss, output]

    def chosen(self, output: Tensor) -> Tensor:
        """Return the class index that a classifier predicts for each target."""
        raise NotImplementedError

    def target(self) -> Target | None:
        """Return how the output is read when a run predicts; None: as it is."""
        return None

    def scores(self) -> Scores | None:
        """Return new metrics for an evaluation; None if there are no others than the loss and the accuracy."""
        return None

    def shown(self, outputs: Outputs, batch: Batch, place: int, names: Sequence[str]) -> Shown | None:
        """Return what to show of one sample of a batch; None for nothing. `names` are those of the classes."""
        return None

    def share(self, part: Batch, whole: Batch) -> float:
        """Return the weight of a part's mean in the mean of the whole batch."""
        return float(self.weight(part)) / max(float(self.weight(whole)), 1.0)


def suffixed(goals: Sequence[Goal], goal: Goal, name: str) -> str:
    """Return a metric's name in reports: with the goal's own name if there are several."""
    return f"{name}_{goal.name}" if len(goals) > 1 else name
