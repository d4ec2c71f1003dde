"""Converts samples to the columns that a model needs, in its dtypes and shapes.

On the way, samples for validation and test are split off if the data has no such parts, and class
names are numbered in the order of `Settings.classes`, or in sorted order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import PAIR, ROLE, Members, Prepared, Tuples, column_of, stored, subset
from onnxgen.training.data.encoding import encode, stacked
from onnxgen.training.data.feeding import fed, matched
from onnxgen.training.data.image_options import by_input, of_inputs, recipes
from onnxgen.training.data.image_pairs import feeding_of, members_of
from onnxgen.training.data.image_targets import (
    FROM_0_TO_1,
    OnImage,
    ToTarget,
    asked_scales,
    image_target,
    lies_on,
    on_image,
    with_clean_target,
)
from onnxgen.training.data.images import (
    CHANNELS,
    STEP,
    Augment,
    Chooser,
    ToInput,
    axes_of,
    classifies,
    converted,
    frame,
    reads_lines,
    runner,
    wanted_axes,
)
from onnxgen.training.data.layout import PARTS
from onnxgen.training.data.letterbox import Placing
from onnxgen.training.data.presets import Preset, taken
from onnxgen.training.data.samples import Data, Feeding, Field, Samples, bits
from onnxgen.training.data.scaling import (
    BGR,
    bright_notes,
    bytes_notes,
    normalised,
    order_told,
    placing_of,
    refuse_bright,
    refuse_order,
    refuse_unmoved,
    squeezed,
)
from onnxgen.training.data.sounds import fit_sounds
from onnxgen.training.data.source import DataSource, text_input
from onnxgen.training.data.streaming.stream import stream_of
from onnxgen.training.data.streaming.tokens import fit_tokens, is_tokens
from onnxgen.training.data.text.columns import Text, fit_text
from onnxgen.training.data.text.tokenizer import Masked
from onnxgen.training.goals.outputs import decide, recorded_metadata
from onnxgen.training.model import as_trained, fixed_batch, scale_of
from onnxgen.training.runs.folder import HELD_BACK
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import AUTO, OUTPUTS, card_of


@dataclass(frozen=True)
class Plain:
    """Converts a column without images: permutes and reshapes its axes, and changes its dtype."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int) -> Tensor:
        x = x.permute(0, *(axis + 1 for axis in self.order)) if self.order else x
        return x.reshape(len(x), *self.shape).to(self.dtype)


Step: TypeAlias = Plain | ToInput | OnImage | Masked
S = TypeVar("S", bound="int | str")


def fit_to_model(source: DataSource, model: nn.Module, settings: Settings, targets: bool) -> Data:
    """Split the data, and convert its columns to the model's inputs and targets.

    Raises `OnnxgenError` if columns can't be matched, images can't be made to fit, or settings don't suit the data.
    """
    ports = fed(model, settings.const)
    task = _task(source, model, ports, settings, targets)
    settings = replace(as_trained(settings, model), task=task or settings.task)
    if tokens := is_tokens(source.first):
        fit_tokens(source, ports, settings)
    text = None if tokens else fit_text(source, model, settings, targets)
    words = text or Text(None, "")
    settings = words.applied(settings)
    members = words.members or members_of(source, ports, settings, targets)
    source = source if members else stacked(source, ports, settings, targets)
    feeding = _fed(source, ports, settings, targets, members, words.score)
    data = _Fit(source, model, ports, feeding, settings, targets, members, words).data()
    data.joined = {**source.joined, **words.joined}
    data.text, data.task, data.rate, data.sizes = text, task, source.rate, source.sizes
    return data


def _task(source: DataSource, model: nn.Module, ports: Signature, settings: Settings, targets: bool) -> str:
    """Return what `--task auto` means; "" if the settings name a task. Clean images get themselves as the target."""
    if settings.noise is not None and targets:
        with_clean_target(source, ports, settings)
    if settings.task != AUTO:
        return ""
    return decide(source, model, settings) if targets else source.task


def _fed(
    source: DataSource, ports: Signature, settings: Settings, targets: bool, members: Members, score: str
) -> Feeding:
    """Return the columns of inputs and targets; of `members` of tuples the first one, and their `score`."""
    if members:
        return feeding_of(members, score, ports)
    feeding = matched(source.first, source.target, ports, settings, targets, source.whites)
    if texts := [column for column in feeding.inputs if column in source.text]:
        raise OnnxgenError(*(text_input(column, source.fields[column].classes) for column in texts))
    return feeding


@dataclass
class _Fit:
    """The state of one `fit_to_model`.

    Attributes:
        members: of tuples, by input; {} if there are none.
        words: how texts became token ids.
        preset: how a known program feeds the network.
    """

    source: DataSource
    model: nn.Module
    ports: Signature
    feeding: Feeding
    settings: Settings
    targets: bool
    members: Members
    words: Text
    preset: Preset | None = None

    def data(self) -> Data:
        chosen, own = self.settings, self.take_preset()
        source, feeding, settings = self.source, self.feeding, self.settings
        fit_sounds(source, self.ports, feeding)
        asked = asked_scales(settings, self.ports, self.model, source.notes)
        images = self.image_steps(asked)
        refuse_order(chosen, images)
        placed = self.placed(images) if self.targets else {}
        target = next(iter(feeding.aims), "")
        named = number_classes(source, feeding, settings.classes, card_of(settings.task).classes)
        if self.targets:
            split(source, target, settings, fixed_batch(self.model) or 1)
        table = encode(source, self.ports, feeding, settings)
        steps = self.steps(placed)
        plain = {name: step.dtype for name, step in steps.items() if name not in {*images, *placed}}
        source.notes += bytes_notes(plain, source.fields)
        frames = {p.name: images[c].frame for p, c in zip(self.ports.inputs, feeding.inputs) if c in images}
        data = Data(
            None,
            name=source.name,
            notes=source.notes,
            target=PAIR if self.members and not target else target,
            named=named,
            table=table,
            size=of_inputs({name: f"{frame.height}x{frame.width}" for name, frame in frames.items()}, [*asked]),
            resize=next((step.placing.how for step in images.values()), ""),
            images=own,
        )
        columns = dict(zip(asked, feeding.inputs))
        scaled, data.normalize = normalised(source, images, columns, asked, scale_of(self.model))
        augment = self.augment(bool(images))
        for part, samples in source.parts.items():
            prepared = self.prepared(part, samples, steps, scaled, augment, target)
            setattr(data, part, prepared)
            data.notes += [f"{part}: {note}" for note in squeezed(prepared, trains=True)] if self.targets else []
        return data

    def prepared(
        self,
        part: str,
        samples: Samples,
        steps: Mapping[str, Step],
        scaled: Mapping[str, ToInput],
        augment: Augment | None,
        score: str,
    ) -> Prepared:
        """Return the samples of a part with their steps; `scaled` are those of the inputs' images.

        Members of tuples become rows of the inputs, perhaps with a `score`.
        """
        drawn = augment if part == "train" and self.targets else None  # `predict` augments nothing
        noise = self.settings.noise if self.settings.noise is not None and self.targets else 0.0
        frozen = part != "train"
        own = {c: replace(step, augment=drawn, noise=noise, frozen=frozen) for c, step in scaled.items()}
        beside = {c: replace(s, augment=drawn) for c, s in steps.items() if isinstance(s, (OnImage, ToTarget))}
        steps = {**steps, **own, **beside}
        steps |= self.words.masked(steps, part) if self.targets else {}
        if not self.members:
            fields = {n: Field(step.dtype, step.shape, samples.fields[n].classes) for n, step in steps.items()}
            stream = stream_of(samples)  # which reads these columns alone
            return Prepared(samples if stream is None else stream.only(steps), steps, fields)
        fed = {name: steps[columns[0]] for name, columns in self.members.items()}
        fed |= {score: steps[score]} if score else {}
        fields = {name: Field(step.dtype, step.shape) for name, step in fed.items()}
        return Tuples(samples, fed, {**fields, PAIR: Field(torch.int64), ROLE: Field(torch.int64)}, self.members, score)

    def take_preset(self) -> dict[str, Any]:
        """Fill in settings that are open by the preset of the network. Returns these settings, and notes them."""
        pairs, source = [*zip(self.ports.inputs, self.feeding.inputs)], self.source
        stored = {c for c, field in source.fields.items() if c in source.whites or field.dtype == torch.uint8}
        ports = [port for port, c in pairs if c in stored and self.white(c, port, "none")]  # floats count as scaled
        dims = [port.dims[wanted_axes(port).index("C") + 1] for port in ports if port.dims and "C" in wanted_axes(port)]
        known = bool(scale_of(self.model))
        self.preset, own, notes = taken(self.settings, recorded_metadata(self.model), known, bool(ports), dims)
        self.settings = replace(self.settings, **own)
        source.notes += notes
        return own

    def steps(self, placed: Mapping[str, OnImage | ToTarget]) -> dict[str, Step]:
        """Return the step of each column; those of images come later."""
        fields, outputs = self.source.fields, dict(enumerate(self.ports.outputs))
        steps: dict[str, Step] = {c: _plain(fields[c], p) for p, c in zip(self.ports.inputs, self.feeding.inputs)}
        for output, column in (*self.feeding.targets.items(), *((-1, column) for column in self.feeding.others)):
            steps.setdefault(column, placed.get(column) or _target(fields[column], outputs.get(output)))
        return steps

    def white(self, column: str, port: Port, normalize: str) -> float:
        """Return the value of white if the column holds images for this input, else 0."""
        if column in self.source.whites:
            return self.source.whites[column]
        field = self.source.fields[column]
        size, rank = _size(field.shape, port), 4 if port.dims is None else len(port.dims)
        if size is None or rank not in (2, 3, 4):
            return 0.0
        if field.dtype == torch.uint8 and (port.dtype in (None, "uint8") or "float" in (port.dtype or "")):
            return 255.0
        asked = normalize not in ("auto", "none", FROM_0_TO_1) or self.settings.augment != "none"
        asked |= self.settings.noise is not None
        if asked and rank == 4 and field.dtype.is_floating_point:
            with suppress(OnnxgenError):  # the input takes no images
                wanted = frame(port, size)
                return float((wanted.channels, wanted.height, wanted.width) == size)
        return 0.0

    def image_steps(self, normalize: Mapping[str, str]) -> dict[str, ToInput]:
        """Return a step for each column of images, without a scale yet. Columns that may be images, too, are noted."""
        source, settings, pairs = self.source, self.settings, list(zip(self.ports.inputs, self.feeding.inputs))
        sizes = by_input(settings.size, [port.name for port in self.ports.inputs])
        whites = {column: self.white(column, port, normalize[port.name]) for port, column in pairs}
        refuse_bright(first := source.first, whites)
        source.notes += bright_notes(first, [c for port, c in pairs if not whites[c] and len(port.dims or ()) == 4])
        lines = card_of(settings.task).resize == "line" or (settings.task == AUTO and reads_lines(self.ports))
        classes = classifies(self.ports, asked=self.asks_for_classes())
        chooser = Chooser(runner(self.model, self.ports), lines, classes, partial(_size_told, self.model, self.preset))
        step = partial(self.image_step, placing=placing_of(settings, lines), chooser=chooser)
        images = {c: step(c, port, whites[c], sizes[port.name]) for port, c in pairs if whites[c]}
        steps = list(images.values())
        source.notes += converted(source.sizes, source.kinds, steps) + order_told(steps, source.sizes)
        return images

    def asks_for_classes(self) -> bool:
        """Return True if a network is trained to tell named classes of whole samples apart, or gets a head for that."""
        head, fields = self.settings.replace_head, [self.source.fields[c] for c in self.feeding.targets.values()]
        return self.settings.task == OUTPUTS and any(head or f.classes and not f.shape for f in fields)

    def image_step(
        self, column: str, port: Port, white: float, size: str, placing: Placing, chooser: Chooser
    ) -> ToInput:
        source = self.source
        shapes = {samples.fields[column].shape for samples in source.parts.values()}
        shape = shapes.pop() if len(shapes) == 1 else ()
        wanted = frame(port, _size(shape, port), size, source.sizes, chooser)
        for part, samples in source.parts.items():  # files are decoded in the wanted size
            sized: Callable[..., Samples] | None = getattr(samples, "sized", None)
            if sized is not None:
                source.parts[part] = sized(wanted.channels, wanted.height, wanted.width, placing)
        shape = source.fields[column].shape
        axes = axes_of(shape, port)
        if axes is None:
            what = f"column {column!r} has shape {list(shape)}, which is not an image"
            raise OnnxgenError(what, help="images are [H, W], [C, H, W] or [H, W, C]")
        dtype = torch.float32 if port.dtype is None else getattr(torch, port.dtype)
        bgr = self.settings.channel_order == BGR and wanted.channels > 1
        step = ToInput(axes, white, wanted, dtype=dtype, placing=placing, reversed=bgr)
        return replace(step, width_step=self.width_step(step, port, chooser))

    def width_step(self, step: ToInput, port: Port, chooser: Chooser) -> int:
        """Return what the width of longer lines is a multiple of; 0 if the network runs at no other width."""
        place = step.frame.axes.find("W") if chooser.lines and step.placing.how == "line" else -1
        if place < 0 or chooser.runs is None or (fixed_batch(self.model) or 1) > 1 or port.dims is None:
            return 0
        other = replace(step.frame, width=-(-2 * step.frame.width // STEP) * STEP)
        return STEP if isinstance(port.dims[place + 1], str) and chooser.runs(other.shape) else 0

    def placed(self, images: Mapping[str, ToInput]) -> Mapping[str, OnImage | ToTarget]:
        """Return a step for each target that lies on an image, augmented as the settings say."""
        source, ports, feeding, settings = self.source, self.ports, self.feeding, self.settings
        refuse_unmoved(source, feeding.aims, images.values(), settings)
        if (target := card_of(settings.task).target) == "image":
            return image_target(source, ports, feeding, images, settings)
        placed, augment = {}, Augment(recipes(settings.augment, source.glyphs))
        of_output = {column: output for output, column in feeding.targets.items()}
        for column in feeding.aims:
            output = of_output.get(column, len(ports.outputs))
            wanted = ports.outputs[output] if output < len(ports.outputs) else None
            for name, image in images.items():
                sizes = dict(zip(image.axes, source.fields[name].shape))
                size = sizes["H"], sizes["W"]
                is_moved = target == "moved" or column in source.placed
                if is_moved or lies_on(source.fields[column], size, column, augment):
                    placed[column] = on_image(source, column, image, size, wanted, self.model)
                    break
        return placed

    def augment(self, has_images: bool) -> Augment | None:
        """Return the augmentation of the training part, with a note of it. Refuse options for images without any."""
        source, settings = self.source, self.settings
        if settings.normalize not in ("auto", "none") and not has_images:
            raise OnnxgenError(f"--normalize {settings.normalize}: the data has no images", help="--normalize none")
        names = recipes(settings.augment, source.glyphs)
        if not names:
            return None
        if not has_images:
            if settings.augment == "auto":
                source.notes.append("not augmented: the data has no images")
                return None
            raise OnnxgenError(f"--augment {settings.augment}: the data has no images", help="--augment none")
        names = tuple(name for name in names if name != "light" or card_of(settings.task).target != "image")
        mirrored = "; not mirrored, since these are characters" if settings.augment == "auto" and source.glyphs else ""
        source.notes.append(f"augmented with {', '.join(names)}{mirrored}")
        return Augment(names)


def _size(shape: tuple[int, ...], port: Port) -> tuple[int, int, int] | None:
    """Return channels, height and width of a stored image; None if it is not an image."""
    axes = axes_of(shape, port)
    if axes is None:
        return None
    sizes = dict(zip(axes, shape))
    return sizes.get("C", 1), sizes["H"], sizes["W"]


def _size_told(model: nn.Module, preset: Preset | None) -> tuple[int, int] | None:
    from onnxgen.training.original import size_told  # imported here: it imports what records are

    return size_told(model) if preset is None or preset.size is None else preset.size


def _plain(field: Field, port: Port) -> Plain:
    """Return a step that changes no value: a dtype that holds the same numbers, and the input's shape."""
    dtype = torch.float32 if field.dtype == torch.float64 else field.dtype
    if port.dtype is not None and port.dtype != "str":
        wanted: torch.dtype = getattr(torch, port.dtype)
        whole = not field.dtype.is_floating_point and field.dtype != torch.bool
        if wanted.is_floating_point or (whole and wanted in (torch.int64, torch.int32)):
            dtype = wanted
    return Plain(dtype, *_shaped(field.shape, port))


def _target(field: Field, port: Port | None) -> Plain:
    if not field.dtype.is_floating_point:
        dims = () if port is None or port.dims is None else port.dims
        scores = len(dims) == len(field.shape) + 2 and all(not isinstance(dim, int) or dim > 1 for dim in dims[1:])
        if field.dtype == torch.bool and scores:  # a score for each class: false is the first one
            return Plain(torch.int64, field.shape)
        return Plain(field.dtype if field.dtype == torch.bool else torch.int64, field.shape)
    shape, _ = _shaped(field.shape, port) if port is not None else (field.shape, ())
    return Plain(torch.float32 if field.dtype == torch.float64 else field.dtype, shape)


def _shaped(shape: tuple[int, ...], port: Port) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape for a sample, and the permutation of axes before it.

    The shape stays as it is unless the port's dims leave only one way to change it.
    """
    wanted = tuple(port.dims[1:]) if port.dims else shape
    sizes = tuple(size for size in wanted if isinstance(size, int))
    if wanted == shape:
        return shape, ()
    if len(sizes) < len(wanted):
        return _with_ones(shape, wanted), ()
    if len(shape) == len(sizes) == 3:
        for order in ((2, 0, 1), (1, 2, 0)):
            turned = tuple(shape[axis] for axis in order)
            if turned == sizes and {turned[0], shape[0]} & set(CHANNELS):
                return sizes, order
    flat = len(sizes) == 1 and math.prod(shape) == sizes[0]
    return (sizes if flat or _large(shape) == _large(sizes) else shape), ()


def _with_ones(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> tuple[int, ...]:
    """Return a shape for dims of which some are free: only axes of size 1 are added, as (5,) for [n, length, 1]."""
    rest, places = _large(shape), _large(wanted)
    fits = all(isinstance(place, str) or place == size for place, size in zip(places, rest))
    if len(wanted) == len(shape) or len(rest) != len(places) or not fits:
        return shape
    filled = iter(rest)
    return tuple(1 if size == 1 else next(filled) for size in wanted)


def _large(sizes: Sequence[S]) -> list[S]:
    return [size for size in sizes if size != 1]


def number_classes(
    source: DataSource, feeding: Feeding, classes: tuple[str, ...], named_by: str = "all"
) -> frozenset[str]:
    """Renumber targets that hold class names by the position in `classes`. Without `classes` they stay sorted.

    Args:
        named_by: what `classes` names: see `Card.classes`.

    Returns:
        The targets that hold class names.

    Raises:
        OnnxgenError: the data has a class that is not in `classes`, or several targets hold names.
    """
    named = [column for column in feeding.aims if column in source.text]
    if not classes or named_by == "characters":
        return frozenset(named)
    if len(named) > 1 and named_by == "all":
        what = f"--classes names the classes of one target, but {listed(named)} all hold names"
        raise OnnxgenError(what, help="store the other targets as class indices")
    for column in named:
        has = source.fields[column].classes
        unknown = [name for name in has if name not in classes]
        if unknown and named_by != "some":
            what = f"{source.name} has class {listed(unknown)}, and the classes are {listed(classes)}"
            raise OnnxgenError(what, help="remove these samples, or add the class to --classes")
        classes = (*classes, *unknown)
        places = torch.tensor([classes.index(name) for name in has])
        for part, samples in source.parts.items():
            source.parts[part] = stored(samples).renumbered(column, places, classes)
    return frozenset(named)


def check_order(field: Field, column: str, classes: Sequence[str], problems: Problems) -> None:
    """Check that class indices stored in the data follow the order of `classes`, as far as names tell."""
    has, numbers = field.classes, [str(i) for i in range(max(len(field.classes), len(classes)))]
    if not classes or field.dtype.is_floating_point or list(has) == list(classes[: len(has)]) != []:
        return
    if list(has) != numbers[: len(has)]:
        what = f"the data numbers the classes of target {legible(column)!r} as {listed(has)}"
        problems.add(f"{what}, and the classes are {listed(classes)}", help="give --classes in the order of the data")
    elif all(name.lstrip("-").isdecimal() for name in classes) and list(classes) != numbers[: len(classes)]:
        what = f"target {legible(column)!r} holds class indices, and not the classes {listed(classes)}"
        problems.add(what, help="leave out --classes; the indices must be those of the model's outputs")


def classes_used(data: Data, feeding: Feeding) -> tuple[str, ...]:
    """Return the class names in the order of the model's outputs; () if no target or several targets have names."""
    samples = data.first
    named = []
    for column in feeding.aims:
        has = samples.fields[column].classes
        if column in data.named or has != tuple(str(i) for i in range(len(has))):
            named.append(has)
    return named[0] if len(named) == 1 else ()


def split(source: DataSource, target: str, settings: Settings, batch: int = 1) -> None:
    """Move samples from "train" to a missing "val" or "test" part, by the shares in `settings`.

    The split is stratified if `target` holds class indices. It depends only on `settings.seed`. The new parts have a
    multiple of `batch` samples, for a model with a fixed batch size. A note tells the sizes. Raises `OnnxgenError` if
    there are too few samples.
    """
    shares = {"val": settings.val, "test": settings.test}
    train = source.parts.get("train")
    stream = stream_of(train)
    missing = {part: share for part, share in shares.items() if train and share > 0 and part not in source.parts}
    if train is not None and missing:
        if len(train) <= len(missing) * batch:
            what = f"{source.name} has too few samples to split: {len(train)}"
            raise OnnxgenError(what, help="use all samples for training with --val 0")
        if stream is not None:
            source.parts |= stream.divided(missing, settings.seed)
        else:
            groups = _groups(source, target)
            for part, chosen in _drawn(groups, missing, settings.seed, batch).items():
                source.parts[part] = subset(train, chosen)
    counts = ", ".join(f"{len(source.parts[p]):,} {p}" for p in PARTS if p in source.parts)
    how = f"; {' and '.join(missing)} drawn from train with seed {settings.seed}" if missing else ""
    if missing and stream is None:
        how += f": {HELD_BACK} of the run lists them"
    source.notes.append(f"samples: {counts}{how}")


def _groups(source: DataSource, target: str) -> list[NDArray[np.int64]]:
    """Return the indices of each class, or all indices as one group if there are no classes."""
    train = source.parts["train"]
    labels = column_of(train, target) if target and train.fields[target].classes else None
    if labels is None or labels.ndim != 1:
        return [np.arange(len(train))]
    classes = labels.numpy()
    return [np.flatnonzero(classes == value) for value in np.unique(classes)]


def _drawn(
    groups: list[NDArray[np.int64]], shares: dict[str, float], seed: int, batch: int
) -> dict[str, NDArray[np.int64]]:
    """Return the indices for each part, and the remaining ones as "train", in ascending order."""
    total = sum(map(len, groups))
    key = bits(seed, np.arange(total), 1)[:, 0]
    # Sort by each sample's relative position within its class: any slice has the same share of every class.
    place, drawn = np.empty(total), np.argsort(key, kind="stable")
    rank = np.empty(total, dtype=np.int64)
    rank[drawn] = np.arange(total)
    for group in groups:
        order = group[np.argsort(rank[group], kind="stable")]
        place[order] = (np.arange(len(order)) + 0.5) / len(order)
    order = np.lexsort((rank, place))
    parts, start = {}, 0
    for part, share in shares.items():
        count = batch * max(1, round(share * total / batch))
        parts[part] = np.sort(order[start : start + count])
        start += count
    parts["train"] = np.sort(order[start:])
    return parts
