"""Augments images: mirrors, rotates, shifts, crops and erases them, and adds noise.

The random numbers for an image depend only on the seed and its index. A whole batch is computed at once. All moves of
pixels are one affine map, so each image is interpolated once; pixels from outside the image repeat its edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.training.data.draw import normal, uniform
from onnxgen.training.data.recipes import MOVING

MAX_DEGREES, MAX_SHIFT, MAX_CROP, MAX_LIGHT, NOISE, MAX_ERASED = 10.0, 0.1, 0.3, 0.2, 0.02, 1 / 3
_NUMBERS_PER_IMAGE = 16


@dataclass(frozen=True)
class Augment:
    """Augments images, float32 [n, C, H, W]."""

    names: tuple[str, ...]

    @property
    def moves(self) -> bool:
        """True if pixels are moved, so that what lies on the image must move, too."""
        return bool(MOVING & {*self.names})

    def maps(self, indices: Sequence[int], seed: int, aspect: float) -> NDArray[np.float64]:
        """Return affine maps [n, 2, 3] from a place in the result to a place in the image, both from -1 to 1.

        Args:
            aspect: width of the image by its height.
        """
        return self._maps(uniform(seed, indices, _NUMBERS_PER_IMAGE), aspect)

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int, white: float) -> Tensor:
        drawn = uniform(seed, indices, _NUMBERS_PER_IMAGE)
        if self.moves:
            x = _moved(x, self._maps(drawn, x.shape[3] / x.shape[2]))
        if "light" in self.names:
            gain = _column(1 + MAX_LIGHT * _signed(drawn[:, 7]))
            lift = _column(white * MAX_LIGHT * _signed(drawn[:, 8]))
            x = ((x - white / 2) * gain + white / 2 + lift).clamp_(0, white)
        if "noise" in self.names:
            noise = normal(seed, indices, x[0].numel(), stream=1).reshape(tuple(x.shape)) * (NOISE * white)
            x = (x + torch.from_numpy(noise.astype(np.float32))).clamp_(0, white)
        return torch.where(self._erased(drawn, x), white / 2, x) if "erase" in self.names else x

    def _maps(self, drawn: NDArray[np.float64], aspect: float) -> NDArray[np.float64]:
        names, count = self.names, len(drawn)
        maps = np.zeros((count, 2, 3))
        angle = np.deg2rad(MAX_DEGREES * _signed(drawn[:, 0])) * ("rotate" in names)
        side = 1 - MAX_CROP * drawn[:, 1] * ("crop" in names)
        across = np.where((drawn[:, 2] < 0.5) & ("flip" in names), -1, 1)
        down = np.where((drawn[:, 3] < 0.5) & ("vflip" in names), -1, 1)
        maps[:, 0, 0], maps[:, 0, 1] = across * side * np.cos(angle), -down * side * np.sin(angle) / aspect
        maps[:, 1, 0], maps[:, 1, 1] = across * side * np.sin(angle) * aspect, down * side * np.cos(angle)
        for axis in range(2):
            shift = 2 * MAX_SHIFT * _signed(drawn[:, 4 + axis]) * ("shift" in names)
            maps[:, axis, 2] = shift + (1 - side) * _signed(drawn[:, 9 + axis])
        return maps

    def _erased(self, drawn: NDArray[np.float64], x: Tensor) -> Tensor:
        """Return a mask [n, 1, H, W] of the erased rectangles."""
        inside = []
        for axis, size in enumerate(x.shape[2:]):
            length = np.ceil(MAX_ERASED * drawn[:, 11 + axis] * size)
            start = np.floor((size - length + 1) * drawn[:, 13 + axis])
            places = np.arange(size)
            inside.append((places >= start[:, None]) & (places < (start + length)[:, None]))
        chosen = inside[0][:, :, None] & inside[1][:, None, :] & (drawn[:, 15] < 0.5)[:, None, None]
        return torch.from_numpy(chosen).unsqueeze(1)


def _signed(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2 * drawn - 1


def _column(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).view(-1, 1, 1, 1)


def grid(maps: NDArray[np.float64], height: int, width: int) -> list[Tensor]:
    """Return the places [n, H, W] across and down, from -1 to 1, that affine maps take the pixels' middles to."""
    ys = (torch.arange(height, dtype=torch.float32) * 2 + 1) / height - 1
    xs = (torch.arange(width, dtype=torch.float32) * 2 + 1) / width - 1
    m = torch.from_numpy(maps.astype(np.float32))[:, :, :, None, None]
    # Not F.affine_grid: it multiplies matrices, and the last digits may depend on the size of the batch.
    return [xs[None, None, :] * m[:, k, 0] + ys[None, :, None] * m[:, k, 1] + m[:, k, 2] for k in range(2)]


def _moved(x: Tensor, maps: NDArray[np.float64]) -> Tensor:
    """Apply affine maps [n, 2, 3] to images."""
    places = torch.stack(grid(maps, *x.shape[2:]), -1)
    return F.grid_sample(x.contiguous(), places, mode="bilinear", padding_mode="border", align_corners=False)
