import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.box, self.cls = nn.Conv2d(channels, 4, 1), nn.Conv2d(channels, classes, 1)

    def forward(self, maps):
        box, cls = self.box(maps), self.cls(maps)
        box = box.permute(0, 2, 3, 1).reshape(box.shape[0], -1, 4)
        return box, cls.permute(0, 2, 3, 1).flatten(1, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = nn.SiLU()
        self.levels = nn.ModuleList([nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)])
        self.head = Head(4, 3)

    def forward(self, x):
        boxes, scores = [], []
        for level in self.levels:
            x = self.activation(level(x))
            box, score = self.head(x)
            boxes.append(torch.exp(box))
            scores.append(torch.sigmoid(score))
        return torch.cat(boxes, dim=1), torch.cat(scores, dim=1)
