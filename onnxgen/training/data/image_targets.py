"""Targets that lie on an image: masks, boxes, images, maps of numbers. They move as the image does.

A mask gets the size of the output. The target of `--task image-to-image` is an image or a map of
numbers; it may be the clean image itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port, Signature
from onnxgen.surgery.ports import outputs, undisturbed
from onnxgen.training.data.arrays import Columns, column_of, decoder_of, in_columns
from onnxgen.training.data.folder import Targets
from onnxgen.training.data.image_options import FOR_PHOTOS, MOVING, by_input, recipes
from onnxgen.training.data.image_pairs import TARGET, TASK, Masks
from onnxgen.training.data.images import CHANNELS, Augment, Frame, ToInput, axes_of, grid, wanted_axes
from onnxgen.training.data.letterbox import INNER, WHOLE, Fit
from onnxgen.training.data.samples import Batch, Feeding, Field, Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.goal import IGNORED_CLASS
from onnxgen.training.model import fixed_batch, scale_of
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

    Raises `OnnxgenError` if it is no image, it lies on no image of a size that fits, or `--augment` names what changes
    the input alone.
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
    field = source.fields[column]
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
    first = source.first
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
    asked = next(iter(settings.target), "") if isinstance(settings.target, Mapping) else ""
    of_images = [port for port in ports.outputs if port.name == asked or (not asked and wanted_axes(port) in _MAPS)]
    return of_images[0] if of_images else None


_MAPS = ("CHW", "HWC", "HW")


def _channels(port: Port | None, axes: str, stored: int) -> int:
    """Return the channels of a target: those of the output if they make an image, as RGB becomes gray."""
    dims = port.dims[1:] if port is not None and port.dims is not None and len(port.dims) == len(axes) + 1 else ()
    wanted = dict(zip(axes, dims)).get("C", 1 if axes == "HW" else stored)
    return wanted if isinstance(wanted, int) and {wanted, stored} <= {*CHANNELS} else stored


def with_clean_target(source: DataSource, ports: Signature, settings: Settings) -> None:
    """Make the images that are the input the target, too: noise is added to the input later (`--noise`).

    Raises `OnnxgenError` if it is open which column has the images, or the data has a target.
    """
    if settings.task not in (AUTO, TASK):
        raise OnnxgenError(f"--noise does not go with --task {settings.task}", help="leave out --noise")
    fields = source.fields
    if TARGET in fields:
        what = f"--noise is for clean images alone, but {source.name} has a target"
        raise OnnxgenError(what, help="leave out --noise")
    named = [settings.inputs.get(port.name, port.name) for port in ports.inputs]
    columns = [name for name in fields if name in named] or [n for n, f in fields.items() if axes_of(f.shape)]
    if len(columns) != 1:
        what = f"--noise needs one column of images, and the data has {listed(columns) or listed(fields)}"
        raise OnnxgenError(what, help="name it: --inputs INPUT=COLUMN")
    for part, samples in source.parts.items():
        source.parts[part] = _doubled(samples, columns[0])
    white = source.whites.get(columns[0])
    source.whites = {**source.whites, **({TARGET: white} if white else {})}
    source.target, source.task = TARGET, TASK


def _doubled(samples: Samples, column: str) -> Samples:
    if isinstance(samples, Columns):
        images = samples.columns[column]
        target = images if isinstance(images, Tensor) else Targets(images.paths, images.size)
        return Columns({column: images, TARGET: target}, {}, samples.rows)
    raise OnnxgenError("--noise needs image files or arrays", help="name a folder of images, or .npz")


LEAST_LEFT = 0.25  # a box of which a smaller share of its area is left is dropped


@dataclass(frozen=True)
class OnImage:
    """Moves masks [n, H, W], or boxes [n, most, 5] (see `boxes.pictures.Boxes`), as their images are moved.

    Attributes:
        aspect: width of the image by its height.
        boxes: True for boxes.
        augment: what moves the images.
        fit: where the images lie in the frame.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    aspect: float
    boxes: bool
    augment: Augment | None = None
    fit: Fit | None = None

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int) -> Tensor:
        x = x.to(self.dtype)
        if self.boxes and self.fit is not None and self.fit.moves:
            inside = torch.cat((x[..., :1], self.fit.into_frame(x[..., 1:])), -1)
            x = torch.where(x[..., :1] >= 0, inside, x)
        if self.augment is None or not self.augment.moves:
            return x
        maps = self.augment.maps(indices, seed, self.aspect)
        return moved_boxes(x, maps) if self.boxes else moved_masks(x, maps)

    def beside(self, samples: Samples, indices: Sequence[int]) -> Batch:
        """Return beside boxes where their images lie in the frame, [n, 4]; {} if they fill it, or may be moved."""
        if not self.boxes or self.augment is not None:
            return {}
        if (each := column_of(samples, INNER)) is not None:
            return {INNER: each[torch.as_tensor(indices)]}
        if self.fit is None or not self.fit.moves:
            return {}
        return {INNER: self.fit.into_frame(WHOLE).expand(len(indices), 4)}


def moved_masks(x: Tensor, maps: NDArray[np.float64]) -> Tensor:
    """Apply affine maps [n, 2, 3] (see `Augment.maps`) to masks [n, H, W]; the nearest value counts.

    What comes from outside is `IGNORED_CLASS`. In masks of bool, which have no such value, the edge is repeated.
    """
    height, width = x.shape[1:]
    across, down = grid(maps, height, width)
    columns, rows = ((across + 1) * (width / 2)).floor().long(), ((down + 1) * (height / 2)).floor().long()
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    samples = torch.arange(len(x))[:, None, None]
    moved = x[samples, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return moved if x.dtype == torch.bool else torch.where(inside, moved, IGNORED_CLASS)


def moved_boxes(x: Tensor, maps: NDArray[np.float64]) -> Tensor:
    """Apply affine maps [n, 2, 3] (see `Augment.maps`) to boxes [n, most, 5].

    A box becomes the one around its four moved corners, clipped. If less than `LEAST_LEFT` of it is left, it is
    dropped. Boxes keep their order; rows of -1 come last.
    """
    rows = x.numpy().astype(np.float64)
    corners = 2 * rows[..., [[1, 2], [3, 2], [1, 4], [3, 4]]] - 1  # [n, most, 4, 2], from -1 to 1
    back = np.linalg.inv(maps[:, :, :2])
    away = corners - maps[:, None, None, :, 2]
    # Not a product of matrices: its last digits may depend on the size of the batch.
    moved = np.stack(
        [away[..., 0] * back[:, k, 0, None, None] + away[..., 1] * back[:, k, 1, None, None] for k in (0, 1)]
    )
    low, high = (moved.min(-1) + 1) / 2, (moved.max(-1) + 1) / 2  # [2, n, most]
    whole = np.prod(high - low, axis=0)
    low, high = low.clip(0, 1), high.clip(0, 1)
    kept = (rows[..., 0] >= 0) & (np.prod(high - low, axis=0) >= LEAST_LEFT * whole)
    boxes = np.stack([rows[..., 0], low[0], low[1], high[0], high[1]], -1)
    boxes = np.where(kept[..., None], boxes, -1.0)
    order = np.argsort(~kept, axis=1, kind="stable")
    return torch.from_numpy(np.take_along_axis(boxes, order[..., None], 1).astype(np.float32))


def on_image(
    source: DataSource, column: str, image: ToInput, size: tuple[int, int], output: Port | None, model: nn.Module
) -> OnImage:
    """Return the step for a column of `DataSource.placed`. Masks in files get the size of the output's map.

    Args:
        image: the step of the image that the column lies on.
        size: height and width of the stored image.
        output: the model's output for this target.
    """
    frame = image.frame
    if isinstance(decoder_of(source.first, column), Masks):
        dims = output.dims if output is not None else None
        sides = _sides((dims or ())[1:], frame) or _tried(model, image) or (frame.height, frame.width)
        source.parts |= {part: in_columns(samples).fitted(column, size=sides) for part, samples in source.parts.items()}
    field = source.fields[column]
    dtype = field.dtype if field.dtype.is_floating_point or field.dtype == torch.bool else torch.int64
    is_boxes = field.dtype.is_floating_point
    fit = image.fit(size) if is_boxes else None
    return OnImage(dtype, field.shape, frame.width / frame.height, is_boxes, fit=fit)


def lies_on(field: Field, image: tuple[int, int], column: str, augment: Augment) -> bool:
    """Return True if a target of arrays is a mask: a whole number or bool for each pixel of the stored image.

    Raises `OnnxgenError` if it is a map of another kind, and the image would move without it.
    """
    if not augment.moves or field.shape[-2:] != image:
        return False
    if field.dtype.is_floating_point or len(field.shape) != 2:
        what = f"--augment {','.join(augment.names)} moves images"
        what += f", but target {column!r} has {list(field.shape)} numbers"
        raise OnnxgenError(what, help="use light, noise or erase; or give a class for each pixel, as whole numbers")
    return True


def _sides(dims: Sequence[int | str], frame: Frame) -> tuple[int, int] | None:
    """Return height and width among an output's dims without the batch: [H, W], [C, H, W] or [H, W, C].

    What has more of the image's proportions counts.
    """
    sizes = []
    for start in {2: (0,), 3: (1, 0)}.get(len(dims), ()):
        height, width = dims[start : start + 2]
        if isinstance(height, int) and isinstance(width, int):
            sizes.append((height, width))
    return min(sizes, key=lambda size: abs(size[0] * frame.width - size[1] * frame.height), default=None)


def _tried(model: nn.Module, image: ToInput) -> tuple[int, int] | None:
    """Return height and width of the map that the model makes of an image; None if it can't be run on one alone."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.zeros(fixed_batch(model) or 1, *image.shape, dtype=image.dtype, device=device)
    with suppress(Exception), undisturbed(model):  # a model that fails is reported by `check`
        return _sides(list(outputs(model(x)))[0].shape[1:], image.frame)
    return None
