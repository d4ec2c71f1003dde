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
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, Problems
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import PAIR, ROLE, Prepared, Tuples, column_of, stored, subset
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
)
from onnxgen.training.data.layout import PARTS
from onnxgen.training.data.letterbox import Placing
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
from onnxgen.training.data.streaming.stream import reading, stream_of
from onnxgen.training.data.streaming.tokens import fit_tokens, is_tokens
from onnxgen.training.data.text.columns import fit_text
from onnxgen.training.data.text.tokenizer import Masked
from onnxgen.training.goals.outputs import decide
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


def fit_to_model(source: DataSource, model: nn.Module, settings: Settings, targets: bool) -> Data:
    """Split the data, and convert its columns to the model's inputs and targets.

    Raises:
        OnnxgenError: columns can't be matched, images can't be made to fit, or settings don't suit the data.
    """
    ports = fed(model, settings.const)
    task = _task(source, model, ports, settings, targets)
    settings = replace(as_trained(settings, model), task=task or settings.task)
    tokens = is_tokens(next(iter(source.parts.values())))
    if tokens:
        fit_tokens(source, ports, settings)
    text = None if tokens else fit_text(source, model, settings, targets)
    settings = text.applied(settings) if text is not None else settings
    members = (text.members if text is not None else {}) or members_of(source, ports, settings, targets)
    if not members:
        source = stacked(source, ports, settings, targets)
    feeding = _fed(source, ports, settings, targets, members, text.score if text is not None else "")
    fit_sounds(source, ports, feeding)
    asked = asked_scales(settings, ports, model, source.notes)
    images = _image_steps(source, model, ports, feeding, settings, asked)
    placed = _placed(source, ports, feeding, images, model, settings) if targets else {}
    target = next(iter(feeding.aims), "")
    named = number_classes(source, feeding, settings.classes, card_of(settings.task).classes)
    if targets:
        split(source, target, settings, fixed_batch(model) or 1)
    table = encode(source, ports, feeding, settings)
    fields = next(iter(source.parts.values())).fields
    steps = _steps(ports, feeding, fields, placed)
    source.notes += bytes_notes({n: step.dtype for n, step in steps.items() if n not in {*images, *placed}}, fields)
    data = Data(None, name=source.name, notes=source.notes, target=target, named=named, table=table)
    data.joined = {**source.joined, **(text.joined if text is not None else {})}
    data.text, data.task, data.rate, data.sizes = text, task, source.rate, source.sizes
    data.target = PAIR if members and not target else target
    frames = {p.name: images[c].frame for p, c in zip(ports.inputs, feeding.inputs) if c in images}
    data.size = of_inputs({name: f"{f.height}x{f.width}" for name, f in frames.items()}, [*asked])
    data.resize = next((step.placing.how for step in images.values()), "")
    scaled, data.normalize = normalised(source, images, dict(zip(asked, feeding.inputs)), asked, scale_of(model))
    _refuse_normalize(settings, bool(images))
    augment = _augment(source, settings, data, bool(images))
    for part, samples in source.parts.items():
        drawn = augment if part == "train" and targets else None  # not in `predict`
        noise = settings.noise if settings.noise is not None and targets else 0.0
        here = _of_part(steps, scaled, drawn, noise, part)
        here |= text.masked(here, part) if text is not None and targets else {}
        setattr(data, part, prepared := _prepared(samples, here, members, target))
        data.notes += [f"{part}: {note}" for note in squeezed(prepared, trains=True)] if targets else []
    return data


def _refuse_normalize(settings: Settings, has_images: bool) -> None:
    if settings.normalize not in ("auto", "none") and not has_images:
        raise OnnxgenError(f"--normalize {settings.normalize}: the data has no images", help="--normalize none")


def _task(source: DataSource, model: nn.Module, ports: Signature, settings: Settings, targets: bool) -> str:
    """Return what `--task auto` means; "" if the settings name a task. Clean images get themselves as the target."""
    if settings.noise is not None and targets:
        with_clean_target(source, ports, settings)
    if settings.task != AUTO:
        return ""
    return decide(source, model, settings) if targets else source.task


def _fed(
    source: DataSource,
    ports: Signature,
    settings: Settings,
    targets: bool,
    members: Mapping[str, tuple[str, ...]],
    score: str,
) -> Feeding:
    """Return the columns of inputs and targets; of `members` of tuples the first one, and their `score`."""
    if members:
        return feeding_of(members, score, ports)
    feeding = matched(next(iter(source.parts.values())), source.target, ports, settings, targets, source.whites)
    if texts := [column for column in feeding.inputs if column in source.text]:
        fields = next(iter(source.parts.values())).fields
        raise OnnxgenError(*(text_input(column, fields[column].classes) for column in texts))
    return feeding


def _prepared(
    samples: Samples, steps: Mapping[str, Step], members: Mapping[str, tuple[str, ...]], score: str
) -> Prepared:
    """Return samples with their steps; `members` of tuples become rows of the inputs, perhaps with a `score`."""
    if members:
        own = {name: steps[columns[0]] for name, columns in members.items()} | ({score: steps[score]} if score else {})
        fields = {name: Field(step.dtype, step.shape) for name, step in own.items()}
        return Tuples(samples, own, {**fields, PAIR: Field(torch.int64), ROLE: Field(torch.int64)}, members, score)
    types = {name: Field(step.dtype, step.shape, samples.fields[name].classes) for name, step in steps.items()}
    return Prepared(reading(samples, steps), steps, types)


def _of_part(
    steps: Mapping[str, Step], scaled: Mapping[str, ToInput], augment: Augment | None, noise: float, part: str
) -> dict[str, Step]:
    """Return the steps of a part: `scaled` are those of the inputs' images."""
    frozen = part != "train"
    images = {c: replace(step, augment=augment, noise=noise, frozen=frozen) for c, step in scaled.items()}
    beside = {c: replace(s, augment=augment) for c, s in steps.items() if isinstance(s, (OnImage, ToTarget))}
    return {**steps, **images, **beside}


def _steps(
    ports: Signature, feeding: Feeding, fields: Mapping[str, Field], placed: Mapping[str, OnImage | ToTarget]
) -> dict[str, Step]:
    """Return the step of each column; those of images come later."""
    steps: dict[str, Step] = {c: _plain(fields[c], port) for port, c in zip(ports.inputs, feeding.inputs)}
    for output, column in feeding.targets.items():
        wanted = ports.outputs[output] if output < len(ports.outputs) else None
        steps.setdefault(column, placed.get(column) or _target(fields[column], wanted))
    for column in feeding.others:
        steps.setdefault(column, placed.get(column) or _target(fields[column], None))
    return steps


# ---- images ----------------------------------------------------------------------------------------------------------


def _white(source: DataSource, column: str, port: Port, settings: Settings, normalize: Mapping[str, str]) -> float:
    """Return the value of white if the column holds images for this input, else 0."""
    if column in source.whites:
        return source.whites[column]
    field = next(iter(source.parts.values())).fields[column]
    size, rank = _size(field.shape, port), 4 if port.dims is None else len(port.dims)
    if size is None or rank not in (2, 3, 4):
        return 0.0
    if field.dtype == torch.uint8 and (port.dtype in (None, "uint8") or "float" in (port.dtype or "")):
        return 255.0
    asked = normalize[port.name] not in ("auto", "none", FROM_0_TO_1) or settings.augment != "none"
    asked |= settings.noise is not None
    if asked and rank == 4 and field.dtype.is_floating_point:
        with suppress(OnnxgenError):  # the input takes no images
            wanted = frame(port, size)
            return float((wanted.channels, wanted.height, wanted.width) == size)
    return 0.0


def _size(shape: tuple[int, ...], port: Port) -> tuple[int, int, int] | None:
    """Return channels, height and width of a stored image; None if it is not an image."""
    axes = axes_of(shape, port)
    if axes is None:
        return None
    sizes = dict(zip(axes, shape))
    return sizes.get("C", 1), sizes["H"], sizes["W"]


def _image_steps(
    source: DataSource,
    model: nn.Module,
    ports: Signature,
    feeding: Feeding,
    settings: Settings,
    normalize: Mapping[str, str],
) -> dict[str, ToInput]:
    """Return a step for each column of images, without a scale yet. Columns that may be images, too, are noted."""
    sizes = by_input(settings.size, [port.name for port in ports.inputs])
    pairs = list(zip(ports.inputs, feeding.inputs))
    whites = {column: _white(source, column, port, settings, normalize) for port, column in pairs}
    refuse_bright(first := next(iter(source.parts.values())), whites)
    source.notes += bright_notes(first, [c for port, c in pairs if not whites[c] and len(port.dims or ()) == 4])
    lines = card_of(settings.task).resize == "line" or (settings.task == AUTO and reads_lines(ports))
    classes = classifies(ports, asked=_asks_for_classes(first, feeding, settings))
    chooser = Chooser(runner(model, ports), lines, classes, partial(_size_told, model))
    placing, bgr = placing_of(settings, lines), settings.channel_order == BGR
    step = partial(_image_step, source, placing=placing, reversed=bgr, chooser=chooser)
    images = {c: step(c, port, whites[c], sizes[port.name]) for port, c in pairs if whites[c]}
    if lines and placing.how == "line":
        of = {c: _width_step(images[c], port, model, chooser) for port, c in pairs if c in images}
        images = {c: replace(images[c], width_step=step) for c, step in of.items()}
    refuse_order(settings, images)
    steps = list(images.values())
    source.notes += converted(source.sizes, source.kinds, steps) + order_told(steps, source.sizes)
    return images


def _asks_for_classes(samples: Samples, feeding: Feeding, settings: Settings) -> bool:
    """Return True if a network is trained to tell named classes of whole samples apart, or gets a head for that."""
    fields = [samples.fields[column] for column in feeding.targets.values()]
    return settings.task == OUTPUTS and any(settings.replace_head or f.classes and not f.shape for f in fields)


def _width_step(step: ToInput, port: Port, model: nn.Module, chooser: Chooser) -> int:
    """Return what the width of longer lines is a multiple of; 0 if the network runs at no other width."""
    place = step.frame.axes.find("W")
    if place < 0 or chooser.runs is None or (fixed_batch(model) or 1) > 1 or port.dims is None:
        return 0
    other = replace(step.frame, width=-(-2 * step.frame.width // STEP) * STEP)
    return STEP if isinstance(port.dims[place + 1], str) and chooser.runs(other.shape) else 0


def _size_told(model: nn.Module) -> tuple[int, int] | None:
    from onnxgen.training.original import size_told  # imported here: it imports what records are

    return size_told(model)


def _image_step(
    source: DataSource,
    column: str,
    port: Port,
    white: float,
    size: str,
    placing: Placing,
    reversed: bool,
    chooser: Chooser,
) -> ToInput:
    shapes = {samples.fields[column].shape for samples in source.parts.values()}
    shape = shapes.pop() if len(shapes) == 1 else ()
    wanted = frame(port, _size(shape, port), size, source.sizes, chooser)
    for part, samples in source.parts.items():  # files are decoded in the wanted size
        sized: Callable[..., Samples] | None = getattr(samples, "sized", None)
        if sized is not None:
            source.parts[part] = sized(wanted.channels, wanted.height, wanted.width, placing)
    shape = next(iter(source.parts.values())).fields[column].shape
    axes = axes_of(shape, port)
    if axes is None:
        what = f"column {column!r} has shape {list(shape)}, which is not an image"
        raise OnnxgenError(what, help="images are [H, W], [C, H, W] or [H, W, C]")
    dtype = torch.float32 if port.dtype is None else getattr(torch, port.dtype)
    reversed &= wanted.channels > 1
    return ToInput(axes, white, wanted, dtype=dtype, placing=placing, reversed=reversed)


def _placed(
    source: DataSource,
    ports: Signature,
    feeding: Feeding,
    images: Mapping[str, ToInput],
    model: nn.Module,
    settings: Settings,
) -> Mapping[str, OnImage | ToTarget]:
    """Return a step for each target that lies on an image, augmented as the settings say."""
    refuse_unmoved(source, feeding.aims, images.values(), settings)
    if (target := card_of(settings.task).target) == "image":
        return image_target(source, ports, feeding, images, settings)
    placed, augment = {}, Augment(recipes(settings.augment, source.glyphs))
    of_output = {column: output for output, column in feeding.targets.items()}
    for column in feeding.aims:
        output = of_output.get(column, len(ports.outputs))
        wanted = ports.outputs[output] if output < len(ports.outputs) else None
        for name, image in images.items():
            fields = next(iter(source.parts.values())).fields
            sizes = dict(zip(image.axes, fields[name].shape))
            size = sizes["H"], sizes["W"]
            if target == "moved" or column in source.placed or lies_on(fields[column], size, column, augment):
                placed[column] = on_image(source, column, image, size, wanted, model)
                break
    return placed


def _augment(source: DataSource, settings: Settings, data: Data, images: bool) -> Augment | None:
    names = recipes(settings.augment, source.glyphs)
    if not names:
        return None
    if not images:
        if settings.augment == "auto":
            data.notes.append("not augmented: the data has no images")
            return None
        raise OnnxgenError(f"--augment {settings.augment}: the data has no images", help="--augment none")
    names = tuple(name for name in names if name != "light" or card_of(settings.task).target != "image")
    mirrored = "; not mirrored, since these are characters" if settings.augment == "auto" and source.glyphs else ""
    data.notes.append(f"augmented with {', '.join(names)}{mirrored}")
    return Augment(names)


# ---- other columns ---------------------------------------------------------------------------------------------------


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
    if len(sizes) < len(wanted):  # some axes are free: only axes of size 1 may be added, as (5,) for [n, length, 1]
        if len(wanted) == len(shape):
            return shape, ()
        rest = [size for size in shape if size != 1]
        places = [i for i, size in enumerate(wanted) if size != 1]
        if len(rest) == len(places) and all(wanted[i] == s or isinstance(wanted[i], str) for i, s in zip(places, rest)):
            filled = iter(rest)
            return tuple(1 if size == 1 else next(filled) for size in wanted), ()
        return shape, ()
    if len(shape) == len(sizes) == 3:
        for order in ((2, 0, 1), (1, 2, 0)):
            turned = tuple(shape[axis] for axis in order)
            if turned == sizes and {turned[0], shape[0]} & set(CHANNELS):
                return sizes, order
    same = [s for s in shape if s != 1] == [s for s in sizes if s != 1]
    if same or (len(sizes) == 1 and math.prod(shape) == sizes[0]):
        return sizes, ()
    return shape, ()


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
    if classes and len(named) > 1 and named_by == "all":
        what = f"--classes names the classes of one target, but {listed(named)} all hold names"
        raise OnnxgenError(what, help="store the other targets as class indices")
    for column in named if classes and named_by != "characters" else ():
        has = next(iter(source.parts.values())).fields[column].classes
        classes = (*classes, *(name for name in has if name not in classes and named_by == "some"))
        if unknown := [name for name in has if name not in classes]:
            what = f"{source.name} has class {listed(unknown)}, and the classes are {listed(classes)}"
            raise OnnxgenError(what, help="remove these samples, or add the class to --classes")
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
    samples = next(iter(data.parts.values()))
    named = []
    for column in feeding.aims:
        has = samples.fields[column].classes
        if column in data.named or has != tuple(str(i) for i in range(len(has))):
            named.append(has)
    return named[0] if len(named) == 1 else ()


def split(source: DataSource, target: str, settings: Settings, batch: int = 1) -> None:
    """Move samples from "train" to a missing "val" or "test" part, by the shares in `settings`.

    The split is stratified if `target` holds class indices. It depends only on `settings.seed`. The new parts have a
    multiple of `batch` samples, for a model with a fixed batch size. A note tells the sizes.

    Raises:
        OnnxgenError: there are too few samples.
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
