import torch
import torch.nn.functional as F
from torch import nn


class ConvBN(nn.Module):
    def __init__(self, i, o, kernel, stride=1, groups=1, act=None):
        super().__init__()
        self.conv = nn.Conv2d(i, o, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(o)
        self.act = act

    def forward(self, x):
        x = self.bn(self.conv(x))
        if self.act == "relu":
            return F.relu(x)
        if self.act == "hardswish":
            return x * F.relu6(x + 3.0) / 6.0
        return x


class SE(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.down = nn.Linear(channels, channels // reduction)
        self.up = nn.Linear(channels // reduction, channels)

    def forward(self, x):
        gate = self.up(F.relu(self.down(x.mean(dim=(2, 3)))))
        gate = torch.clamp(0.2 * gate + 0.5, 0, 1)
        return gate[:, :, None, None] * x


class Unit(nn.Module):
    def __init__(self, i, mid, o, kernel, se, act, stride):
        super().__init__()
        self.shortcut = stride == 1 and i == o
        self.expand = ConvBN(i, mid, 1, act=act)
        self.depth = ConvBN(mid, mid, kernel, stride, groups=mid, act=act)
        self.se = SE(mid) if se else None
        self.linear = ConvBN(mid, o, 1)

    def forward(self, x):
        y = self.depth(self.expand(x))
        y = self.linear(y if self.se is None else self.se(y))
        return y + x if self.shortcut else y


SMALL = [  # kernel, expanded, channels, squeezes, activation, stride
    (3, 8, 8, True, "relu", (2, 1)),
    (3, 24, 8, False, "relu", (2, 1)),
    (3, 32, 8, False, "relu", 1),
    (5, 32, 16, True, "hardswish", (2, 1)),
    (5, 88, 16, True, "hardswish", 1),
    (5, 88, 16, True, "hardswish", 1),
    (5, 40, 16, True, "hardswish", 1),
    (5, 48, 16, True, "hardswish", 1),
    (5, 104, 32, True, "hardswish", (2, 1)),
    (5, 200, 32, True, "hardswish", 1),
    (5, 200, 32, True, "hardswish", 1),
]


class Model(nn.Module):
    """Which way up a line of text is."""

    def __init__(self):
        super().__init__()
        self.stem = ConvBN(3, 8, 3, 2, act="hardswish")
        units, channels = [], 8
        for kernel, mid, out, se, act, stride in SMALL:
            units.append(Unit(channels, mid, out, kernel, se, act, stride))
            channels = out
        self.units = nn.Sequential(*units)
        self.last = ConvBN(channels, 200, 1, act="hardswish")
        self.head = nn.Linear(200, 2)

    def forward(self, line):
        x = self.last(self.units(self.stem(line)))
        x = F.max_pool2d(x, [min(2, size) for size in x.shape[2:]], stride=2)
        return self.head(x.mean((-2, -1))).softmax(dim=1)
