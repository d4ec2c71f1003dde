import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, code=5, channels=8):
        super().__init__()
        self.channels = channels
        self.project = nn.Linear(code, channels * 2 * 2)
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(channels, channels // 2, kernel_size=4, stride=2, padding=1),
            nn.LeakyReLU(negative_slope=0.2),
            nn.ConvTranspose2d(channels // 2, 1, kernel_size=4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, code):
        maps = torch.matmul(code, self.project.weight.t()) + self.project.bias
        return self.layers(maps.unflatten(1, (self.channels, 2, 2)))
