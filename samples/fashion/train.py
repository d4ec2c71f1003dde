"""Fine-tune a network of six classes to ten, from few images, and train the same network from scratch on them.

    python -m samples.fashion.train [--data FOLDER] [--images 50] [--seeds 5]

Both trainings see the same images equally often, and are tested on all 10,000 test images.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.training import fit, freeze, open_model, predict, replace_head
from samples.common import DATA, check_data, markdown, onnxgen
from samples.fashion.make_onnx import HERE, KNOWN, NAMES, read

CLASSES = tuple(range(len(NAMES)))
Images = tuple[Tensor, Tensor]
BUDGET = {"epochs": 20, "batch_size": 32, "normalize": "none", "schedule": "OneCycleLR"}
SCRATCH = {"lr": 3e-3}
TUNED = {"lr": 1e-3, "head_lr": 10.0}


def few(images: Images, each: int, seed: int) -> dict[str, Images]:
    """`each` images of every class, a fifth of them for validation."""
    pixels, labels = images
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    picked = [order[labels[order] == c][:each] for c in CLASSES]
    held = max(1, each // 5)
    parts = {"train": torch.cat([p[held:] for p in picked]), "val": torch.cat([p[:held] for p in picked])}
    return {name: (pixels[part], labels[part]) for name, part in parts.items()}


def from_scratch(model: Path) -> nn.Module:
    """The architecture as PyTorch initialises it, with ten classes."""
    return replace_head(open_model(model, from_scratch=True), len(CLASSES), init="default")


def pretrained(model: Path) -> nn.Module:
    """The trained network with ten classes, of which it keeps its six; the first two layers are held still."""
    tuned = replace_head(open_model(model), len(CLASSES), keep={c: i for i, c in enumerate(KNOWN)})
    freeze(tuned, "conv1", "norm1", "conv2", "norm2")
    return tuned


def accuracies(model: nn.Module, images: Images) -> tuple[float, float]:
    """On all ten classes, and on the four that are new."""
    pixels, labels = images
    right = predict(model, (pixels,), normalize="none", batch_size=500).argmax(1) == labels
    new = ~torch.isin(labels, torch.tensor(KNOWN))
    return right.float().mean().item(), right[new].float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA / "fashion-mnist", help="folder with the four idx files")
    parser.add_argument("--images", type=int, default=50, help="images of each class, a fifth of them for validation")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=BUDGET["epochs"])
    parser.add_argument("--out", type=Path, default=Path("runs/fashion"))
    args = parser.parse_args()
    check_data(parser, args.data)
    args.out.mkdir(parents=True, exist_ok=True)

    model = args.out / "model.py"
    onnxgen(HERE / "fashion.onnx", "-o", model)
    whole, test = read(args.data, "train", CLASSES), read(args.data, "t10k", CLASSES)
    roads = {"from scratch": (from_scratch, SCRATCH), "fine-tuned": (pretrained, TUNED)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in roads}
    for seed in range(args.seeds):
        parts = few(whole, args.images, seed)
        for name, (start, settings) in roads.items():
            torch.manual_seed(seed)
            out = args.out / f"{name.replace(' ', '-')}-{seed}"
            shutil.rmtree(out, ignore_errors=True)
            budget = BUDGET | {"epochs": args.epochs, "seed": seed, "out": out} | settings
            result = fit(start(model), parts, show="nothing", **budget)
            found[name].append(accuracies(result.model, test))
            print(f"seed {seed}, {name}: test accuracy {found[name][-1][0]:.2%}", flush=True)

    rows = []
    for name, results in found.items():
        (mean, new), whole_set = np.mean(results, 0), [a for a, _ in results]
        rows.append((name, f"{mean:.1%}", f"{min(whole_set):.1%} to {max(whole_set):.1%}", f"{new:.1%}"))
    header = (f"{args.images} images a class", "test accuracy", "of the seeds", "of the new classes")
    print(f"\n{markdown(header, rows)}")


if __name__ == "__main__":
    main()
