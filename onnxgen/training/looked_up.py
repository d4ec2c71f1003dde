"""Looks up what settings name in torch and in the model, so that all names that there are not are told at once."""

from __future__ import annotations

from torch import nn

from onnxgen.errors import Problems
from onnxgen.surgery.owners import check_patterns
from onnxgen.training.byname import check_arguments
from onnxgen.training.goals.names import loss_name, losses_asked
from onnxgen.training.optimizers import optimizer_class
from onnxgen.training.schedules import schedule_class
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of


def look_up(model: nn.Module, settings: Settings, problems: Problems) -> None:
    """Add each name of the settings that stands for nothing: a task, optimizer, schedule, loss or part of the model."""
    with problems.gathered():
        card_of(settings.task)
    with problems.gathered():
        check_arguments(optimizer_class(settings.optimizer), settings.optimizer_args, given=("params",))
    if settings.schedule is not None:
        with problems.gathered():
            schedule_class(settings.schedule)
    for name in losses_asked(settings):
        with problems.gathered():
            loss_name(name)
    if settings.replace_head is None and settings.freeze:  # a new head has its own names
        with problems.gathered():
            check_patterns(model, settings.freeze)
