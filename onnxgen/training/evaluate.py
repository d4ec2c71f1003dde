"""`evaluate` and `predict`: a trained model on data, without training it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from onnxgen._callable import callable_module
from onnxgen.errors import OnnxgenError
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.samples import Batch, Data, Samples
from onnxgen.training.devices import choose, trainer_options
from onnxgen.training.devices import prepare as prepare_for
from onnxgen.training.loader import Loader
from onnxgen.training.memory import Micro
from onnxgen.training.model import open_model
from onnxgen.training.prepare import evaluating, objectives_of
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
        model: an `nn.Module`, or the path of a generated file.
        data: as for `fit`.
        part: "train", "val" or "test"; default: test if the data has it, else validation, else all of it.
        settings, overrides: as for `fit`; what speaks of training is ignored.

    Returns:
        `loss`, `accuracy` and, of several outputs, those of each.

    Raises:
        OnnxgenError: model and data do not fit together.
    """
    settings = replace(settings or Settings(val=0.0), **{**overrides, "augment": "none"})
    network = model if isinstance(model, nn.Module) else open_model(model)
    opened = open_data(data, network, settings)
    samples = _part(opened, part)
    feeding = feed(opened, network, settings)
    check(network, opened, feeding, settings)
    objectives = objectives_of(network, samples, feeding, settings)
    device = choose(settings.device, settings.imports)
    task = Task(prepare_for(network, device), objectives, feeding, lambda _: None)
    with quiet():
        trainer = lightning.Trainer(**QUIET, **trainer_options(device, settings))
        trainer.test(task, Loader(samples, settings.batch_size, workers=settings.workers), verbose=False)
    return {name.removeprefix("test_"): value for name, value in metrics(trainer).items()}


def predict(
    model: nn.Module | Path | str, data: Any, *, part: str | None = None, settings: Settings | None = None, **given: Any
) -> Tensor | tuple[Tensor, ...]:
    """A model's outputs for data, in its order, on the CPU: one tensor [samples, ...], or a tuple of them.

    Args and raises: as `evaluate`; targets are not needed.
    """
    settings = replace(settings or Settings(val=0.0), **given)
    network = model if isinstance(model, nn.Module) else open_model(model)
    opened = open_data(data, network, settings, targets=False)
    samples = _part(opened, part)
    feeding = feed(opened, network, settings, targets=False)
    device = choose(settings.device, settings.imports)
    network = prepare_for(network, device).to(device.torch_device)
    made: list[tuple[Tensor, ...]] = []
    micro = Micro()

    def compute(part: Batch) -> tuple[Tensor, ...]:
        found = network(*(part[column].to(device.torch_device) for column in feeding.inputs))
        return tuple(y.cpu() for y in (found if isinstance(found, tuple) else (found,)))

    with evaluating(network), torch.inference_mode():
        for batch in Loader(samples, settings.batch_size, workers=settings.workers):
            made.extend(micro.each(batch, compute))
    whole = tuple(torch.cat(parts) for parts in zip(*made, strict=True))
    return whole if len(whole) > 1 else whole[0]


def _part(data: Data, name: str | None) -> Samples:
    if name is not None and name not in PARTS:
        raise OnnxgenError(f"there is no part {name!r} of data: it is one of {', '.join(PARTS)}")
    for wanted in PARTS if name is None else (name,):
        samples: Samples | None = getattr(data, wanted)
        if samples is not None:
            return samples
    raise OnnxgenError(f"{data.name} has no samples{f' to {name}' if name else ''}")


callable_module(__name__, evaluate)
