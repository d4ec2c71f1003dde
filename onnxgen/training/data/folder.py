"""Images in one folder for each class, decoded when they are taken."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onnxgen.common.cache import Cache
from onnxgen.common.names import legible
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.training.data.layout import SUFFIXES, files_in, folders, layout
from onnxgen.training.data.letterbox import STRETCHED, Placing
from onnxgen.training.data.samples import Batch, Field
from onnxgen.training.data.source import DataSource, listed

if TYPE_CHECKING:
    from PIL import Image

MIN_CACHED = 2_000  # with at least so many files, the result of decoding them is cached
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ORIENTATION = 0x0112  # the EXIF tag; for values of 5 and more, height and width are swapped
_THREADS = 8
_KINDS = ("RGB", "gray", "alpha", "CMYK")

Seen = tuple[int, ...] | str  # channels, height and width of a file (of a mask see `masks.py`), or why it can't be read


@dataclass(frozen=True)
class Files:
    """Image files: "image" as uint8 [H, W] or [H, W, C], and a target if there are labels.

    Attributes:
        labels: the target of each image [n, ...].
        size: channels, height and width that every image gets; None if the files differ and no size is set.
        target: the column of the labels.
        placing: how images get this size.
    """

    paths: tuple[Path | Image.Image, ...]
    labels: Tensor | None
    classes: tuple[str, ...]
    size: tuple[int, int, int] | None
    target: str = "label"
    placing: Placing = STRETCHED

    @property
    def fields(self) -> Mapping[str, Field]:
        channels, *sides = self.size or (0,)
        shape = () if self.size is None else (*sides, channels) if channels > 1 else tuple(sides)
        image = {"image": Field(torch.uint8, shape)}
        if self.labels is None:
            return image
        return image | {self.target: Field(self.labels.dtype, tuple(self.labels.shape[1:]), self.classes)}

    def __len__(self) -> int:
        return len(self.paths)

    def sized(self, channels: int, height: int, width: int, placing: Placing = STRETCHED) -> Files:
        """Return the same images in another size."""
        return replace(self, size=(channels, height, width), placing=placing)

    def take(self, indices: Sequence[int], seed: int) -> Batch:
        assert self.size is not None, "images of several sizes"
        images = np.empty((len(indices), *self.fields["image"].shape), np.uint8)
        for place, index in enumerate(indices):
            images[place] = decoded(self.paths[index], self.size, self.placing)
        batch = {"image": torch.from_numpy(images)}
        return batch if self.labels is None else batch | {self.target: self.labels[torch.as_tensor(indices)]}

    def column(self, name: str) -> Tensor | None:
        return self.labels if name == self.target else None

    def renumbered(self, column: str, places: Tensor, classes: tuple[str, ...]) -> Files:
        """See `Arrays.renumbered`."""
        assert column == self.target and self.labels is not None
        return replace(self, labels=places[self.labels], classes=classes)


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
            _need_range(image)
            image.draft(None, (2 * width, 2 * height))  # a JPEG of more than twice the size is decoded smaller
            upright = _eight_bits(ImageOps.exif_transpose(image)).convert(_MODES[channels])
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
        turned = image.getexif().get(_ORIENTATION, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


def _need_range(image: Image.Image) -> None:
    """Raise `ValueError` for numbers of 32 bits. Only in PNG and PNM does PIL's mode I mean 16 bits."""
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError("the range of numbers of 32 bits is unknown; save it with 8 or 16 bits")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit images and transparent palettes: PIL would clip at 255, and lose the transparency."""
    from PIL import Image

    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


def open_images(images: Sequence[Path | Image.Image]) -> DataSource:
    """Open image files or PIL images, in this order, without labels.

    Raises:
        OnnxgenError: one can't be read, or PIL is missing.
    """
    paths = [image for image in images if isinstance(image, Path)]
    for path, seen in looked(Path(), paths).items() if paths else ():
        if isinstance(seen, str):
            raise OnnxgenError(f"{path} can't be read: {seen}", help="remove or repair it")
    return DataSource({"train": Files(tuple(images), None, (), None)}, "images", "", {"image": 255.0})


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
    parts, classes, found = layout(folder, labelled)
    refuse_nested(folder, parts, SUFFIXES)
    seen = looked_at(folder, [path for pairs in found.values() for path, _ in pairs])
    notes = _skipped(folder, seen, strict)
    sizes = frozenset(size for size in seen.values() if not isinstance(size, str))
    one = next(iter(sizes)) if len(sizes) == 1 else None
    made = {part: _files(parts[part], pairs, seen, classes, one) for part, pairs in found.items()}
    left = [p.name for p in folders(folder) if p not in parts.values()] if parts != {"train": folder} else []
    notes += [f"not part of the data, ignored: {listed(left)}"] if left else []
    stray = [path.name for root in {folder, *parts.values()} for path in _images_beside(root)] if classes else []
    if stray:
        what = f"{counted(len(stray), 'image')} beside the folders of the classes"
        notes.append(
            f"{what}, which {'has' if len(stray) == 1 else 'have'} no class, ignored: {listed(sorted(stray), 5)}"
        )
    text = frozenset({"label"} if classes else ())
    target = "label" if classes else ""
    facts: dict[str, Any] = {"notes": notes, "sizes": sizes, "kinds": seen.kinds}
    return DataSource(dict(made), folder.name, target, {"image": 255.0}, text=text, **facts)


def _images_beside(folder: Path) -> list[Path]:
    """Return the images that lie in a folder itself."""
    return [path for path in files_in(folder, *SUFFIXES) if path.is_file()]


def refuse_nested(folder: Path, parts: Mapping[str, Path], suffixes: Sequence[str]) -> None:
    """Raise `OnnxgenError` if the only class has folders of its own, and no files: an archive was unpacked into one.

    They may lie deeper, as an archive of an archive has them.
    """
    for root in parts.values() if len({p.name for r in parts.values() if r.is_dir() for p in folders(r)}) == 1 else ():
        path = root
        while len(inner := folders(path)) == 1 and not files_in(inner[0], *suffixes):
            path = inner[0]
        if path != root and len(inner) > 1:
            what = f"{folder} has one folder, {path.relative_to(root).as_posix()}, which has folders itself: "
            way = f"if these are the classes or parts, name {path}"
            raise OnnxgenError(what + listed(p.name for p in inner), help=way)


def _files(
    root: Path, pairs: list[tuple[Path, int]], seen: Mapping[Path, Seen], classes: tuple[str, ...], size: Any
) -> Files:
    read = [(path, label) for path, label in pairs if not isinstance(seen[path], str)]
    bare = sorted({label for _, label in pairs} - {label for _, label in read})
    names = [legible(classes[label] if classes else root.name) for label in bare]
    if names:
        raise OnnxgenError(*(f"none of the images of {name!r} in {root} can be read" for name in names))
    if not read:
        raise OnnxgenError(f"{root} has no images")
    labels = torch.tensor([label for _, label in read]) if classes else None
    return Files(tuple(path for path, _ in read), labels, classes, size)


def _skipped(folder: Path, seen: Mapping[Path, Seen], strict: bool) -> list[str]:
    bad = [(path.relative_to(folder).as_posix(), why) for path, why in seen.items() if isinstance(why, str)]
    if not bad:
        return []
    named = listed((f"{name} ({why})" for name, why in bad), 5)
    count = f"{len(bad)} image{'s' if len(bad) > 1 else ''} of {folder} can't be read"
    if strict:
        raise OnnxgenError(f"{count}: {named}", help="remove or repair them; training without --strict skips them")
    return [f"{count}, skipped: {named}"]


# ---- which files can be read -----------------------------------------------------------------------------------------


class Looked(dict[Path, Seen]):
    """The facts of each file (see `Seen`), and how many images have colours of each kind ("gray", "alpha", "CMYK")."""

    kinds: Mapping[str, int] = MappingProxyType({})


def looked_at(folder: Path, paths: Sequence[Path]) -> Looked:
    """Like `looked`, for images, with the kinds of their colours."""
    facts = looked(folder, paths, _look_at_colours, "colours")
    found = Looked({path: seen if isinstance(seen, str) else seen[:3] for path, seen in facts.items()})
    found.kinds = Counter(_KINDS[seen[3]] for seen in facts.values() if not isinstance(seen, str))
    return found


def looked(
    folder: Path, paths: Sequence[Path], look: Callable[[Path], Seen] | None = None, kind: str = "images"
) -> dict[Path, Seen]:
    """Return the size of each file, or why it can't be read. Files are decoded unless the cache knows them.

    Args:
        look: returns the facts of one file; None: see `Seen`.
        kind: the name of these facts in the cache.
    """
    need(["PIL"])
    cache, name = Cache(), str(folder.resolve())
    fact = cache.get(kind, name) if len(paths) >= MIN_CACHED else None
    known: dict[str, Seen] = {k: v if isinstance(v, str) else tuple(v) for k, v in (fact or {}).items()}
    stamps = {path: _stamp(path) for path in paths}
    new = [path for path in paths if stamps[path] not in known]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = dict(zip(new, pool.map(partial(_look_at_file, look or look_at), new)))
    seen: dict[Path, Seen] = {path: found[path] if path in found else known[stamps[path]] for path in paths}
    if new and len(paths) >= MIN_CACHED:
        cache.put(kind, name, {stamps[path]: seen[path] for path in paths})
    return seen


def _look_at_file(look: Callable[[Path], Seen], path: Path) -> Seen:
    """Look at a file; to open a pipe would wait for ever."""
    return "it is not a regular file" if path.exists() and not path.is_file() else look(path)


def _stamp(path: Path) -> str:
    try:
        stat = path.stat()
    except OSError:  # a link to nothing: opening it will say so
        return f"{path} is gone"
    return f"{path} {stat.st_size} {stat.st_mtime_ns}"


def look_at(path: Path | io.BytesIO) -> Seen:
    """Return the size of an image, or why it can't be read."""
    found = _look_at_colours(path)
    return found if isinstance(found, str) else found[:3]


def _look_at_colours(path: Path | io.BytesIO) -> Seen:
    """Return the size of an image, and the index of its kind of colours in `_KINDS`; or why it can't be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            _need_range(image)
            _eight_bits(image)
            width, height = image.size
            if image.getexif().get(_ORIENTATION, 1) >= 5:
                width, height = height, width
            channels = 1 if image.mode in ("1", "L") or image.mode.startswith("I") else 3
            return channels, height, width, _KINDS.index(_kind(image, channels))
    except Exception as error:  # PIL's plug-ins raise any exception
        return told(error, path)


def _kind(image: Image.Image, channels: int) -> str:
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        return "alpha"
    return "CMYK" if image.mode == "CMYK" else "gray" if channels == 1 else "RGB"


def told(error: Exception, path: Path | io.BytesIO) -> str:
    """Return what PIL says is wrong with a file, without the file's name."""
    said = one_line(error, 5000).replace(repr(str(path)), "").strip()[:100]
    return said or type(error).__name__
