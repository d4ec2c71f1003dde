"""Trains the samples of `--task` with onnxgen, and their originals with a loop by hand: python -m benchmarks.tasks

Prints a table: the metric of the validation part after the last epoch, for each seed.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn
from torchmetrics.text import CharErrorRate

from onnxgen import generate
from onnxgen.training import fit
from samples.tasks import goals
from samples.tasks.goals import INPUTS

SEEDS = (0, 1, 2)
# task, epochs, learning rate, metric
GIVEN = {
    "lines": ("ctc", 20, 0.005, "character_error"),
    "vectors": ("embedding", 10, 0.003, "recall_at_1"),
    "corners": ("keypoints", 30, 0.005, "keypoint_error"),
}
Loss = Callable[[Tensor, Tensor], Tensor]


def data(name: str) -> tuple[Tensor, Any]:
    """Return float images [n, 1, H, W], normalised, and targets; the last fifth is for validation."""
    rng = np.random.default_rng(0)
    if name == "vectors":
        found = load_digits()
        images, target = found.images, found.target
    else:
        images, target = goals.lines(1200, rng) if name == "lines" else goals.corners(400, rng)
    x = torch.from_numpy(images).float()[:, None]
    return (x - x.mean()) / x.std(), target


class Arc(nn.Module):
    """ArcFace as its paper writes it, with acos."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(nn.init.xavier_normal_(torch.empty(10, 16)))

    def forward(self, vectors: Tensor, labels: Tensor) -> Tensor:
        cosine = F.normalize(vectors) @ F.normalize(self.centres).T
        angle = cosine.clamp(-1 + 1e-6, 1 - 1e-6).acos() + 0.5 * F.one_hot(labels, 10)
        return F.cross_entropy(64 * angle.clamp_max(math.pi).cos(), labels)


def ctc(scores: Tensor, target: Tensor) -> Tensor:
    steps = torch.full((len(target),), len(scores))
    return F.ctc_loss(scores.log_softmax(2), target, steps, (target > 0).sum(1))


def maps(places: Tensor) -> Tensor:
    grid = torch.arange(24) + 0.5
    x, y = (places[..., i, None] * 24 for i in (0, 1))
    return (-((grid - y) ** 2)[..., :, None] / 2 - ((grid - x) ** 2)[..., None, :] / 2).exp()


def by_hand(name: str, seed: int) -> float:
    _, epochs, rate, _ = GIVEN[name]
    torch.manual_seed(0)
    network = INPUTS[name][0]()
    torch.manual_seed(seed)
    x, given = data(name)
    cut = len(x) * 4 // 5
    target, loss = prepared(name, given)
    own = [*loss.parameters()] if isinstance(loss, nn.Module) else []
    optimizer = torch.optim.AdamW([*network.parameters(), *own], rate)
    for _ in range(epochs):
        for rows in torch.randperm(cut).split(64):
            optimizer.zero_grad()
            loss(network(x[rows]), target[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        return measured(name, network(x[cut:]), given[cut:])


def prepared(name: str, given: Any) -> tuple[Tensor, Loss]:
    if name == "lines":
        rows = [[int(c) + 1 for c in text] + [0] * (4 - len(text)) for text in given]
        return torch.tensor(rows), ctc
    if name == "vectors":
        return torch.from_numpy(given).long(), Arc()
    return maps(torch.from_numpy(given)), F.mse_loss


def measured(name: str, made: Tensor, given: Any) -> float:
    if name == "lines":
        best = made.argmax(2).T
        texts = ["".join(str(i - 1) for i in torch.unique_consecutive(row).tolist() if i) for row in best]
        return CharErrorRate()(texts, given.tolist()).item()
    if name == "vectors":
        near = NearestNeighbors(n_neighbors=2, metric="cosine").fit(made).kneighbors(made, return_distance=False)[:, 1]
        return float((given[near] == given).mean())
    peak = made.flatten(2).argmax(2)
    places = torch.stack([peak % 24, peak // 24], 2) / 24 + 0.5 / 24
    return ((places - torch.from_numpy(given)).norm(dim=2) / math.sqrt(2)).mean().item()


def by_onnxgen(name: str, seed: int, folder: Path) -> float:
    task, epochs, rate, metric = GIVEN[name]
    x, given = data(name)
    cut = len(x) * 4 // 5
    column = "keypoints" if name == "corners" else "text" if name == "lines" else "label"
    parts = {
        p: {"image": x[s].numpy(), column: given[s]} for p, s in (("train", slice(cut)), ("val", slice(cut, None)))
    }
    result = fit(
        folder / f"{name}.py", parts, task=task, epochs=epochs, lr=rate, seed=seed, workers=0, device="cpu",
        normalize="none", show="nothing", out=folder / f"{name}{seed}",
    )  # fmt: skip
    return result.history[-1][f"val_{metric}"]


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    goals.export(folder)
    print("| task | metric | onnxgen | s | by hand | s |\n|---|---|---|---|---|---|", flush=True)
    for name in sys.argv[1:] or GIVEN:
        generate(folder / f"{name}.onnx", folder / f"{name}.py")
        cells = []
        for train in (
            lambda seed, name=name: by_onnxgen(name, seed, folder),
            lambda seed, name=name: by_hand(name, seed),
        ):
            begun = time.process_time()
            found = [train(seed) for seed in SEEDS]
            cells += [", ".join(f"{v:.3f}" for v in found), f"{(time.process_time() - begun) / len(SEEDS):.0f}"]
        print(f"| {GIVEN[name][0]} ({name}) | {GIVEN[name][3]} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
