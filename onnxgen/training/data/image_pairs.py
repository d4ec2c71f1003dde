"""Images that belong together: an image and its mask, an image and its target, pairs and triplets.

Each kind is a number of folders whose files have equal names. A mask is an indexed or gray image
whose values are class indices. Masks are of the upright picture, as boxes are (see
`boxes/pictures.py`). The target of `--task image-to-image` is another image. Pairs and triplets are
samples that are compared; their columns may be of any kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError
from onnxgen.record.signature import Signature
from onnxgen.training.data.arrays import Columns, Members, in_columns
from onnxgen.training.data.boxes.formats import images_by_stem, listed_parts
from onnxgen.training.data.boxes.there import VOC_IMAGES
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.folder import IMAGE, Images, Targets
from onnxgen.training.data.layout import SUFFIXES, Pairs, files_in, holds, images_in, laid_out, paired, unread
from onnxgen.training.data.looking import Seen, looked, looked_at, one_size, told
from onnxgen.training.data.samples import Feeding, Samples
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.goal import IGNORED_CLASS
from onnxgen.training.settings import Settings
from onnxgen.training.tasks import card_of, task_for

if TYPE_CHECKING:
    from PIL import Image


TARGET, TASK = "target", task_for("images")
# The folders of inputs and of targets, by their usual names.
TARGET_FOLDERS = (("input", "target"), ("inputs", "targets"), ("noisy", "clean"), ("low", "high"), ("lr", "hr"))
_DEEP = "it has 16 bits, of which 8 would be left; save its numbers as .npz"


def is_pairs(path: Path) -> bool:
    """Return True for a folder with two folders of images, called as inputs and targets are, that share a name."""
    return path.is_dir() and bool(_folders(path))


def _folders(root: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of inputs and targets by part; {} if there are none."""
    for inputs, targets in TARGET_FOLDERS:
        pairs = laid_out(root, targets, inputs)
        if any(_names(one) & _names(two) for one, two in pairs.values()):
            return pairs
    return {}


def _names(folder: Path) -> set[str]:
    return {path.relative_to(folder).with_suffix("").as_posix() for path in images_in(folder)}


def open_pairs(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `input/` beside `target/` (see `TARGET_FOLDERS`): columns "image" and "target".

    Input and target have the same name but for their ending. The target may be larger by a whole number, the same for
    all pairs. Raises `OnnxgenError` if no pair can be used.
    """
    faults, folders = Faults(path), _folders(path)
    pairs = ((part, paired(*both, SUFFIXES, faults, "target")) for part, both in folders.items())
    source = with_targets(path, *_whole_pairs(pairs, faults, "target"), faults, strict)
    names = " and ".join(faults.place(folder) for folder in next(iter(folders.values())))
    source.notes.append(f"{names} have pairs of images: trained with --task {TASK}; for classes, --task outputs")
    source.notes += unread(folders)
    return source if labelled else _inputs_alone(source)


def _whole_pairs(
    parts: Iterable[tuple[str, Pairs]], faults: Faults, what: str
) -> tuple[dict[str, dict[Path, Path]], int]:
    """Return the images with the file beside them, and how many images were left out. One without it is a fault."""
    whole: dict[str, dict[Path, Path]] = {}
    lost = 0
    for part, (pairs, shared) in parts:
        whole[part] = {image: other for image, other in pairs.items() if other is not None}
        for image in (image for image in pairs if image not in whole[part]):
            faults.add(faults.place(image), f"the image has no {what}")
        lost += shared + len(pairs) - len(whole[part])
    return whole, lost


def _inputs_alone(source: DataSource) -> DataSource:
    """Return the source with the images alone, to predict."""
    source.parts = {part: in_columns(samples).only([IMAGE]) for part, samples in source.parts.items()}
    return source


def with_targets(
    root: Path, parts: Mapping[str, Mapping[Path, Path]], lost: int, faults: Faults, strict: bool
) -> DataSource:
    """Return images with images as their targets. `lost`: how many were left out before."""
    pairs = [pair for of_part in parts.values() for pair in of_part.items()]
    seen = looked_at(root, [path for pair in pairs for path in pair])
    deep = looked(root, [path for _, path in pairs if not isinstance(seen[path], str)], _depth, "depths")
    factors = Counter(times for image, target in pairs if (times := _factor(seen[image], seen[target])))
    factor = factors.most_common(1)[0][0] if factors else 1
    sound = {a: _is_sound_target(a, target, seen, deep.get(target, ""), factor, faults) for a, target in pairs}
    kept, notes = _usable(parts, sound, lost, faults, strict)
    size, target_size = (one_size({seen[path] for pairs in kept.values() for path in pairs[n]}) for n in (0, 1))
    samples: dict[str, Samples] = {
        part: Columns({IMAGE: Images(images, size), TARGET: Targets(targets, target_size)})
        for part, (images, targets) in kept.items()
    }
    whites = {IMAGE: 255.0, TARGET: 255.0}
    return DataSource(samples, root.name, TARGET, whites, notes=notes, task=TASK, enlarged=factor, kinds=seen.kinds)


def _usable(
    parts: Mapping[str, Mapping[Path, Path]], sound: Mapping[Path, bool], lost: int, faults: Faults, strict: bool
) -> tuple[dict[str, list[tuple[Path, ...]]], list[str]]:
    """Return the images that can be used, and the files beside them, by part; and the note of the others."""
    kept = {part: [pair for pair in pairs.items() if sound[pair[0]]] for part, pairs in parts.items()}
    notes = faults.notes(kept, strict, lost + sum(not fine for fine in sound.values()))
    return {part: list(zip(*pairs)) for part, pairs in kept.items()}, notes


def _depth(path: Path) -> Seen:
    """Return the bits of a channel."""
    from PIL import Image

    with Image.open(path) as image:
        return (16 if image.mode.startswith("I") else 8,)


def _factor(image: Seen, target: Seen) -> int:
    """Return how many times larger the target is, in both directions; 0 if it is not a whole number."""
    if isinstance(image, str) or isinstance(target, str):
        return 0
    (height, width), sides = image[1:], target[1:]
    factor = sides[0] // height
    return factor if sides == (height * factor, width * factor) else 0


def _is_sound_target(
    image: Path, target: Path, seen: Mapping[Path, Seen], deep: Seen, factor: int, faults: Faults
) -> bool:
    """Return False and add a fault if a pair can't be used."""
    one, two = seen[image], seen[target]
    if isinstance(one, str) or isinstance(two, str):
        for path, facts in ((image, one), (target, two)):
            if isinstance(facts, str):
                faults.add(faults.place(path), f"can't be read: {facts}")
    elif deep == (16,):
        faults.add(faults.place(target), _DEEP)
    elif _factor(one, two) != factor:
        times = "the size" if factor == 1 else f"{factor} times the size"
        size, wanted = f"{two[2]}x{two[1]}", f"{one[2]}x{one[1]}"
        faults.add(faults.place(target), f"the target is {size}, which is not {times} of {image.name}, {wanted}")
    else:
        return True
    return False


MASK = "mask"
MASK_FOLDERS = ("masks", "labels")
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
        batch = np.stack([classes_in(self.paths[index], self.size) for index in indices])
        batch[batch == IGNORED_CLASS] = self.white
        return torch.from_numpy(batch)


def classes_in(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.int64]:
    """Return the class indices [H, W] of a mask, upright, in a size if one is given. Ignored are 255, or 65535 of 16
    bits.

    Raises `OnnxgenError` if it can't be read, or its values are not class indices.
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
            values = np.asarray(mask).astype(np.int64)
    except Exception as error:  # PIL's plug-ins raise any exception
        raise OnnxgenError(told(error, path)) from None
    return np.where(values == (0xFFFF if deep else 0xFF), IGNORED_CLASS, values)


def _gray(image: Image.Image) -> Image.Image:
    """Return one channel of an image whose colours are equal. Raises `ValueError` if they are not."""
    red, *others = image.split()[:3] if image.mode != "LA" else image.split()[:1]
    if any(other.tobytes() != red.tobytes() for other in others):
        raise ValueError("it is a colour image")
    return red


def is_masks(path: Path) -> bool:
    """Return True for a folder with images beside masks, that folder of masks, and VOC's `SegmentationClass`."""
    if not path.is_dir():
        return False
    return _is_voc(_root(path)) or bool(_beside(_root(path), path))


def _root(path: Path) -> Path:
    return path.parent if path.name in (*MASK_FOLDERS, VOC_MASKS) else path


def _is_voc(root: Path) -> bool:
    return (root / VOC_MASKS).is_dir() and (root / VOC_IMAGES).is_dir()


def _beside(root: Path, path: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and masks by part; {} if there are none."""
    for name in MASK_FOLDERS if path == root else (path.name,):
        pairs = laid_out(root, name)
        if pairs and (name == MASK_FOLDERS[0] or all(holds(masks, SUFFIXES) for _, masks in pairs.values())):
            return pairs
    return {}


def open_masks(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `images/` beside `masks/`, or `JPEGImages` and `SegmentationClass` of VOC: columns "image" and "mask".

    Image and mask have the same name but for their ending. Without names, classes are called by their numbers.

    If all masks are black and white, white is class 1. Else 255 is what VOC means by it: this pixel does not count.
    Raises `OnnxgenError` if no image can be used.
    """
    root = _root(path)
    faults, folders = Faults(root), {} if _is_voc(root) else _beside(root, path)
    pairs = {part: paired(*both, SUFFIXES, faults, "mask") for part, both in folders.items()}
    pairs = _of_voc(root, faults) if _is_voc(root) else pairs
    source = with_masks(root, *_whole_pairs(pairs.items(), faults, "mask"), faults, strict)
    source.notes += unread(folders)
    return source if labelled else _inputs_alone(source)


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


def with_masks(
    root: Path, parts: Mapping[str, Mapping[Path, Path]], lost: int, faults: Faults, strict: bool
) -> DataSource:
    """Return images with masks as their targets. `lost`: how many were left out before."""
    pairs = [pair for of_part in parts.values() for pair in of_part.items()]
    seen = looked_at(root, [image for image, _ in pairs])
    facts = looked(root, [mask for _, mask in pairs], _look_at_mask, "masks")
    values = {value for fact in facts.values() if not isinstance(fact, str) for value in fact[2:]}
    white = 1 if values == {0, IGNORED_CLASS} else IGNORED_CLASS
    sound = {a: _is_sound_mask(a, mask, seen[a], facts[mask], faults, white) for a, mask in pairs}
    kept, notes = _usable(parts, sound, lost, faults, strict)
    notes += ["the masks are black and white: white (255) is class 1"] if white == 1 else []
    classes = tuple(map(str, range(1 + max(white, *values))))
    size = one_size({seen[image] for images, _ in kept.values() for image in images})
    samples: dict[str, Samples] = {
        part: Columns({IMAGE: Images(images, size), MASK: Masks(masks, size and size[1:], white)}, {MASK: classes})
        for part, (images, masks) in kept.items()
    }
    whites, placed = {IMAGE: 255.0}, frozenset({MASK})
    return DataSource(samples, root.name, MASK, whites, placed=placed, notes=notes, kinds=seen.kinds)


def _look_at_mask(path: Path) -> Seen:
    """Return height, width and the values of a mask, or why it can't be used."""
    if path.suffix.lower() not in UNCHANGED:
        return f"{path.suffix} may change values; {_CONVERT}"
    try:
        classes = classes_in(path)
    except OnnxgenError as error:
        return f"{error}; {_CONVERT}"
    return (*classes.shape, *np.unique(classes).tolist())


def _is_sound_mask(image: Path, mask: Path, seen: Seen, facts: Seen, faults: Faults, white: int) -> bool:
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


ANCHOR, POSITIVE, NEGATIVE = MEMBERS = ("anchor", "positive", "negative")


def member_columns(source: DataSource, ports: Signature, settings: Settings) -> tuple[str, ...]:
    """Return the columns "anchor", "positive" and perhaps "negative" of arrays or images; () if there are no tuples.

    Raises `OnnxgenError` if they have different shapes.
    """
    fields = source.fields
    if settings.target is not None or len(ports.inputs) != 1:
        return ()
    named = tuple(name for name in MEMBERS if name in fields)
    if named[:2] != MEMBERS[:2] or not all(fields[name].shape or name in source.whites for name in named):
        return ()
    first = fields[named[0]]
    for name in named[1:]:
        if (fields[name].shape, fields[name].dtype) != (first.shape, first.dtype):
            shapes = f"{list(first.shape)} and {list(fields[name].shape)}"
            what = f"columns {legible(named[0])!r} and {legible(name)!r} are for one input, but differ: {shapes}"
            raise OnnxgenError(what, help="give both in one shape and dtype")
    return named


def members_of(source: DataSource, ports: Signature, settings: Settings, targets: bool) -> Members:
    """Return `member_columns` by the input that they feed; {} without tuples, and if no `targets` are needed."""
    members = member_columns(source, ports, settings) if card_of(settings.task).compares and targets else ()
    return {ports.inputs[0].name: members} if members else {}


def feeding_of(members: Members, score: str, ports: Signature) -> Feeding:
    """Return the columns of the first member of each tuple, and the `score` of the tuple, if there is one.

    Raises `OnnxgenError` if the batch size is fixed, or an input has no column.
    """
    if any(port.dims and isinstance(port.dims[0], int) for port in ports.inputs):
        what = "a pair is two rows of a batch, and the model takes batches of one size"
        raise OnnxgenError(what, help="generate it again with --dynamic-batch")
    if left := [port.name for port in ports.inputs if port.name not in members]:
        what = f"pairs of texts feed {listed(members)}, and nothing feeds {listed(left)}"
        raise OnnxgenError(what, help=f"give a number for all samples: --const {legible(left[0])}=0")
    return Feeding(tuple(members[port.name][0] for port in ports.inputs), {}, (score,) if score else ())


def is_tuples(path: Path) -> bool:
    """Return True for a folder with images in `anchor/` beside `positive/`."""
    return path.is_dir() and bool(laid_out(path, POSITIVE, ANCHOR))


def open_tuples(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `anchor/` beside `positive/` and perhaps `negative/`: columns of these names. Files have the same names.

    Raises `OnnxgenError` if no tuple can be used.
    """
    layouts = {name: laid_out(path, name, ANCHOR) for name in MEMBERS[1:]}
    layouts = {name: pairs for name, pairs in layouts.items() if pairs}
    faults, parts, lost = Faults(path), {}, 0
    for part, (anchors, _) in layouts[POSITIVE].items():
        rows: dict[Path, dict[str, Path]] = {}
        for name, layout in layouts.items():
            pairs, shared = paired(*layout.get(part, (anchors, path / name)), SUFFIXES, faults, name)
            whole, _ = _whole_pairs([(part, (pairs, shared))], faults, name)
            for image, other in whole[part].items():
                rows.setdefault(image, {ANCHOR: image})[name] = other
            lost += shared
        parts[part] = [row for row in rows.values() if len(row) == len(layouts) + 1]
        lost += len(rows) - len(parts[part])
    return _opened(path, parts, faults, strict, lost, (ANCHOR, *layouts))


def _opened(
    root: Path, parts: dict[str, list[dict[str, Path]]], faults: Faults, strict: bool, lost: int, names: Sequence[str]
) -> DataSource:
    seen = looked_at(root, [file for rows in parts.values() for row in rows for file in row.values()])
    broken: set[Path] = set()
    for path, facts in seen.items():
        if isinstance(facts, str):
            faults.add(faults.place(path), f"can't be read: {facts}")
            broken.add(path)
    kept = {part: [row for row in rows if not broken & {*row.values()}] for part, rows in parts.items()}
    notes = faults.notes(kept, strict, lost + sum(map(len, parts.values())) - sum(map(len, kept.values())))
    size = one_size({seen[file] for rows in kept.values() for row in rows for file in row.values()})
    samples: dict[str, Samples] = {
        part: Columns({name: Images(tuple(row[name] for row in rows), size) for name in names})
        for part, rows in kept.items()
    }
    whites = dict.fromkeys(names, 255.0)
    return DataSource(samples, root.name, "", whites, notes=notes, task=task_for("tuples"), kinds=seen.kinds)
