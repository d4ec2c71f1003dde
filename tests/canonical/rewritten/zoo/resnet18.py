import torch
from torch import nn


class ConvNorm(nn.Sequential):
    def __init__(self, i, o, kernel, stride=1):
        super().__init__(nn.Conv2d(i, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o))


class Basic(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.first, self.second = ConvNorm(i, o, 3, stride), ConvNorm(o, o, 3)
        self.project = ConvNorm(i, o, 1, stride) if (i, stride) != (o, 1) else None

    def forward(self, x):
        y = torch.relu_(self.first(x))
        y = self.second(y)
        y += self.project(x) if self.project is not None else x
        return torch.relu_(y)


class Model(nn.Module):
    def __init__(self, width=4, depths=(2, 2, 2, 2), classes=10):
        super().__init__()
        self.stem = ConvNorm(3, width, 7, 2)
        self.pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        stages, channels = [], width
        for number, depth in enumerate(depths):
            out = width << number
            blocks = [Basic(channels if n == 0 else out, out, 2 if number and n == 0 else 1) for n in range(depth)]
            stages.append(nn.Sequential(*blocks))
            channels = out
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(channels, classes))

    def forward(self, image):
        return self.head(self.stages(self.pool(self.stem(image).relu())))
