import torch
import torch.nn.functional as F
from torch import nn


class LayerNorm2d(nn.Module):
    """Over the channels of maps."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).square().mean(1, keepdim=True)
        x = (x - mean) * (variance + 1e-6).rsqrt()
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class Block(nn.Module):
    """All of it on maps: its linear layers are convolutions of 1 x 1."""

    def __init__(self, width):
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, 1, 3, groups=width)
        self.norm = LayerNorm2d(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.layer_scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x):
        y = self.norm(self.spatial(x))
        y = F.conv2d(y, self.up.weight[:, :, None, None], self.up.bias)
        y = F.conv2d(F.gelu(y), self.down.weight[:, :, None, None], self.down.bias)
        return x + self.layer_scale.view(1, -1, 1, 1) * y


class Model(nn.Module):
    def __init__(self, depths=(2, 2, 3, 2), widths=(8, 12, 16, 20), classes=10):
        super().__init__()
        layers = [nn.Conv2d(3, widths[0], 4, 4), LayerNorm2d(widths[0])]
        for number, (depth, width) in enumerate(zip(depths, widths)):
            if number:
                layers += [LayerNorm2d(widths[number - 1]), nn.Conv2d(widths[number - 1], width, 2, 2)]
            layers += [Block(width) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(widths[-1], eps=1e-6), nn.Linear(widths[-1], classes)

    def forward(self, image):
        return self.head(self.norm(F.adaptive_avg_pool2d(self.features(image), 1)[..., 0, 0]))
