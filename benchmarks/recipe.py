"""`--recipe fine-tune` against the defaults, on six small data sets: test accuracy after the same number of epochs.

    python -m benchmarks.recipe [--others | --norms] [--seeds 3] [--first-seed 0] [--epochs 10] [--shared FOLDER]

A small network is trained on one task with many samples, gets a new head, and is tuned on another task with few. Both
ways begin with the same weights and the same head, train on the same samples, and keep their best weights. A row has
the mean over the seeds (of the samples that are drawn, the head and the run), and the deviation of the differences.
The recipe was chosen on these six. `--others` takes six more.
`--norms` compares frozen BatchNorms with trained ones in batches of several sizes, on the first three.
MNIST and Fashion-MNIST are read from FOLDER/data (default: $ONNXGEN_SHARED); without it, their four rows are left out.
"""

from __future__ import annotations

import copy
import gzip
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from onnxgen.training import fit

Samples = tuple[Tensor, Tensor]
Task = tuple[Samples, Samples]  # many samples to learn from, and those of the task that it is tuned on
Tasks = dict[str, tuple[Callable[[], Task], int]]
MANY, TESTED = 6000, 2000


class Convolutions(nn.Module):
    """Three blocks and a linear head, for gray images."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        sizes = ((1, 8), (8, 16), (16, 32))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in sizes
        )
        self.head = nn.Linear(32 * 9, classes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(x.flatten(1))
        return found


class Perceptron(nn.Module):
    """Three hidden layers and a linear head, for rows of numbers."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, 32) for a in (features, 32, 32))
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        found: Tensor = self.head(x)
        return found


def images(name: str, shared: Path) -> Samples:
    """The training images of MNIST or Fashion-MNIST."""

    def read(kind: str) -> np.ndarray:
        content = gzip.decompress((shared / "data" / name / f"train-{kind}.gz").read_bytes())
        axes = content[3]
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(np.frombuffer(content, ">i4", axes, 4))

    x = torch.from_numpy(read("images-idx3-ubyte").copy())[:, None].float() / 255
    return (x - x.mean()) / x.std(), torch.from_numpy(read("labels-idx1-ubyte").copy()).long()


def digits() -> Samples:
    """Scikit-learn's digits, as large as those of MNIST."""
    found = load_digits()
    x = F.interpolate(torch.from_numpy(found.images)[:, None].float() / 16, 28, mode="bilinear")
    return (x - x.mean()) / x.std(), torch.from_numpy(found.target).long()


def cancer() -> Task:
    """Twenty measurements of cells; first the size of the largest of them in four classes, then the diagnosis."""
    found = load_breast_cancer()
    x = torch.from_numpy(found.data).float()
    size = torch.bucketize(x[:, 20].contiguous(), x[:, 20].quantile(torch.tensor([0.25, 0.5, 0.75])))
    x = ((x - x.mean(0)) / x.std(0))[:, :20]
    return (x, size), (x, torch.from_numpy(found.target).long())


def diabetes() -> Task:
    """Measurements of patients: first the quarter of their blood pressure, then the third of the disease's progress."""
    found = load_diabetes(scaled=False)
    x, progress = (torch.from_numpy(part).float() for part in (found.data, found.target))
    quarter = torch.bucketize(x[:, 3].contiguous(), x[:, 3].quantile(torch.tensor([0.25, 0.5, 0.75])))
    third = torch.bucketize(progress, progress.quantile(torch.tensor([1 / 3, 2 / 3])))
    x = (x - x.mean(0)) / x.std(0)
    return (x[:, [0, 1, 2, *range(4, 10)]], quarter), (x[:, [0, 1, 2, *range(4, 10)]], third)


def drawn(seed: int = 1) -> Task:
    """Points, and two kinds of classes that depend on the same hidden features."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    x = random(MANY + 4000, 16)
    hidden = torch.tanh(torch.tanh(x @ random(16, 12) / 3) @ random(12, 8))
    kinds = [(hidden @ random(8, classes)).argmax(1) for classes in (8, 4)]
    return (x[:MANY], kinds[0][:MANY]), (x[MANY:], kinds[1][MANY:])


def only(samples: Samples, least: int) -> Samples:
    """Five classes of ten."""
    x, y = samples
    chosen = (y >= least) & (y < least + 5)
    return x[chosen], y[chosen] - least


def tasks(shared: Path) -> Tasks:
    """How to make each task, and how many samples it is tuned on."""
    found: Tasks = {}
    if (shared / "data" / "mnist").is_dir():
        mnist, fashion = images("mnist", shared), images("fashion-mnist", shared)
        found |= {
            "MNIST to digits": (lambda: (mnist, digits()), 200),
            "Fashion-MNIST to MNIST": (lambda: (fashion, mnist), 300),
            "MNIST to Fashion-MNIST": (lambda: (mnist, fashion), 300),
            "MNIST 0-4 to 5-9": (lambda: (only(mnist, 0), only(mnist, 5)), 200),
        }
    return found | {"cells: size to diagnosis": (cancer, 150), "drawn: 8 to 4 classes": (drawn, 300)}


def others(shared: Path) -> Tasks:
    """Tasks on which nothing was chosen."""
    found: Tasks = {}
    if (shared / "data" / "mnist").is_dir():
        mnist, fashion = images("mnist", shared), images("fashion-mnist", shared)
        found |= {
            "Fashion-MNIST to digits": (lambda: (fashion, digits()), 150),
            "Fashion-MNIST 0-4 to 5-9": (lambda: (only(fashion, 0), only(fashion, 5)), 200),
            "MNIST 5-9 to 0-4": (lambda: (only(mnist, 5), only(mnist, 0)), 100),
            "MNIST to mirrored MNIST": (lambda: (mnist, (mnist[0].flip(3), mnist[1])), 400),
        }
    return found | {
        "patients: pressure to progress": (diabetes, 150),
        "drawn: 4 to 8 classes": (lambda: drawn(7)[::-1], 500),
    }


def learned(samples: Samples) -> nn.Module:
    """A network trained on many samples."""
    torch.manual_seed(0)
    x, y = samples[0][:MANY], samples[1][:MANY]
    classes = int(y.max()) + 1
    model = Convolutions(classes) if x.ndim == 4 else Perceptron(x.shape[1], classes)
    with tempfile.TemporaryDirectory() as folder:
        fit(model, {"train": (x, y)}, epochs=5, val=0.0, out=Path(folder) / "run", device="cpu", show="nothing")
    return model


def tuned(model: nn.Module, samples: Samples, count: int, seed: int, **given: Any) -> float:
    """The test accuracy of a copy that was tuned on `count` samples."""
    order = torch.randperm(len(samples[0]), generator=torch.Generator().manual_seed(seed))
    train, test = order[:count], order[count : count + TESTED]
    parts = {name: (samples[0][chosen], samples[1][chosen]) for name, chosen in (("train", train), ("test", test))}
    model = copy.deepcopy(model)
    torch.manual_seed(seed)
    model.head = nn.Linear(model.head.in_features, int(samples[1].max()) + 1)
    with tempfile.TemporaryDirectory() as folder:
        result = fit(model, parts, seed=seed, out=Path(folder) / "run", device="cpu", show="nothing", **given)
    assert result.test is not None
    return 100 * result.test["test_accuracy"]


def measure(name: str, task: Task, count: int, seeds: range, epochs: int) -> dict[str, Any]:
    first, second = task
    model = learned(first)
    defaults = [tuned(model, second, count, seed, epochs=epochs) for seed in seeds]
    recipe = [tuned(model, second, count, seed, epochs=epochs, recipe="fine-tune") for seed in seeds]
    differences = [a - b for a, b in zip(recipe, defaults, strict=True)]
    gained = statistics.mean(differences)
    return {
        "task": name,
        "samples": count,
        "defaults %": f"{statistics.mean(defaults):.1f}",
        "recipe %": f"{statistics.mean(recipe):.1f}",
        "difference": f"{gained:+.1f}",
        "+-": f"{statistics.stdev(differences):.1f}" if len(seeds) > 1 else "",
        "": "ok" if gained >= 0 else "WORSE",
    }


def norms(found: Tasks, seeds: range) -> list[dict[str, Any]]:
    """Frozen and trained BatchNorms: means over the tasks of images and the seeds, for each size of a batch."""
    pairs = [made() for made, _ in list(found.values())[:3]]
    models = [learned(first) for first, _ in pairs]
    frozen = [name for name, module in models[0].named_modules() if isinstance(module, nn.BatchNorm2d)]
    rows = []
    for batch in (2, 4, 8, 16, 64):
        given = {"epochs": 4, "recipe": "fine-tune", "lr": 1e-3, "batch_size": batch}
        scores = {
            how: statistics.mean(
                tuned(model, second, 512, seed, freeze=paths, **given)
                for model, (_, second) in zip(models, pairs)
                for seed in seeds
            )
            for how, paths in (("frozen %", frozen), ("trained %", []))
        }
        rows.append({"batch": batch, **{how: f"{score:.1f}" for how, score in scores.items()}})
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--others", action="store_true", help="six other tasks")
    parser.add_argument("--norms", action="store_true", help="frozen and trained BatchNorms (MNIST and Fashion-MNIST)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the seed of the first run (default: 0)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs of both (default: 10)")
    parser.add_argument("--shared", type=Path, default=Path(os.environ.get("ONNXGEN_SHARED", "shared")))
    asked = parser.parse_args()
    found = (others if asked.others else tasks)(asked.shared)
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    if asked.norms:
        return finish(norms(found, seeds), asked.json)
    finish([measure(name, made(), n, seeds, asked.epochs) for name, (made, n) in found.items()], asked.json)


if __name__ == "__main__":
    main()
