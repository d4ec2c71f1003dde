import torch
from torch import nn


class ConvBnRelu(nn.Sequential):
    def __init__(self, i, o, norm=None, **options):
        super().__init__(nn.Conv2d(i, o, 3, **options), norm or nn.BatchNorm2d(o), nn.ReLU(True))


class Model(nn.Module):
    def __init__(self, classes=10, p=0.4):
        super().__init__()
        self.features = nn.Sequential(
            ConvBnRelu(3, 8, padding=1, bias=False),
            ConvBnRelu(8, 16, nn.BatchNorm2d(16, eps=1e-3, momentum=0.03), stride=2),
        )
        self.pool = nn.MaxPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Linear(144, 24), nn.ReLU(), nn.Dropout(p), nn.Linear(24, classes))

    def forward(self, x):
        x = self.pool(self.features(x))
        return self.classifier(torch.flatten(x, 1)).log_softmax(1)
