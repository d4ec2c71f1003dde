"""Adds a teacher to the goals of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.example import evaluating
from onnxgen.training.data.fed import fed
from onnxgen.training.data.samples import Feeding, Samples
from onnxgen.training.endings import Ending, read_ending
from onnxgen.training.goals.distil import CLASSES, LABELS, PREFIX, VALUES, DistilGoal, Feature, Pair
from onnxgen.training.goals.goal import Goal
from onnxgen.training.goals.names import BINARY_LOSSES, CLASS_LOSSES, loss_name
from onnxgen.training.goals.outputs import output_names
from onnxgen.training.losses import Objective
from onnxgen.training.model import trial_batch
from onnxgen.training.settings import Settings
from onnxgen.training.teacher import Seen, Teacher, kinds_of, module_called, open_teacher

_OF_A_SOFTMAX = ("softmax", "log_softmax")


def _refuse_other_images(teacher: Teacher, settings: Settings) -> None:
    """Refuse images that the teacher was not trained with: its outputs would be those of other pictures."""
    for name, usual in (("channel_order", "rgb"), ("resize", "")):
        taught, given = teacher.network.images.get(name, "auto"), getattr(settings, name)
        taught, given = (usual if value == "auto" else value for value in (taught, given))
        if taught and given and taught != given:
            option = f"--{name.replace('_', '-')}"
            what = f"the teacher {settings.teacher} was trained with {option} {taught}, and the student gets {given}"
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
    said = teacher(batch)
    inside = {path: Seen(module_called(model, path, "student")) for path in settings.teacher_features.values()}
    outputs = _outputs(model, feeding.arguments(batch))
    names = output_names(model, len(outputs))
    objectives = {goal.output: goal for goal in goals if isinstance(goal, Objective)}
    endings = kinds_of(teacher, batch, said)
    pairs = [
        _pair(
            index, names[index], outputs[index], taught, said[taught], endings[taught], objectives.get(index), settings
        )
        for index, taught in _paired(names, teacher).items()
    ]
    features = [
        Feature(inside[path], path, inside[path].taken(), f"{PREFIX}{value}", said[value])
        for value, path in settings.teacher_features.items()
    ]
    share = settings.teacher_weight if goals else 1.0
    own = [replace(goal, factor=goal.factor * (1 - share), name=names[goal.output]) for goal in objectives.values()]
    return [*own, DistilGoal(teacher, pairs, features, settings.temperature, share)]


def _outputs(model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs for a few samples, with autograd's history."""
    device = next(model.parameters()).device
    given = [x.to(device) for x in inputs]
    given = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
    with evaluating(model), torch.enable_grad():
        made = model(*given)
    return made if isinstance(made, tuple) else (made,)


def _paired(names: Sequence[str], teacher: Teacher) -> dict[int, str]:
    """Return the teacher's output for each of the student's: by name, or the only one for the only one."""
    has = teacher.network.outputs
    if len(names) == len(has) == 1:
        return {0: has[0]}
    found = {index: name for index, name in enumerate(names) if name in has}
    if not found:
        what = f"the teacher's outputs are {listed(has)}, and the student's are {listed(names)}: none has the same name"
        raise OnnxgenError(
            what, help="give a teacher with an output of the same name (--outputs of `onnxgen` cuts one)"
        )
    return found


def _pair(
    index: int,
    name: str,
    output: Tensor,
    taught: str,
    said: Tensor,
    teacher: str,
    objective: Objective | None,
    settings: Settings,
) -> Pair:
    """Return how an output learns the teacher's.

    Raises:
        OnnxgenError: their sizes differ, or the loss that was asked for is none that a teacher has.
    """
    if output.numel() != said.numel() or len(output) != len(said):
        what = f"output {name} of the student is {list(output.shape)}, and {taught} of the teacher {list(said.shape)}"
        way = (
            f"--replace-head {said.shape[1]}" if output.ndim == said.ndim == 2 else "give a teacher of the same classes"
        )
        raise OnnxgenError(what, help=way)
    ending = read_ending(output)
    kind = _kind(output, ending, teacher, objective, "auto" if objective else settings.loss_of(name))
    axis = objective.axis if objective and objective.classes else 1 if ending.axis is None else ending.axis
    count = {CLASSES: output.shape[axis] if output.ndim > axis else 0, LABELS: 2}.get(kind, 0)
    return Pair(index, name, f"{PREFIX}{taught}", kind, axis, ending.kind, teacher, count)


def _kind(output: Tensor, ending: Ending, teacher: str, objective: Objective | None, loss: str) -> str:
    """Return what an output holds: as its target says, else the loss that was asked for, else what it ends in.

    Rows of several numbers without any of these are the scores of classes.
    """
    if objective is not None:
        asked = objective.loss
    elif loss != "auto":
        asked = loss_name(loss)
    elif "sigmoid" in (ending.kind, teacher):
        return LABELS
    else:
        scores = ending.kind in _OF_A_SOFTMAX or teacher in _OF_A_SOFTMAX or (output.ndim == 2 and output.shape[1] > 1)
        return CLASSES if scores else VALUES
    if asked in BINARY_LOSSES:
        return CLASSES if ending.kind in _OF_A_SOFTMAX or teacher in _OF_A_SOFTMAX else LABELS
    if asked in CLASS_LOSSES or asked == "kl_div":
        return CLASSES
    if ending.kind or teacher:
        return LABELS if "sigmoid" in (ending.kind, teacher) else CLASSES
    return VALUES
