"""Drawn shapes, and a small detector with YOLOv8's head, exported untrained: the ONNX file to train.

python samples/detection/make_onnx.py shapes.onnx
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

SIDE, CLASSES, BINS = 64, ("circle", "square", "triangle"), 8
MOST = 3  # shapes of an image


class Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        layers = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)
        super().__init__(*layers, nn.SiLU())


class Detect(nn.Module):
    """YOLOv8's head: raw maps of distances and classes, and their decoding."""

    def __init__(self, channels: tuple[int, ...], strides: tuple[int, ...]) -> None:
        super().__init__()
        self.strides = strides
        self.box = nn.ModuleList(nn.Sequential(Conv(c, 32), nn.Conv2d(32, 4 * BINS, 1)) for c in channels)
        self.classes = nn.ModuleList(nn.Sequential(Conv(c, 32), nn.Conv2d(32, len(CLASSES), 1)) for c in channels)
        for layers in self.classes:
            layers[-1].bias.data.fill_(-4.0)  # few points have a shape

    def forward(self, features: list[Tensor]) -> Tensor:
        found = []
        for x, box, classes, stride in zip(features, self.box, self.classes, self.strides):
            height, width = x.shape[2:]
            row, column = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            middle = torch.stack((column, row)).reshape(2, -1) + 0.5
            bins = box(x).reshape(-1, 4, BINS, height * width).softmax(2)
            far = (bins * torch.arange(BINS).reshape(-1, 1)).sum(2)
            corners = torch.cat((middle - far[:, :2], middle + far[:, 2:]), 1) * stride
            found.append(torch.cat((corners, classes(x).flatten(2).sigmoid()), 1))
        return torch.cat(found, 2)


class Shapes(nn.Module):
    """[batch, 3, 64, 64] from 0 to 1 -> [batch, 4 + classes, points]: corners in pixels, and probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 16, stride=2), Conv(16, 32, stride=2), Conv(32, 32), Conv(32, 48, stride=2))
        self.fine, self.coarse = Conv(48, 48), nn.Sequential(Conv(48, 64, stride=2), Conv(64, 64))
        self.detect = Detect((48, 64), (8, 16))

    def forward(self, images: Tensor) -> Any:
        fine = self.fine(self.stem(images))
        return self.detect([fine, self.coarse(fine)])


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw images [count, 3, 64, 64], and boxes [count, 3, 5]: class and corners as shares, or -1."""
    drawn = np.random.default_rng(seed)
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    boxes = np.full((count, MOST, 5), -1, np.float32)
    for index in range(count):
        image = Image.new("RGB", (SIDE, SIDE), tuple(drawn.integers(0, 90, 3).tolist()))
        pen = ImageDraw.Draw(image)
        for row in range(drawn.integers(1, MOST + 1)):
            kind, (width, height) = int(drawn.integers(len(CLASSES))), drawn.integers(10, 30, 2)
            x, y = drawn.integers(0, SIDE - width), drawn.integers(0, SIDE - height)
            corners, colour = (x, y, x + width - 1, y + height - 1), tuple(drawn.integers(110, 256, 3).tolist())
            if kind == 2:
                pen.polygon([(x + width / 2, y), (x + width - 1, y + height - 1), (x, y + height - 1)], colour)
            else:
                (pen.ellipse if kind == 0 else pen.rectangle)(list(map(int, corners)), colour)
            boxes[index, row] = [kind, x / SIDE, y / SIDE, (x + width) / SIDE, (y + height) / SIDE]
        images[index] = np.asarray(image)
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(boxes)


def make(path: Path) -> None:
    """Export the untrained detector."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        axes = {"images": {0: "batch"}, "found": {0: "batch"}}
        images, names = torch.zeros(2, 3, SIDE, SIDE), {"input_names": ["images"], "output_names": ["found"]}
        torch.onnx.export(Shapes().eval(), (images,), path, dynamo=False, opset_version=17, dynamic_axes=axes, **names)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    make(parser.parse_args().out)
