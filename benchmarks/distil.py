"""A small network that learns from a teacher, without any labels, beside the same network with them.

    python -m benchmarks.distil [--data FOLDER] [--images 3000] [--epochs 8] [--seeds 3] [--json FILE]

The teacher is trained with labels. The student has a quarter of its parameters. It is trained with all labels, with 100
of them, and without any by the teacher's outputs. All see the same images. `closed` is the part of the distance
between a student that knows less (untrained, or with 100 labels) and the one with all labels that the teacher closes.
FOLDER holds the idx files of MNIST or Fashion-MNIST.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import arguments, finish
from onnxgen.pipeline import generate
from onnxgen.training import fit, open_model, predict
from onnxgen.training.data.columns import open_idx
from samples.common import DATA
from tests.zoo.export import quiet

FEW = 100  # labels of the student that has few
TESTED = 4000
GOAL = 0.8
OPTIONS = {"batch_size": 64, "lr": 2e-3, "normalize": "none", "schedule": "OneCycleLR", "workers": 0, "show": "nothing"}

Images = tuple[Tensor, Tensor]


def net(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 2), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(72 * width, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    )  # fmt: skip


def export(network: nn.Module, path: Path) -> Path:
    axes = {"image": {0: "batch"}, "scores": {0: "batch"}}
    with quiet():
        torch.onnx.export(
            network.eval(), (torch.rand(2, 1, 28, 28),), path, dynamo=False, opset_version=17,
            input_names=["image"], output_names=["scores"], dynamic_axes=axes,
        )  # fmt: skip
    generate(path, path.with_suffix(".py"), force=True)
    return path.with_suffix(".py")


def read(folder: Path, part: str, count: int) -> Images:
    samples = open_idx(folder).parts[part]
    batch = samples.take(range(count), 0)
    return batch["image"][:, None].float() / 255, batch["label"]


def accuracy(model: nn.Module, images: Images) -> float:
    pixels, labels = images
    found = predict(model, {"image": pixels}, batch_size=500)
    assert isinstance(found, Tensor)
    return float((found.argmax(1) == labels).float().mean())


def trained(module: Path, data: dict[str, Tensor], test: Images, out: Path, **options: Any) -> float:
    """Return the accuracy of a fresh network after its training; the last one that it keeps is the best."""
    result = fit(module, data, from_scratch=True, out=out, **{**OPTIONS, **options})
    return accuracy(result.model, test)


def measured(folder: Path, images: Images, test: Images, seed: int, epochs: int) -> dict[str, float]:
    """Return accuracies for one seed."""
    torch.manual_seed(seed)
    pixels, labels = images
    teacher, student = export(net(16, 64), folder / "teacher.onnx"), export(net(8, 30), folder / "student.onnx")
    whole, rows = (
        {"image": pixels, "label": labels},
        torch.from_numpy(np.random.default_rng(seed).permutation(len(labels))),
    )
    some = {name: column[rows[:FEW]] for name, column in whole.items()}
    settings = {"seed": seed, "epochs": epochs}
    found = {"teacher": trained(teacher, whole, test, folder / "teacher", **settings)}
    found["labels"] = trained(student, whole, test, folder / "labels", **settings)
    # as many steps with few labels: the images come more often
    steps = {**settings, "epochs": epochs * 10, "batch_size": 16}
    found["100 labels"] = trained(student, some, test, folder / "few", **steps)
    found["untrained"] = accuracy(open_model(student, from_scratch=True), test)
    alone = {"image": pixels}
    found["no labels"] = trained(student, alone, test, folder / "taught", teacher=folder / "teacher", **settings)
    return found


def sizes(*modules: Path) -> list[int]:
    return [sum(p.numel() for p in open_model(module).parameters()) for module in modules]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, default=DATA / "fashion-mnist", help="folder with the four idx files")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    images, test = read(args.data, "train", args.images), read(args.data, "test", TESTED)
    rows: list[dict[str, Any]] = []
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found = measured(folder, images, test, seed, args.epochs)
            large, small = sizes(folder / "teacher.py", folder / "student.py")
        closed = {
            f"closed from {less}": (found["no labels"] - found[less]) / (found["labels"] - found[less])
            for less in ("untrained", "100 labels")
        }
        rows.append({"seed": seed, "parameters": f"{large:,} / {small:,}", **found, **closed})
    keys = [key for key in rows[0] if key not in ("seed", "parameters")]
    rows.append({"seed": "mean", "parameters": "", **{key: statistics.mean(r[key] for r in rows) for key in keys}})
    finish([{k: f"{v:.1%}" if isinstance(v, float) else v for k, v in row.items()} for row in rows], args.json)
    if min(row["closed from untrained"] for row in rows) < GOAL:
        raise SystemExit(f"the teacher closes less than {GOAL:.0%}")


if __name__ == "__main__":
    main()
