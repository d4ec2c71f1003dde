"""Make seven small networks as ONNX files, untrained, and data for each: python -m samples.tasks.make [FOLDER]"""

from __future__ import annotations

import csv
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_diabetes, load_iris
from torch import Tensor, nn

from samples.tasks.scenes import draw_scenes, write_masks

SHAPES = ("circle", "cross", "square")
SIDE, LENGTH, WORDS = 24, 12, 40


class Shapes(nn.Module):
    """An image [batch, 3, 24, 24] -> scores of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 16, 3, stride=2)
        self.norm = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 5 * 5, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv2(F.relu(self.conv1(image)))))
        return self.fc(x.flatten(1))


class Flowers(nn.Module):
    """Four measures [batch, 4] -> scores of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, measures: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.fc1(measures)))


class Progress(nn.Module):
    """Ten measures [batch, 10] -> a number [batch, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 32), nn.Linear(32, 1)

    def forward(self, measures: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(measures)))


class Words(nn.Module):
    """Word numbers [batch, 12] -> scores of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru, self.fc = nn.Embedding(WORDS, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.gru(self.embedding(ids))[0][:, -1])


class Masks(nn.Module):
    """An image [batch, 1, 24, 24] -> scores of two classes at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(image)))


class Scenes(nn.Module):
    """An image [batch, 3, 48, 64] -> scores of four classes at each position."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return self.conv2(F.relu(self.conv1(image)))


class Labels(nn.Module):
    """An image [batch, 1, 24, 24] -> the probability of each of three labels, of which several may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 8, 5, stride=3), nn.Linear(8 * 7 * 7, 3)

    def forward(self, image: Tensor) -> Tensor:
        return torch.sigmoid(self.fc(F.relu(self.conv(image)).flatten(1)))


INPUTS = {
    "shapes": (Shapes, "image", "scores", torch.zeros(2, 3, SIDE, SIDE)),
    "flowers": (Flowers, "measures", "scores", torch.zeros(2, 4)),
    "progress": (Progress, "measures", "progress", torch.zeros(2, 10)),
    "words": (Words, "ids", "scores", torch.zeros(2, LENGTH, dtype=torch.int64)),
    "masks": (Masks, "image", "mask", torch.zeros(2, 1, SIDE, SIDE)),
    "scenes": (Scenes, "image", "mask", torch.zeros(2, 3, 48, 64)),
    "labels": (Labels, "image", "labels", torch.zeros(2, 1, SIDE, SIDE)),
}


def draw(shape: str, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw a shape of random size at a random place, as [24, 24]."""
    y, x = np.mgrid[:SIDE, :SIDE]
    half = rng.integers(3, 6)
    cy, cx = rng.integers(half, SIDE - half, 2)
    dy, dx = abs(y - cy), abs(x - cx)
    if shape == "circle":
        return (dy**2 + dx**2 <= half**2) & (dy**2 + dx**2 > (half - 2) ** 2)
    inside = (dy <= half) & (dx <= half)
    return inside & ((dy < 1) | (dx < 1)) if shape == "cross" else inside


def make_images(folder: Path, rng: np.random.Generator) -> None:
    """Write `shapes/CLASS/N.png` in two sizes, and `new.png`."""
    for shape in SHAPES:
        (folder / "shapes" / shape).mkdir(parents=True)
        for n in range(160):
            noise = rng.integers(0, 60, (SIDE, SIDE, 3))
            pixels = (draw(shape, rng)[..., None] * rng.integers(120, 190, 3) + noise).astype(np.uint8)
            image = Image.fromarray(pixels)
            image.resize((30, 30) if n % 2 else (SIDE, SIDE)).save(folder / "shapes" / shape / f"{n}.png")
    image.save(folder / "new.png")


def make_tables(folder: Path) -> None:
    """Write `flowers.csv` with the species by name, and `new.csv` without; and `progress.csv` of diabetes."""
    iris = load_iris()
    names = ["sepal_length", "sepal_width", "petal_length", "petal_width"]
    with open(folder / "flowers.csv", "w", newline="") as file:
        rows = [[*row, iris.target_names[label]] for row, label in zip(iris.data, iris.target)]
        csv.writer(file).writerows([[*names, "target"], *rows])
    with open(folder / "new.csv", "w", newline="") as file:
        csv.writer(file).writerows([names, *iris.data[::30]])
    diabetes = load_diabetes(scaled=False)
    with open(folder / "progress.csv", "w", newline="") as file:
        rows = [[*row, target / 100] for row, target in zip(diabetes.data, diabetes.target)]
        csv.writer(file).writerows([[*diabetes.feature_names, "progress"], *rows])
    with open(folder / "new_progress.csv", "w", newline="") as file:
        csv.writer(file).writerows([diabetes.feature_names, *diabetes.data[::100]])


def make_arrays(folder: Path, rng: np.random.Generator) -> None:
    """Write `words.npz`, `masks.npz` and `labels.npz`, and files of new samples without targets."""
    ids = rng.integers(0, WORDS, (600, LENGTH))
    drawn = np.stack([draw("square", rng) for _ in range(80)])
    noisy = (drawn * 150 + rng.integers(0, 100, drawn.shape)).astype(np.uint8)
    has = rng.integers(0, 2, (600, 3)).astype(bool)
    several = np.zeros((600, SIDE, SIDE), np.uint8)
    for image, row in zip(several, has):
        for shape in np.array(SHAPES)[row]:
            image[draw(shape, rng)] = 255
    data = {"words": (ids, (ids < WORDS // 2).sum(1) > LENGTH // 2), "masks": (noisy, drawn), "labels": (several, has)}
    for name, (x, y) in data.items():
        np.savez(folder / f"{name}.npz", x=x, y=y.astype(np.int64) if name != "labels" else y)
        np.savez(folder / f"new_{name}.npz", x=x[:5])


def make_scenes(folder: Path) -> None:
    """Write `scenes/images/PART/N.png` beside `scenes/masks/PART/N.png`, and `new_scene.png`."""
    scenes = draw_scenes(100)
    write_masks(folder / "scenes", {"train": scenes[:60], "val": scenes[60:80], "test": scenes[80:]})
    Image.fromarray(draw_scenes(1, seed=1)[0].pixels).save(folder / "new_scene.png")


def export(folder: Path, names: Iterable[str] = INPUTS) -> None:
    """Write the networks, with the weights that the seed 0 makes."""
    for name in names:
        kind, given, made, example = INPUTS[name]
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
            torch.onnx.export(
                kind().eval(), (example,), folder / f"{name}.onnx", dynamo=False, opset_version=17,
                training=torch.onnx.TrainingMode.PRESERVE, input_names=[given], output_names=[made],
                dynamic_axes={given: {0: "batch"}, made: {0: "batch"}},
            )  # fmt: skip


def make(folder: Path) -> None:
    """Write the networks and the data to a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    make_images(folder, rng)
    make_tables(folder)
    make_arrays(folder, rng)
    make_scenes(folder)
    export(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
