"""`--task module:function`: a loss of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, typed
from onnxgen.training.byname import imported
from onnxgen.training.data.samples import Batch
from onnxgen.training.goals.goal import Goal, Outputs, Scores
from onnxgen.training.tasks.card import Situation

WAY = "it takes the outputs and the batch by name, and returns the loss, or a dict with it: {'loss': loss, 'error': e}"


class FunctionGoal(Goal, nn.Module):
    """Calls a function with the outputs by name and the batch by column.

    The function returns the mean loss of the batch, or a dict with `loss` and other numbers. These are metrics of an
    evaluation: each is the batch's mean, and counts by the number of samples. If the function is an `nn.Module`, its
    parameters are trained, too.

    Attributes:
        numbers: the names of the other numbers, which the first call tells.
    """

    def __init__(self, function: Callable[..., Any], spec: str, outputs: Sequence[str], columns: Sequence[str]) -> None:
        """`spec` is the function's name in errors; `outputs` are the names of the model's outputs."""
        super().__init__()
        self.function, self.spec, self.outputs = function, spec, tuple(outputs)
        self.name, self.classes, self.columns = "", 0, tuple(columns)
        self.numbers: tuple[str, ...] = ()

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        return self.called(outputs, batch)["loss"]

    def scores(self) -> Scores:
        return _Numbers(self)

    def called(self, outputs: Outputs, batch: Batch) -> dict[str, Tensor]:
        """Return the function's numbers by name.

        Raises:
            OnnxgenError: the function fails, or returns something else.
        """
        try:
            made = self.function(dict(zip(self.outputs, outputs)), batch)
        except OnnxgenError:
            raise
        except Exception as error:
            raise OnnxgenError(f"task {self.spec}: {typed(error)}", help=WAY) from error
        found = made if isinstance(made, Mapping) else {"loss": made}
        for name, value in found.items():
            if not isinstance(value, (Tensor, float, int)) or (isinstance(value, Tensor) and value.numel() != 1):
                kind = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise OnnxgenError(f"task {self.spec}: {name} is {kind}, not a single number", help=WAY)
        if not isinstance(found.get("loss"), Tensor):
            raise OnnxgenError(f"task {self.spec} returned no loss that is a tensor", help=WAY)
        numbers = tuple(str(name) for name in found if name != "loss")
        if self.numbers and numbers != self.numbers:
            what = (
                f"task {self.spec} returned {', '.join(numbers) or 'no numbers'}, and {', '.join(self.numbers)} before"
            )
            raise OnnxgenError(what, help="return the same names each time")
        self.numbers = numbers
        return {str(name): torch.as_tensor(value).reshape(()) for name, value in found.items()}


def make(spec: str, found: Situation) -> Sequence[Goal]:
    """Return the goal of a function, "module:function". Raises `OnnxgenError` if there is none, or if it fails."""
    function = imported(spec, "task", WAY)
    function = function() if inspect.isclass(function) else function
    if not callable(function):
        raise OnnxgenError(f"task {spec} is {type(function).__name__}, not a function", help=WAY)
    goal = FunctionGoal(function, spec, found.names, (*found.feeding.inputs, *found.feeding.others))
    goal.mean_loss(found.outputs, found.batch, training=False)  # its errors come before training
    return [goal]


class _Numbers(Scores):
    """The means of a function's other numbers."""

    def __init__(self, goal: FunctionGoal) -> None:
        from torchmetrics import MeanMetric  # takes seconds, with matplotlib

        super().__init__({name: MeanMetric() for name in goal.numbers}, lambda outputs, batch: ())
        self.goal = goal

    def update(self, outputs: Outputs, batch: Batch) -> None:
        made = self.goal.called(outputs, batch)
        for name, metric in self.metrics.items():
            metric.update(made[name], len(next(iter(batch.values()))))
