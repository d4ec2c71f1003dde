"""Averages an epoch's losses, weighted exactly, and the accuracy of classifiers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from onnxgen.training.data.samples import Batch
from onnxgen.training.goals.goal import Goal, Made, Outputs, suffixed
from onnxgen.training.goals.measured import IGNORED_CLASS

FLUSH = 256  # batches between two transfers from the device, each of which waits for it
MAX_HELD_ELEMENTS = 1 << 18  # of outputs not counted yet; counting many batches at once is faster
MAX_CONFUSION_CLASSES = 1000

CPU = torch.device("cpu")

Row = list[Tensor | int]


class Meter:
    """Collects batches on the device without waiting for it, and adds them up in float64 on the CPU now and then.

    Attributes:
        sums: [objectives, 4] float64: sum of loss times count, count, correct predictions, predictions.
        confusion: the confusion matrix of the first classifier, if `evaluating`; rows are the true classes.
    """

    def __init__(self, objectives: Sequence[Goal], evaluating: bool = False) -> None:
        self.objectives = objectives
        self.sums = torch.zeros(len(objectives), 4, dtype=torch.float64)
        self._held: list[list[Made]] = [[] for _ in objectives]  # batches not counted yet
        self._held_elements = 0  # of their outputs
        self._pending: list[list[Row]] = [[] for _ in objectives]  # rows of counted batches, still on the device
        classifiers = [i for i, o in enumerate(objectives) if 2 <= o.classes <= MAX_CONFUSION_CLASSES]
        self._shown = classifiers[0] if evaluating and classifiers else None
        self._matrix = None
        if self._shown is not None:
            self._matrix = MulticlassConfusionMatrix(
                objectives[self._shown].classes, ignore_index=IGNORED_CLASS, validate_args=False, sync_on_compute=False
            )

        self._scores = [objective.scores() if evaluating else None for objective in objectives]

    @property
    def scored(self) -> bool:
        """True if `score` must be called with each batch."""
        return any(self._scores)

    def score(self, outputs: Outputs, batch: Batch) -> None:
        """Add a batch on the CPU to the metrics that are neither loss nor accuracy."""
        for scores in filter(None, self._scores):
            scores.update(outputs, batch)

    def add(self, made: Sequence[Made]) -> None:
        """Add a batch."""
        for held, (loss, output, target) in zip(self._held, made, strict=True):
            held.append((loss.detach(), output.detach(), target))
            self._held_elements += output.numel()
        if len(self._held[0]) + len(self._pending[0]) >= FLUSH:
            self.flush()
        elif self._held_elements >= MAX_HELD_ELEMENTS:
            self._count()

    def _count(self) -> None:
        """Reduce the held outputs to rows of numbers on the device, without waiting for it."""
        with torch.no_grad():
            for index, (objective, held) in enumerate(zip(self.objectives, self._held, strict=True)):
                self._pending[index] += [self._row(index, objective, *batch) for batch in held]
                held.clear()
        self._held_elements = 0

    def _row(self, index: int, goal: Goal, loss: Tensor, output: Tensor, target: Tensor) -> Row:
        chosen = goal.chosen(output) if goal.classes else None
        if chosen is not None and index == self._shown and self._matrix is not None:
            self._matrix.update(chosen.flatten().cpu(), target.long().flatten().cpu())
        return goal.row(loss, output, target, chosen)

    def flush(self) -> None:
        """Add the pending rows to `sums`."""
        self._count()
        for index, rows in enumerate(self._pending):
            sums = self.sums[index].tolist()
            # Row by row, so that the last bit of the sums does not depend on when they are fetched.
            for loss, count, *decided in zip(*map(_fetched, zip(*rows, strict=True)), strict=True):
                for column, value in enumerate((loss * count, count, *decided)):
                    sums[column] += value
            self.sums[index] = torch.tensor(sums, dtype=torch.float64)
            rows.clear()

    @property
    def confusion(self) -> Tensor | None:
        return None if self._matrix is None else self._matrix.confmat

    def means(self, part: str, reduce: Callable[[Tensor], Tensor], device: torch.device = CPU) -> dict[str, float]:
        """Return `{part}_loss`, `{part}_accuracy` if there is a classifier, and the metrics of an evaluation.

        Several outputs also get their own losses and accuracies. The loss of all is the sum that is trained, in which
        each has its factor.

        Args:
            part: "train", "val" or "test".
            reduce: sums a tensor over all processes.
            device: where processes can exchange tensors.
        """
        self.flush()
        sums = reduce(self.sums)
        losses = (sums[:, 0] / sums[:, 1].clamp_min(1)).tolist()
        found = {f"{part}_loss": sum(goal.factor * loss for goal, loss in zip(self.objectives, losses, strict=True))}
        right = [(o, (sums[i, 2] / sums[i, 3].clamp_min(1)).item()) for i, o in enumerate(self.objectives) if o.classes]
        if right:
            found[f"{part}_accuracy"] = sum(value for _, value in right) / len(right)
        if len(self.objectives) > 1:
            found |= {f"{part}_loss_{o.name}": value for o, value in zip(self.objectives, losses, strict=True)}
            found |= {f"{part}_accuracy_{o.name}": value for o, value in right} if len(right) > 1 else {}
        if self._matrix is not None:
            self._matrix.confmat = reduce(self._matrix.confmat)
        for goal, scores in zip(self.objectives, self._scores, strict=True):
            made = scores.compute(device) if scores is not None else {}
            found |= {f"{part}_{suffixed(self.objectives, goal, name)}": value for name, value in made.items()}
        return found


def _fetched(values: Sequence[Tensor | int]) -> list[float]:
    """Copy scalars to the CPU in one transfer."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    return torch.stack(tensors).tolist() if tensors else list(values)  # type: ignore[arg-type]
