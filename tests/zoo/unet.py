"""U-Nets: skips by concatenation, three ways of going up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DoubleConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.double_conv(x)


class Up(nn.Module):
    """Twice as large, then joined with the skip; `mode` is "transpose", "nearest" or "bilinear"."""

    def __init__(self, inputs: int, skip: int, outputs: int, mode: str) -> None:
        super().__init__()
        self.mode = mode
        if mode == "transpose":
            self.up = nn.ConvTranspose2d(inputs, inputs, 2, stride=2)
        self.conv = DoubleConv(inputs + skip, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        if self.mode == "transpose":
            x = self.up(x)
        elif self.mode == "nearest":
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        else:
            x = F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)
        return self.conv(torch.cat([skip, x], dim=1))


class UNet(nn.Module):
    """[batch, 3, height, width] -> [batch, classes, height, width], sides a multiple of 4."""

    def __init__(self, mode: str = "transpose", width: int = 6, classes: int = 2) -> None:
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.down1 = DoubleConv(width, width * 2)
        self.down2 = DoubleConv(width * 2, width * 4)
        self.pool = nn.MaxPool2d(2)
        self.up1 = Up(width * 4, width * 2, width * 2, mode)
        self.up2 = Up(width * 2, width, width, mode)
        self.outc = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        x1 = self.inc(image)
        x2 = self.down1(self.pool(x1))
        x3 = self.down2(self.pool(x2))
        x = self.up2(self.up1(x3, x2), x1)
        return self.outc(x)
