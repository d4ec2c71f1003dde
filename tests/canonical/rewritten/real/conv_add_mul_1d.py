import torch
from torch import nn


class Affine(nn.Module):
    """Scales and shifts channels, once each with and without the axis of the batch."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.ParameterList([torch.ones(1, channels, 1), torch.ones(channels, 1)])
        self.shift = nn.ParameterList([torch.zeros(1, channels, 1), torch.zeros(channels, 1)])

    def forward(self, x):
        for gain in self.gain:
            x = x * gain
        return x * -0.14273734 + (self.shift[0] + self.shift[1])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, 3))
        self.bias = nn.Parameter(torch.zeros(16))
        self.affine = Affine(16)

    def forward(self, x):
        y = torch.conv1d(x, self.weight, padding=1) + self.bias.view(1, -1, 1)
        return self.affine(y).reshape(x.size(0), -1)
