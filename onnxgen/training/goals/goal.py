"""The interface of a goal: the loss that is trained, and the metrics of an evaluation.

`FunctionGoal` is `--task module:function`, a loss of the user's own. Metrics of torchmetrics for
the loss of one output are found by their names (`measured`). A run keeps the parameters that goals
have of their own, those of its best epoch, for evaluations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError, one_line, typed
from onnxgen.training.byname import by_name, imported
from onnxgen.training.data.samples import Batch
from onnxgen.training.goals.names import snake
from onnxgen.training.tasks.card import Situation

if TYPE_CHECKING:
    import torchmetrics

    from onnxgen.training.losses import Objective
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
        arguments = self.arranged(outputs, batch)
        for metric in self.metrics.values():
            metric.update(*arguments)

    def compute(self, device: torch.device) -> dict[str, float]:
        """Return the metrics of all processes; `device` is where they can exchange tensors.

        A metric with one number for each output is their mean. A metric that is a dict has a name for each number, of
        which those in `names` are returned.
        """
        numbers: dict[str, float] = {}
        for name, metric in self.metrics.items():
            computed = metric.to(device).compute()
            named = computed if isinstance(computed, Mapping) else {name: computed}
            numbers |= {key: torch.as_tensor(value).double().mean().item() for key, value in named.items()}
        return {name: numbers[name] for name in self.names}


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

    @property
    def needs_logits(self) -> bool:
        """True if it takes logarithms of probabilities (`onnxgen.training.logits`)."""
        return False

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

        Raises `OnnxgenError` if the function fails, or returns something else.
        """
        try:
            returned = self.function(dict(zip(self.outputs, outputs)), batch)
        except OnnxgenError:
            raise
        except Exception as error:
            raise OnnxgenError(f"task {self.spec}: {typed(error)}", help=WAY) from error
        results = returned if isinstance(returned, Mapping) else {"loss": returned}
        tensors = {str(name): self._number(name, value) for name, value in results.items()}
        if not isinstance(results.get("loss"), Tensor):
            raise OnnxgenError(f"task {self.spec} returned no loss that is a tensor", help=WAY)
        numbers = tuple(name for name in tensors if name != "loss")
        if self.numbers and numbers != self.numbers:
            what = f"task {self.spec} returned {', '.join(numbers) or 'no numbers'}"
            raise OnnxgenError(f"{what}, and {', '.join(self.numbers)} before", help="return the same names each time")
        self.numbers = numbers
        return tensors

    def _number(self, name: object, value: object) -> Tensor:
        """Return a number as a tensor []. Raises `OnnxgenError` if it is none."""
        if not isinstance(value, (Tensor, float, int)) or (isinstance(value, Tensor) and value.numel() != 1):
            kind = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise OnnxgenError(f"task {self.spec}: {name} is {kind}, not a single number", help=WAY)
        return torch.as_tensor(value).reshape(())


def make(spec: str, situation: Situation) -> Sequence[Goal]:
    """Return the goal of a function, "module:function". Raises `OnnxgenError` if there is none, or if it fails."""
    function = imported(spec, "task", WAY)
    function = function() if inspect.isclass(function) else function
    if not callable(function):
        raise OnnxgenError(f"task {spec} is {type(function).__name__}, not a function", help=WAY)
    goal = FunctionGoal(function, spec, situation.names, (*situation.feeding.inputs, *situation.feeding.others))
    goal.mean_loss(situation.outputs, situation.batch, training=False)  # its errors come before training
    return [goal]


class _Numbers(Scores):
    """The means of a function's other numbers."""

    def __init__(self, goal: FunctionGoal) -> None:
        from torchmetrics import MeanMetric  # takes seconds, with matplotlib

        super().__init__({name: MeanMetric() for name in goal.numbers}, lambda outputs, batch: ())
        self.goal = goal

    def update(self, outputs: Outputs, batch: Batch) -> None:
        numbers = self.goal.called(outputs, batch)
        for name, metric in self.metrics.items():
            metric.update(numbers[name], len(next(iter(batch.values()))))


_STATES: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()


def own_modules(goals: Sequence[Goal]) -> list[nn.Module]:
    """Return the goals that are modules."""
    return [goal for goal in goals if isinstance(goal, nn.Module)]


def keep_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Remember the tensors of the goals that a model was trained towards, by the names in `nn.ModuleList(goals)`."""
    _STATES[model] = dict(state)


def restore(model: nn.Module, goals: Sequence[Goal], task: str = "this run") -> None:
    """Give goals the tensors that they had when this model object was trained.

    Raises `OnnxgenError` if goals have parameters, and none are known for the model, or they do not fit.
    """
    modules = own_modules(goals)
    if not any(module.state_dict() for module in modules):
        return
    if (state := _STATES.get(model)) is None:
        what = f"{task}: the loss has parameters of its own, which only a run knows, and means nothing without them"
        raise OnnxgenError(what, help="evaluate the folder of the run; for a loss of each output, --task outputs")
    for number, module in enumerate(modules):
        own = {n.removeprefix(f"{number}."): t for n, t in state.items() if n.startswith(f"{number}.")}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise OnnxgenError(f"the task's own parameters do not fit: {one_line(error)}") from error


IGNORED_CLASS = -100  # a class index that counts neither in the loss nor in a metric; torch's default
# The metrics that an evaluation computes without being asked: of a map of classes, of a map of yes or no, of labels.
OF_A_MAP, OF_LABELS = ("JaccardIndex",), ("F1Score", "AveragePrecision")


def measured(objective: Objective) -> Scores:
    """Return the metrics that an objective names.

    Raises `OnnxgenError` if there is no such metric for this kind of output, or it needs more than output and target.
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
    classes = [(name.removeprefix(prefix), one) for name, one in named if issubclass(one, Metric)]
    return [(name, one) for name, one in classes if one.higher_is_better is not None and _takes_two(one)]


def _takes_two(metric: type[torchmetrics.Metric]) -> bool:
    """Return True if a metric needs output and target alone (not the group of each sample, as Fairness does)."""
    takes = [*inspect.signature(metric.update).parameters.values()][1:]
    return sum(one.default is one.empty for one in takes if one.kind is one.POSITIONAL_OR_KEYWORD) <= 2


def _metric(name: str, objective: Objective) -> torchmetrics.Metric:
    known = known_metrics(objective)
    chosen = by_name(name, known | {snake(n): one for n, one in known.items()}, f"metric of {_named(objective)}")
    takes = inspect.signature(chosen).parameters
    options: dict[str, Any] = {
        "num_classes": objective.classes,
        "num_labels": objective.labels,
        "num_outputs": objective.labels,
        "ignore_index": None if objective.is_binary else IGNORED_CLASS,
        "thresholds": None,  # all of them: bins would make ties of different predictions
        "average": "macro",
        "validate_args": False,
    }
    try:
        return chosen(**{key: value for key, value in options.items() if key in takes})
    except (TypeError, ValueError) as error:
        raise OnnxgenError(f"metric {name} can't be made: {error}", help="leave it out of --metric") from None


def _named(objective: Objective) -> str:
    kinds = {"Multilabel": "several labels", "Binary": "yes or no", "Multiclass": "classes", "": "numbers"}
    return kinds[_prefix(objective)]
