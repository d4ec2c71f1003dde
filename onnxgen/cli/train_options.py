"""The options of `onnxgen train`: one for each field of `Settings`, and those of the command itself."""

from __future__ import annotations

import ast
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from onnxgen.cli.group import EVERY
from onnxgen.training.settings import PRECISIONS, STRATEGIES, Settings

Function = TypeVar("Function", bound=Callable[..., Any])

# Of every field: what stands for its value in the help, and what it says. A default is added to it.
HELP: dict[str, tuple[str, str]] = {
    "epochs": ("N", "Passes over the training data."),
    "max_steps": ("N", "Stop after N optimizer steps, if that comes before the end of the last epoch."),
    "batch_size": ("N", "Samples in a batch, in each process."),
    "accumulate": ("N", "Sum the gradients of N batches before each step."),
    "optimizer": ("NAME", "A class of torch.optim, in upper or lower case."),
    "optimizer_args": ("NAME=VALUE", "An argument of the optimizer (momentum=0.5); may be repeated."),
    "lr": ("X", "Learning rate. Default: the optimizer's own."),
    "weight_decay": ("X", "Weight decay; norms and biases get none. Default: the optimizer's own."),
    "schedule": ("NAME", "A class of torch.optim.lr_scheduler."),
    "schedule_args": ("NAME=VALUE", "An argument of the schedule (step_size=10); may be repeated."),
    "head_lr": ("X", "The classifier's learning rate as a multiple of --lr."),
    "clip": ("X", "Scale gradients down if their norm together is larger."),
    "loss": (
        "NAME",
        "A loss by its torch name (cross_entropy), or OUTPUT=NAME,...; auto: by how the model ends.",
    ),
    "inputs": ("INPUT=COLUMN,...", "The data's column for each input of the model."),
    "target": ("COLUMN", "The column with the target, or OUTPUT=COLUMN,..."),
    "classes": ("NAME,...", "The classes in the order of the model's outputs. Default: the names in the data, sorted."),
    "device": ("DEVICE", "auto, cpu, cuda:1, mps, xpu, directml, or a plug-in's (see: onnxgen devices)."),
    "imports": ("MODULE", "Import this module first: it registers a device; may be repeated."),
    "devices": ("N", "Processes on each node."),
    "nodes": ("N", "Number of nodes."),
    "strategy": ("NAME", f"How processes share the work: {', '.join(STRATEGIES)}."),
    "precision": ("NAME", f"{', '.join(PRECISIONS)}."),
    "workers": ("N", "Processes that prepare batches; auto: as many as help."),
    "freeze": ("PATTERN", "Do not train these modules (layer1.*); may be repeated."),
    "replace_head": ("CLASSES", "Put in a new last layer for that many classes."),
    "weights": ("FILE", "Start from your own checkpoint, which has the model's keys."),
    "from_scratch": ("", "Start from fresh weights, not from those of the file."),
    "early_stop": ("N", "Stop after N epochs without a new best."),
    "monitor": ("METRIC", "The metric that decides what is best (val_loss); auto: accuracy of a classifier."),
    "val": ("SHARE", "Share of the data for validation, if the data has no such part."),
    "test": ("SHARE", "Share of the data for the test at the end, if the data has no such part."),
    "normalize": ("HOW", "auto, none, or MEAN,STD (for several channels: joined by /)."),
    "augment": ("HOW", "none, auto, or flip,crop,rotate."),
    "strict": ("", "End with an error if a sample can't be read. Otherwise it is skipped."),
    "compile": ("", "torch.compile the model."),
    "seed": ("N", "Seed of all random numbers."),
    "checkpoint_minutes": ("X", "Write a checkpoint at least every X minutes, and after each epoch."),
    "resume": ("", "Go on from the last checkpoint in --out, with the settings of that run."),
    "out": ("FOLDER", "The folder that the run writes to."),
}
# The options by what they are about; titles of the help, in its order.
GROUPS = (
    ("Data", "--data --inputs --target --classes --val --test --normalize --augment --strict"),
    ("Length of the run", "--epochs --max-steps --early-stop --monitor"),
    (
        "Optimizer",
        "--batch-size --accumulate --optimizer --optimizer-arg --lr --weight-decay --schedule --schedule-arg"
        " --head-lr --clip --loss",
    ),
    ("Fine-tuning", "--freeze --replace-head --weights --from-scratch"),
    ("Devices and speed", "--device --import --devices --nodes --strategy --precision --workers --compile"),
    ("The run and its files", "--out --resume --config --checkpoint-minutes --seed"),
    *EVERY,
)
NAMES = {"imports": "import", "optimizer_args": "optimizer-arg", "schedule_args": "schedule-arg"}  # as options


def option_name(field: str) -> str:
    """`--batch-size` of `batch_size`."""
    return f"--{NAMES.get(field, field).replace('_', '-')}"


def train_options(function: Function) -> Function:
    """An option for each setting."""
    types, defaults = typing.get_type_hints(Settings), Settings()
    for field in reversed(fields(Settings)):
        metavar, text = HELP[field.name]
        wanted, default = types[field.name], getattr(defaults, field.name)
        name = option_name(field.name)
        if wanted is bool:
            add = click.option(f"{name}/{name.replace('--', '--no-')}", field.name, default=None, help=text)
        else:
            repeated = wanted == tuple[str, ...] and metavar != "NAME,..."
            many = repeated or metavar == "NAME=VALUE"
            said = text if many or default in (None, {}, ()) else f"{text} [default: {default}]"
            kind = click.STRING if repeated else Value(wanted)
            add = click.option(name, field.name, metavar=metavar, help=said, multiple=many, type=kind)
        function = add(function)
    return function


def given_settings(context: click.Context) -> dict[str, Any]:
    """What the command line says itself, by field; defaults are not in it."""
    found: dict[str, Any] = {}
    for field in fields(Settings):
        if context.get_parameter_source(field.name) is not ParameterSource.DEFAULT:
            value = context.params[field.name]
            pairs = HELP[field.name][0] == "NAME=VALUE"
            found[field.name] = {k: v for one in value for k, v in one.items()} if pairs else value
    return found


class Value(click.ParamType[Any]):
    """Text as a type of `Settings` has it; `none` takes back what a configuration file says."""

    name = "value"

    def __init__(self, wanted: Any) -> None:
        kinds = typing.get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
        self.kinds = sorted(kinds, key=lambda kind: kind is str)  # text, which anything is, comes last

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        for kind in self.kinds:
            try:
                return _of_kind(kind, value)
            except (ValueError, SyntaxError):
                continue
        words = " or ".join(_WORDS[typing.get_origin(kind) or kind] for kind in self.kinds if kind is not NoneType)
        return self.fail(f"{value!r} is not {words}", param, ctx)


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    Mapping: "like NAME=VALUE",
    tuple: "like NAME,NAME",
}


def _of_kind(kind: Any, text: str) -> Any:
    """Raises `ValueError` for text that is none of that kind."""
    if kind is NoneType:
        if text.lower() != "none":
            raise ValueError
        return None
    if typing.get_origin(kind) is tuple:
        names = () if text.lower() == "none" else tuple(name.strip() for name in text.split(","))
        if not all(names):
            raise ValueError
        return names
    if typing.get_origin(kind) is not Mapping:
        return kind(text)
    if typing.get_args(kind)[1] is str:
        pairs = [one.partition("=") for one in text.split(",")]
        if not all(name.strip() and equals and value.strip() for name, equals, value in pairs):
            raise ValueError
        return {name.strip(): value.strip() for name, _, value in pairs}
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise ValueError
    return {name.strip(): _literal(value.strip())}


def _literal(text: str) -> Any:
    """`0.5`, `true`, `(0.9, 0.99)`, `[10, 20]`; anything else is text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
