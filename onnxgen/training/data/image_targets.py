"""Targets of `--task image-to-image`: images and maps of numbers, which move as their input does; clean images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.training.data.arrays import Columns, decoder_of, in_columns
from onnxgen.training.data.augment import Augment
from onnxgen.training.data.folder import Targets
from onnxgen.training.data.image_pairs import TARGET, TASK
from onnxgen.training.data.images import CHANNELS, Frame, ToInput, axes_of, wanted_axes
from onnxgen.training.data.recipes import FOR_PHOTOS, MOVING, recipes
from onnxgen.training.data.samples import Feeding, Field, Samples
from onnxgen.training.data.scales import by_input
from onnxgen.training.data.source import DataSource
from onnxgen.training.known import scale_of
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import AUTO, card_of

FROM_0_TO_1 = "0,1"  # the normalisation that only divides by white


def asked_scales(settings: Settings, ports: Signature, model: nn.Module, notes: list[str]) -> dict[str, str]:
    """Return the normalisation of each input. `auto` divides by white where the task says so.

    Adds to `notes` what the network's own file says of it.
    """
    asked = by_input(settings.normalize, [port.name for port in ports.inputs])
    if scale_of(model) or "auto" not in asked.values() or not card_of(settings.task).divides(model, notes):
        return asked
    return {name: FROM_0_TO_1 if how == "auto" else how for name, how in asked.items()}


@dataclass(frozen=True)
class ToTarget(ToInput):
    """Converts stored targets [n, ...] to the axes of the output. Of augmentation, only moves count."""

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int) -> Tensor:
        names = self.augment.names if self.augment is not None else ()
        moves = Augment(tuple(name for name in names if name in MOVING))
        return ToInput.__call__(replace(self, augment=moves if moves.names else None), x, indices, seed)


def image_target(
    source: DataSource, ports: Signature, feeding: Feeding, images: Mapping[str, ToInput], settings: Settings
) -> dict[str, ToTarget]:
    """Return the step of the target. Bytes go from 0 to 1, numbers stay as they are.

    Raises:
        OnnxgenError: it is no image, it lies on no image of a size that fits, or `--augment` names what changes the
            input alone.
    """
    (column,) = feeding.others
    if "light" in recipes(settings.augment, source.glyphs) and settings.augment != "auto":
        what = "--augment light changes the input, but not the image that it should become"
        raise OnnxgenError(what, help=f"--augment {','.join(name for name in FOR_PHOTOS if name in MOVING)}")
    port = _output(ports, settings)
    shapes = {samples.fields[column].shape for samples in source.parts.values()}
    shape = shapes.pop() if len(shapes) == 1 else ()
    frame = _frame(source, column, shape, port, images)
    for part, samples in source.parts.items():
        if decoder_of(samples, column) is not None:
            size = frame.channels, frame.height, frame.width
            source.parts[part] = in_columns(samples).fitted(column, size=size)
    field = next(iter(source.parts.values())).fields[column]
    axes = _axes(field, field.shape, port)
    assert axes is not None
    scaled = not field.dtype.is_floating_point
    white = source.whites.get(column, 255.0)
    scale = ((0.0,) * frame.channels, (1.0,) * frame.channels) if scaled else None
    reversed = frame.channels > 1 and scaled and any(image.reversed for image in images.values())
    return {column: ToTarget(axes, white if scaled else 1.0, frame, scale, reversed=reversed)}


def _axes(field: Field, shape: tuple[int, ...], port: Port | None) -> str | None:
    """Return the axes of a stored target; numbers may have any number of channels. None if it is no image."""
    if not field.dtype.is_floating_point and field.dtype != torch.uint8:
        return None
    return axes_of(shape, port) or ("CHW" if len(shape) == 3 and field.dtype.is_floating_point else None)


def _frame(
    source: DataSource, column: str, shape: tuple[int, ...], port: Port | None, images: Mapping[str, ToInput]
) -> Frame:
    """Return the size of a target: that of the input's image, times what the data says."""
    first = next(iter(source.parts.values()))
    field, axes = first.fields[column], "CHW" if port is None else wanted_axes(port) or "CHW"
    name, image = next(iter(images.items()), ("", None))
    if decoder_of(first, column) is not None:
        assert image is not None
        height, width = image.frame.height * source.enlarged, image.frame.width * source.enlarged
        return Frame(_channels(port, axes, 1 if len(shape) == 2 else shape[2] if shape else 3), height, width, axes)
    stored = _axes(field, shape, port)
    if stored is None:
        kind = str(field.dtype).removeprefix("torch.")
        what = f"column {legible(column)!r} has {kind} {list(shape)} for each sample, which is no image"
        raise OnnxgenError(what, help="give bytes (uint8) or floats, [n, H, W], [n, C, H, W] or [n, H, W, C]")
    sizes = dict(zip(stored, shape))
    height, width = sizes["H"], sizes["W"]
    if image is not None:
        beside = dict(zip(image.axes, first.fields[name].shape))
        factor = height // beside["H"]
        if not factor or (height, width) != (beside["H"] * factor, beside["W"] * factor):
            what = f"column {legible(column)!r} has images {width}x{height}, and {legible(name)!r} "
            what += f"{beside['W']}x{beside['H']}"
            raise OnnxgenError(what, help="a target is as large as its input, or larger by a whole number")
        height, width = image.frame.height * factor, image.frame.width * factor
    return Frame(_channels(port, axes, sizes.get("C", 1)), height, width, axes)


def _output(ports: Signature, settings: Settings) -> Port | None:
    """Return the output that is trained: the one that the settings name, else the first one of images."""
    said = next(iter(settings.target), "") if isinstance(settings.target, Mapping) else ""
    of_images = [port for port in ports.outputs if port.name == said or (not said and wanted_axes(port) in _MAPS)]
    return of_images[0] if of_images else None


_MAPS = ("CHW", "HWC", "HW")


def _channels(port: Port | None, axes: str, stored: int) -> int:
    """Return the channels of a target: those of the output if they make an image, as RGB becomes gray."""
    dims = port.dims[1:] if port is not None and port.dims is not None and len(port.dims) == len(axes) + 1 else ()
    wanted = dict(zip(axes, dims)).get("C", 1 if axes == "HW" else stored)
    return wanted if isinstance(wanted, int) and {wanted, stored} <= {*CHANNELS} else stored


# ---- clean images ----------------------------------------------------------------------------------------------------


def with_clean_target(source: DataSource, ports: Signature, settings: Settings) -> None:
    """Make the images that are the input the target, too: noise is added to the input later (`--noise`).

    Raises:
        OnnxgenError: it is open which column has the images, or the data has a target.
    """
    if settings.task not in (AUTO, TASK):
        raise OnnxgenError(f"--noise does not go with --task {settings.task}", help="leave out --noise")
    fields = next(iter(source.parts.values())).fields
    if TARGET in fields:
        what = f"--noise is for clean images alone, but {source.name} has a target"
        raise OnnxgenError(what, help="leave out --noise")
    named = [settings.inputs.get(port.name, port.name) for port in ports.inputs]
    found = [name for name in fields if name in named] or [n for n, f in fields.items() if _is_image(f)]
    if len(found) != 1:
        what = f"--noise needs one column of images, and the data has {listed(found) or listed(fields)}"
        raise OnnxgenError(what, help="name it: --inputs INPUT=COLUMN")
    for part, samples in source.parts.items():
        source.parts[part] = _doubled(samples, found[0])
    white = source.whites.get(found[0])
    source.whites = {**source.whites, **({TARGET: white} if white else {})}
    source.target, source.task = TARGET, TASK


def _doubled(samples: Samples, column: str) -> Samples:
    if isinstance(samples, Columns):
        images = samples.columns[column]
        target = images if isinstance(images, Tensor) else Targets(images.paths, images.size)
        return Columns({column: images, TARGET: target}, {}, samples.rows)
    raise OnnxgenError("--noise needs image files or arrays", help="name a folder of images, or .npz")


def _is_image(field: Field) -> bool:
    return axes_of(field.shape) is not None
