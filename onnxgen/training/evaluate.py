"""`evaluate` and `predict`: run a trained model on data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from onnxgen._callable import callable_module
from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.surgery.ports import classes_of, evaluating
from onnxgen.training.data import check, feed, open_data
from onnxgen.training.data.arrays import Tuples, unaugmented
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.feeding import fed
from onnxgen.training.data.images import MEASURED
from onnxgen.training.data.preprocessing import fitted
from onnxgen.training.data.samples import Batch, Data, Feeding, Samples
from onnxgen.training.data.scaling import by_width, widest
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.devices import Device, choose, prepare_for, trainer_options
from onnxgen.training.goals.distil import with_teacher
from onnxgen.training.goals.goal import Goal, restore
from onnxgen.training.goals.outputs import output_names
from onnxgen.training.goals.pooling import AUTO, pooling_of
from onnxgen.training.loader import Loader
from onnxgen.training.losses import Objective
from onnxgen.training.memory import Micro
from onnxgen.training.model import as_tuple, fixed_batch, known_of, open_model
from onnxgen.training.prepare import objectives_of, quiet, refuse_outside
from onnxgen.training.settings import Settings, python_words
from onnxgen.training.singly import joined_rows
from onnxgen.training.standing_in import by_itself
from onnxgen.training.stepwise import check_steps
from onnxgen.training.tasks import with_task

PREFERRED_PARTS = ("test", "val", "train")  # the first one that the data has is evaluated


@dataclass(frozen=True)
class Measured:
    """What an evaluation found.

    Attributes:
        metrics: losses and metrics by name.
        samples: how many samples they are of.
        skipped: how many samples of the data were left out, since they can't be used.
        whole: how many samples there would be with those left out; if the data has parts, it is not known of which one
            these were, and `whole` is `samples`.
        notes: what was left out, and what counts otherwise than the rest.
        fed: how the data was fed, and what else there is to know of it.
    """

    metrics: dict[str, float]
    samples: int
    skipped: int
    whole: int
    notes: tuple[str, ...]
    fed: tuple[str, ...] = ()


@python_words()
def evaluate(
    model: nn.Module | Path | str,
    data: Any,
    *,
    part: str | None = None,
    settings: Settings | None = None,
    **overrides: Any,
) -> dict[str, float]:
    """Return a model's losses on data, and the accuracy if it is a classifier.

    Args:
        model: an `nn.Module`, or the path of a generated file (with `weights`, those of a checkpoint).
        data: as for `fit`. If `fit` trained this model object, images are normalised as in training. For another model
            give `normalize`. Otherwise the images' own mean and deviation are used, with a warning, and they rarely
            match the training. Data with fewer named classes than the model is refused unless `classes` is given.
        part: "train", "val" or "test"; default: test if the data has it, else validation, else all of it.
        settings, overrides: as for `fit`; settings of the training itself are ignored.

    Returns:
        `loss` and `accuracy`; with several outputs, also those of each output. A warning names samples that were left
        out, since they can't be used.

    Raises:
        OnnxgenError: model and data do not fit together.
    """
    measured = measure(model, data, part=part, settings=settings, **overrides)
    for note in measured.notes:
        warnings.warn(note, stacklevel=3)
    return measured.metrics


def measure(
    model: nn.Module | Path | str, data: Any, *, part: str | None, settings: Settings | None, **overrides: Any
) -> Measured:
    """Like `evaluate`, but say also of which samples the metrics are."""
    network, settings, opened, samples, feeding, device = _ready(model, data, part, settings, overrides)
    with by_itself(network):  # the loss is that of the network, not of a file that stands in for it
        objectives = objectives_of(network, widest(samples), feeding, settings, training=False)
    restore(network, objectives, f"--task {settings.task}")
    refuse_outside(samples, objectives)
    objectives = with_teacher(objectives, network, samples, feeding, settings, opened.normalize)
    _refuse_unordered(opened, samples, objectives, settings)
    import lightning  # it takes seconds, and `predict` needs none of it

    from onnxgen.training.task import QUIET, Task, metrics

    task = Task(prepare_for(network, device), objectives, feeding)
    unread: list[str] = []  # of a stream
    with quiet(), ExitStack() as opened_loaders:
        groups = [some for _, some in by_width(samples)]
        loaders = [Loader(some, settings.batch, workers=settings.workers, say=unread.append) for some in groups]
        for loader in loaders:
            opened_loaders.enter_context(closing(loader))
        trainer = lightning.Trainer(**QUIET, **trainer_options(device, settings))
        trainer.test(task, loaders[0] if len(loaders) == 1 else _OneByOne(loaders), verbose=False)
    values = {name.removeprefix("test_"): value for name, value in metrics(trainer).items()}
    left_out = [note for note in opened.notes if isinstance(note, LeftOut)]
    not_read = sum(loader.skipped for loader in loaders)
    skipped, count = sum(note.samples for note in left_out) + not_read, len(samples) - not_read
    notes = (*left_out, *unread, *(note for goal in objectives for note in goal.uncounted))
    whole = count + skipped if len(opened.parts) == 1 else count
    fed = tuple(note for note in opened.notes if note not in left_out)
    return Measured(values, count, skipped, whole, notes, fed)


@python_words()
def predict(
    model: nn.Module | Path | str,
    data: Any,
    *,
    part: str | None = None,
    settings: Settings | None = None,
    **overrides: Any,
) -> Tensor | tuple[Tensor, ...]:
    """Return a model's outputs for data, in the data's order, on the CPU: one tensor [samples, ...], or a tuple.

    An output of text is an array of objects, one of maps a list. Of pairs it is [samples, 2, ...], of triplets
    [samples, 3, ...]. With `pooling`, vectors of tokens become those of texts. If an output has its batch axis
    elsewhere (as the last state of a recurrent layer), the result keeps that axis.

    Lines of text all have the width of the longest one, if the network takes it.

    Args and raises: as `evaluate`, but targets are not needed. A sample that can't be read is an error, because
    skipping it would shift all later samples.
    """
    network, settings, _, samples, feeding, device = _ready(model, data, part, settings, overrides, targets=False)
    samples = widest(samples)
    network = prepare_for(network, device).to(device.torch_device)
    batches: list[tuple[int, tuple[Tensor, ...]]] = []
    micro = Micro()

    def compute(part: Batch) -> tuple[int, tuple[Tensor, ...]]:
        outputs = as_tuple(network(*feeding.arguments(part, device.torch_device)))
        if settings.pooling != AUTO:
            outputs = _pooled(network, feeding, settings, outputs, part)
        return len(part[feeding.inputs[0]]), tuple(y.cpu() if isinstance(y, Tensor) else y for y in outputs)

    workers = settings.workers if stream_of(samples) is None else 0  # several readers would change the order
    with (
        evaluating(network),
        torch.inference_mode(),
        closing(Loader(samples, settings.batch, workers=workers)) as loader,
    ):
        for batch in loader:
            batches.extend(micro.each(batch, compute))
    counts, outputs = zip(*batches, strict=True)
    whole = tuple(_joined(network, index, parts, counts) for index, parts in enumerate(zip(*outputs, strict=True)))
    if isinstance(samples, Tuples):
        each = samples.rows_of_each
        whole = tuple(y.reshape(-1, each, *y.shape[1:]) if len(y) == sum(counts) else y for y in whole)
    return whole if len(whole) > 1 else whole[0]


def _pooled(
    network: nn.Module, feeding: Feeding, settings: Settings, outputs: tuple[Tensor, ...], batch: Batch
) -> tuple[Tensor, ...]:
    """Return the outputs with vectors of texts in the place of those of tokens."""
    pooling = pooling_of(network, feeding, settings, outputs, output_names(network, len(outputs)))
    assert pooling is not None
    return tuple(pooling(y, batch) if n == pooling.output else y for n, y in enumerate(outputs))


class _OneByOne:
    """The batches of one loader after those of another."""

    def __init__(self, loaders: Sequence[Loader]) -> None:
        self.loaders = loaders

    def __len__(self) -> int:
        return sum(map(len, self.loaders))

    def __iter__(self) -> Iterator[Batch]:
        return chain.from_iterable(self.loaders)


def _joined(network: nn.Module, index: int, parts: Sequence[Any], counts: Sequence[int]) -> Tensor:
    """Return the batches of output number `index`, joined along its batch axis.

    `counts` has the number of samples in each batch. Raises `OnnxgenError` if the output has no batch axis.
    """
    if not isinstance(parts[0], Tensor):
        return cast(Tensor, joined_rows(parts))
    ports = fed(network)
    batch = {port.dims[0] for port in ports.inputs if port.dims}
    dims = (ports.outputs[index].dims if index < len(ports.outputs) else None) or ()
    named = [axis for axis, dim in enumerate(dims) if isinstance(dim, str) and dim in batch]
    for axis in (*named, *range(parts[0].ndim)):  # the axis that the file names, else the first one of this size
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
    """Return the model, the settings without augmentation, the data and its part; check that they fit together."""
    settings = replace(settings or Settings(val=0.0), **{**overrides, "augment": "none"})
    if not isinstance(model, nn.Module):
        partial = settings.partial
        model = open_model(model, settings.weights, strict=not partial, ignore_mismatched_sizes=partial)
    elif overrides.get("weights") is not None:
        raise OnnxgenError("weights= needs a model that is given as a file: load the weights into this model yourself")
    else:
        settings = replace(settings, classes=settings.classes or classes_of(model))
    if table := known_of(model).table:
        settings = replace(settings, table=table.to_json())
    elif settings.table != "none" and not fitted(settings.table):
        way = "give the table that the training fitted: `table` of the run's config.toml, or Data.table.to_json()"
        raise OnnxgenError("a table is fitted to training data, not to what is evaluated", help=way)
    opened = open_data(data, model, settings if targets else replace(settings, strict=True), targets=targets)
    if any(MEASURED in note for note in opened.notes):  # and nobody said how: neither a setting nor the network's file
        way = "the model may have been trained with others: give them with normalize="
        warnings.warn(f"images are normalised by their own mean and deviation, {opened.normalize}; {way}", stacklevel=3)
    samples, settings = _part(opened, part), with_task(settings, opened)
    feeding = feed(opened, model, settings, targets=targets)
    check(model, opened, feeding, settings)
    check_steps(model, opened, feeding.inputs, feeding.aims)
    fixed = fixed_batch(model)
    if fixed and len(samples) % fixed:
        what = f"the model takes batches of {fixed} only, but the data has {len(samples)} samples"
        raise OnnxgenError(what, help="generate it again with --dynamic-batch")
    return model, settings, opened, samples, feeding, choose(settings.device, settings.imports)


def _refuse_unordered(data: Data, samples: Samples, objectives: Sequence[Goal], settings: Settings) -> None:
    """Refuse data that has only some of the classes: its sorted names would get other indices than in training."""
    for goal in objectives:
        if not isinstance(goal, Objective):
            continue
        has = samples.fields[goal.column].classes
        if goal.column in data.named and not settings.classes and len(has) < goal.classes:
            what = f"{data.name} has classes {listed(has)}, but the model has {goal.classes} classes: which are they?"
            way = "name all in the order of the model's outputs, as in config.toml of its run: classes=('cat', 'dog')"
            raise OnnxgenError(what, help=way)


def _part(data: Data, name: str | None) -> Samples:
    if name is not None and name not in PREFERRED_PARTS:
        raise OnnxgenError(f"the part of the data must be one of {', '.join(PREFERRED_PARTS)}, not {name!r}")
    for wanted in PREFERRED_PARTS if name is None else (name,):
        if wanted in data.parts:
            return unaugmented(data.parts[wanted])  # `Data` that was opened for a training may have augmentation
    raise OnnxgenError(f"{data.name} has no samples{f' to {name}' if name else ''}")


callable_module(__name__, evaluate)
