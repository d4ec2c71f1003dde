"""Make four small networks for `--task`, untrained, and data for them: python -m samples.tasks.goals [FOLDER]

Lines of digits to read, vectors of digits, the corners of triangles, and digits in noise.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from sklearn.datasets import load_digits
from torch import Tensor, nn

WIDTH, SIDE, MOST = 48, 24, 4


class Lines(nn.Module):
    """An image [batch, 1, 8, 48] -> scores of the blank and ten digits over 24 steps, [24, batch, 11]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Conv1d(128, 64, 5, padding=2), nn.Conv1d(64, 11, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(image)), 2)
        x = F.relu(self.conv2(x)).flatten(1, 2)
        return self.fc2(F.relu(self.fc1(x))).permute(2, 0, 1)


class Vectors(nn.Module):
    """A digit [batch, 1, 8, 8] -> a vector [batch, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16 * 4 * 4, 16)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(F.max_pool2d(F.relu(self.conv(image)), 2).flatten(1))


class Corners(nn.Module):
    """An image [batch, 1, 24, 24] -> heatmaps of the top, left and right corner of a triangle, [batch, 3, 24, 24]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 16, 5, padding=2)
        self.conv3 = nn.Conv2d(16, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv3(F.relu(self.conv2(F.relu(self.conv1(image)))))


class Denoiser(nn.Module):
    """An image [batch, 1, 16, 16] of values from 0 to 1 -> the same without noise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        noise = self.conv3(F.relu(self.conv2(F.relu(self.conv1(image)))))
        return (image - noise).clamp(0, 1)


INPUTS = {
    "lines": (Lines, "scores", torch.zeros(2, 1, 8, WIDTH), 1),
    "vectors": (Vectors, "vector", torch.zeros(2, 1, 8, 8), 0),
    "corners": (Corners, "maps", torch.zeros(2, 1, SIDE, SIDE), 0),
    "denoiser": (Denoiser, "clean", torch.zeros(2, 1, 16, 16), 0),
}


def lines(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """Return images [count, 8, 48] of one to four handwritten digits, and their texts."""
    digits = load_digits()
    images, texts = np.zeros((count, 8, WIDTH), np.uint8), []
    for image in images:
        chosen = rng.integers(0, len(digits.images), rng.integers(1, MOST + 1))
        at = 0
        for left, number in enumerate(chosen[::-1]):
            at += int(rng.integers(0, (WIDTH - at - 8 * (len(chosen) - left)) // (len(chosen) - left) + 1))
            image[:, at : at + 8] = digits.images[number] * 15.9
            at += 8
        texts.append("".join(str(digits.target[number]) for number in chosen[::-1]))
    return images, np.array(texts)


def corners(count: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Return images [count, 24, 24] of triangles in noise, and their corners [count, 3, 2] as shares of the sides."""
    images, places = [], np.empty((count, 3, 2), np.float32)
    for place in places:
        x, y = rng.uniform(3, 9, 2)
        width, height = rng.uniform(8, 12, 2)
        place[:] = [(x + width * rng.uniform(0.2, 0.8), y), (x, y + height), (x + width, y + height)]
        image = Image.fromarray(rng.integers(0, 80, (SIDE, SIDE), dtype=np.uint8))
        ImageDraw.Draw(image).polygon([*map(tuple, place - 0.5)], fill=int(rng.integers(150, 250)))
        images.append(np.asarray(image))
    return np.stack(images), places / SIDE


def noisy(folder: Path, count: int, rng: np.random.Generator) -> None:
    """Write digits of 16x16 pixels as folder/clean/*.png, and with normal noise (a fifth of white) in folder/noisy."""
    clean = (load_digits().images[:count] * 15.9).astype(np.uint8).repeat(2, 1).repeat(2, 2)
    spoilt = (clean + rng.normal(0, 51, clean.shape)).clip(0, 255).astype(np.uint8)
    for name, images in (("clean", clean), ("noisy", spoilt)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / name / f"{number:03}.png")


def export(folder: Path, names: Iterable[str] = INPUTS) -> None:
    """Write the networks, with the weights that the seed 0 makes."""
    for name in names:
        kind, made, example, batch = INPUTS[name]
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
            torch.onnx.export(
                kind().eval(), (example,), folder / f"{name}.onnx", dynamo=False, opset_version=17,
                training=torch.onnx.TrainingMode.PRESERVE, input_names=["image"], output_names=[made],
                dynamic_axes={"image": {0: "batch"}, made: {batch: "batch"}},
            )  # fmt: skip


def make(folder: Path) -> None:
    """Write the networks and the data to a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    images, texts = lines(1200, rng)
    np.savez(folder / "lines.npz", image=images, text=texts)
    np.savez(folder / "new_lines.npz", image=images[:5])
    images, places = corners(400, rng)
    np.savez(folder / "corners.npz", image=images, keypoints=places)
    np.savez(folder / "new_corners.npz", image=images[:5])
    noisy(folder / "scans", 300, rng)
    export(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
