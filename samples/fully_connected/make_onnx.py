"""Write the fully connected network as an ONNX file, untrained.

python -m samples.fully_connected.make_onnx [--output FILE]
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FullyConnected(nn.Module):
    """[batch, 1, 28, 28] float32 -> scores [batch, 10] float32."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(784, 512)
        self.fc2 = nn.Linear(512, 256)
        self.fc3 = nn.Linear(256, 128)
        self.fc4 = nn.Linear(128, 64)
        self.fc5 = nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = image.flatten(1)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        x = F.relu(self.fc4(x))
        return self.fc5(x)


def export(path: Path) -> None:
    """Write the network with PyTorch's initial values."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            FullyConnected().eval(),
            (torch.zeros(1, 1, 28, 28),),
            path,
            dynamo=False,
            opset_version=17,
            input_names=["image"],
            output_names=["scores"],
            dynamic_axes={"image": {0: "batch"}, "scores": {0: "batch"}},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("fully_connected.onnx"))
    path = parser.parse_args().output
    export(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
