import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, channels=8, dilations=(1, 2, 4)):
        super().__init__()
        self.stem = nn.Conv1d(2, channels, 5, 2, 2)
        self.dilations = dilations
        self.kernels = nn.ParameterList([torch.randn(channels, channels, 3) for _ in dilations])
        self.biases = nn.ParameterList([torch.zeros(channels) for _ in dilations])
        self.head = nn.Linear(channels, 5)

    def forward(self, wave):
        x = self.stem(wave)
        x = torch.maximum(x, torch.zeros_like(x)) + 0.2 * torch.minimum(x, torch.zeros_like(x))
        for dilation, kernel, bias in zip(self.dilations, self.kernels, self.biases):
            x += torch.tanh(F.conv1d(x, kernel, bias, padding=dilation, dilation=dilation))
        frames = F.avg_pool1d(x, 3, 2, 1)
        return self.head(frames.sum(-1) / frames.shape[-1])
