"""Assigns columns to inputs and targets: as the settings say, or in the only possible way; it never guesses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import Problems
from onnxgen.record.signature import Signature
from onnxgen.training.data.fed import arrangement, fed
from onnxgen.training.data.matching import inputs_named, named_columns, no_target, of_images, open_told
from onnxgen.training.data.samples import Data, Feeding, Samples
from onnxgen.training.data.source import target_called
from onnxgen.training.data.text.roles import BRANCH
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of
from onnxgen.training.tasks.card import Card


def feed(data: Data, model: nn.Module, settings: Settings, *, targets: bool = True) -> Feeding:
    """Return the column of each input and target.

    An input gets the column that `settings.inputs` names, else the column with its own name. If one input and one
    column are left, or one of images among others, they belong together. An output's target is the column that
    `settings.target` names, else the column with its name. A single output gets the data's target (`label`, `y`, ...),
    or the only column left. Outputs without a target are not trained.

    Args:
        settings: only `inputs` and `target` are read.
        targets: False if only inputs are needed (to predict).

    Raises:
        OnnxgenError: a name is unknown, or an assignment is open. The message lists the names and the option.
    """
    settings = data.text.applied(settings) if data.text is not None else settings
    ports = fed(model, settings.const)
    found = matched(next(iter(data.parts.values())), data.target, ports, settings, targets)
    return replace(found, arrangement=arrangement(model))


def matched(
    samples: Samples, known: str, ports: Signature, settings: Settings, targets: bool, images: Collection[str] = ()
) -> Feeding:
    """Like `feed`, for samples whose target is `known` ("" if it isn't), and whose columns `images` hold images."""
    columns = list(samples.fields)
    if (card := card_of(settings.task)).reads:
        return _for_task(card, columns, known, ports, settings, targets, images)
    inputs, outputs = named_columns(columns, known, ports, settings, targets, images)
    return _feeding(inputs, ports, dict(sorted(outputs.items())) if targets else {})


def _feeding(
    inputs: Mapping[str, str], ports: Signature, targets: Mapping[int, str], others: Sequence[str] = ()
) -> Feeding:
    columns = tuple(inputs[port.name] for port in ports.inputs)
    once = frozenset(inputs[port.name] for port in ports.inputs if port.name == BRANCH and port.dims == (1,))
    return Feeding(columns, targets, tuple(others), once)


def _for_task(
    card: Card,
    columns: list[str],
    known: str,
    ports: Signature,
    settings: Settings,
    targets: bool,
    images: Collection[str],
) -> Feeding:
    """Return the columns of the inputs, and those that a task reads (see `Card.reads`)."""
    problems, reads = Problems(), card.reads if targets else ""
    inputs = inputs_named(columns, ports, settings, problems)
    said = settings.target if isinstance(settings.target, (str, type(None))) else next(iter(settings.target.values()))
    if reads == "target" and said is not None and said not in columns:
        problems.add(f"--target {legible(said)}: the data has no such column (it has {listed(columns)})")
        problems.raise_if_any()
    usual = next((column for column in card.columns if column in columns), "")
    target = said or known or usual or target_called(columns)
    left = [column for column in columns if column not in (*inputs.values(), target)]
    open_inputs = [port.name for port in ports.inputs if port.name not in inputs]
    sure = of_images(left, images)
    if len(open_inputs) == 1 and (len(sure) == 1 or reads == "rest"):
        inputs |= {open_inputs.pop(): sure[0]} if sure else {}
    if open_inputs:
        problems.add(open_told(open_inputs, ports, columns))
    left = [column for column in columns if column not in inputs.values()]
    aims = [target] if target in columns else left[:1] if len(left) == 1 else []
    labels = [reads] if reads in columns else []
    others = {"rest": left, "target": aims, "labels": labels}.get(reads, [])
    if reads == "target" and not others:
        problems.add(no_target(ports, columns))
    if reads == "labels" and not others:
        what = f"--task {settings.task} needs text, but the data's columns are {listed(columns)}"
        problems.add(what, help="name the column of text for the token ids: --inputs INPUT=COLUMN")
    problems.raise_if_any()
    return _feeding(inputs, ports, {}, others)
