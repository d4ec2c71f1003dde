"""Images that are a little different each time: mirrored, turned, shifted, cut out, noisy.

What is drawn for an image depends on the seed and its index alone, and is computed for a whole batch at once. All that
moves pixels is one affine map, so that an image is interpolated once; what comes in from outside repeats the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.draw import normal, uniform

RECIPES = {
    "flip": "mirrored left to right, every second",
    "vflip": "upside down, every second",
    "rotate": "turned by up to 10 degrees",
    "shift": "moved by up to a tenth of its size",
    "crop": "a cut-out of 70 to 100 % of its sides, enlarged",
    "light": "contrast and brightness changed by up to a fifth",
    "noise": "normal noise of 2 % of white on each pixel",
    "erase": "a gray rectangle of up to a third of its sides, every second",
}
GLYPHS, PHOTOS = ("rotate", "shift"), ("flip", "crop", "light")  # what "auto" means
DEGREES, SHIFT, CROP, LIGHT, NOISE, ERASED = 10.0, 0.1, 0.3, 0.2, 0.02, 1 / 3
_DRAWN = 16  # numbers an image


def recipes(text: str, glyphs: bool) -> tuple[str, ...]:
    """The recipes that `--augment` asks for. Raises `OnnxgenError` for one that there is not."""
    if text in ("none", ""):
        return ()
    if text == "auto":
        return GLYPHS if glyphs else PHOTOS
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in RECIPES:
            raise OnnxgenError(f"there is no augmentation {name!r}", help=f"none, auto, or of {', '.join(RECIPES)}")
    return names


@dataclass(frozen=True)
class Augment:
    """Called with images float32 [n, C, H, W] it gives other ones, in the same shape."""

    names: tuple[str, ...]

    def __call__(self, x: Tensor, indices: Sequence[int], seed: int, white: float) -> Tensor:
        drawn = uniform(seed, indices, _DRAWN)
        if {"flip", "vflip", "rotate", "shift", "crop"} & set(self.names):
            x = _moved(x, self._maps(drawn, x.shape[3] / x.shape[2]))
        if "light" in self.names:
            gain, lift = _column(1 + LIGHT * _signed(drawn[:, 7])), _column(white * LIGHT * _signed(drawn[:, 8]))
            x = ((x - white / 2) * gain + white / 2 + lift).clamp_(0, white)
        if "noise" in self.names:
            noise = normal(seed, indices, x[0].numel(), stream=1).reshape(tuple(x.shape)) * (NOISE * white)
            x = (x + torch.from_numpy(noise.astype(np.float32))).clamp_(0, white)
        return torch.where(self._erased(drawn, x), white / 2, x) if "erase" in self.names else x

    def _maps(self, drawn: NDArray[np.float64], aspect: float) -> NDArray[np.float64]:
        """[n, 2, 3]: from a place in the result to one in the image, both from -1 to 1."""
        names, count = self.names, len(drawn)
        maps = np.zeros((count, 2, 3))
        angle = np.deg2rad(DEGREES * _signed(drawn[:, 0])) * ("rotate" in names)
        side = 1 - CROP * drawn[:, 1] * ("crop" in names)
        across = np.where((drawn[:, 2] < 0.5) & ("flip" in names), -1, 1)
        down = np.where((drawn[:, 3] < 0.5) & ("vflip" in names), -1, 1)
        maps[:, 0, 0], maps[:, 0, 1] = across * side * np.cos(angle), -down * side * np.sin(angle) / aspect
        maps[:, 1, 0], maps[:, 1, 1] = across * side * np.sin(angle) * aspect, down * side * np.cos(angle)
        for axis in range(2):
            shift = 2 * SHIFT * _signed(drawn[:, 4 + axis]) * ("shift" in names)
            maps[:, axis, 2] = shift + (1 - side) * _signed(drawn[:, 9 + axis])
        return maps

    def _erased(self, drawn: NDArray[np.float64], x: Tensor) -> Tensor:
        """bool [n, 1, H, W]: what is gray."""
        inside = []
        for axis, size in enumerate(x.shape[2:]):
            length = np.ceil(ERASED * drawn[:, 11 + axis] * size)
            start = np.floor((size - length + 1) * drawn[:, 13 + axis])
            places = np.arange(size)
            inside.append((places >= start[:, None]) & (places < (start + length)[:, None]))
        chosen = inside[0][:, :, None] & inside[1][:, None, :] & (drawn[:, 15] < 0.5)[:, None, None]
        return torch.from_numpy(chosen).unsqueeze(1)


def _signed(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    return 2 * drawn - 1


def _column(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32)).view(-1, 1, 1, 1)


def _moved(x: Tensor, maps: NDArray[np.float64]) -> Tensor:
    """Images seen through affine maps [n, 2, 3]."""
    height, width = x.shape[2:]
    ys = (torch.arange(height, dtype=torch.float32) * 2 + 1) / height - 1
    xs = (torch.arange(width, dtype=torch.float32) * 2 + 1) / width - 1
    m = torch.from_numpy(maps.astype(np.float32))[:, :, :, None, None]
    # Element by element: F.affine_grid multiplies matrices, whose last digits may depend on the size of the batch.
    grid = [xs[None, None, :] * m[:, k, 0] + ys[None, :, None] * m[:, k, 1] + m[:, k, 2] for k in range(2)]
    return F.grid_sample(
        x.contiguous(), torch.stack(grid, -1), mode="bilinear", padding_mode="border", align_corners=False
    )
