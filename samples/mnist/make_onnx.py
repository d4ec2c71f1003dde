"""Train the sample network on MNIST and export it: how mnist.onnx in this folder was made.

    python samples/mnist/make_onnx.py [--data FOLDER] [--epochs 3]

FOLDER holds the four idx files of MNIST, gzipped or not. The digits in digits/ are the first test images of six
different classes that the network had not seen in training.
"""

from __future__ import annotations

import argparse
import gzip
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[2] / "shared" / "data" / "mnist"
MEAN, STD = 0.1307, 0.3081  # of the training images; recognise.py scales alike


class Mnist(nn.Module):
    """[batch, 1, 28, 28] float32, scaled -> log-probabilities [batch, 10] float32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.conv3 = nn.Conv2d(16, 24, 3)
        self.norm1 = nn.BatchNorm2d(24)
        self.fc1 = nn.Linear(24 * 22 * 22, 32)
        self.dropout = nn.Dropout(0.3)
        self.fc2 = nn.Linear(32, 10)
        self.norm2 = nn.BatchNorm1d(10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        x = self.norm1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout(x)
        x = self.fc2(x)
        x = self.norm2(x)
        return F.log_softmax(x, dim=1)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """One idx file (or its .gz) as a uint8 array; the format: http://yann.lecun.com/exdb/mnist."""
    plain = folder / name
    data = plain.read_bytes() if plain.exists() else gzip.decompress(plain.with_name(name + ".gz").read_bytes())
    rank = data[3]
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def scale(images: np.ndarray) -> Tensor:
    """uint8 [n, 28, 28] -> float32 [n, 1, 28, 28] with the training set's mean and deviation taken out."""
    return (torch.from_numpy(images.copy()).unsqueeze(1).float() / 255 - MEAN) / STD


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    steps = epochs * len(images) // 128 + epochs
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    model.train()
    for epoch in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            loss = F.nll_loss(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = sum(
        (model(x).argmax(1) == y).sum().item() for x, y in zip(images.split(1000), labels.split(1000), strict=True)
    )
    return right / len(images)


def keep_dropout(g: torch.Graph, x: torch.Value, ratio: torch.Value, train: torch.Value) -> torch.Value:
    """Write Dropout with training_mode false, the identity at inference: the exporter would leave it out altogether,
    and whoever fine-tunes the file would train another network than this one."""
    return g.op("Dropout", x, g.op("Cast", ratio, to_i=1), g.op("Constant", value_t=torch.tensor(False)))


def export(model: nn.Module, path: Path) -> None:
    torch.onnx.register_custom_op_symbolic("aten::dropout", keep_dropout, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            model.eval(),
            (torch.zeros(1, 1, 28, 28),),
            path,
            dynamo=False,
            opset_version=16,
            input_names=["image"],
            output_names=["log_probabilities"],
            dynamic_axes={"image": {0: "batch"}, "log_probabilities": {0: "batch"}},
        )


def write_png(path: Path, image: np.ndarray) -> None:
    """An 8-bit grayscale PNG, without a library for it (PNG specification, sections 5 and 11)."""
    height, width = image.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in image)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with MNIST's idx files (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--output", type=Path, default=HERE / "mnist.onnx")
    args = parser.parse_args()
    if not list(args.data.glob("train-images-idx3-ubyte*")):
        parser.error(f"no MNIST in {args.data}: give its folder with --data")

    torch.manual_seed(0)
    model = Mnist()
    train_labels, test_labels = (
        torch.from_numpy(read_idx(args.data, f"{part}-labels-idx1-ubyte").astype(np.int64))
        for part in ("train", "t10k")
    )
    test_images = read_idx(args.data, "t10k-images-idx3-ubyte")
    train(model, scale(read_idx(args.data, "train-images-idx3-ubyte")), train_labels, args.epochs)
    print(f"test accuracy {accuracy(model, scale(test_images), test_labels):.2%}")
    export(model, args.output)
    for digit in (0, 2, 3, 4, 7, 9):
        first = int((test_labels == digit).nonzero()[0, 0])
        write_png(HERE / "digits" / f"{digit}.png", test_images[first])
    print(f"wrote {args.output} and six digits")


if __name__ == "__main__":
    main()
