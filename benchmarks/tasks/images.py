"""Rows of tables and images: classes, labels, maps of classes, numbers, and images without noise."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.metrics import accuracy_score, average_precision_score, jaccard_score, mean_squared_error
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from benchmarks.tasks.row import Batch, Given, Loss, Row
from samples.tasks import goals, make

EACH = 5  # every fifth sample is for validation


def halved(columns: Mapping[str, Any], count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the training and the validation part of columns [count, ...]."""
    held = np.arange(count) % EACH == 0
    return {k: v[~held] for k, v in columns.items()}, {k: v[held] for k, v in columns.items()}


def scaled(train: Tensor, val: Tensor) -> tuple[Tensor, Tensor]:
    """Return bytes [n, C, H, W] minus the mean of the training part, by its deviation; both have four digits."""
    train, val = train.float() / 255, val.float() / 255
    mean, std = (found.round(decimals=4)[:, None, None] for found in (train.mean((0, 2, 3)), train.std((0, 2, 3))))
    return (train - mean) / std, (val - mean) / std


def of_images(onnx: Path, images: np.ndarray, column: str, ours: np.ndarray, target: Tensor | None = None) -> Given:
    """Return gray images [n, H, W] with their targets. `target` is the column as the loop by hand needs it."""
    data = dict(zip(("train", "val"), halved({"image": images, column: ours}, len(images))))
    y = torch.from_numpy(ours) if target is None else target
    train, val = halved({"x": torch.from_numpy(images)[:, None], "y": y}, len(images))
    train["x"], val["x"] = scaled(train["x"], val["x"])
    return Given(onnx, data, train, val)


def arrays(name: str, column: str) -> Any:
    """Return how the arrays of a sample are made."""

    def made(folder: Path) -> Given:
        make.export(folder, [name])
        make.make_arrays(folder, np.random.default_rng(0))
        found = np.load(folder / f"{name}.npz")
        if name == "words":
            data = dict(zip(("train", "val"), halved(found, len(found["x"]))))
            parts = [{key: torch.from_numpy(values) for key, values in part.items()} for part in data.values()]
            return Given(folder / "words.onnx", data, *parts)
        return of_images(folder / f"{name}.onnx", found["x"], column, found["y"])

    return made


def shapes(folder: Path) -> Given:
    """Images in folders of two sizes, and a head for ten classes of which three are there."""
    make.export(folder, ["shapes"])
    make.make_images(folder, np.random.default_rng(0))
    found: dict[str, tuple[list[np.ndarray], list[int]]] = {"train": ([], []), "val": ([], [])}
    for part, (pixels, labels) in found.items():
        for label, shape in enumerate(make.SHAPES):
            (folder / "parts" / part / shape).mkdir(parents=True)
            for file in sorted((folder / "shapes" / shape).iterdir()):
                if (int(file.stem) % EACH == 0) == (part == "val"):
                    moved = file.rename(folder / "parts" / part / shape / file.name)
                    pixels.append(np.asarray(Image.open(moved).resize((24, 24), Image.Resampling.BILINEAR)))
                    labels.append(label)
    x = scaled(*(torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) for pixels, _ in found.values()))
    parts = [{"x": part, "y": torch.tensor(labels)} for part, (_, labels) in zip(x, found.values())]
    return Given(folder / "shapes.onnx", folder / "parts", *parts)


def new_head(network: nn.Module) -> None:
    """Put in a layer for three classes."""
    network.fc = nn.Linear(16 * 5 * 5, 3)


def scenes(folder: Path) -> Given:
    """Images beside images of masks."""
    make.export(folder, ["scenes"])
    make.make_scenes(folder)
    x, y = [], []
    for part in ("train", "val"):
        files = sorted((folder / "scenes" / "images" / part).iterdir())
        masks = [folder / "scenes" / "masks" / part / file.name for file in files]
        x.append(torch.from_numpy(np.stack([np.asarray(Image.open(f)) for f in files])).permute(0, 3, 1, 2))
        y.append(torch.from_numpy(np.stack([np.asarray(Image.open(f)) for f in masks])).long())
    parts = [{"x": images, "y": masks} for images, masks in zip(scaled(*x), y)]
    return Given(folder / "scenes.onnx", folder / "scenes", *parts)


def denoiser(folder: Path) -> Given:
    """Digits in noise, and without."""
    goals.export(folder, ["denoiser"])
    goals.noisy(folder / "scans", 300, np.random.default_rng(0))
    files = {name: sorted((folder / "scans" / name).iterdir()) for name in ("noisy", "clean")}
    columns = {key: np.stack([np.asarray(Image.open(f)) for f in found]) for key, found in files.items()}
    both = halved({"image": columns["noisy"], "target": columns["clean"]}, 300)
    parts = [{k: torch.from_numpy(v)[:, None].float() / 255 for k, v in part.items()} for part in both]
    return Given(folder / "denoiser.onnx", dict(zip(("train", "val"), both)), *parts, inputs=("image",))


def psnr(made: Tensor, batch: Batch) -> float:
    """Of each image, in mean over them."""
    squared = (made.clamp(0, 1) - batch["target"]).double().square().mean((1, 2, 3))
    return float((-10 * squared.log10()).mean())


def table(name: str, target: str) -> Any:
    """Return how a table of numbers is made."""

    def made(folder: Path) -> Given:
        make.export(folder, [name])
        make.make_tables(folder)
        with open(folder / f"{name}.csv", newline="") as file:
            names, *rows = csv.reader(file)
        parts = parted(folder, names, rows)
        x = [np.array([row[:-1] for row in part], np.float32) for part in parts]
        if name == "progress":
            scaler = StandardScaler().fit(x[0].astype(np.float64))
            x = [scaler.transform(part).astype(np.float32) for part in x]
            y = [torch.tensor([[float(row[-1])] for row in part]) for part in parts]
        else:
            kinds = sorted({row[-1] for row in rows})
            y = [torch.tensor([kinds.index(row[-1]) for row in part]) for part in parts]
        both = [{"x": torch.from_numpy(a), "y": b} for a, b in zip(x, y)]
        return Given(folder / f"{name}.onnx", folder / "parts", *both, options={"target": target})

    return made


def parted(folder: Path, names: Sequence[str], rows: list[Any]) -> list[list[Any]]:
    """Write rows to `parts/train.csv` and `parts/val.csv`. Return both parts."""
    (folder / "parts").mkdir()
    parts = [[row for i, row in enumerate(rows) if (i % EACH == 0) == held] for held in (False, True)]
    for name, part in zip(("train", "val"), parts):
        with open(folder / "parts" / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *part])
    return parts


def cross_entropy() -> Loss:
    return lambda made, batch: F.cross_entropy(made, batch["y"])


def accuracy(made: Tensor, batch: Batch) -> float:
    return float(accuracy_score(batch["y"].flatten(), made.argmax(1).flatten()))


def mean_iou(made: Tensor, batch: Batch) -> float:
    return float(jaccard_score(batch["y"].flatten(), made.argmax(1).flatten(), average="macro"))


def precision(made: Tensor, batch: Batch) -> float:
    return float(average_precision_score(batch["y"], made))


def squares(made: Tensor, batch: Batch) -> float:
    return float(mean_squared_error(batch["y"], made))


ROWS = (
    Row(
        "shapes", "auto", "accuracy", 15, 0.005, make.Shapes, shapes, cross_entropy, accuracy, {"replace_head": 3},
        begun=new_head,
    ),
    Row("flowers", "auto", "accuracy", 5, 0.02, make.Flowers, table("flowers", "target"), cross_entropy, accuracy),
    Row(
        "progress", "auto", "loss", 40, 0.01, make.Progress, table("progress", "progress"),
        lambda: lambda made, batch: F.mse_loss(made, batch["y"]), squares, {"table": "auto"},
    ),
    Row("words", "auto", "accuracy", 20, 0.01, make.Words, arrays("words", "y"), cross_entropy, accuracy),
    Row("masks", "auto", "mean_iou", 3, 0.01, make.Masks, arrays("masks", "y"), cross_entropy, mean_iou, batch=8),
    Row("scenes", "auto", "mean_iou", 20, 0.02, make.Scenes, scenes, cross_entropy, mean_iou, batch=8),
    Row(
        "denoiser", "image-to-image", "psnr", 15, 0.003, goals.Denoiser, denoiser,
        lambda: lambda made, batch: F.l1_loss(made, batch["target"]), psnr,
    ),
    Row(
        "labels", "auto", "average_precision", 30, 0.005, make.Labels, arrays("labels", "y"),
        lambda: lambda made, batch: F.binary_cross_entropy(made, batch["y"].float()), precision,
    ),
)  # fmt: skip
