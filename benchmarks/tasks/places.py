"""Rows of `--task`: texts in images, vectors, places, a loss of one's own; and a teacher."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torchmetrics.text import CharErrorRate

from benchmarks.common import ROOT
from benchmarks.tasks.images import of_images
from benchmarks.tasks.row import Batch, Given, Loss, Row
from samples.mnist import make_onnx as mnist
from samples.tasks import goals
from tests.docs.blocks import blocks

TEMPERATURE, SHARE = 4.0, 0.5  # of the teacher, as `fit` has them


def lines(folder: Path) -> Given:
    goals.export(folder, ["lines"])
    images, texts = goals.lines(1200, np.random.default_rng(0))
    rows = [[int(c) + 1 for c in text] + [0] * (goals.MOST - len(text)) for text in texts]
    return of_images(folder / "lines.onnx", images, "text", texts, torch.tensor(rows))


def ctc(scores: Tensor, batch: Batch) -> Tensor:
    steps = torch.full((len(batch["y"]),), len(scores))
    return F.ctc_loss(scores.log_softmax(2), batch["y"], steps, (batch["y"] > 0).sum(1))


def character_error(scores: Tensor, batch: Batch) -> float:
    read = [torch.unique_consecutive(row) for row in scores.argmax(2).T]
    return float(CharErrorRate()([_text(row) for row in read], [_text(row) for row in batch["y"]]))


def _text(row: Tensor) -> str:
    return "".join(str(i - 1) for i in row.tolist() if i)


def vectors(folder: Path) -> Given:
    goals.export(folder, ["vectors"])
    digits = load_digits()
    return of_images(folder / "vectors.onnx", (digits.images * 15.9).astype(np.uint8), "label", digits.target)


class Arc(nn.Module):
    """ArcFace as its paper writes it, with acos."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(nn.init.xavier_normal_(torch.empty(10, 16)))

    def forward(self, made: Tensor, batch: Batch) -> Tensor:
        cosine = F.normalize(made) @ F.normalize(self.centres).T
        angle = cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos() + 0.5 * F.one_hot(batch["y"], 10)
        return F.cross_entropy(64 * angle.clamp_max(math.pi).cos(), batch["y"])


def triplets(made: Tensor, batch: Batch) -> Tensor:
    """The hardest pairs of a batch, with a soft margin, sample by sample."""
    losses = []
    for i, (vector, label) in enumerate(zip(made, batch["y"])):
        alike = batch["y"] == label
        others, alike[i] = ~alike, False
        if alike.any() and others.any():
            far, near = (vector - made[alike]).norm(dim=1).max(), (vector - made[others]).norm(dim=1).min()
            losses.append((1 + (far - near).exp()).log())
    return torch.stack(losses).mean()


def recall(made: Tensor, batch: Batch) -> float:
    near = NearestNeighbors(n_neighbors=2, metric="cosine").fit(made).kneighbors(made, return_distance=False)[:, 1]
    return float((batch["y"][near] == batch["y"]).double().mean())


def corners(folder: Path) -> Given:
    goals.export(folder, ["corners"])
    images, places = goals.corners(400, np.random.default_rng(0))
    return of_images(folder / "corners.onnx", images, "keypoints", places)


def heatmaps(made: Tensor, batch: Batch) -> Tensor:
    grid = torch.arange(goals.SIDE) + 0.5
    x, y = (batch["y"][..., i, None] * goals.SIDE for i in (0, 1))
    peaks = (-((grid - y) ** 2)[..., :, None] / 2 - ((grid - x) ** 2)[..., None, :] / 2).exp()
    return F.mse_loss(made, peaks)


def keypoint_error(made: Tensor, batch: Batch) -> float:
    """The mean distance by the diagonal. A peak moves by 1/4 pixel to its higher neighbour (Xiao et al. 1804.06208)."""
    distances = []
    for maps, places in zip(made.numpy(), batch["y"].numpy()):
        for values, (x, y) in zip(maps, places):
            at = list(np.unravel_index(values.argmax(), values.shape))
            moved = [_quarter(values[at[0]], at[1]), _quarter(values[:, at[1]], at[0])]
            distances.append(math.dist(moved, (x * goals.SIDE, y * goals.SIDE)))
    return float(np.mean(distances)) / math.hypot(goals.SIDE, goals.SIDE)


def _quarter(values: Any, at: Any) -> float:
    inside = 0 < at < len(values) - 1
    return float(at + 0.5 + (0.25 * np.sign(values[at + 1] - values[at - 1]) if inside else 0))


def digits(folder: Path) -> Given:
    """Digits of 28x28, and the network of `samples/mnist` without training."""
    torch.manual_seed(0)
    mnist.export(mnist.Mnist(), folder / "mnist.onnx")
    found = load_digits()
    images = [Image.fromarray((image * 15.9).astype(np.uint8)).resize((28, 28)) for image in found.images[:700]]
    return of_images(folder / "mnist.onnx", np.stack([*map(np.asarray, images)]), "label", found.target[:700])


def page(folder: Path) -> Given:
    """The digits, and the loss that docs/TASKS.md shows, as a file that can be imported."""
    (block,) = (block for block in blocks(ROOT / "docs" / "TASKS.md") if block.file == "my_loss.py")
    (folder / block.file).write_text(block.text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    return digits(folder)


def focal(made: Tensor, batch: Batch) -> Tensor:
    nll = F.nll_loss(made, batch["y"], reduction="none")
    return ((1 - (-nll).exp()).square() * nll).mean()


def taught(folder: Path) -> Given:
    """The digits, and what a trained network says of them in onnxruntime."""
    given = digits(folder)
    given.train["said"] = torch.from_numpy(
        onnxruntime.InferenceSession(TEACHER).run(None, {"image": given.train["x"].numpy()})[0]
    )
    return given


def from_teacher(made: Tensor, batch: Batch) -> Tensor:
    soft, said = ((values / TEMPERATURE).log_softmax(1) for values in (made, batch["said"]))
    divergence = (said.exp() * (said - soft)).sum(1).mean() * TEMPERATURE**2
    return SHARE * divergence + (1 - SHARE) * F.nll_loss(made, batch["y"])


def right(made: Tensor, batch: Batch) -> float:
    return float(accuracy_score(batch["y"], made.argmax(1)))


def _plain(loss: Loss) -> Any:
    return lambda: loss


TEACHER = ROOT / "samples" / "mnist" / "mnist.onnx"
OWN = {"monitor": "val_right"}
ROWS: Sequence[Row] = (
    Row("lines", "ctc", "character_error", 20, 0.005, goals.Lines, lines, _plain(ctc), character_error),
    Row("vectors", "embedding", "recall_at_1", 4, 0.003, goals.Vectors, vectors, Arc, recall),
    Row(
        "triplets", "embedding", "recall_at_1", 4, 0.003, goals.Vectors, vectors, _plain(triplets), recall,
        {"loss": "triplet"}, batch=64,
    ),
    Row("corners", "keypoints", "keypoint_error", 15, 0.005, goals.Corners, corners, _plain(heatmaps), keypoint_error),
    Row("focal", "my_loss:focal", "right", 3, 0.002, mnist.Mnist, page, _plain(focal), right, OWN),
    Row(
        "teacher", "auto", "accuracy", 3, 0.002, mnist.Mnist, taught, _plain(from_teacher), right, {"teacher": TEACHER}
    ),
)  # fmt: skip
