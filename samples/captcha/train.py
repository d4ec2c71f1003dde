"""A captcha reader: ResNet-18 from an untrained ONNX file, trained on captchas that are drawn here, and written back.

    python -m samples.captcha.train [--out FOLDER] [--count 8000] [--epochs 12]

Ends with a table of accuracies on captchas that were never trained on, and a plot of those of every epoch.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import lightning
import numpy as np
import torch
from torch import Tensor

from onnxgen.training import Result, fit, open_model
from samples.captcha.draw import CHARACTERS, LENGTH, cached
from samples.captcha.make_onnx import export
from samples.common import markdown, onnxgen, run_onnx, run_torch

MEAN, STD = 0.5, 0.5  # that pictures are scaled with
Part = dict[str, np.ndarray]


def data(count: int, seed: int, folder: Path) -> dict[str, Part]:
    """Captchas for training, and an eighth as many for validation and for the test: drawn with seeds of their own.

    "captcha" uint8 [n, 3, 56, 24], the columns of the picture first; "target" float32 [n, 4 * 36], of each character
    a 1 where it stands in `CHARACTERS`.
    """
    parts = {}
    for number, (name, size) in enumerate((("train", count), ("val", count // 8), ("test", count // 8))):
        pictures, answers = cached(size, 3 * seed + number, folder / f"{name}.npz")
        target = np.eye(len(CHARACTERS), dtype=np.float32)[answers].reshape(size, -1)
        parts[name] = {"captcha": np.ascontiguousarray(pictures.transpose(0, 3, 2, 1)), "target": target}
    return parts


def scaled(pictures: np.ndarray) -> np.ndarray:
    """As the network takes them: float32, white 1 and black -1."""
    return (pictures.astype(np.float32) / 255 - MEAN) / STD


def read(scores: Tensor) -> Tensor:
    """The characters, int64 [n, 4], that scores or targets [n, 4 * 36] are highest at."""
    return scores.view(-1, LENGTH, len(CHARACTERS)).argmax(2)


def accuracies(scores: Tensor, target: Tensor) -> tuple[float, float]:
    """The share of characters that are read rightly, and of whole captchas."""
    right = read(scores) == read(target)
    return right.float().mean().item(), right.all(1).float().mean().item()


class Reading(lightning.Callback):
    """Measures with each validation what the loss does not tell, by `accuracies`."""

    def __init__(self, part: Part) -> None:
        self.pictures, self.target = torch.from_numpy(scaled(part["captcha"])), torch.from_numpy(part["target"])

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        model, device = pl_module.model, pl_module.device
        scores = torch.cat([model(x.to(device)).float().cpu() for x in self.pictures.split(500)])
        for name, value in zip(("character", "captcha"), accuracies(scores, self.target), strict=True):
            pl_module.log(f"val_{name}_accuracy", value)


def plot(result: Result, path: Path) -> None:
    """The accuracies of each epoch as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="epoch", ylabel="validation accuracy", ylim=(0, 1))
    for name in ("character", "captcha"):
        axes.plot([row[f"val_{name}_accuracy"] for row in result.history], label=f"{name}s")
    axes.axvline(result.best_epoch, color="gray", linestyle=":", label="best")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=8000, help="captchas to train on")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/captcha"))
    args = parser.parse_args()
    shutil.rmtree(args.out / "run", ignore_errors=True)
    args.out.mkdir(parents=True, exist_ok=True)

    onnx, model, trained = (args.out / name for name in ("captcha.onnx", "model.py", "trained.onnx"))
    export(onnx)
    onnxgen(onnx, "-o", model)
    parts = data(args.count, args.seed, args.out)
    result = fit(
        open_model(model, from_scratch=True),
        parts,
        loss="bce_with_logits",
        normalize=f"{MEAN},{STD}",
        optimizer="adam",
        lr=1e-3,
        schedule="OneCycleLR",
        epochs=args.epochs,
        early_stop=20,
        monitor="val_character_accuracy",
        seed=args.seed,
        out=args.out / "run",
        callbacks=[Reading(parts["val"])],
    )
    weights = args.out / "run" / "best.safetensors"
    onnxgen("export", model, "--onnx", onnx, "--weights", weights, "-o", trained)
    plot(result, args.out / "accuracy.png")

    rows = []
    for name, part in (("validation", parts["val"]), ("test", parts["test"])):
        pictures, target = scaled(part["captcha"]), torch.from_numpy(part["target"])
        for engine, scores in (
            ("PyTorch", run_torch(model, weights, pictures)),
            ("onnxruntime", run_onnx(trained, pictures)),
        ):
            found = accuracies(torch.from_numpy(scores), target)
            rows.append((f"{name}, {engine}", *(f"{share:.1%}" for share in found)))
    print(f"\n{markdown(('captchas', 'characters', 'whole captchas'), rows)}")
    print(f"\nbest epoch {result.best_epoch + 1} of {len(result.history)}; {args.out / 'accuracy.png'}")


if __name__ == "__main__":
    main()
