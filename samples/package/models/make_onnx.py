"""A small convolutional network that reads scikit-learn's digits, trained and exported: how digits.onnx was made.

python samples/package/models/make_onnx.py      # about ten seconds on a CPU
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

TRAINED = 1300  # of the 1797 digits; the others tell how good the network is


class Digits(nn.Module):
    """[batch, 1, 8, 8] float32 from 0 to 1 -> scores [batch, 10] float32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def make(path: Path, steps: int = 1500) -> None:
    """Train on the first digits, say how many of the others are read right, and export."""
    torch.manual_seed(0)
    data = load_digits()
    images, labels = torch.from_numpy(data.images).float().unsqueeze(1) / 16, torch.from_numpy(data.target)
    model = Digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = torch.randint(TRAINED, (64,))
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()
    right = (model(images[TRAINED:]).argmax(1) == labels[TRAINED:]).float().mean()
    print(f"{right:.1%} of {len(labels) - TRAINED} digits read right")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            model.eval(),
            (images[:1],),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["images"],
            output_names=["scores"],
            dynamic_axes={"images": {0: "batch"}, "scores": {0: "batch"}},
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", default=Path(__file__).with_name("digits.onnx"))
    make(parser.parse_args().output)
