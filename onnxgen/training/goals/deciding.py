"""Decides what `--task auto` means, by what the network is for and by what the data has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from onnxgen.record.module import shapes_of, space_of
from onnxgen.record.purpose import Purpose
from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data.fed import fed
from onnxgen.training.data.samples import Field
from onnxgen.training.data.source import DataSource, target_called
from onnxgen.training.data.stacking import aims_of
from onnxgen.training.data.text.choosing import text_columns
from onnxgen.training.data.text.roles import roles_of
from onnxgen.training.goals.names import LOSS_SETTINGS
from onnxgen.training.runs.record import has_code
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import CARDS, OUTPUTS, possible

OF_SINGLE_OUTPUTS = (*LOSS_SETTINGS, "mixup", "cutmix", "sampler")  # settings that a loss of each output reads
_EACH = "for a loss of each output, --task outputs"


@dataclass(frozen=True)
class Given:
    """The data and the settings of a run, before columns are matched."""

    source: DataSource
    ports: Signature
    settings: Settings

    @property
    def fields(self) -> Mapping[str, Field]:
        return next(iter(self.source.parts.values())).fields

    def aim(self, *usual: str) -> str:
        """Return the column that is the target: the one that the settings name, or that has a `usual` name; or ""."""
        said = self.settings.target
        said = next(iter(said.values()), "") if isinstance(said, Mapping) else said
        named = next((column for column in usual if column in self.fields), "")
        found = said or self.source.target or named or target_called(self.fields)
        return found if found in self.fields else ""

    def aims(self) -> list[str]:
        """Return the columns that are targets."""
        return aims_of(self.source, self.ports, self.settings, [*self.fields])

    def roles(self) -> dict[str, Port]:
        """Return what each input of a network that reads tokens is."""
        return roles_of(self.ports, [*self.fields])

    def classes(self) -> str:
        """Return that there is a class for each sample, as a sentence; "" if there is none."""
        name = self.aim()
        if not name or self.fields[name].shape or self.fields[name].dtype.is_floating_point:
            return ""
        return f"column {name!r} has a class for each sample"

    def has_a_score_of_each_class(self) -> bool:
        name, dims = self.aim(), self.ports.outputs[0].dims if len(self.ports.outputs) == 1 else None
        return bool(name and dims) and len(self.fields[name].classes) == dims[-1]  # type: ignore[index]

    def plain_text(self, purpose: Purpose) -> str:
        """Return that there is text without a target, for a network with scores of each token; "" if there is none."""
        if not text_columns(self.source) or not self.roles() or self.aims() or purpose.facts.get("axis", 2) != 2:
            return ""
        return "the data is text without a target"

    def speaks_against(self, losses: tuple[str, ...] = ()) -> str:
        """Return the option that only a loss of each output reads, or another task's loss; "" if there is none."""
        default = Settings()
        for name in OF_SINGLE_OUTPUTS:
            value = getattr(self.settings, name)
            if name == "loss" and isinstance(value, str) and value.lower() in losses:
                continue
            if value != getattr(default, name):
                return f"--{name.replace('_', '-')}"
        return ""


def decide(source: DataSource, model: nn.Module, settings: Settings) -> str:
    """Return the task of `--task auto`: that of the data if it is certain, else the one that the network is for, if the
    data has what it reads; else "outputs". A note of the source says why, or what else was possible.

    Raises:
        OnnxgenError: the network is for one task alone, and the data for another.
    """
    purpose = recorded_purpose(model)
    if source.task or purpose is None:
        return source.task or OUTPUTS
    given = Given(source, fed(model), settings)
    if not purpose.kind:
        return _of_candidates(given, purpose)
    cards = [card for card in possible(purpose) if settings.replace_head is None or card.new_head]
    if not cards:
        return OUTPUTS
    card, has = next(((card, has) for card in cards if (has := card.has(given, purpose))), (cards[0], ""))
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


def _of_candidates(given: Given, purpose: Purpose) -> str:
    """Return the task for a network whose purpose is unsure. If the data leaves several, a note names them."""
    cards = [card for card in possible(purpose) if card.new_head or given.settings.replace_head is None]
    found = {c.name: has for c in cards if (has := c.has(given, purpose)) and not given.speaks_against(c.losses)}
    tasks = [name for name in found if CARDS[name].is_named(given)] or [*found]
    if not tasks:
        return OUTPUTS
    maybe = f"the network may be for {' or '.join(purpose.candidates)}"
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
