from torch import nn


class DWConv(nn.Module):
    """1 x 1, then depthwise."""

    def __init__(self, i, o, act=False):
        super().__init__()
        self.point, self.depth = nn.Conv2d(i, o, 1), nn.Conv2d(o, o, 3, 1, 1, groups=o)
        self.act = nn.ReLU() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.depth(self.point(x)))


def upsampled(x):
    return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


class Head(nn.Module):
    """Of one level: what a face is like at each place."""

    def __init__(self, width):
        super().__init__()
        self.shared = DWConv(width, width, act=True)
        sizes = {"cls": 1, "obj": 1, "bbox": 4, "kps": 10}
        self.branches = nn.ModuleDict({name: DWConv(width, size) for name, size in sizes.items()})

    def forward(self, x):
        x = self.shared(x)
        out = {name: branch(x).permute(0, 2, 3, 1) for name, branch in self.branches.items()}
        out = {name: maps.reshape(maps.shape[0], -1, maps.shape[-1]) for name, maps in out.items()}
        for name in ("cls", "obj"):
            out[name] = out[name].sigmoid()
        return out


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), DWConv(16, 16, act=True), nn.MaxPool2d(2))
        widths = (16, 64, 64, 64, 64, 64)
        self.stages = nn.ModuleList(
            nn.Sequential(DWConv(i, i, act=True), DWConv(i, o, act=True)) for i, o in zip(widths, widths[1:])
        )
        self.pool = nn.MaxPool2d(2, 2)
        self.lateral = nn.ModuleList([DWConv(64, 64, act=True) for _ in range(3)])
        self.heads = nn.ModuleList([Head(64) for _ in range(3)])

    def forward(self, image):
        x = self.stages[1](self.stages[0](self.stem(image)))
        c3 = self.stages[2](self.pool(x))
        c4 = self.stages[3](self.pool(c3))
        c5 = self.stages[4](self.pool(c4))
        p5 = self.lateral[2](c5)
        p4 = self.lateral[1](c4 + upsampled(p5))
        p3 = self.lateral[0](c3 + upsampled(p4))
        found = [head(p) for head, p in zip(self.heads, (p3, p4, p5))]
        return tuple(level[name] for name in ("cls", "obj", "bbox", "kps") for level in found)
