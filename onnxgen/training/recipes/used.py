"""The recipes that a run uses, as callbacks."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import lightning

from onnxgen.training.model import trial_batch
from onnxgen.training.prepare import Plan
from onnxgen.training.recipes.average import Average
from onnxgen.training.recipes.head_first import HeadFirst
from onnxgen.training.recipes.mixing import mixing


class Used:
    """The callbacks of a run's recipes.

    Attributes:
        mixing: those that change what a step trains on.
        callbacks: all, in the order in which they must come.
    """

    def __init__(self, mixing: list[lightning.Callback], average: Average | None, head: HeadFirst | None) -> None:
        self.mixing, self._average = mixing, average
        self.callbacks: list[lightning.Callback] = [*mixing, *([head] if head else []), *([average] if average else [])]

    def averaged(self) -> AbstractContextManager[None]:
        """In this context the model has the weights to keep."""
        return nullcontext() if self._average is None else self._average.in_place()

    def end(self) -> None:
        """Leave the weights to keep in the model."""
        if self._average is not None:
            self._average.put()


def recipes(plan: Plan) -> Used:
    """Return the recipes that a plan's settings ask for.

    Raises:
        OnnxgenError: one does not fit the model or the data.
    """
    settings, mixed = plan.settings, mixing(plan)
    average = None if settings.ema is None else Average(settings.ema, lerp=not plan.device.plain_optimizers)
    return Used([mixed] if mixed else [], average, _head_first(plan) if settings.head_first else None)


def _head_first(plan: Plan) -> HeadFirst:
    assert plan.data.train is not None
    batch = trial_batch(plan.model, plan.data.train, plan.settings.seed)
    device = next(plan.model.parameters()).device
    example = tuple(plan.feeding.arguments(batch, device))
    return HeadFirst(plan.model, plan.settings.head_first, example, plan.head)
