"""Images with a mask each: an indexed or gray image whose values are class indices.

Masks are of the upright picture, as boxes are (see `boxes/pictures.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.errors import OnnxgenError
from onnxgen.training.data.arrays import Columns, in_columns
from onnxgen.training.data.boxes.there import VOC_IMAGES
from onnxgen.training.data.boxes.voc import images_by_stem, listed_parts
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import IMAGE, Images
from onnxgen.training.data.layout import SUFFIXES, files_in
from onnxgen.training.data.looking import Seen, looked, looked_at, told
from onnxgen.training.data.pairs import holds, laid_out, paired, unread
from onnxgen.training.data.samples import Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.measured import IGNORED_CLASS

if TYPE_CHECKING:
    from PIL import Image

MASK = "mask"
FOLDERS = ("masks", "labels")
VOC_MASKS = "SegmentationClass"
UNCHANGED = tuple(suffix for suffix in SUFFIXES if suffix not in (".jpg", ".jpeg", ".webp"))  # these may be lossy
_CONVERT = "save it as an indexed or gray PNG whose values are the classes 0, 1, 2, ..."


@dataclass(frozen=True)
class Masks:
    """A column of mask files: int64 [n, H, W] of class indices.

    Attributes:
        size: height and width that every mask gets, stretched, where the nearest value counts; None if they differ and
            no size is set.
        white: the class of the highest value: 1 if all masks are black and white, else `IGNORED_CLASS`.
    """

    paths: tuple[Path, ...]
    size: tuple[int, int] | None
    white: int = IGNORED_CLASS
    dtype = torch.int64

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), *(self.size or ()))

    def index_select(self, axis: int, which: Tensor) -> Masks:
        return replace(self, paths=tuple(self.paths[index] for index in which.tolist()))

    def decoded(self, indices: Sequence[int]) -> Tensor:
        assert self.size is not None, "masks of several sizes"
        made = np.stack([classes_in(self.paths[index], self.size) for index in indices])
        made[made == IGNORED_CLASS] = self.white
        return torch.from_numpy(made)


def classes_in(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.int64]:
    """Return the class indices [H, W] of a mask, upright, in a size if one is given. Ignored are 255, or 65535 of 16
    bits.

    Raises:
        OnnxgenError: it can't be read, or its values are not class indices.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            mask = ImageOps.exif_transpose(image)
            if mask.mode in ("RGB", "RGBA", "LA"):
                mask = _gray(mask)
            deep = mask.mode.startswith("I;16") or (mask.mode == "I" and image.format in ("PNG", "PPM"))
            if not deep and mask.mode not in ("1", "L", "P"):
                raise ValueError(f"its mode is {mask.mode}")
            if size is not None and mask.size != (size[1], size[0]):
                mask = mask.resize((size[1], size[0]), Image.Resampling.NEAREST)
            found = np.asarray(mask).astype(np.int64)
    except Exception as error:  # PIL's plug-ins raise any exception
        raise OnnxgenError(told(error, path)) from None
    return np.where(found == (0xFFFF if deep else 0xFF), IGNORED_CLASS, found)


def _gray(image: Image.Image) -> Image.Image:
    """Return one channel of an image whose colours are equal. Raises `ValueError` if they are not."""
    red, *others = image.split()[:3] if image.mode != "LA" else image.split()[:1]
    if any(other.tobytes() != red.tobytes() for other in others):
        raise ValueError("it is a colour image")
    return red


# ---- opening ---------------------------------------------------------------------------------------------------------


def is_masks(path: Path) -> bool:
    """Return True for a folder with images beside masks, that folder of masks, and VOC's `SegmentationClass`."""
    if not path.is_dir():
        return False
    return _is_voc(_root(path)) or bool(_beside(_root(path), path))


def _root(path: Path) -> Path:
    return path.parent if path.name in (*FOLDERS, VOC_MASKS) else path


def _is_voc(root: Path) -> bool:
    return (root / VOC_MASKS).is_dir() and (root / VOC_IMAGES).is_dir()


def _beside(root: Path, path: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and masks by part; {} if there are none."""
    for name in FOLDERS if path == root else (path.name,):
        pairs = laid_out(root, name)
        if pairs and (name == FOLDERS[0] or all(holds(masks, SUFFIXES) for _, masks in pairs.values())):
            return pairs
    return {}


def open_masks(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `images/` beside `masks/`, or `JPEGImages` and `SegmentationClass` of VOC: columns "image" and "mask".

    Image and mask have the same name but for their ending. Without names, classes are called by their numbers.

    If all masks are black and white, white is class 1. Else 255 is what VOC means by it: this pixel does not count.

    Raises:
        OnnxgenError: no image can be used.
    """
    root = _root(path)
    faults = Faults(root)
    lost = 0
    parts: dict[str, dict[Path, Path]] = {}
    for part, pairs in (_of_voc(root, faults) if _is_voc(root) else _of_folders(root, path, faults)).items():
        lost += pairs[1]
        parts[part] = {image: mask for image, mask in pairs[0].items() if mask is not None}
        for image in (image for image, mask in pairs[0].items() if mask is None):
            faults.add(faults.place(image), "the image has no mask")
            lost += 1
    found = opened(root, parts, faults, strict, lost)
    found.notes += [] if _is_voc(root) else unread(_beside(root, path))
    if not labelled:
        found.parts = {part: in_columns(samples).only([IMAGE]) for part, samples in found.parts.items()}
    return found


Pairs = tuple[dict[Path, Path | None], int]  # the mask of each image, and how many images were left out


def _of_folders(root: Path, path: Path, faults: Faults) -> dict[str, Pairs]:
    found = _beside(root, path).items()
    return {part: paired(images, masks, SUFFIXES, faults, "mask") for part, (images, masks) in found}


def _of_voc(root: Path, faults: Faults) -> dict[str, Pairs]:
    images = images_by_stem(root)
    masks = {path.stem: path for path in files_in(root / VOC_MASKS, ".png")}
    listed = listed_parts(root, "Segmentation", faults)
    listed = listed or {"train": [(faults.place(path), stem) for stem, path in masks.items()]}
    parts: dict[str, Pairs] = {}
    for part, names in listed.items():
        pairs: dict[Path, Path | None] = {}
        for where, stem in names:
            if len(images.get(stem, ())) == 1:
                pairs[images[stem][0]] = masks.get(stem)
            else:
                faults.add(where, f"{VOC_IMAGES} has {len(images.get(stem, ()))} images of this name")
        parts[part] = pairs, len(names) - len(pairs)
    return parts


def opened(root: Path, parts: Mapping[str, Mapping[Path, Path]], faults: Faults, strict: bool, lost: int) -> DataSource:
    pairs = [pair for found in parts.values() for pair in found.items()]
    seen = looked_at(root, [image for image, _ in pairs])
    facts = looked(root, [mask for _, mask in pairs], _look, "masks")
    values = {value for found in facts.values() if not isinstance(found, str) for value in found[2:]}
    white = 1 if values == {0, IGNORED_CLASS} else IGNORED_CLASS
    sound = {image: _is_sound(image, mask, seen[image], facts[mask], faults, white) for image, mask in pairs}
    kept = {part: [pair for pair in found.items() if sound[pair[0]]] for part, found in parts.items()}
    skipped = lost + sum(not fine for fine in sound.values())
    notes = faults.notes({part: len(found) for part, found in kept.items()}, strict, skipped)
    notes += ["the masks are black and white: white (255) is class 1"] if white == 1 else []
    classes = tuple(map(str, range(1 + max(white, *values))))
    sizes = {seen[image] for found in kept.values() for image, _ in found}
    one = sizes.pop() if len(sizes) == 1 else None
    made: dict[str, Samples] = {}
    for part, found in kept.items():
        images, masks = zip(*found)
        columns = {IMAGE: Images(images, one), MASK: Masks(masks, one and one[1:], white)}  # type: ignore[arg-type]
        made[part] = Columns(columns, {MASK: classes})
    whites, placed = {IMAGE: 255.0}, frozenset({MASK})
    return DataSource(made, root.name, MASK, whites, placed=placed, notes=notes, kinds=seen.kinds)


def _look(path: Path) -> Seen:
    """Return height, width and the values of a mask, or why it can't be used."""
    if path.suffix.lower() not in UNCHANGED:
        return f"{path.suffix} may change values; {_CONVERT}"
    try:
        found = classes_in(path)
    except OnnxgenError as error:
        return f"{error}; {_CONVERT}"
    return (*found.shape, *np.unique(found).tolist())


def _is_sound(image: Path, mask: Path, seen: Seen, facts: Seen, faults: Faults, white: int) -> bool:
    """Return False and add a fault if a pair can't be used."""
    if isinstance(seen, str):
        faults.add(faults.place(image), f"can't be read: {seen}")
    elif isinstance(facts, str):
        faults.add(faults.place(mask), f"can't be read: {facts}")
    elif facts[:2] != seen[1:]:
        size, wanted = f"{facts[1]}x{facts[0]}", f"{seen[2]}x{seen[1]}"
        faults.add(faults.place(mask), f"the mask is {size}, but {image.name} is {wanted} (upright)")
    elif facts[2:] == (IGNORED_CLASS,) == (white,):
        faults.add(faults.place(mask), "all of the mask is ignored")
    else:
        return True
    return False
