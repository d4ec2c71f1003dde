"""Write ResNet-18, untrained, as an ONNX file that reads captchas of four characters.

python -m samples.captcha.make_onnx [--output FILE]
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samples.captcha.draw import CHARACTERS, HEIGHT, LENGTH, WIDTH


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut (He et al., Deep Residual Learning for Image Recognition, figure 5 left)."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + skip)


class ResNet18(nn.Module):
    """[batch, 3, 56, 24] float32 -> logits [batch, 144] float32, 36 for each of four characters."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        two, four, eight = 2 * width, 4 * width, 8 * width
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(width, width), BasicBlock(width, width))
        self.layer2 = nn.Sequential(BasicBlock(width, two, 2), BasicBlock(two, two))
        self.layer3 = nn.Sequential(BasicBlock(two, four, 2), BasicBlock(four, four))
        self.layer4 = nn.Sequential(BasicBlock(four, eight, 2), BasicBlock(eight, eight))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(eight, LENGTH * len(CHARACTERS))

    def forward(self, captcha: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(captcha))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def export(path: Path, width: int = 64) -> None:
    """Write the network with PyTorch's initial values."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            ResNet18(width).eval(),
            (torch.zeros(1, 3, WIDTH, HEIGHT),),
            path,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,  # else each BatchNorm is folded into its convolution
            input_names=["captcha"],
            output_names=["logits"],
            dynamic_axes={"captcha": {0: "batch"}, "logits": {0: "batch"}},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("captcha.onnx"))
    path = parser.parse_args().output
    export(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
