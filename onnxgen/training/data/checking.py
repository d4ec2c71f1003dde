"""Checks before the first epoch that the data fits the model.

The model is tried with a few samples. A network that takes one sample, and gets several rows, is
refused if what it makes of these is no row for each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError, Problem, Problems, counted, typed
from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import outputs, signature_of, undisturbed
from onnxgen.training.data.arrays import Prepared, Values, column_of
from onnxgen.training.data.feeding import fed, says_batch
from onnxgen.training.data.fitting import check_order
from onnxgen.training.data.images import ToInput, advised, runner, shown, usual
from onnxgen.training.data.samples import Batch, Data, Feeding, Field, Samples
from onnxgen.training.data.streaming.stream import limit, stream_of
from onnxgen.training.data.text.roles import BRANCH
from onnxgen.training.goals.goal import IGNORED_CLASS
from onnxgen.training.goals.names import CLASS_LOSSES, loss_name
from onnxgen.training.model import fixed_batch, trial_batch
from onnxgen.training.settings import Settings


def check(model: nn.Module, data: Data, feeding: Feeding, settings: Settings) -> None:
    """Find everything that does not fit. Oddities that work become notes of `data`.

    The model runs on a few samples, in evaluation mode and on its device. It is not changed.

    Raises:
        OnnxgenError: a part is empty; the batch size, a shape or a dtype is not the model's; an input or a target is
            not finite; a class or an index is out of range; or the model fails on a batch.
    """
    checks, ports = _Checks(model, data, feeding, settings), fed(model).inputs
    problems = checks.problems
    for part, samples in data.parts.items():
        checks.size(part, samples, ports)
        for port, column in zip(ports, feeding.inputs):
            _check_input(port, column, samples, problems)
    problems.raise_if_any()
    columns = dict.fromkeys((*feeding.inputs, *feeding.aims))
    seen = {part: Values(samples, columns) for part, samples in data.parts.items()}
    for part, values in seen.items():
        for column in columns:
            if fault := values.infinite(column):
                help = "remove the sample, or fill in the value" + (": --table auto" if column in data.joined else "")
                problems.add(f"column {column!r} of {part} has {fault}", help=help)
        for port, column in zip(ports, feeding.inputs):
            _check_held(part, values, port, column, problems)
    tried = _tried(model, data.first, feeding, settings)
    checks.looked_up(tried, seen)
    if tried.error and not problems.found:
        problems.add(replace(tried.error, help=_other_size(model, data, feeding)))
    elif not problems.found and ":" not in settings.task:  # a function of one's own may take what it likes
        data.notes += check_batch(model, tried.batch, feeding, tried.outputs)
    checks.targets(tried.outputs, seen)
    problems.raise_if_any()


@dataclass
class _Checks:
    """The state of one `check`."""

    model: nn.Module
    data: Data
    feeding: Feeding
    settings: Settings
    problems: Problems = field(default_factory=Problems)

    def size(self, part: str, samples: Samples, ports: Sequence[Port]) -> None:
        """Check the number of samples, and the batch of each input."""
        if len(samples) == 0:
            what = f"the {part} part of {self.data.name} is empty"
            self.problems.add(what, help="add samples to it, or remove the part")
            return
        for port in ports:
            if port.dims is not None and len(port.dims) == 0:
                what = f"input {port.name!r} is a single number without a batch axis"
                way = f"--const {port.name}=NUMBER gives all samples the same, or wrap the model"
                self.problems.add(what, help=way)
            elif port.dims and isinstance(port.dims[0], int) and port.name != BRANCH:
                if len({other.dims[0] for other in ports if other.dims and other.name != BRANCH}) > 1:
                    what = f"the first axis of input {port.name!r} {shown(port)} is not that of the other inputs"
                    way = f"generate with --dynamic-batch --batch-axis {port.name}=AXIS"
                    way += f"; or fill it: --const {port.name}=0"
                    self.problems.add(f"{what}, so it is no batch", help=way)
                else:
                    self.fixed_batch(port, port.dims[0], part, len(samples))
        if part == "train" and len(samples) < self.settings.batch:
            what = f"a batch has only {counted(len(samples), 'sample')}"
            self.data.notes.append(f"{what}: the train part has no more")

    def fixed_batch(self, port: Port, fixed: int, part: str, count: int) -> None:
        what = f"input {port.name!r} {shown(port)} fixes the batch at {fixed}"
        way, batch = "generate the model again with --dynamic-batch", self.settings.batch
        if fixed != batch:
            self.problems.add(f"{what}, but --batch-size is {batch}", help=f"--batch-size {fixed}, or {way}")
        if count < fixed or (part != "train" and count % fixed):  # training leaves out the rest
            self.problems.add(f"{what}, but the {part} part has {counted(count, 'sample')}", help=way)

    def looked_up(self, tried: Tried, seen: Mapping[str, Values]) -> None:
        """Check that embeddings have the rows that are looked up in them."""
        for (column, places), (name, rows) in tried.embeddings.items():
            for part, values in seen.items():
                limit(values.samples, column, rows - 1, f"{name} has {rows} rows", places)
                if fault := values.outside(column, 0, rows - 1, places=places):
                    way = "the numbers must come from the same preprocessing as in training, for example the tokenizer"
                    what = f"column {_named(column, places, self.data)} of {part} has {fault}"
                    self.problems.add(f"{what}: {name} has {rows} rows", help=way)

    def targets(self, outputs: Sequence[Tensor], seen: Mapping[str, Values]) -> None:
        """Check that class indices are those of the model's classes."""
        names = [port.name for port in signature_of(self.model).outputs]
        for index, column in self.feeding.targets.items():
            check_order(self.data.first.fields[column], column, self.settings.classes, self.problems)
            if index < len(outputs):
                name = names[index] if index < len(names) else ""
                loss = self.settings.loss_of(name)
                if column in self.data.named:
                    _check_named(outputs[index], name, column, self.data.first, self.problems)
                if loss == "auto" or loss_name(loss) in CLASS_LOSSES:
                    self.classes(outputs[index], column, seen)

    def classes(self, output: Tensor, column: str, parts: Mapping[str, Values]) -> None:
        """Check that class indices are below the number of classes in the output."""
        column_field = self.data.first.fields[column]
        count = _classes_of(output, column_field)
        if count < 2:
            return  # not class indices, or two classes as one number, or the axis is open and the loss will decide
        highest = max(values.highest(column) for values in parts.values())
        has = len(column_field.classes) or highest + 1
        if problem := _wrong_numbers(column, column_field, parts, count, highest):
            self.problems.add(problem)
            return
        of_model = f"the model's {count} classes are 0 to {count - 1}"
        for part, values in parts.items():
            if not column_field.shape:
                limit(values.samples, column, count - 1, of_model)
            if fault := values.outside(column, 0, count - 1, IGNORED_CLASS if column_field.shape else None):
                way = "count the classes from 0" if fault.startswith("-") else f"--replace-head {has}"
                self.problems.add(f"column {column!r} of {part} has {fault}: {of_model}", help=way)
        streamed = stream_of(self.data.first) is not None  # the first samples may lack some classes
        if has < count and not self.problems.found and not column_field.shape and not streamed:
            what = f"the model has {count} classes, the data {has}"
            self.data.notes.append(f"{what}: --replace-head {has} fits the model to the data")


def _check_input(port: Port, column: str, samples: Samples, problems: Problems) -> None:
    field = samples.fields[column]
    if port.dims:
        wanted, shape = port.dims[1:], field.shape
        if len(wanted) != len(shape) or any(isinstance(w, int) and w != g for w, g in zip(wanted, shape)):
            gives = f"[{', '.join(map(str, ('n', *shape)))}]"
            way = "change the data, or generate the model for this shape with --input-shape"
            if field.dtype.is_floating_point and len(wanted) == 3 and len(shape) in (2, 3):
                way = "images as uint8 are resized and converted; or generate the model with --input-shape"
            problems.add(f"input {port.name!r} takes {shown(port)}, but column {column!r} gives {gives}", help=way)
    if port.dtype not in (None, "str") and field.dtype != getattr(torch, str(port.dtype)):
        has = str(field.dtype).removeprefix("torch.")
        help = "store whole numbers" if "int" in str(port.dtype) and "float" in has else f"store it as {port.dtype}"
        problems.add(f"input {port.name!r} takes {port.dtype}, but column {column!r} holds {has}", help=help)


def _check_held(part: str, values: Values, port: Port, column: str, problems: Problems) -> None:
    """Check that the integers of a column fit an input with fewer bits."""
    whole = column_of(values.samples, column)
    if whole is None or whole.is_floating_point() or whole.dtype == torch.bool or "int" not in (port.dtype or ""):
        return
    limits = torch.iinfo(getattr(torch, str(port.dtype)))
    if fault := values.outside(column, limits.min, limits.max):
        what = f"column {column!r} of {part} has {fault}: input {port.name!r} takes {port.dtype}, up to {limits.max}"
        problems.add(what, help="remove the sample, or renumber the values")


def _check_named(output: Tensor, name: str, column: str, samples: Samples, problems: Problems) -> None:
    """Check that names are not trained as the numbers of their alphabetical order."""
    classes = samples.fields[column].classes
    if len(classes) > 2 and output.numel() == len(output):
        what = f"target {column!r} holds {len(classes)} names ({listed(classes, 3)})"
        what = f"{what}, but output {name or 0!r} is one number for each sample"
        way = f"store numbers, if the names stand for some; or make it a classifier: --replace-head {len(classes)}"
        problems.add(what, help=way)


def _classes_of(output: Tensor, field: Field) -> int:
    """Return the number of classes that an output has for class indices; 0 if it is open, or the target has none."""
    if field.dtype.is_floating_point or field.dtype == torch.bool:
        return 0
    shape = list(output.shape[1:])
    axes = [axis for axis in range(len(shape)) if shape[:axis] + shape[axis + 1 :] == list(field.shape)]
    return shape[axes[0]] if len(axes) == 1 else 0


def _wrong_numbers(column: str, field: Field, parts: Mapping[str, Values], count: int, highest: int) -> Problem | None:
    """Return the problem that all classes are numbered in another way than the model's, or that there are more."""
    if highest == count and not any(values.outside(column, 1, count) for values in parts.values()):
        what = f"column {column!r} has classes 1 to {highest}, but the model's {count} classes are 0 to {count - 1}"
        return Problem(what, help="count the classes from 0: subtract 1")
    if highest >= count and (gaps := _gaps(column, field, parts, count, highest)) is not None:
        return gaps
    if (has := len(field.classes)) <= count:
        return None
    some = listed(field.classes[:3]) + (", ..." if has > 3 else "")
    return Problem(
        f"the data has {counted(has, 'class')} ({some}), but the model has {count}", help=f"--replace-head {has}"
    )


def _gaps(column: str, field: Field, parts: Mapping[str, Values], count: int, highest: int) -> Problem | None:
    """Return a problem if labels have gaps (such as 5, 6, 7); None if no number is left out, or some are negative."""
    numbered = field.classes == tuple(str(i) for i in range(len(field.classes)))  # also true without names
    if field.shape or not numbered:
        return None
    there = sorted({label for values in parts.values() for label in values.distinct(column)})
    if there[0] < 0 or len(there) > highest:
        return None
    head = f" and --replace-head {len(there)}" if len(there) > count else ""
    first = next(outside for part in parts if (outside := parts[part].outside(column, 0, count - 1)))
    what = f"column {column!r} has the labels {listed(map(str, there))} ({first}), but the model's {count} are 0 to "
    return Problem(
        f"{what}{count - 1}",
        help=f"number them 0 to {len(there) - 1}{head}; --replace-head {highest + 1} keeps their numbers",
    )


Places = tuple[int, ...]  # indices into a flattened sample


@dataclass
class Tried:
    """The result of a trial run on `batch`: the outputs, or the error; and the embeddings that look up its numbers.

    An embedding is given by its path and its number of rows, by the column and the places in a sample that it looks up.
    """

    batch: Batch
    outputs: tuple[Tensor, ...]
    embeddings: dict[tuple[str, Places], tuple[str, int]]
    error: Problem | None = None


def _tried(model: nn.Module, samples: Samples, feeding: Feeding, settings: Settings) -> Tried:
    batch = trial_batch(model, samples, settings.seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    inputs = [x.contiguous() for x in feeding.arguments(batch, device)]
    tried = Tried(batch, (), {})
    with undisturbed(model), _embeddings(model, dict(zip(feeding.inputs, inputs)), tried):
        try:
            tried.outputs = tuple(outputs(model(*inputs)))
        except Exception as error:
            columns = ((column, batch[column]) for column in feeding.inputs)
            shapes = [f"{column} {list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for column, x in columns]
            tried.error = Problem(f"the model fails on a batch of {', '.join(shapes)}: {typed(error)}")
    return tried


def _other_size(model: nn.Module, data: Data, feeding: Feeding) -> str:
    """Return the way out for a model that fails on the data's images and runs on those of another size; else ""."""
    ports, samples = fed(model), data.first
    runs = runner(model, ports)
    step = samples.steps.get(feeding.inputs[0]) if isinstance(samples, Prepared) and runs is not None else None
    if not isinstance(step, ToInput) or step.frame.axes == "flat":
        return ""
    frame = step.frame
    height, width = usual(data.sizes) if data.sizes else (frame.height, frame.width)
    dims = zip(frame.axes, (ports.inputs[0].dims or ())[1:])
    fixed = [axis for axis, dim in dims if isinstance(dim, int)]
    size = advised(frame.axes, {"C": frame.channels, "H": height, "W": width}, fixed, runs)
    return f"--size {size['H']}x{size['W']}, at which it runs" if size else ""


def _places(taken: Tensor, x: Tensor) -> Places:
    """Return the places in a flattened sample of `x` whose numbers `taken`, the embedding's input, has; () if unknown.

    It is a view of `x`, or has the numbers of `x`, which are not all equal.
    """
    size = x.numel() // len(x)
    if taken.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
        at = torch.arange(x.numel()).as_strided(taken.shape, taken.stride(), taken.storage_offset())
        return tuple(sorted({*(at % size).flatten().tolist()}))
    same = taken.shape == x.shape and bool((taken == x).all()) and bool(x.min() != x.max())
    return tuple(range(size)) if same else ()


@contextmanager
def _embeddings(model: nn.Module, inputs: dict[str, Tensor], tried: Tried) -> Iterator[None]:
    """Record the embeddings that look up an input's own numbers. What is out of range is not looked up."""
    whole = {column: x for column, x in inputs.items() if not x.is_floating_point()}
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}

    def note(module: nn.Module, args: tuple[Any, ...]) -> Any:
        assert isinstance(module, nn.Embedding)
        for column, x in whole.items():
            if args and isinstance(args[0], Tensor) and (places := _places(args[0], x)):
                known = tried.embeddings.get((column, places))
                if known is None or module.num_embeddings < known[1]:
                    tried.embeddings[column, places] = (names[module], module.num_embeddings)
                args = (args[0].clamp(0, module.num_embeddings - 1), *args[1:])
        return args

    with ExitStack() as hooks:
        for module in names:
            hooks.enter_context(module.register_forward_pre_hook(note))
        yield


def _named(column: str, places: Places, data: Data) -> str:
    """Return the name of what lies at these places of a column, for messages."""
    shape, members = data.first.fields[column].shape, data.joined.get(column, ())
    if len(places) == math.prod(shape):
        return repr(column)
    if len(places) == 1 and len(shape) == 1:
        return repr(members[places[0]]) if len(members) == shape[0] else f"{column!r}[:, {places[0]}]"
    return f"{column!r}, at {counted(len(places), 'place')} from {places[0]},"


_WAY = "export it again with a batch axis in front of its inputs and outputs"
_ALIKE = 1e-3  # of the largest value of an output: rounding may depend on the size of a batch


def check_batch(model: nn.Module, batch: Batch, feeding: Feeding, results: Sequence[Tensor]) -> list[str]:
    """Return a note if outputs for a sample depend on the others of its batch, which may then be no batch.

    The signature decides where it names the batch, else the network does, in runs on the samples of `batch`, of which
    it has made `results`. Raises `OnnxgenError` if an output does not grow with the number of samples.
    """
    signature, count = fed(model), len(batch[feeding.inputs[0]])
    wanted = sorted(feeding.targets) or range(len(signature.outputs))
    first = {port.dims[0] for port in signature.inputs if port.dims}
    follows = _follows(signature, first, wanted, results, count)
    if count < 2 or (follows and all(isinstance(dim, str) and says_batch(dim) for dim in first)):
        return []
    if len(results) != len(signature.outputs):  # it fails, or makes text
        return []
    still = [] if follows else _still(model, batch, feeding, results, wanted)
    if still and (feeding.targets or len(still) == len(results)):
        name, has, port = signature.outputs[still[0]].name, list(results[still[0]].shape), signature.inputs[0]
        what = f"the network takes one sample: of {count} of them it makes an output {name!r} of {has}"
        raise OnnxgenError(f"{what}, so the first axis of input {port.name!r} {shown(port)} is no batch", help=_WAY)
    return _mixed(model, batch, feeding, results, wanted, signature.inputs[0])


def _follows(
    signature: Signature, first: Collection[object], wanted: Sequence[int], results: Sequence[Tensor], count: int
) -> bool:
    """Return True if each output that is trained has an axis of the name that the inputs' `first` axes have."""
    declared = [port.dims or () for n, port in enumerate(signature.outputs) if n in wanted]
    named = all(any(dim in first for dim in dims if isinstance(dim, str)) for dims in declared)
    return named and all(count in results[n].shape for n in wanted if n < len(results))  # the module may be edited


def _still(
    model: nn.Module, batch: Batch, feeding: Feeding, results: Sequence[Tensor], wanted: Sequence[int]
) -> list[int]:
    """Return which outputs are as large for another number of samples; for a fixed number, which lack it."""
    fixed, count = fixed_batch(model), len(batch[feeding.inputs[0]])
    if fixed:
        return [n for n in wanted if fixed not in results[n].shape]
    more = {name: torch.cat((x, x[:1])) if len(x) == count else x for name, x in batch.items()}
    other = _run(model, more, feeding)
    return [n for n in wanted if len(other) == len(results) and results[n].shape == other[n].shape]


def _run(model: nn.Module, batch: Batch, feeding: Feeding) -> list[Tensor]:
    """Return the outputs for a batch; none if the network fails on it."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with undisturbed(model):
        try:
            return outputs(model(*(x.contiguous() for x in feeding.arguments(batch, device))))
        except Exception:  # what is wrong is told by others
            return []


def _mixed(
    model: nn.Module, batch: Batch, feeding: Feeding, results: Sequence[Tensor], wanted: Sequence[int], port: Port
) -> list[str]:
    """Return a note if the outputs for the first sample are others when all samples are that one."""
    count = len(batch[feeding.inputs[0]])
    again = _run(model, batch, feeding)
    alone = _run(model, {name: x[:1].expand_as(x) if len(x) == count else x for name, x in batch.items()}, feeding)
    for n in wanted:
        if not len(results) == len(again) == len(alone) or not results[n].ndim or len(results[n]) != count:
            continue
        if _alike(results[n][0], again[n][0]) and not _alike(results[n][0], alone[n][0]):
            what = "what the network makes of a sample depends on the others of its batch"
            return [f"{what}: is the first axis of input {port.name!r} {shown(port)} one of samples?"]
    return []


def _alike(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return one.shape == other.shape and bool((one == other).all())
    span = float(torch.nan_to_num(one).abs().max()) if one.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, _ALIKE, _ALIKE * span, equal_nan=True)
