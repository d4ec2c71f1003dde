"""Images in one folder for each class, decoded when they are taken."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.training.data.arrays import Columns
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.layout import SUFFIXES, files_in, folders, layout, refuse_nested
from onnxgen.training.data.letterbox import STRETCHED, Placing
from onnxgen.training.data.looking import (
    ORIENTATION,
    Looked,
    eight_bits,
    looked,
    looked_at,
    need_range,
    one_size,
    skipped,
    unread,
)
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource

if TYPE_CHECKING:
    from PIL import Image

IMAGE = "image"  # the column
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Images:
    """A column of image files: uint8 [n, H, W] or [n, H, W, C].

    Attributes:
        size: channels, height and width that every image gets; None if the files differ and no size is set.
        placing: how images get this size.
    """

    paths: tuple[Path | Image.Image, ...]
    size: tuple[int, int, int] | None
    placing: Placing = STRETCHED
    dtype = torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *stored_shape(self.size))

    def index_select(self, axis: int, which: Tensor) -> Images:
        return replace(self, paths=tuple(self.paths[index] for index in which.tolist()))

    def decoded(self, indices: Sequence[int]) -> Tensor:
        assert self.size is not None, "images of several sizes"
        batch = np.empty((len(indices), *self.shape[1:]), np.uint8)
        for place, index in enumerate(indices):
            batch[place] = decoded(self.paths[index], self.size, self.placing)
        return torch.from_numpy(batch)

    def sized(self, size: tuple[int, int, int], placing: Placing) -> Images:
        return replace(self, size=size, placing=placing)


@dataclass(frozen=True)
class Targets(Images):
    """Image files that are targets: they get the size of what the network makes, not that of its input."""

    def sized(self, size: tuple[int, int, int], placing: Placing) -> Targets:
        return self


def stored_shape(size: tuple[int, int, int] | None) -> tuple[int, ...]:
    """Return the shape of a decoded image of a size (channels, height, width); () without one."""
    channels, *sides = size or (0,)
    return (*sides, channels) if channels > 1 else tuple(sides)


def decoded(
    path: Path | io.BytesIO | Image.Image, size: tuple[int, int, int], placing: Placing = STRETCHED
) -> NDArray[np.uint8]:
    """Decode the first frame of a file, or take a PIL image, as uint8 [H, W] or [H, W, C], upright.

    Args:
        size: channels, height and width of the result.
        placing: how the image gets this size.

    Raises:
        OnnxgenError: it can't be read.
    """
    from PIL import Image, ImageOps

    channels, height, width = size
    try:
        with nullcontext(path) if isinstance(path, Image.Image) else Image.open(path) as image:
            need_range(image)
            image.draft(None, (2 * width, 2 * height))  # a JPEG of more than twice the size is decoded smaller
            upright = eight_bits(ImageOps.exif_transpose(image)).convert(_MODES[channels])
            fit = placing.fit((upright.height, upright.width), (height, width))
            if upright.size != fit.inner[::-1]:
                upright = upright.resize(fit.inner[::-1], Image.Resampling.BILINEAR)
            if fit.moves:
                whole = Image.new(upright.mode, (width, height), placing.pixel(channels))
                whole.paste(upright, (fit.left, fit.top))
                upright = whole
            return np.asarray(upright)
    except Exception as error:  # PIL's plug-ins raise any exception
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 100)}") from None


def size_of(path: Path | Image.Image) -> tuple[int, int]:
    """Return height and width of an image, upright, in pixels."""
    from PIL import Image

    with nullcontext(path) if isinstance(path, Image.Image) else Image.open(path) as image:
        turned = image.getexif().get(ORIENTATION, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


def open_images(images: Sequence[Path | Image.Image]) -> DataSource:
    """Open image files or PIL images, in this order, without labels.

    Raises `OnnxgenError` if one can't be read, or PIL is missing.
    """
    paths = [image for image in images if isinstance(image, Path)]
    for path, seen in looked(Path(), paths).items() if paths else ():
        if isinstance(seen, str):
            raise OnnxgenError(f"{path} can't be read: {seen}", help="remove or repair it")
    return DataSource({"train": Columns({IMAGE: Images(tuple(images), None)})}, "images", "", {IMAGE: 255.0})


def open_folder(folder: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `folder/class/*.png`, or `folder/train/class/*.png` beside `val`, `valid`, `validation` or `test`.

    All files are decoded once, to find those that can't be read. For large folders the result is cached.

    Args:
        folder: has a folder for each class. The classes are numbered in sorted order (see `number_classes`).
        strict: raise an error for an image that can't be read, instead of skipping it.
        labelled: False allows images in the folder itself, without labels.

    Raises:
        OnnxgenError: there are no images, a class has none, or PIL is missing.
    """
    parts, classes, images = layout(folder, labelled)
    refuse_nested(folder, parts, SUFFIXES)
    seen = looked_at(folder, [path for pairs in images.values() for path, _ in pairs])
    notes, sizes = skipped(folder, seen, strict), seen.sizes(seen)
    samples: dict[str, Samples] = {part: _files(parts[part], pairs, seen, classes) for part, pairs in images.items()}
    notes += _ignored(folder, parts, bool(classes))
    label = "label" if classes else ""
    text, whites = frozenset([label] * bool(label)), {IMAGE: 255.0}
    return DataSource(samples, folder.name, label, whites, text=text, notes=notes, sizes=sizes, kinds=seen.kinds)


def _ignored(folder: Path, parts: Mapping[str, Path], classified: bool) -> list[str]:
    """Return notes of folders beside those of the parts, and of images beside the folders of classes."""
    beside = [p.name for p in folders(folder) if p not in parts.values()] if parts != {"train": folder} else []
    notes = [f"not part of the data, ignored: {listed(beside)}"] if beside else []
    roots = {folder, *parts.values()} if classified else ()
    stray = [path.name for root in roots for path in files_in(root, *SUFFIXES) if path.is_file()]
    if stray:
        what = f"{counted(len(stray), 'image')} beside the folders of the classes"
        have = "has" if len(stray) == 1 else "have"
        notes.append(LeftOut(f"{what}, which {have} no class, ignored: {listed(sorted(stray), 5)}"))
    return notes


def _files(root: Path, pairs: list[tuple[Path, int]], seen: Looked, classes: tuple[str, ...]) -> Columns:
    read = [(path, label) for path, label in pairs if not isinstance(seen[path], str)]
    bare = sorted({label for _, label in pairs} - {label for _, label in read})
    if bare:
        raise OnnxgenError(*(unread(classes, label, root) for label in bare))
    if not read:
        raise OnnxgenError(f"{root} has no images")
    labels = {"label": torch.tensor([label for _, label in read])} if classes else {}
    images = Images(tuple(path for path, _ in read), one_size(seen.sizes(seen)))
    return Columns({IMAGE: images, **labels}, {"label": classes} if classes else {})
