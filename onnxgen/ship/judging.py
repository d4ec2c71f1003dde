"""What a file costs by the metric of its run, on samples of a part that decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from onnxgen.errors import counted
from onnxgen.ship.comparison import Shipped, run_by
from onnxgen.ship.target import Run
from onnxgen.training.data.arrays import spread, subset, unaugmented
from onnxgen.training.data.samples import Data
from onnxgen.training.evaluate import measure
from onnxgen.training.model import fixed_batch
from onnxgen.training.runs.learner import Learner
from onnxgen.training.runs.metrics import points_lost

JUDGED = 256  # samples that decide, at most


@dataclass
class Judge:
    """Says how much of a run's metric a file loses.

    The metric is that which decides between the epochs of the run. The samples are of the validation part, or of the
    training part if there is none: those of the test part measure what was decided, and take no part in it.

    Attributes:
        learner: the run.
        data: where the run's data is now.
        axes, batch: as in `run_by`.
        most: how many points a file may lose; see `points_lost`.
    """

    learner: Learner
    data: Any
    axes: Sequence[int | None]
    batch: int
    most: float

    def __post_init__(self) -> None:
        record = self.learner.record
        self.part = "val" if "val" in record.parts else "train"
        self.metric = record.monitor.partition("_")[2] or "loss"

    def lost(self, run: Run) -> tuple[float, str]:
        """Return how many points a file loses, and a sentence that says it."""
        before = self._before  # of the module, not of the file
        with run_by(self.learner.model, run, self.axes, self.batch):
            after = self._measured()
        lost = points_lost(self.metric, before, after)
        count = counted(len(self._samples.parts[self.part]), "sample")
        change = f"{self.metric} {before:.4g} -> {after:.4g} on {count} of the {self.part} part"
        return lost, f"{change}: {max(lost, 0.0):.2g} points are lost, of at most {self.most:g}"

    def warned(self, report: Shipped) -> list[str]:
        """Return a sentence if a file loses more than it may on the part that did not decide."""
        values = [(before, after) for name, before, after in report.metrics if name == self.metric]
        lost = points_lost(self.metric, *values[0]) if values else 0.0
        what = f"{lost:.2g} points of {self.metric} are lost on the {report.part} part, more than {self.most:g}"
        return [f"{what}: the samples that decided were too few to tell"] if lost > self.most else []

    @cached_property
    def _before(self) -> float:
        return self._measured()

    @cached_property
    def _samples(self) -> Data:
        held = self.learner.held(self.data, self.part)
        samples, batch = unaugmented(held.parts[self.part]), fixed_batch(self.learner.model) or 1
        if len(samples) > JUDGED:
            samples = subset(samples, spread(samples, max(JUDGED // batch, 1) * batch))
        setattr(few := replace(held), self.part, samples)
        return few

    def _measured(self) -> float:
        metrics = measure(self.learner.model, self._samples, part=self.part, settings=self.learner.settings).metrics
        return metrics[self.metric if self.metric in metrics else "loss"]
