import torch
import torch.nn.functional as F
from torch import nn


def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class Model(nn.Module):
    def __init__(self, widths=(6, 12, 24), classes=2):
        super().__init__()
        self.down = nn.ModuleList(double(i, o) for i, o in zip((3, *widths), widths))
        self.up = nn.ModuleList(double(o + i, o) for o, i in zip(widths[-2::-1], widths[:0:-1]))
        self.classify = nn.Linear(widths[0], classes)

    def forward(self, image):
        x, skips = image, []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for block in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=tuple(skip.shape[-2:]), mode="bilinear", align_corners=False)
            x = block(torch.cat((skip, x), 1))
        return self.classify(x.movedim(1, -1)).movedim(-1, 1)
