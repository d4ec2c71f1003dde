"""Small detectors whose heads are published ones: each kind of boxes, with the decoding in the graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.detectors import Detector
from tests.zoo.export import quiet

IMAGE = (32, 48)  # height and width


def export(net: nn.Module, path: Path, dynamo: bool = False, size: tuple[int, int] = IMAGE, free: bool = False) -> Path:
    """Write a detector as an ONNX file with a fixed size; `free`: with an open batch, height and width."""
    given: dict[str, Any] = {"external_data": False, "verbose": False} if dynamo else {}
    given |= {"dynamic_axes": {"images": {0: "batch", 2: "height", 3: "width"}}} if free else {}
    with quiet():
        torch.onnx.export(
            net.eval(),
            (torch.zeros(1, 3, *size),),
            path,
            dynamo=dynamo,
            opset_version=18 if dynamo else 13,
            input_names=["images"],
            output_names=None if getattr(net, "several", False) else ["output0"],
            **given,
        )
    return path


class Thin(nn.Module):
    """The head of one of `zoo.detectors` on two convolutions: quick to export."""

    def __init__(self, whole: Detector) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 16, 8, 8), nn.Conv2d(16, 32, 3, 2, 1)
        self.head = whole.model[-1]

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images).relu()
        found: Tensor = self.head([fine, self.coarse(fine).relu()])
        return found


class Small(nn.Module):
    """Two levels of features, with convolutions of `channels` each on both, and what `decode` makes of the maps."""

    def __init__(
        self,
        channels: tuple[int, ...],
        decode: Callable[[list[list[Tensor]]], Tensor | tuple[Tensor, ...]],
        several: bool = False,
    ) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 6, 8, 8), nn.Conv2d(6, 6, 3, 2, 1)
        self.heads = nn.ModuleList(nn.ModuleList(nn.Conv2d(6, count, 1) for count in channels) for _ in range(2))
        self.decode, self.several = decode, several

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, ...]:
        fine = self.fine(images).relu()
        features = (fine, self.coarse(fine).relu())
        return self.decode([[layer(x) for layer in layers] for layers, x in zip(self.heads, features)])


def cells(x: Tensor, offset: float = 0.0) -> Tensor:
    """Return [height * width, 2] with column and row."""
    row, column = torch.meshgrid(torch.arange(x.shape[2]), torch.arange(x.shape[3]), indexing="ij")
    return torch.stack((column, row), -1).reshape(-1, 2).float() + offset


def flat(x: Tensor, columns: int) -> Tensor:
    """Return [batch, points, columns], by row, column and anchor."""
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, columns)


def yolox(levels: list[list[Tensor]]) -> Tensor:
    """YOLOX with `decode_in_inference` (Ge et al., 2107.08430): columns are box, objectness and classes."""
    found = []
    for (box, objects, classes), stride in zip(levels, (8, 16)):
        raw = flat(box, 4)
        middle, size = (raw[..., :2] + cells(box)) * stride, raw[..., 2:].exp() * stride
        rest = torch.cat((flat(objects, 1), flat(classes, classes.shape[1])), -1).sigmoid()
        found.append(torch.cat((middle, size, rest), -1))
    return torch.cat(found, 1)


YOLOV3_ANCHORS = (((6.0, 9.0), (16.0, 12.0)), ((24.0, 30.0), (40.0, 28.0)))


def yolov3(levels: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """YOLOv3, the coarse level first: boxes as shares, and probabilities times that of the object."""
    boxes, scores = [], []
    for (x,), stride, anchors in list(zip(levels, (8, 16), YOLOV3_ANCHORS))[::-1]:
        raw = x.reshape(x.shape[0], 2, -1, x.shape[2] * x.shape[3]).permute(0, 1, 3, 2)  # anchors first
        middle = (raw[..., :2].sigmoid() + cells(x)) * stride
        size = raw[..., 2:4].exp() * torch.tensor(anchors)[:, None]
        shares = torch.tensor([IMAGE[1], IMAGE[0]])
        box = torch.cat(((middle - size / 2) / shares, (middle + size / 2) / shares), -1)
        boxes.append(box.flatten(1, 2))
        scores.append((raw[..., 5:].sigmoid() * raw[..., 4:5].sigmoid()).flatten(1, 2))
    return torch.cat(boxes, 1), torch.cat(scores, 1)


SSD_SIZES = ((8.0, 12.0), (20.0, 30.0, 14.0))


def ssd(levels: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """SSD (Liu et al., 1512.02325) with three anchors: variances of 0.1 and 0.2, and a background beside 2 classes."""
    boxes, scores = [], []
    for (box, classes), stride in zip(levels, (8, 16)):
        count = box.shape[1] // 4
        size = torch.tensor([8.0, 12.0, 20.0][:count]) * stride / 8
        size = torch.stack((size, size / 2), -1).repeat(box.shape[2] * box.shape[3], 1)
        middle = (cells(box, 0.5) * stride).repeat_interleave(count, 0)
        raw = flat(box, 4)
        place, size = middle + raw[..., :2] * 0.1 * size, (raw[..., 2:] * 0.2).exp() * size
        boxes.append(torch.cat((place - size / 2, size), -1))  # the corner, and the size
        scores.append(flat(classes, 3))
    return torch.cat(boxes, 1), torch.cat(scores, 1).softmax(-1)


def fcos(levels: list[list[Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """FCOS (Tian et al., 1904.01355): exponentials of distances, classes, and the centerness."""
    boxes, scores, centres = [], [], []
    for (box, classes, centre), stride in zip(levels, (8, 16)):
        far = flat(box, 4).exp() * stride
        middle = cells(box, 0.5) * stride
        boxes.append(torch.cat((middle - far[..., :2], middle + far[..., 2:]), -1))
        scores.append(flat(classes, classes.shape[1]).sigmoid())
        centres.append(flat(centre, 1).sigmoid())
    return torch.cat(boxes, 1), torch.cat(scores, 1), torch.cat(centres, 1)


def separate(levels: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """YuNet's outputs: nothing is decoded, and each level has outputs of its own."""
    found = [[flat(part, part.shape[1]) for part in level] for level in levels]
    return *[f[0] for f in found], *[f[1].sigmoid() for f in found], *[f[2].sigmoid() for f in found]


def nothing_known(levels: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """Boxes of anchors that the file does not name."""
    boxes, classes = zip(*levels)
    return torch.cat([flat(x, 4) for x in boxes], 1), torch.cat([flat(x, 3) for x in classes], 1).softmax(-1)
