"""Convolutional networks: one to three dimensions, transposed, grouped, with BatchNorm and Dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SmallCNN(nn.Module):
    """The classic image classifier."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.03, eps=1e-3)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(0.4)
        self.fc1 = nn.Linear(16 * 3 * 3, 24)
        self.fc2 = nn.Linear(24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        x = torch.flatten(x, 1)
        x = self.dropout(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=-1)


class AudioCNN(nn.Module):
    """One dimension, dilated, with average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(2, 8, 5, stride=2, padding=2), nn.BatchNorm1d(8), nn.LeakyReLU(0.2))
        self.dilated = nn.ModuleList(nn.Conv1d(8, 8, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.pool = nn.AvgPool1d(3, stride=2, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, waveform: Tensor) -> Tensor:
        x = self.stem(waveform)
        for conv in self.dilated:
            x = x + torch.tanh(conv(x))
        return self.head(self.pool(x).mean(dim=2))


class VideoCNN(nn.Module):
    """Three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(1, 4, (3, 3, 3), padding=1)
        self.bn1 = nn.BatchNorm3d(4)
        self.pool = nn.MaxPool3d((1, 2, 2))
        self.drop = nn.Dropout3d(0.1)
        self.conv2 = nn.Conv3d(4, 6, 3)
        self.global_pool = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(6, 3)

    def forward(self, clip: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(clip))))
        x = self.global_pool(F.elu(self.conv2(self.drop(x))))
        return self.fc(x.flatten(1))


class DepthwiseSeparable(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.bn1(self.depthwise(x)))
        return F.relu6(self.bn2(self.pointwise(x)))


class MobileNet(nn.Module):
    """Depthwise and grouped convolutions, a squeeze-and-excite gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(
            DepthwiseSeparable(8, 12, 2), DepthwiseSeparable(12, 16), DepthwiseSeparable(16, 16)
        )
        self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.squeeze = nn.Conv2d(16, 4, 1)
        self.excite = nn.Conv2d(4, 16, 1)
        self.classifier = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.grouped(self.blocks(self.stem(x))), -2.0, 2.0)
        gate = F.adaptive_avg_pool2d(x, 1)
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(gate))))
        return self.classifier(x.mean((2, 3)))


class Decoder(nn.Module):
    """A generator: transposed convolutions in two dimensions, then one in one dimension over the rows."""

    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.project = nn.Linear(latent, 12 * 4 * 4)
        self.up1 = nn.ConvTranspose2d(12, 8, 4, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.up2 = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.out = nn.ConvTranspose1d(4 * 16, 6, 3, stride=2, dilation=2)

    def forward(self, z: Tensor) -> Tensor:
        x = F.relu(self.project(z)).view(-1, 12, 4, 4)
        x = F.relu(self.up2(F.relu(self.bn1(self.up1(x)))))
        return torch.tanh(self.out(x.flatten(1, 2)))
