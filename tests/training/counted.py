"""Networks whose targets are partly ignored, and their trainings: python -m tests.training.counted TASK OUT

The loss of a step is the mean over everything in it that counts. The oracle is a loop with one large batch a step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.training import fit
from tests.training.distributed_run import End

GIVEN: dict[str, Any] = {
    "optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "epochs": 2, "val": 0.0, "batch_size": 4, "device": "cpu",
    "workers": 0, "show": "nothing",
}  # fmt: skip
COUNT = 18  # samples: steps of two batches of 4 and 4, and one of a single batch of 2


class Words(nn.Module):
    """Scores of 7 classes for each word [n, 7, words], or of the next word [n, words, 7]."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.embed, self.fc, self.last = nn.Embedding(7, 5), nn.Linear(5, 7), last

    def forward(self, ids: Tensor) -> Tensor:
        made = self.fc(self.embed(ids).tanh())
        return made if self.last else made.transpose(1, 2)


def made(task: str) -> tuple[nn.Module, dict[str, Tensor], dict[str, Any]]:
    """Return a network, its data, and what a run needs to know."""
    torch.manual_seed(0)
    if task == "pixels":
        network: nn.Module = nn.Conv2d(2, 3, 1)
        x = torch.randn(COUNT, 2, 4, 5)
        y, column = (x[:, 0] + 1.5).long().clamp(0, 2), "y"
    else:
        network = Words(task == "tokens")
        x = torch.randint(0, 7, (COUNT, 6))
        y, column = (x, "labels") if task == "tokens" else ((x * 3 + 1) % 7, "y")
    y = y.clone()
    for row in range(COUNT):  # of some samples nearly all is ignored
        y[row].view(-1)[2 + (row * 5) % (y[row].numel() - 3) :] = -100
    data = {"ids" if task != "pixels" else "x": x, column: y}
    return network, data, {"task": "language-model"} if task == "tokens" else {}


def loss(task: str, network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean over all that counts in a batch, by torch alone."""
    (x, y) = batch.values()
    scores = network(x)
    if task == "tokens":
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), y[:, 1:].flatten())
    return F.cross_entropy(scores, y)


def train(task: str, out: Path, *callbacks: Any, **given: Any) -> None:
    network, data, more = made(task)
    fit(network, data, callbacks=[End(out), *callbacks], out=out, **(GIVEN | more | given))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(sys.argv[1], Path(sys.argv[2]), accumulate=2)
