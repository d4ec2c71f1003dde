"""The tasks that `--task` names: each file beside this one and `card.py` is one of them, and its `CARD`.

No other file asks for a task by its name. Nothing here imports torch before a card's function is called.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from onnxgen.record.signature import Purpose
from onnxgen.training.byname import FUNCTION, by_name
from onnxgen.training.tasks.card import Card, Situation

if TYPE_CHECKING:
    from torch import Tensor

    from onnxgen.training.data.samples import Data
    from onnxgen.training.goals.goal import Goal
    from onnxgen.training.runs.answers import Answer
    from onnxgen.training.runs.record import Target
    from onnxgen.training.settings import Settings

AUTO = "auto"  # what the network is for, and the data (`goals/outputs.py`)
OUTPUTS = "outputs"  # a loss for each output that has a target
_FILES = sorted(found.name for found in pkgutil.iter_modules(__path__) if found.name != "card")
CARDS: dict[str, Card] = {card.name: card for card in (import_module(f"{__name__}.{name}").CARD for name in _FILES)}
_PLAIN = Card(OUTPUTS)


def card_of(name: str) -> Card:
    """Return the card of the task that `--task` names; that of "outputs" for "auto", if nothing decided.

    Raises `OnnxgenError` if there is no such task.
    """
    if FUNCTION.fullmatch(name):
        return Card(name, partial(_of_function, name), reads="rest")
    return _PLAIN if name == AUTO else by_name(name, {OUTPUTS: _PLAIN, **CARDS}, "task")


def _of_function(name: str, situation: Situation) -> Sequence[Goal]:
    from onnxgen.training.goals.goal import make

    return make(name, situation)


def known(name: object) -> Card:
    """Like `card_of`, for a name that was not checked yet: that of "outputs" if there is no such task."""
    return CARDS.get(name, _PLAIN) if isinstance(name, str) else _PLAIN


def with_task(settings: Settings, opened: Data) -> Settings:
    """Return the settings with what was decided when data was opened: the task, and how images are fed."""
    task = opened.task or OUTPUTS if settings.task == AUTO else settings.task
    return replace(settings, **{**opened.images, "task": task, "resize": opened.resize or settings.resize})


def reader_of(loss: str) -> Callable[[Tensor, Target], Answer] | None:
    """Return what reads an output that was trained with a task's own loss; None if it is one of torch's."""
    return next((card.answers[loss] for card in CARDS.values() if loss in card.answers), None)


def task_for(data: str) -> str:
    """Return the name of the task that a kind of data is for."""
    return next(card.name for card in CARDS.values() if card.data == data)


def possible(purpose: Purpose | None) -> list[Card]:
    """Return the cards of the tasks that a network may be for, the likeliest first."""
    kinds = () if purpose is None else (purpose.kind, *purpose.candidates)
    return [card for kind in kinds for card in CARDS.values() if kind in card.kinds]
