import torch
import torch.nn.functional as F
from torch import nn


def norm_relu_conv(i, o, kernel):
    return nn.Sequential(nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, o, kernel, padding=kernel // 2, bias=False))


class DenseBlock(nn.Module):
    """Every layer sees all maps that were made before it."""

    def __init__(self, channels, depth, growth=4, wider=2):
        super().__init__()
        self.layers = nn.ModuleList()
        for number in range(depth):
            seen = channels + number * growth
            self.layers.append(
                nn.Sequential(norm_relu_conv(seen, wider * growth, 1), norm_relu_conv(wider * growth, growth, 3))
            )

    def forward(self, x):
        maps = [x]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, dim=1)))
        return torch.cat(maps, dim=1)


class Model(nn.Module):
    def __init__(self, channels=8, growth=4, depths=(2, 4, 3), classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        parts = []
        for number, depth in enumerate(depths):
            parts.append(DenseBlock(channels, depth, growth))
            channels += depth * growth
            if number < len(depths) - 1:
                parts += [norm_relu_conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
                channels //= 2
        self.parts = nn.Sequential(*parts)
        self.last, self.out = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, image):
        x = F.relu(self.last(self.parts(self.stem(image))), inplace=True)
        return self.out(x.mean([2, 3]))
