"""Learning a teacher's outputs (Hinton et al. 1503.02531), and values inside of it (1412.6550).

`DistilGoal` is the loss; values inside are those of Romero et al. `with_teacher` adds a teacher to
the goals of a run.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import evaluating
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.samples import Batch, Feeding, Samples
from onnxgen.training.endings import Ending, read_ending
from onnxgen.training.goals.goal import Goal, Outputs, Scores
from onnxgen.training.goals.names import BINARY_LOSSES, CLASS_LOSSES, loss_name
from onnxgen.training.goals.outputs import output_names
from onnxgen.training.losses import Objective
from onnxgen.training.model import trial_batch
from onnxgen.training.settings import Settings
from onnxgen.training.teacher import Seen, Teacher, kinds_of, module_called, open_teacher

PREFIX = "teacher:"  # of a batch's columns that hold what a teacher says
CLASSES, LABELS, VALUES = "classes", "labels", "values"


@dataclass(frozen=True)
class Pair:
    """An output of the student, and the teacher's output that it learns.

    Attributes:
        output, name: the student's output.
        column: in the batch, of the teacher's output.
        kind: "classes" (one of several), "labels" (each holds or not) or "values" (numbers).
        axis: along which the classes lie.
        student, teacher: what the outputs end in, as `Ending.kind`.
        count: the number of classes; 0 for values, and 2 for labels.
    """

    output: int
    name: str
    column: str
    kind: str
    axis: int = 1
    student: str = ""
    teacher: str = ""
    count: int = 0

    @property
    def as_loss(self) -> str:
        """The loss of a target of the same kind, as torch calls it."""
        if self.kind == LABELS:
            return "binary_cross_entropy" + ("" if self.student == "sigmoid" else "_with_logits")
        of_classes = "nll_loss" if self.student in ("softmax", "log_softmax") else "cross_entropy"
        return of_classes if self.kind == CLASSES else "mse_loss"

    def loss(self, outputs: Outputs, batch: Batch, temperature: float) -> Tensor:
        """Return the mean loss of a batch.

        Of values, the mean squared error. Else KL(teacher || student) of the distributions softened by the temperature
        T, summed over the classes, averaged over samples (and positions or labels), times T^2: so gradients keep their
        size when T changes.
        """
        output, wanted = outputs[self.output], batch[self.column]
        if self.kind == VALUES:
            return F.mse_loss(_wide(output), wanted.to(_wide(output).dtype).view_as(output))
        own, taught = (F.log_softmax(values / temperature, -1) for values in self.logits(output, wanted))
        each = F.kl_div(own, taught, reduction="none", log_target=True)
        return each.sum(-1).mean() * temperature**2

    def logits(self, output: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of student and teacher, with the classes last. A label has two: z and 0.

        The logarithm of a softmax is its logits up to a constant, which a softmax ignores.
        """
        own, taught = (_wide(output), self.student), (wanted.to(_wide(output).dtype).view_as(output), self.teacher)
        return self._logits(*own), self._logits(*taught)

    def _logits(self, values: Tensor, ending: str) -> Tensor:
        tiny = torch.finfo(values.dtype).tiny
        if self.kind == LABELS:
            z = torch.logit(values, torch.finfo(values.dtype).eps) if ending == "sigmoid" else values
            return torch.stack([z, torch.zeros_like(z)], -1)
        return (values.clamp_min(tiny).log() if ending == "softmax" else values).movedim(self.axis, -1)

    def agreed(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return, for each sample (position, label), 1 if student and teacher choose the same class, else 0."""
        student, teacher = (z.argmax(-1) for z in self.logits(outputs[self.output], batch[self.column]))
        return (student == teacher).float().flatten()


class Feature(nn.Module):
    """A value inside the student that is trained to be like one of the teacher.

    If the two differ along one axis, a linear map of that axis (for channels, a 1x1 convolution) is trained with them.
    """

    def __init__(self, seen: Seen, name: str, value: Tensor, column: str, wanted: Tensor) -> None:
        """`name` is the student's module; `value` and `wanted` are the values for a few samples.

        Raises `OnnxgenError` if the shapes differ in more than one axis.
        """
        super().__init__()
        self.seen, self.column = seen, column
        weakref.finalize(self, seen.handle.remove)  # the student outlives it
        differ = [axis for axis in range(value.ndim) if value.shape[axis : axis + 1] != wanted.shape[axis : axis + 1]]
        if value.ndim != wanted.ndim or len(differ) > 1 or differ == [0]:
            what = f"{name} of the student is {list(value.shape)}, its teacher's value {list(wanted.shape)}"
            raise OnnxgenError(what, help="--teacher-features pairs values that differ in their width alone")
        self.axis = differ[0] if differ else -1
        sizes = (value.shape[self.axis], wanted.shape[self.axis])
        self.projection = nn.Linear(*sizes) if differ else None

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean squared error of the student's latest forward pass."""
        value = self.seen.taken()
        if self.projection is not None:
            value = self.projection(value.movedim(self.axis, -1)).movedim(-1, self.axis)
        return F.mse_loss(_wide(value), batch[self.column].to(_wide(value).dtype))


class DistilGoal(Goal, nn.Module):
    """Learns what a teacher says. In training, the features count too.

    The teacher runs once for each batch (or part of it), which then holds its outputs as columns `teacher:NAME`.

    Attributes:
        factor: see `Goal`.
    """

    name, classes, columns = "teacher", 0, ()

    def __init__(
        self, teacher: Teacher, pairs: Sequence[Pair], features: Sequence[Feature], temperature: float, factor: float
    ) -> None:
        super().__init__()
        self.teacher: Teacher = teacher
        self.pairs, self.features = tuple(pairs), nn.ModuleList(features)
        self.temperature, self.factor = temperature, factor
        self.chosen_pairs = tuple(pair for pair in pairs if pair.kind != VALUES)
        self.monitor = "agreement" if self.chosen_pairs else "loss"

    @property
    def said(self) -> tuple[str, ...]:  # type: ignore[override]
        """What each output learns, and how."""
        how = {CLASSES: "class probabilities", LABELS: "probabilities of labels", VALUES: "numbers (mse_loss)"}
        return tuple(f"output {pair.name} learns the teacher's {how[pair.kind]}" for pair in self.pairs)

    def mean_loss(self, outputs: Outputs, batch: Batch, training: bool) -> Tensor:
        if any(pair.column not in batch for pair in self.pairs):
            batch |= {f"{PREFIX}{name}": value for name, value in self.teacher(batch).items()}
        losses = [pair.loss(outputs, batch, self.temperature) for pair in self.pairs]
        losses += [feature.loss(batch) for feature in self.features if isinstance(feature, Feature) and training]
        return torch.stack(losses).sum()

    def scores(self) -> Scores | None:
        """Return the share of equal choices of student and teacher; None if they choose no class."""
        if not self.chosen_pairs:
            return None
        from torchmetrics import MeanMetric  # takes seconds, with matplotlib

        return Scores({"agreement": MeanMetric()}, self._agreed)

    def _agreed(self, outputs: Outputs, batch: Batch) -> tuple[Tensor]:
        return (torch.cat([pair.agreed(outputs, batch) for pair in self.chosen_pairs]),)


def _wide(x: Tensor) -> Tensor:
    """Return a tensor of at least 32 bits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


_OF_A_SOFTMAX = ("softmax", "log_softmax")


def _refuse_other_images(teacher: Teacher, settings: Settings) -> None:
    """Refuse images that the teacher was not trained with: its outputs would be those of other pictures."""
    for name, usual in (("channel_order", "rgb"), ("resize", "")):
        taught, own = teacher.network.images.get(name, "auto"), getattr(settings, name)
        taught, own = (usual if value == "auto" else value for value in (taught, own))
        if taught and own and taught != own:
            option = f"--{name.replace('_', '-')}"
            what = f"the teacher {settings.teacher} was trained with {option} {taught}, and the student gets {own}"
            raise OnnxgenError(what, help=f"{option} {taught}")


def with_teacher(
    goals: Sequence[Goal], model: nn.Module, samples: Samples, feeding: Feeding, settings: Settings, scale: str
) -> list[Goal]:
    """Return the goals of the data's targets, and that of the teacher; without a teacher, the goals as they are.

    Args:
        scale: how the images are normalised, in the form of `Settings.normalize`.

    Raises:
        OnnxgenError: there is no such teacher, or it does not fit the student.
    """
    if settings.teacher is None:
        return list(goals)
    batch = trial_batch(model, samples, settings.seed)
    ports = fed(model).inputs
    inputs = {port.name: column for port, column in zip(ports, feeding.inputs)}
    teacher = open_teacher(settings.teacher, [*settings.teacher_features], inputs, batch, scale)
    _refuse_other_images(teacher, settings)
    answers = teacher(batch)
    inside = {path: Seen(module_called(model, path, "student")) for path in settings.teacher_features.values()}
    outputs = _outputs(model, feeding.arguments(batch))
    names = output_names(model, len(outputs))
    objectives = {goal.output: goal for goal in goals if isinstance(goal, Objective)}
    endings = kinds_of(teacher, batch, answers)
    pairs = [
        _pair(
            index,
            names[index],
            outputs[index],
            taught,
            answers[taught],
            endings[taught],
            objectives.get(index),
            settings,
        )
        for index, taught in _paired(names, teacher).items()
    ]
    features = [
        Feature(inside[path], path, inside[path].taken(), f"{PREFIX}{value}", answers[value])
        for value, path in settings.teacher_features.items()
    ]
    share = settings.teacher_weight if goals else 1.0
    own = [replace(goal, factor=goal.factor * (1 - share), name=names[goal.output]) for goal in objectives.values()]
    return [*own, DistilGoal(teacher, pairs, features, settings.temperature, share)]


def _outputs(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs for a few samples, with autograd's history."""
    device = next(model.parameters()).device
    arguments = [x.to(device) for x in inputs]
    arguments = [x.detach().requires_grad_() if x.is_floating_point() else x for x in arguments]
    with evaluating(model), torch.enable_grad():
        results = model(*arguments)
    return results if isinstance(results, tuple) else (results,)


def _paired(names: Sequence[str], teacher: Teacher) -> dict[int, str]:
    """Return the teacher's output for each of the student's: by name, or the only one for the only one."""
    has = teacher.network.outputs
    if len(names) == len(has) == 1:
        return {0: has[0]}
    pairs = {index: name for index, name in enumerate(names) if name in has}
    if not pairs:
        what = f"the teacher's outputs are {listed(has)}, and the student's are {listed(names)}: none has the same name"
        way = "give a teacher with an output of the same name (--outputs of `onnxgen` cuts one)"
        raise OnnxgenError(what, help=way)
    return pairs


def _pair(
    index: int,
    name: str,
    output: Tensor,
    taught: str,
    answer: Tensor,
    teacher: str,
    objective: Objective | None,
    settings: Settings,
) -> Pair:
    """Return how an output learns the teacher's.

    Raises `OnnxgenError` if their sizes differ, or the loss that was asked for is none that a teacher has.
    """
    if output.numel() != answer.numel() or len(output) != len(answer):
        what = f"output {name} of the student is {list(output.shape)}, and {taught} of the teacher {list(answer.shape)}"
        rows = output.ndim == answer.ndim == 2
        raise OnnxgenError(
            what, help=f"--replace-head {answer.shape[1]}" if rows else "give a teacher of the same classes"
        )
    ending = read_ending(output)
    kind = _kind(output, ending, teacher, objective, "auto" if objective else settings.loss_of(name))
    axis = objective.axis if objective and objective.classes else 1 if ending.axis is None else ending.axis
    count = {CLASSES: output.shape[axis] if output.ndim > axis else 0, LABELS: 2}.get(kind, 0)
    return Pair(index, name, f"{PREFIX}{taught}", kind, axis, ending.kind, teacher, count)


def _kind(output: Tensor, ending: Ending, teacher: str, objective: Objective | None, loss: str) -> str:
    """Return what an output holds: as its target says, else the loss that was asked for, else what it ends in.

    Rows of several numbers without any of these are the scores of classes.
    """
    ends = {ending.kind, teacher} - {""}
    softmax = bool(ends & {*_OF_A_SOFTMAX})
    if objective is None and loss == "auto":
        classes = softmax or (output.ndim == 2 and output.shape[1] > 1)
        return LABELS if "sigmoid" in ends else CLASSES if classes else VALUES
    asked = objective.loss if objective is not None else loss_name(loss)
    if asked in BINARY_LOSSES:
        return CLASSES if softmax else LABELS
    if asked in CLASS_LOSSES or asked == "kl_div":
        return CLASSES
    if not ends:
        return VALUES
    return LABELS if "sigmoid" in ends else CLASSES
