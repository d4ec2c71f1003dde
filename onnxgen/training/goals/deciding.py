"""Decides what `--task auto` means, by what the network is for and by what the data has."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from onnxgen.record.module import shapes_of, space_of
from onnxgen.record.purpose import Purpose
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data.fed import fed
from onnxgen.training.data.source import DataSource
from onnxgen.training.runs.record import has_code
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import CARDS, OUTPUTS, possible
from onnxgen.training.tasks.card import Given

_EACH = "for a loss of each output, --task outputs"


def decide(source: DataSource, model: nn.Module, settings: Settings) -> str:
    """Return the task of `--task auto`: that of the data if it is certain, else the one that the network is for, if the
    data has what it reads; else "outputs". A note of the source says why, or what else was possible.

    Raises:
        OnnxgenError: the network is for one task alone, and the data for another.
    """
    purpose = recorded_purpose(model)
    if source.task or purpose is None:
        return source.task or OUTPUTS
    given = Given(source, fed(model), settings, purpose)
    if not purpose.kind:
        return _of_candidates(given)
    cards = [card for card in possible(purpose) if settings.replace_head is None or card.new_head]
    if not cards:
        return OUTPUTS
    card, has = next(((card, has) for card in cards if (has := card.has(given))), (cards[0], ""))
    if not card.needs:
        return OUTPUTS
    against = given.speaks_against(card.losses)
    if has and not against:
        source.notes.append(f"trained with --task {card.name}: {purpose.evidence[0]}, and {has}; {_EACH}")
        return card.name
    why = f"{against} is for a loss of each output" if against else f"the data has no {card.needs}"
    what = f"the network seems to be for {purpose.kind} ({purpose.evidence[0]}), but {why}"
    source.notes.append(f"{what}: trained with a loss of each output, unless --task names another way")
    return OUTPUTS


def _of_candidates(given: Given) -> str:
    """Return the task for a network whose purpose is unsure. If the data leaves several, a note names them."""
    cards = [card for card in possible(given.purpose) if card.new_head or given.settings.replace_head is None]
    found = {c.name: has for c in cards if (has := c.has(given)) and not given.speaks_against(c.losses)}
    tasks = [name for name in found if CARDS[name].is_named(given)] or [*found]
    if not tasks:
        return OUTPUTS
    maybe = f"the network may be for {' or '.join(given.purpose.candidates)}"
    if len(tasks) == 1 and CARDS[tasks[0]].is_certain(given):
        given.source.notes.append(f"trained with --task {tasks[0]}: {maybe}, and {found[tasks[0]]}; {_EACH}")
        return tasks[0]
    what = f"{maybe}: trained with a loss of each output; the data also suits --task {' or '.join(tasks)}"
    given.source.notes.append(what)
    return OUTPUTS


def recorded_purpose(model: nn.Module) -> Purpose | None:
    """Return what the sidecar of a generated module says about its network.

    None if it says nothing, or if the module was edited or its layers have other sizes: then it may be for something
    else by now.
    """
    space, purpose = space_of(model), signature_of(model).purpose
    if purpose is None or (file := space.get("__file__")) is None:
        return purpose
    if not has_code(Path(file), str(space.get("FINGERPRINT", ""))):
        return None
    known, own = shapes_of(space), {key: tuple(tensor.shape) for key, tensor in model.named_parameters()}
    return purpose if all(known.get(key, shape) == shape for key, shape in own.items()) else None
