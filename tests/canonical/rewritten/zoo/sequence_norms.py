import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, *shape, eps=1e-5, affine=True):
        super().__init__()
        self.axes, self.eps = [-n - 1 for n in range(len(shape))], eps
        self.scale = nn.Parameter(torch.ones(shape)) if affine else None
        self.offset = nn.Parameter(torch.zeros(shape)) if affine else None

    def forward(self, x):
        mean = x.mean(self.axes, keepdim=True)
        mean_of_squares = (x**2).mean(self.axes, keepdim=True)
        x = (x - mean) / (mean_of_squares - mean**2 + self.eps).sqrt()
        return x if self.scale is None else torch.addcmul(self.offset, x, self.scale)


class Model(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = Norm(width), Norm(width, affine=False), Norm(3, 4, eps=1e-3)
        self.fc1, self.fc2, self.fc3 = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.slope = nn.Parameter(torch.tensor([0.25]))

    def forward(self, x):
        x = torch.selu(self.fc1(self.norm1(x)))
        x = self.fc2(self.norm2(x))
        x = F.relu(x) - self.slope * F.relu(-x)
        b, n, c = x.shape
        x = self.norm3(x.view(b, n, 3, 4)).view(b, n, c)
        x = self.fc3(x)
        return x / x.norm(p=2, dim=-1, keepdim=True).clamp(min=1e-12)
