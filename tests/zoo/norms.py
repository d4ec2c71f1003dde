"""Normalisations and activations with parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ChannelLayerNorm(nn.Module):
    """Normalises over the channels of [batch, channels, height, width], as ConvNeXt does."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class ImageNorms(nn.Module):
    """[batch, 3, height, width] -> [batch, 8, height, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.group_norm = nn.GroupNorm(4, 8)
        self.prelu = nn.PReLU(8, init=0.1)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.instance_norm = nn.InstanceNorm2d(8, affine=True)
        self.plain_norm = nn.InstanceNorm2d(8)
        self.channel_norm = ChannelLayerNorm(8)
        self.gamma = nn.Parameter(torch.full((8, 1, 1), 0.5))

    def forward(self, image: Tensor) -> Tensor:
        x = self.prelu(self.group_norm(self.conv1(image)))
        x = x + self.gamma * F.hardswish(self.instance_norm(self.conv2(x)))
        return self.channel_norm(self.plain_norm(x))


class SequenceNorms(nn.Module):
    """[batch, length, 12] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(12)
        self.fc1 = nn.Linear(12, 12)
        self.norm2 = nn.LayerNorm(12, elementwise_affine=False)
        self.fc2 = nn.Linear(12, 12)
        self.norm3 = nn.LayerNorm((3, 4), eps=1e-3)
        self.weight_norm = nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))
        self.prelu = nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = F.selu(self.fc1(self.norm1(x)))
        x = self.prelu(self.fc2(self.norm2(x)))
        x = self.norm3(x.reshape(x.shape[0], -1, 3, 4)).flatten(2)
        return F.normalize(self.weight_norm(x), dim=-1)


class BatchNorms(nn.Module):
    """BatchNorm where nothing can be folded into it, without affine, and in one dimension over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.bn_input = nn.BatchNorm1d(6, affine=False)
        self.conv = nn.Conv1d(6, 8, 3, padding=1)
        self.bn = nn.BatchNorm1d(8, momentum=0.2)
        self.fc = nn.Linear(8, 4)
        self.bn_output = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(self.bn_input(x)))
        return self.bn_output(self.fc(self.bn(x).amax(dim=2)))
