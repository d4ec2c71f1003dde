"""`evaluate` and `predict`: a trained model on data, without training it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.classes import classes_of
from onnxgen.surgery.example import evaluating
from onnxgen.surgery.ports import signature_of
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.samples import Batch, Data, Feeding, Samples
from onnxgen.training.data.source import listed
from onnxgen.training.devices import Device, choose, trainer_options
from onnxgen.training.devices import prepare as prepare_for
from onnxgen.training.loader import Loader
from onnxgen.training.losses import Objective
from onnxgen.training.memory import Micro
from onnxgen.training.model import fixed_batch, open_model, scale_of
from onnxgen.training.prepare import objectives_of
from onnxgen.training.settings import Settings
from onnxgen.training.task import Task
from onnxgen.training.trainer import QUIET, metrics, quiet

PARTS = ("test", "val", "train")  # the first that the data has is evaluated


def evaluate(
    model: nn.Module | Path | str,
    data: Any,
    *,
    part: str | None = None,
    settings: Settings | None = None,
    **overrides: Any,
) -> dict[str, float]:
    """The losses, and of a classifier the accuracy, that a model has on data.

    Args:
        model: an `nn.Module`, or the path of a generated file (with `weights`, those of a checkpoint).
        data: as for `fit`. Images are normalised as they were when `fit` trained this very model; of another model say
            `normalize`: by their own mean and deviation, of which a warning tells, they are rarely what was trained.
            The same goes for `classes`: names of fewer classes than the model has are refused without it.
        part: "train", "val" or "test"; default: test if the data has it, else validation, else all of it.
        settings, overrides: as for `fit`; what speaks of training is ignored.

    Returns:
        `loss`, `accuracy` and, of several outputs, those of each.

    Raises:
        OnnxgenError: model and data do not fit together.
    """
    network, settings, opened, samples, feeding, device = _ready(model, data, part, settings, overrides)
    objectives = objectives_of(network, samples, feeding, settings)
    _refuse_unordered(opened, samples, objectives, settings)
    task = Task(prepare_for(network, device), objectives, feeding, lambda _: None)
    with quiet():
        trainer = lightning.Trainer(**QUIET, **trainer_options(device, settings))
        trainer.test(task, Loader(samples, settings.batch_size, workers=settings.workers), verbose=False)
    return {name.removeprefix("test_"): value for name, value in metrics(trainer).items()}


def predict(
    model: nn.Module | Path | str, data: Any, *, part: str | None = None, settings: Settings | None = None, **given: Any
) -> Tensor | tuple[Tensor, ...]:
    """A model's outputs for data, in its order, on the CPU: one tensor [samples, ...], or a tuple of them.

    Where the samples lie along another axis of an output (the last state of a recurrent layer), so they do here.

    Args and raises: as `evaluate`; targets are not needed. A sample that can't be read is an error: left out, it would
    shift all that follow.
    """
    network, settings, _, samples, feeding, device = _ready(model, data, part, settings, given, targets=False)
    network = prepare_for(network, device).to(device.torch_device)
    made: list[tuple[int, tuple[Tensor, ...]]] = []
    micro = Micro()

    def compute(part: Batch) -> tuple[int, tuple[Tensor, ...]]:
        found = network(*(part[column].to(device.torch_device) for column in feeding.inputs))
        count = len(part[feeding.inputs[0]])
        return count, tuple(y.cpu() for y in (found if isinstance(found, tuple) else (found,)))

    with evaluating(network), torch.inference_mode():
        for batch in Loader(samples, settings.batch_size, workers=settings.workers):
            made.extend(micro.each(batch, compute))
    counts, outputs = zip(*made, strict=True)
    whole = tuple(_joined(network, index, parts, counts) for index, parts in enumerate(zip(*outputs, strict=True)))
    return whole if len(whole) > 1 else whole[0]


def _joined(network: nn.Module, index: int, parts: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """One output's batches, joined along the axis of the samples."""
    ports = signature_of(network)
    batch = {port.dims[0] for port in ports.inputs if port.dims}
    dims = (ports.outputs[index].dims if index < len(ports.outputs) else None) or ()
    named = [axis for axis, dim in enumerate(dims) if isinstance(dim, str) and dim in batch]
    for axis in (*named, *range(parts[0].ndim)):
        if all(part.ndim > axis and part.shape[axis] == count for part, count in zip(parts, counts, strict=True)):
            return torch.cat(list(parts), axis)
    shapes = ", ".join(str(list(part.shape)) for part in parts[:2])
    what = f"output {index} has no batch axis: its shape is {shapes} for batches of {counts[0]}"
    raise OnnxgenError(what, help="wrap the model in one that returns one row for each sample")


def _ready(
    model: nn.Module | Path | str,
    data: Any,
    part: str | None,
    settings: Settings | None,
    overrides: Mapping[str, Any],
    targets: bool = True,
) -> tuple[nn.Module, Settings, Data, Samples, Feeding, Device]:
    """The model, the settings without what changes samples in training, and the data's part, known to fit together."""
    settings = replace(settings or Settings(val=0.0), **{**overrides, "augment": "none"})
    if not isinstance(model, nn.Module):
        model = open_model(model, settings.weights)
    elif overrides.get("weights") is not None:
        raise OnnxgenError("weights= needs a model that is given as a file: load the weights into this model yourself")
    else:
        settings = replace(settings, classes=settings.classes or classes_of(model))
    opened = open_data(data, model, settings if targets else replace(settings, strict=True), targets=targets)
    _warn_of_scale(model, opened, settings)
    samples = _part(opened, part)
    feeding = feed(opened, model, settings, targets=targets)
    check(model, opened, feeding, settings)
    _refuse_rest(model, samples)
    return model, settings, opened, samples, feeding, choose(settings.device, settings.imports)


def _warn_of_scale(network: nn.Module, data: Data, settings: Settings) -> None:
    if settings.normalize == "auto" and not scale_of(network) and data.normalize not in ("", "none"):
        way = "the model may have been trained with others: give them with normalize="
        warnings.warn(f"images are normalised by their own mean and deviation, {data.normalize}; {way}", stacklevel=4)


def _refuse_unordered(data: Data, samples: Samples, objectives: Sequence[Objective], settings: Settings) -> None:
    """Of some of the classes the sorted names have other numbers than they were trained with."""
    for made in objectives:
        has = samples.fields[made.column].classes
        if made.column in data.named and not settings.classes and len(has) < made.classes:
            what = f"{data.name} has classes {listed(has)}, but the model has {made.classes} classes: which are they?"
            way = "name all in the order of the model's outputs, as in config.toml of its run: classes=('cat', 'dog')"
            raise OnnxgenError(what, help=way)


def _refuse_rest(network: nn.Module, samples: Samples) -> None:
    """A model of a fixed batch takes no smaller one at the end."""
    fixed = fixed_batch(network)
    if fixed and len(samples) % fixed:
        what = f"the model takes batches of {fixed} only, but the data has {len(samples)} samples"
        raise OnnxgenError(what, help="generate it again with --dynamic-batch")


def _part(data: Data, name: str | None) -> Samples:
    if name is not None and name not in PARTS:
        raise OnnxgenError(f"the part of the data must be one of {', '.join(PARTS)}, not {name!r}")
    for wanted in PARTS if name is None else (name,):
        samples: Samples | None = getattr(data, wanted)
        if samples is not None:
            return samples
    raise OnnxgenError(f"{data.name} has no samples{f' to {name}' if name else ''}")


callable_module(__name__, evaluate)
