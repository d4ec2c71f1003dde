"""The tasks that `--task` names, and how each makes its goals."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import signature_of
from onnxgen.training.byname import by_name, imported
from onnxgen.training.config import FUNCTION
from onnxgen.training.data.samples import Batch, Data, Feeding, Samples
from onnxgen.training.goals.function import WAY, FunctionGoal
from onnxgen.training.goals.goal import Goal, Outputs
from onnxgen.training.goals.language import masked_tokens, next_token, other_text
from onnxgen.training.goals.names import AUTO, DETECTION, EMBEDDING, KEYPOINTS, OUTPUTS, TASK_LOSSES
from onnxgen.training.settings import Settings


@dataclass(frozen=True)
class Situation:
    """What a goal is made for.

    Attributes:
        model: in evaluation mode.
        batch, outputs: a few samples, and the model's outputs for them, with autograd's history.
        samples: of the training part, or those that are evaluated.
        feeding: the columns; `feeding.others` are those of the task.
        names: of the outputs.
    """

    model: nn.Module
    batch: Batch
    outputs: Outputs
    samples: Samples
    feeding: Feeding
    names: tuple[str, ...]
    settings: Settings
    training: bool = True


@dataclass(frozen=True)
class TaskKind:
    """A task.

    Attributes:
        reads: the columns beside the inputs that the task reads: "target" (the one that is the target), "rest" (all
            columns that no input takes), "labels" (the column that is made of the texts), or "" (none).
        make: returns the goals. It raises `OnnxgenError` if model and data do not suit the task.
        columns: names that the target usually has.
        losses: the values of `--loss` beside "auto".
        classes: what `--classes` names: "all" classes of the target, "some" of them (there may be others in other
            data), or "characters" of its texts.
        labels: the tokens that are predicted of texts: "next", "masked", "other" (those of another text), or "".
    """

    reads: str
    make: Callable[[Situation], Sequence[Goal]]
    columns: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    classes: str = "all"
    labels: str = ""


def _made_by(module: str) -> Callable[[Situation], Sequence[Goal]]:
    """Return the `make` of a module of this package, which is imported when it is called."""

    def make(found: Situation) -> Sequence[Goal]:
        made: Sequence[Goal] = importlib.import_module(f"{__package__}.{module}").make(found)
        return made

    return make


TASKS: dict[str, TaskKind] = {
    "ctc": TaskKind("target", _made_by("ctc"), columns=("text",), classes="characters"),
    DETECTION: TaskKind("target", _made_by("detection.goal"), columns=("boxes",)),
    EMBEDDING: TaskKind("target", _made_by("embedding"), classes="some"),
    "image-to-image": TaskKind("target", _made_by("images"), columns=("target", "clean")),
    KEYPOINTS: TaskKind("target", _made_by("keypoints"), columns=("keypoints",)),
    "language-model": TaskKind("labels", next_token, labels="next"),
    "masked-language-model": TaskKind("labels", masked_tokens, labels="masked"),
    "seq2seq": TaskKind("labels", other_text, labels="other"),
}
TASKS = {name: replace(kind, losses=TASK_LOSSES[name]) for name, kind in TASKS.items()}


def task_kind(name: str) -> TaskKind | None:
    """Return the task that `--task` names; None for "outputs", and for "auto" if nothing decided.

    Raises:
        OnnxgenError: there is no such task or function.
    """
    if name in (AUTO, OUTPUTS):
        return None
    if FUNCTION.fullmatch(name):
        return TaskKind("rest", lambda found: [_of_function(name, found)])
    return by_name(name, {OUTPUTS: None, **TASKS}, "task")


def with_task(settings: Settings, opened: Data) -> Settings:
    """Return the settings with what was decided when data was opened: the task, and how images get their size."""
    task = opened.task or OUTPUTS if settings.task == AUTO else settings.task
    return replace(settings, task=task, resize=opened.resize or settings.resize)


def names_of_classes(name: str) -> str:
    """Return `TaskKind.classes` of the task that `--task` names."""
    kind = task_kind(name)
    return "all" if kind is None else kind.classes


def _of_function(spec: str, found: Situation) -> Goal:
    function = imported(spec, "task", WAY)
    function = function() if inspect.isclass(function) else function
    if not callable(function):
        raise OnnxgenError(f"task {spec} is {type(function).__name__}, not a function", help=WAY)
    goal = FunctionGoal(function, spec, found.names, (*found.feeding.inputs, *found.feeding.others))
    goal.mean_loss(found.outputs, found.batch, training=False)  # its errors come before training
    return goal


def output_names(model: nn.Module, count: int) -> tuple[str, ...]:
    """Return the names of a model's outputs: those of the graph, else `output0` and so on."""
    names = [port.name for port in signature_of(model).outputs]
    return tuple(names[i] if i < len(names) else f"output{i}" for i in range(count))
