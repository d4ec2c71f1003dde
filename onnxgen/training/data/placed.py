"""Targets that lie on an image: masks and boxes. They move as the image does; a mask gets the size of the output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Port
from onnxgen.surgery.example import outputs, undisturbed
from onnxgen.training.data.arrays import column_of, decoder_of, in_columns
from onnxgen.training.data.augment import Augment, grid
from onnxgen.training.data.images import Frame, ToInput
from onnxgen.training.data.letterbox import INNER, WHOLE, Fit
from onnxgen.training.data.masks import Masks
from onnxgen.training.data.samples import Batch, Field, Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.measured import IGNORED_CLASS
from onnxgen.training.model import fixed_batch

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
    found = x[samples, rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    return found if x.dtype == torch.bool else torch.where(inside, found, IGNORED_CLASS)


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
    found = np.stack([rows[..., 0], low[0], low[1], high[0], high[1]], -1)
    found = np.where(kept[..., None], found, -1.0)
    order = np.argsort(~kept, axis=1, kind="stable")
    return torch.from_numpy(np.take_along_axis(found, order[..., None], 1).astype(np.float32))


# ---- fitting ---------------------------------------------------------------------------------------------------------


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
    if isinstance(decoder_of(next(iter(source.parts.values())), column), Masks):
        sides = _map_size(output, frame) or _tried(model, image) or (frame.height, frame.width)
        source.parts |= {part: in_columns(found).fitted(column, size=sides) for part, found in source.parts.items()}
    field = next(iter(source.parts.values())).fields[column]
    dtype = field.dtype if field.dtype.is_floating_point or field.dtype == torch.bool else torch.int64
    is_boxes = field.dtype.is_floating_point
    fit = image.fit(size) if is_boxes else None
    return OnImage(dtype, field.shape, frame.width / frame.height, is_boxes, fit=fit)


def lies_on(field: Field, image: tuple[int, int], column: str, augment: Augment) -> bool:
    """Return True if a target of arrays is a mask: a whole number or bool for each pixel of the stored image.

    Raises:
        OnnxgenError: it is a map of another kind, and the image would move without it.
    """
    if not augment.moves or field.shape[-2:] != image:
        return False
    if field.dtype.is_floating_point or len(field.shape) != 2:
        what = (
            f"--augment {','.join(augment.names)} moves images, but target {column!r} has {list(field.shape)} numbers"
        )
        raise OnnxgenError(what, help="use light, noise or erase; or give a class for each pixel, as whole numbers")
    return True


def _map_size(output: Port | None, frame: Frame) -> tuple[int, int] | None:
    """Return height and width of an output's map, as far as its dims tell."""
    return None if output is None or output.dims is None else _sides(output.dims[1:], frame)


def _sides(dims: Sequence[int | str], frame: Frame) -> tuple[int, int] | None:
    """Return height and width among an output's dims without the batch: [H, W], [C, H, W] or [H, W, C].

    What has more of the image's proportions counts.
    """
    found = []
    for start in {2: (0,), 3: (1, 0)}.get(len(dims), ()):
        height, width = dims[start : start + 2]
        if isinstance(height, int) and isinstance(width, int):
            found.append((height, width))
    return min(found, key=lambda size: abs(size[0] * frame.width - size[1] * frame.height), default=None)


def _tried(model: nn.Module, image: ToInput) -> tuple[int, int] | None:
    """Return height and width of the map that the model makes of an image; None if it can't be run on one alone."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    x = torch.zeros(fixed_batch(model) or 1, *image.shape, dtype=image.dtype, device=device)
    with suppress(Exception), undisturbed(model):  # a model that fails is reported by `check`
        return _sides(list(outputs(model(x)))[0].shape[1:], image.frame)
    return None
