"""Train a small network on six of Fashion-MNIST's ten classes and export it: how fashion.onnx in this folder was made.

    python -m samples.fashion.make_onnx [--data FOLDER] [--epochs 3]

FOLDER holds the four idx files of Fashion-MNIST, gzipped or not. The network never sees the other four classes.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samples.common import DATA, check_data
from samples.mnist.make_onnx import accuracy, read_idx

HERE = Path(__file__).resolve().parent
NAMES = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
KNOWN = (1, 2, 3, 4, 5, 7)  # what fashion.onnx tells apart
MEAN, STD = 0.2860, 0.3530  # of the training images


class Fashion(nn.Module):
    """[batch, 1, 28, 28] float32, scaled -> scores [batch, 6] float32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.norm3 = nn.BatchNorm2d(64)
        self.fc1 = nn.Linear(64 * 7 * 7, 64)
        self.fc2 = nn.Linear(64, len(KNOWN))

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(image))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.relu(self.norm3(self.conv3(x)))
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def read(folder: Path, part: str, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Those images of a part ("train" or "t10k") that show one of some classes.

    Images float32 [n, 1, 28, 28], scaled; labels int64 [n], indices of `classes`.
    """
    images, labels = (read_idx(folder, f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    chosen = np.isin(labels, classes)
    scaled = (torch.from_numpy(images[chosen]).unsqueeze(1).float() / 255 - MEAN) / STD
    order = torch.full((len(NAMES),), -1)
    order[list(classes)] = torch.arange(len(classes))
    return scaled, order[torch.from_numpy(labels[chosen].astype(np.int64))]


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    steps = epochs * -(-len(images) // 128)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model.train()
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)


def export(model: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            model.eval(),
            (torch.zeros(1, 1, 28, 28),),
            path,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,  # else each BatchNorm is folded into its convolution
            input_names=["image"],
            output_names=["scores"],
            dynamic_axes={"image": {0: "batch"}, "scores": {0: "batch"}},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA / "fashion-mnist", help="folder with the idx files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "fashion.onnx")
    args = parser.parse_args()
    check_data(parser, args.data)

    torch.manual_seed(0)
    model = Fashion()
    train(model, *read(args.data, "train", KNOWN), args.epochs)
    print(f"test accuracy on its six classes {accuracy(model, *read(args.data, 't10k', KNOWN)):.2%}")
    export(model, args.output)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
