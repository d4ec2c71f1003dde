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
from onnxgen.training.data.looking import Looked, Seen, looked_at, one_size
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
        rows: class index and corners as shares of each box, after the image was looked at.
    """

    path: Path
    where: str
    boxes: list[Box] = field(default_factory=list)
    size: tuple[float, float] | None = None
    sound: bool = True
    rows: list[tuple[float, ...]] = field(default_factory=list)


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
    seen = _look(every, pixels, faults)
    kept = {part: [p for p in pictures if p.sound] for part, pictures in parts.items()}
    sound = [picture for pictures in kept.values() for picture in pictures]
    skipped = faults.notes(kept, strict, lost + len(every) - len(sound))
    most = max(len(picture.rows) for picture in sound)
    if not most and labelled:
        raise OnnxgenError(f"{faults.folder} has no boxes: no image has a label", help="add labels, or name other data")
    sizes = seen.sizes(picture.path for picture in sound)
    size = one_size(sizes)
    return DataSource(
        {part: _columns(pictures, seen, size, max(most, 1), classes) for part, pictures in kept.items()},
        faults.folder.name,
        BOXES,
        {IMAGE: 255.0},
        text=frozenset({BOXES} if named else ()),
        placed=frozenset({BOXES}),
        sizes=sizes,
        kinds=seen.kinds,
        task=task_for(BOXES),
        notes=[*skipped, *_bare(sound), *notes],
    )


def _look(pictures: Sequence[Picture], pixels: bool, faults: Faults) -> Looked:
    """Look at the images, and give each its rows. One is not sound if something is wrong with it or a box."""
    seen = looked_at(faults.folder, [*dict.fromkeys(p.path for p in pictures if p.path.is_file())])
    for picture in pictures:
        size = seen.get(picture.path)
        wrong = _unfit(picture, size, faults)
        if size is not None and not isinstance(size, str):
            for box in picture.boxes:
                corners, why = share_of(box.corners, (size[2], size[1]), pixels)
                wrong += [(box.where, why)] if why else []
                picture.rows.append((float(box.label), *corners))
        for fault in wrong:
            faults.add(*fault)
            picture.sound = False
    return seen


def _columns(
    pictures: Sequence[Picture], seen: Looked, size: tuple[int, int, int] | None, most: int, classes: tuple[str, ...]
) -> Columns:
    boxes = torch.full((len(pictures), most, WIDTH), -1.0)
    for place, picture in zip(boxes, pictures):
        if picture.rows:
            place[: len(picture.rows)] = torch.tensor(picture.rows)
    paths = tuple(picture.path for picture in pictures)
    shapes = tuple((int(seen[path][1]), int(seen[path][2])) for path in paths)
    return Columns({IMAGE: Images(paths, size), BOXES: Boxes(boxes, shapes)}, {BOXES: classes})


def _bare(pictures: Sequence[Picture]) -> list[str]:
    bare = sum(not picture.boxes for picture in pictures)
    return [f"{bare:,} of {len(pictures):,} images have no boxes"] if bare else []


def _unfit(picture: Picture, seen: Seen | None, faults: Faults) -> list[tuple[str, str]]:
    """Return the place and the fault of an image that can't be used."""
    if seen is None:
        return [(picture.where, f"there is no image {faults.place(picture.path)}")]
    if isinstance(seen, str):
        return [(faults.place(picture.path), f"can't be read: {seen}")]
    _, height, width = seen
    declared = picture.size
    if declared is None or declared == (width, height):
        return []
    if not all(math.isfinite(number) for number in declared):
        return [(picture.where, "the size of the image is not a number")]
    turned = " (EXIF turns it; labels must be of the upright picture)" if declared == (height, width) else ""
    size = f"{declared[0]:g}x{declared[1]:g}"
    return [(picture.where, f"labels for an image of {size}, but {picture.path.name} is {width}x{height}{turned}")]


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
