"""An epoch's means: of the losses, exactly weighted, and of what classifiers got right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from onnxgen.training.losses import IGNORED, OF_CLASSES, Objective

FLUSH = 256  # batches after which what they left on the device is fetched: a wait each, no more
CONFUSED = 1000  # classes past which no matrix of confusions is kept

Made = tuple[Tensor, Tensor, Tensor]  # an objective's loss, output and target


class Meter:
    """Adds up batches on the device without waiting for it, and in double precision on the CPU now and then.

    Attributes:
        sums: by objective, [objectives, 4] float64: loss times count, count, decided rightly, decided.
        confusion: of the first classifier, if asked for: [classes, classes], a row a true class.
    """

    def __init__(self, objectives: Sequence[Objective], confusing: bool = False) -> None:
        self.objectives = objectives
        self.sums = torch.zeros(len(objectives), 4, dtype=torch.float64)
        self._pending: list[tuple[int, list[Tensor]]] = []
        classifiers = [i for i, o in enumerate(objectives) if 2 <= o.classes <= CONFUSED]
        self._shown = classifiers[0] if confusing and classifiers else None
        self._matrix = None
        if self._shown is not None:
            self._matrix = MulticlassConfusionMatrix(
                objectives[self._shown].classes, ignore_index=IGNORED, validate_args=False, sync_on_compute=False
            )

    def add(self, made: Sequence[Made]) -> None:
        """Add a batch."""
        with torch.no_grad():
            for index, (objective, (loss, output, target)) in enumerate(zip(self.objectives, made, strict=True)):
                self._pending.append((index, self._row(index, objective, loss, output, target)))
        if len(self._pending) >= FLUSH * len(self.objectives):
            self.flush()

    def _row(self, index: int, objective: Objective, loss: Tensor, output: Tensor, target: Tensor) -> list[Tensor]:
        count = torch.as_tensor(objective.count(target))
        if not objective.classes:
            return [loss.detach(), count]
        chosen = objective.chosen(output.detach())
        target = target.view(chosen.shape).long()
        if index == self._shown and self._matrix is not None:
            self._matrix.update(chosen.flatten().cpu(), target.flatten().cpu())
        right, decided = (chosen == target).sum(), torch.as_tensor(target.numel())
        if objective.loss in OF_CLASSES:
            decided = (target != IGNORED).sum()
        return [loss.detach(), count, right, decided]

    def flush(self) -> None:
        """Fetch what is on the device still."""
        for index, (loss, count, *decided) in self._pending:
            row = [loss.cpu().double() * count.cpu(), count.cpu(), *(d.cpu() for d in decided)]
            for column, value in enumerate(row):
                self.sums[index, column] += value
        self._pending.clear()

    @property
    def confusion(self) -> Tensor | None:
        return None if self._matrix is None else self._matrix.confmat

    def means(self, part: str, reduce: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """`{part}_loss`, `{part}_accuracy` where there is a classifier; by output too, where there are several.

        Args:
            part: "train", "val" or "test".
            reduce: sums a tensor over all processes.
        """
        self.flush()
        sums = reduce(self.sums)
        losses = (sums[:, 0] / sums[:, 1].clamp_min(1)).tolist()
        found = {f"{part}_loss": sum(losses)}
        right = [(o, (sums[i, 2] / sums[i, 3].clamp_min(1)).item()) for i, o in enumerate(self.objectives) if o.classes]
        if right:
            found[f"{part}_accuracy"] = sum(value for _, value in right) / len(right)
        if len(self.objectives) > 1:
            found |= {f"{part}_loss_{o.name}": value for o, value in zip(self.objectives, losses, strict=True)}
            found |= {f"{part}_accuracy_{o.name}": value for o, value in right} if len(right) > 1 else {}
        if self._matrix is not None:
            self._matrix.confmat = reduce(self._matrix.confmat)
        return found
