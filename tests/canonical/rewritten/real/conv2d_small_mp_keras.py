import torch
from torch import nn

ALPHA, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def selu(x):
    return SCALE * torch.where(x > 0, x, ALPHA * (torch.exp(x) - 1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 5, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(5, eps=1e-6, momentum=0.01)
        self.body = nn.Conv2d(5, 2, 5, stride=2, padding=2)
        self.dense = nn.ModuleList([nn.Linear(18, 10), nn.Linear(10, 5)])

    def forward(self, image):
        x = image.view(image.size(0), 1, image.size(1), image.size(2))
        x = self.norm(selu(self.stem(x)))
        x = nn.functional.max_pool2d(selu(self.body(x)), 2, 2)
        x = torch.einsum("bchw->bhwc", x).flatten(1)
        first, second = self.dense
        return torch.softmax(second(selu(first(x))), dim=-1)
