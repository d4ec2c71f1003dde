import torch
from torch import nn


class ResBlock(nn.Module):
    def __init__(self, width, scale=0.1):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.scale = scale

    def forward(self, x):
        return torch.add(x, self.conv2(self.conv1(x).relu()), alpha=self.scale)


class Model(nn.Module):
    """EDSR, with the shuffle of its pixels written out."""

    def __init__(self, width=6, depth=5, factor=2):
        super().__init__()
        self.factor = factor
        self.shallow = nn.Conv2d(3, width, 3, 1, 1)
        self.deep = nn.Sequential(*[ResBlock(width) for _ in range(depth)], nn.Conv2d(width, width, 3, 1, 1))
        self.expand = nn.Conv2d(width, 3 * factor**2, 3, 1, 1)

    def forward(self, image):
        x = self.shallow(image)
        x = self.expand(x + self.deep(x))
        b, c, h, w = x.shape
        r = self.factor
        x = x.view(b, c // r**2, r, r, h, w).permute(0, 1, 4, 2, 5, 3)
        return x.reshape(b, c // r**2, h * r, w * r)
