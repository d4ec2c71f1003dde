"""YOLOv5, YOLOv8, YOLOv10 and YOLO11, laid out as their published code has them, narrow and with few layers.

They are no entries of the zoo: `tests/heads` reads their heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001, momentum=0.03)
        self.act = nn.SiLU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels, 3)
        self.cv2 = Conv(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.cv2(self.cv1(x))


class C2f(nn.Module):
    def __init__(self, inputs: int, outputs: int, inner: type[nn.Module] = Bottleneck) -> None:
        super().__init__()
        self.c = outputs // 2
        self.cv1 = Conv(inputs, 2 * self.c)
        self.cv2 = Conv(3 * self.c, outputs)
        self.m = nn.ModuleList([inner(self.c)])

    def forward(self, x: Tensor) -> Tensor:
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class C3(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        c = outputs // 2
        self.cv1, self.cv2, self.cv3 = Conv(inputs, c), Conv(inputs, c), Conv(2 * c, outputs)
        self.m = nn.Sequential(Bottleneck(c))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels // 2), Conv(channels * 2, channels)
        self.m = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        y1 = self.m(x)
        y2 = self.m(y1)
        return self.cv2(torch.cat((x, y1, y2, self.m(y2)), 1))


class Attention(nn.Module):
    """The attention of YOLO11's C2PSA."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, dim // heads
        self.key_dim = self.head_dim // 2
        self.scale = self.key_dim**-0.5
        self.qkv = Conv(dim, dim + self.key_dim * heads * 2, act=False)
        self.proj = Conv(dim, dim, act=False)
        self.pe = Conv(dim, dim, 3, groups=dim, act=False)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(x).view(b, self.num_heads, self.key_dim * 2 + self.head_dim, h * w)
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.head_dim], dim=2)
        attn = (q.transpose(-2, -1) @ k) * self.scale
        x = (v @ attn.softmax(dim=-1).transpose(-2, -1)).view(b, c, h, w) + self.pe(v.reshape(b, c, h, w))
        return self.proj(x)


class PSABlock(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.attn = Attention(c)
        self.ffn = nn.Sequential(Conv(c, c * 2), Conv(c * 2, c, act=False))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x)
        return x + self.ffn(x)


class DFL(nn.Module):
    def __init__(self, c1: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c1, 1, 1, bias=False).requires_grad_(False)
        self.conv.weight.data[:] = nn.Parameter(torch.arange(c1, dtype=torch.float).view(1, c1, 1, 1))
        self.c1 = c1

    def forward(self, x: Tensor) -> Tensor:
        b, _, a = x.shape
        return self.conv(x.view(b, 4, self.c1, a).transpose(2, 1).softmax(1)).view(b, 4, a)


def make_anchors(feats: Sequence[Tensor], strides: Tensor, grid_cell_offset: float = 0.5) -> tuple[Tensor, Tensor]:
    anchor_points, stride_tensor = [], []
    for i, stride in enumerate(strides):
        _, _, h, w = feats[i].shape
        sx = torch.arange(end=w, dtype=feats[0].dtype) + grid_cell_offset
        sy = torch.arange(end=h, dtype=feats[0].dtype) + grid_cell_offset
        sy, sx = torch.meshgrid(sy, sx, indexing="ij")
        anchor_points.append(torch.stack((sx, sy), -1).view(-1, 2))
        stride_tensor.append(torch.full((h * w, 1), stride.item(), dtype=feats[0].dtype))
    return torch.cat(anchor_points), torch.cat(stride_tensor)


def dist2bbox(distance: Tensor, anchor_points: Tensor, xywh: bool = True, dim: int = -1) -> Tensor:
    lt, rb = distance.chunk(2, dim)
    x1y1, x2y2 = anchor_points - lt, anchor_points + rb
    return torch.cat(((x1y1 + x2y2) / 2, x2y2 - x1y1) if xywh else (x1y1, x2y2), dim)


class Detect(nn.Module):
    """The head of YOLOv8 and its successors. `light`: depthwise convolutions for the classes, as in YOLO11 and 12."""

    def __init__(self, nc: int, ch: Sequence[int], strides: Sequence[int], reg_max: int = 16, light: bool = False):
        super().__init__()
        self.nc, self.nl, self.reg_max, self.no = nc, len(ch), reg_max, nc + reg_max * 4
        self.stride = torch.tensor([float(s) for s in strides])
        c2, c3 = max(8, ch[0] // 4), max(ch[0], min(nc, 100))
        self.cv2 = nn.ModuleList(
            nn.Sequential(Conv(x, c2, 3), Conv(c2, c2, 3), nn.Conv2d(c2, 4 * reg_max, 1)) for x in ch
        )
        self.cv3 = nn.ModuleList(
            (
                nn.Sequential(
                    nn.Sequential(Conv(x, x, 3, groups=x), Conv(x, c3)),
                    nn.Sequential(Conv(c3, c3, 3, groups=c3), Conv(c3, c3)),
                    nn.Conv2d(c3, nc, 1),
                )
                if light
                else nn.Sequential(Conv(x, c3, 3), Conv(c3, c3, 3), nn.Conv2d(c3, nc, 1))
            )
            for x in ch
        )
        self.dfl = DFL(reg_max) if reg_max > 1 else nn.Identity()
        for box, classes, stride in zip(self.cv2, self.cv3, strides):  # as published: bias_init
            box[-1].bias.data[:] = 1.0
            classes[-1].bias.data[:] = math.log(5 / nc / (64 / stride) ** 2)

    def forward(self, x: list[Tensor]) -> Tensor:
        return self.decode([torch.cat((cv2(f), cv3(f)), 1) for cv2, cv3, f in zip(self.cv2, self.cv3, x)])

    def decode(self, x: list[Tensor], xywh: bool = True) -> Tensor:
        shape = x[0].shape
        x_cat = torch.cat([xi.view(shape[0], self.no, -1) for xi in x], 2)
        anchors, strides = (t.transpose(0, 1) for t in make_anchors(x, self.stride))
        box, cls = x_cat.split((self.reg_max * 4, self.nc), 1)
        dbox = dist2bbox(self.dfl(box), anchors.unsqueeze(0), xywh=xywh, dim=1) * strides
        return torch.cat((dbox, cls.sigmoid()), 1)


class V10Detect(Detect):
    """The head of YOLOv10: the exported network ends in the best boxes, without suppression."""

    max_det = 20

    def forward(self, x: list[Tensor]) -> Tensor:
        maps = [torch.cat((cv2(f), cv3(f)), 1) for cv2, cv3, f in zip(self.cv2, self.cv3, x)]
        boxes, scores = self.decode(maps, xywh=False).permute(0, 2, 1).split([4, self.nc], -1)
        index = scores.amax(dim=-1).topk(self.max_det)[1].unsqueeze(-1)
        boxes = boxes.gather(dim=1, index=index.repeat(1, 1, 4))
        scores = scores.gather(dim=1, index=index.repeat(1, 1, self.nc))
        scores, index = scores.flatten(1).topk(self.max_det)
        boxes = boxes.gather(dim=1, index=(index // self.nc).unsqueeze(-1).repeat(1, 1, 4))
        return torch.cat([boxes, scores[..., None], (index % self.nc)[..., None].float()], dim=-1)


class V5Detect(nn.Module):
    """The head of YOLOv5, whose grids are made where they are needed."""

    def __init__(self, nc: int, anchors: Sequence[Sequence[int]], ch: Sequence[int], strides: Sequence[int]) -> None:
        super().__init__()
        self.nc, self.no, self.nl, self.na = nc, nc + 5, len(anchors), len(anchors[0]) // 2
        self.stride = torch.tensor([float(s) for s in strides])
        scaled = torch.tensor(anchors).float().view(self.nl, -1, 2) / self.stride.view(-1, 1, 1)
        self.register_buffer("anchors", scaled)
        self.m = nn.ModuleList(nn.Conv2d(x, self.no * self.na, 1) for x in ch)

    def forward(self, x: list[Tensor]) -> Tensor:
        z = []
        for i in range(self.nl):
            y = self.m[i](x[i])
            bs, _, ny, nx = y.shape
            y = y.view(bs, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
            grid, anchor_grid = self._make_grid(nx, ny, i)
            xy, wh, conf = y.sigmoid().split((2, 2, self.nc + 1), 4)
            xy = (xy * 2 + grid) * self.stride[i]
            wh = (wh * 2) ** 2 * anchor_grid
            z.append(torch.cat((xy, wh, conf), 4).view(bs, self.na * nx * ny, self.no))
        return torch.cat(z, 1)

    def _make_grid(self, nx: int, ny: int, i: int) -> tuple[Tensor, Tensor]:
        anchors: Any = self.anchors
        shape = 1, self.na, ny, nx, 2
        yv, xv = torch.meshgrid(torch.arange(ny).float(), torch.arange(nx).float(), indexing="ij")
        grid = torch.stack((xv, yv), 2).expand(shape) - 0.5
        return grid, (anchors[i] * self.stride[i]).view((1, self.na, 1, 1, 2)).expand(shape)


class Detector(nn.Module):
    """[batch, 3, height, width] -> what the head makes. `model` is numbered as in the published networks."""

    def __init__(self, head: nn.Module, block: type[nn.Module] = C2f, attention: bool = False, width: int = 8) -> None:
        super().__init__()
        c1, c2, c3 = width, 2 * width, 4 * width
        last: nn.Module = C2f(c3, c3, PSABlock) if attention else SPPF(c3)
        layers = [Conv(3, c1, 3, 2), Conv(c1, c1, 3, 2), block(c1, c1), Conv(c1, c2, 3, 2), block(c2, c2)]
        layers += [Conv(c2, c3, 3, 2), last, nn.Upsample(scale_factor=2), block(c2 + c3, c2)]
        layers += [Conv(c2, c2, 3, 2), block(c2 + c3, c3), head]
        self.model = nn.ModuleList(layers)

    def forward(self, images: Tensor) -> Tensor:
        m = self.model
        x = m[2](m[1](m[0](images)))
        fine = m[4](m[3](x))
        coarse = m[6](m[5](fine))
        fine = m[8](torch.cat((m[7](coarse), fine), 1))
        coarse = m[10](torch.cat((m[9](fine), coarse), 1))
        return m[11]([fine, coarse])


CHANNELS, STRIDES = (16, 32), (8, 16)


def yolov8(classes: int = 3) -> Detector:
    return Detector(Detect(classes, CHANNELS, STRIDES))


def yolo11(classes: int = 3) -> Detector:
    return Detector(Detect(classes, CHANNELS, STRIDES, light=True), attention=True)


def yolov10(classes: int = 3) -> Detector:
    return Detector(V10Detect(classes, CHANNELS, STRIDES))


def yolov5(classes: int = 3) -> Detector:
    anchors = ((10, 13, 16, 30, 33, 23), (30, 61, 62, 45, 59, 119))
    return Detector(V5Detect(classes, anchors, CHANNELS, STRIDES), C3)
