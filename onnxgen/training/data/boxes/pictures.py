"""Images with boxes, from what a reader found in label files; corners are checked.

Boxes are of the upright picture, as viewers and labelling tools show it. A file that EXIF turns is
turned when it is decoded, and its boxes are not. So do Detectron2 (`read_image` and
`check_image_size` in `data/detection_utils.py`) and Ultralytics (`exif_size` in `data/utils.py`).
If the labels tell the picture's size, it must be that of the upright picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import IMAGE, Images
from onnxgen.training.data.letterbox import INNER, WHOLE, Placing
from onnxgen.training.data.looking import Seen, looked_at
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.tasks import task_for

BOXES = "boxes"
WIDTH = 5  # class index, x1, y1, x2, y2


@dataclass(frozen=True)
class Box:
    """A box of a label file: where it stands there, its class index, and x1, y1, x2, y2 as the file has them."""

    where: str
    label: int
    corners: tuple[float, ...]


@dataclass
class Picture:
    """An image and its boxes.

    Attributes:
        where: the place of its labels, for messages.
        size: width and height as the labels tell them; None if they don't.
        sound: False if a fault was found; the image is skipped.
    """

    path: Path
    where: str
    boxes: list[Box] = field(default_factory=list)
    size: tuple[float, float] | None = None
    sound: bool = True


@dataclass(frozen=True)
class Boxes:
    """A column of boxes: float32 [n, most, 5] of class index and corners x1, y1, x2, y2 as shares of 0 to 1.

    Rows of -1 fill up to the most boxes of any image. Of images that keep their proportions, corners are shares of the
    whole frame.

    Attributes:
        sizes: height and width of each image in its file.
        inner: of images that keep their proportions, where each lies in the frame: float32 [n, 4], corners as shares.
    """

    stored: Tensor
    sizes: tuple[tuple[int, int], ...]
    inner: Tensor | None = None
    dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.stored.shape)

    @property
    def beside(self) -> Mapping[str, Tensor]:
        return {} if self.inner is None else {INNER: self.inner}

    def index_select(self, axis: int, which: Tensor) -> Boxes:
        inner = None if self.inner is None else self.inner[which]
        return Boxes(self.stored[which], tuple(self.sizes[index] for index in which.tolist()), inner)

    def decoded(self, indices: Sequence[int]) -> Tensor:
        return self.stored[torch.as_tensor(indices)]

    def sized(self, size: tuple[int, int, int], placing: Placing) -> Boxes:
        assert self.inner is None
        stored, inner = self.stored.clone(), []
        for rows, own in zip(stored, self.sizes) if placing.moves else ():
            real, fit = rows[:, 0] >= 0, placing.fit(own, size[1:])
            rows[real, 1:] = fit.into_frame(rows[real, 1:].double()).float()
            inner.append(fit.into_frame(WHOLE))
        return replace(self, stored=stored, inner=torch.stack(inner) if inner else None)

    def renumbered(self, places: Tensor) -> Boxes:
        stored, own = self.stored.clone(), self.stored[..., 0]
        stored[..., 0] = torch.where(own < 0, own, places[own.clamp_min(0).long()].to(own.dtype))
        return replace(self, stored=stored)


def opened(
    parts: Mapping[str, Sequence[Picture]],
    classes: tuple[str, ...],
    faults: Faults,
    *,
    pixels: bool,
    named: bool = True,
    strict: bool,
    labelled: bool,
    lost: int = 0,
    notes: Sequence[str] = (),
) -> DataSource:
    """Return the data of all pictures without faults: columns "image" and "boxes".

    Args:
        pixels: corners are in pixels; else they are shares of width and height.
        named: False if the data numbers its classes and has no names for them.
        labelled: an error if there are no boxes.
        lost: the images that were left out before.

    Raises:
        OnnxgenError: a part has no image without faults, or there are no boxes; or there are faults, and `strict` is
            set.
    """
    every = [picture for pictures in parts.values() for picture in pictures]
    paths = [picture.path for picture in every if picture.path.is_file()]
    seen = looked_at(faults.folder, [*dict.fromkeys(paths)])
    rows = {id(picture): _rows(picture, seen.get(picture.path), pixels, faults) for picture in every}
    kept = {part: [p for p in pictures if p.sound] for part, pictures in parts.items()}
    skipped = faults.notes({part: len(of) for part, of in kept.items()}, strict, lost + sum(not p.sound for p in every))
    most = max(len(rows[id(p)]) for pictures in kept.values() for p in pictures)
    if not most and labelled:
        raise OnnxgenError(f"{faults.folder} has no boxes: no image has a label", help="add labels, or name other data")
    sizes = {seen[p.path] for pictures in kept.values() for p in pictures}
    size = next(iter(sizes)) if len(sizes) == 1 else None
    samples: dict[str, Samples] = {}
    for part, pictures in kept.items():
        boxes = _stacked([rows[id(p)] for p in pictures], max(most, 1))
        shapes = tuple(seen[p.path][-2:] for p in pictures)
        images = Images(tuple(p.path for p in pictures), size)  # type: ignore[arg-type]
        samples[part] = Columns({IMAGE: images, BOXES: Boxes(boxes, shapes)}, {BOXES: classes})  # type: ignore[arg-type]
    return DataSource(
        samples,
        faults.folder.name,
        BOXES,
        {IMAGE: 255.0},
        text=frozenset({BOXES} if named else ()),
        placed=frozenset({BOXES}),
        sizes=frozenset(sizes),  # type: ignore[arg-type]
        kinds=seen.kinds,
        task=task_for(BOXES),
        notes=[*skipped, *_bare(kept), *notes],
    )


def _bare(parts: Mapping[str, Sequence[Picture]]) -> list[str]:
    bare = sum(not picture.boxes for pictures in parts.values() for picture in pictures)
    return [f"{bare:,} of {sum(map(len, parts.values())):,} images have no boxes"] if bare else []


def _stacked(rows: Sequence[Sequence[tuple[float, ...]]], most: int) -> Tensor:
    stacked = torch.full((len(rows), most, WIDTH), -1.0)
    for place, boxes in zip(stacked, rows):
        if boxes:
            place[: len(boxes)] = torch.tensor(boxes)
    return stacked


def _rows(picture: Picture, seen: Seen | None, pixels: bool, faults: Faults) -> list[tuple[float, ...]]:
    """Return a row for each box. The picture is not sound if something is wrong."""
    problem = _unfit(picture, seen, faults)
    if problem:
        faults.add(*problem)
        picture.sound = False
    if seen is None or isinstance(seen, str):
        return []
    _, height, width = seen
    rows: list[tuple[float, ...]] = []
    for box in picture.boxes:
        corners, wrong = share_of(box.corners, (width, height), pixels)
        if wrong:
            faults.add(box.where, wrong)
            picture.sound = False
        rows.append((float(box.label), *corners))
    return rows


def _unfit(picture: Picture, seen: Seen | None, faults: Faults) -> tuple[str, str] | None:
    """Return the place and the fault of an image that can't be used."""
    if seen is None:
        return picture.where, f"there is no image {faults.place(picture.path)}"
    if isinstance(seen, str):
        return faults.place(picture.path), f"can't be read: {seen}"
    _, height, width = seen
    declared = picture.size
    if declared is None or declared == (width, height):
        return None
    if not all(math.isfinite(number) for number in declared):
        return picture.where, "the size of the image is not a number"
    turned = " (EXIF turns it; labels must be of the upright picture)" if declared == (height, width) else ""
    size = f"{declared[0]:g}x{declared[1]:g}"
    return picture.where, f"labels for an image of {size}, but {picture.path.name} is {width}x{height}{turned}"


OVER = 1.0  # pixels by which a box may lie over the edge of its image; tools round, and some count from 1


def share_of(
    corners: tuple[float, ...], size: tuple[int, int], pixels: bool
) -> tuple[tuple[float, float, float, float], str]:
    """Return x1, y1, x2, y2 as shares from 0 to 1; and what is wrong, or "".

    Args:
        corners: x1, y1, x2, y2, in pixels or as shares.
        size: width and height of the image in pixels.
    """
    nothing = (0.0, 0.0, 0.0, 0.0)
    if not all(map(math.isfinite, corners)):
        return nothing, "a corner of the box is not a finite number"
    sides = (*size, *size)
    x1, y1, x2, y2 = shares = [c / side if pixels else c for c, side in zip(corners, sides)]
    if x2 <= x1 or y2 <= y1:
        shown = f"{corners[2] - corners[0]:g} wide and {corners[3] - corners[1]:g} high"
        return nothing, f"the box has no area: {shown}"
    if any(not -OVER / side <= share <= 1 + OVER / side for share, side in zip(shares, sides)):
        shown = ", ".join(f"{c:g}" for c in corners)
        return nothing, f"the box leaves the image of {size[0]}x{size[1]}: {shown}"
    x1, y1, x2, y2 = (min(max(share, 0.0), 1.0) for share in shares)
    if x2 <= x1 or y2 <= y1:
        return nothing, f"the box lies beside the image of {size[0]}x{size[1]}"
    return (x1, y1, x2, y2), ""
