"""Looks at the files of images: which can be read, and of what size they are. Nothing here imports torch."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from onnxgen.common.cache import Cache
from onnxgen.common.names import legible, listed
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, Problems, one_line
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.layout import Layout

if TYPE_CHECKING:
    from PIL import Image

MIN_CACHED = 2_000  # with at least so many files, the result of decoding them is cached
ORIENTATION = 0x0112  # the EXIF tag; for values of 5 and more, height and width are swapped
_THREADS = 8
_KINDS = ("RGB", "gray", "alpha", "CMYK")

Seen = tuple[int, ...] | str  # channels, height and width (of masks: image_pairs.py), or why it can't be read


class Looked(dict[Path, Seen]):
    """The facts of each file (see `Seen`), and how many images have colours of each kind ("gray", "alpha", "CMYK")."""

    kinds: Mapping[str, int] = MappingProxyType({})

    def sizes(self, paths: Iterable[Path]) -> frozenset[tuple[int, ...]]:
        """Return the sizes of those of the files that can be read."""
        return frozenset(seen for path in paths if not isinstance(seen := self[path], str))


def looked_at(folder: Path, paths: Sequence[Path]) -> Looked:
    """Like `looked`, for images, with the kinds of their colours."""
    facts = looked(folder, paths, _look_at_colours, "colours")
    result = Looked({path: seen if isinstance(seen, str) else seen[:3] for path, seen in facts.items()})
    result.kinds = Counter(_KINDS[seen[3]] for seen in facts.values() if not isinstance(seen, str))
    return result


def one_size(sizes: Collection[Seen]) -> tuple[int, int, int] | None:
    """Return the size (channels, height and width) of images that all have it; None if they differ."""
    first = next(iter(sizes)) if len(sizes) == 1 else ""
    return None if isinstance(first, str) else (first[0], first[1], first[2])


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
        fresh = dict(zip(new, pool.map(partial(_look_at_file, look or look_at), new)))
    seen: dict[Path, Seen] = {path: fresh[path] if path in fresh else known[stamps[path]] for path in paths}
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
    seen = _look_at_colours(path)
    return seen if isinstance(seen, str) else seen[:3]


def _look_at_colours(path: Path | io.BytesIO) -> Seen:
    """Return the size of an image, and the index of its kind of colours in `_KINDS`; or why it can't be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            image.load()
            need_range(image)
            eight_bits(image)
            width, height = image.size
            if image.getexif().get(ORIENTATION, 1) >= 5:
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
    message = one_line(error, 5000).replace(repr(str(path)), "").strip()[:100]
    return message or type(error).__name__


def need_range(image: Image.Image) -> None:
    """Raise `ValueError` for numbers of 32 bits. Only in PNG and PNM does PIL's mode I mean 16 bits."""
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        raise ValueError("the range of numbers of 32 bits is unknown; save it with 8 or 16 bits")


def eight_bits(image: Image.Image) -> Image.Image:
    """Convert 16-bit images and transparent palettes: PIL would clip at 255, and lose the transparency."""
    from PIL import Image

    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) / 257).round().astype(np.uint8))
    return image.convert("RGBA") if image.mode == "P" and "transparency" in image.info else image


def skipped(folder: Path, seen: Mapping[Path, Seen], strict: bool) -> list[str]:
    bad = [(path.relative_to(folder).as_posix(), why) for path, why in seen.items() if isinstance(why, str)]
    if not bad:
        return []
    named = listed((f"{name} ({why})" for name, why in bad), 5)
    count = f"{len(bad)} image{'s' if len(bad) > 1 else ''} of {folder} can't be read"
    if strict:
        raise OnnxgenError(f"{count}: {named}", help="remove or repair them; training without --strict skips them")
    return [LeftOut(f"{count}, skipped: {named}", len(bad))]


def refuse_unopened(folder: Path, layout: Layout, strict: bool, problems: Problems) -> None:
    """Add the classes none of whose images can be opened; with `strict`, all images that can't be read if one can't.

    Only the beginning of a file is read, so that it costs little.
    """
    before = len(problems.found)
    for part, pairs in layout.images.items():
        for label in sorted({label for _, label in pairs}):
            if not any(_opens(path) for path, of in pairs if of == label):
                problems.add(unread(layout.classes, label, layout.parts[part]))
    paths = [path for pairs in layout.images.values() for path, _ in pairs]
    if strict and len(problems.found) == before and not all(map(_opens, paths)):
        with problems.gathered():
            skipped(folder, looked(folder, paths), strict)


def unread(classes: Sequence[str], label: int, root: Path) -> str:
    """Return what is wrong if no image of a class can be read."""
    return f"none of the images of {legible(classes[label] if classes else root.name)!r} in {root} can be read"


def refuse_all(paths: Iterable[Path]) -> None:
    """Raise `OnnxgenError` if none of these images can be opened."""
    paths = list(paths)
    if paths and not any(map(_opens, paths)):
        raise OnnxgenError(*(f"{path} can't be read: {why}" for path, why in looked(Path(), paths).items()))


def _opens(path: Path) -> bool:
    return path.is_file() and not isinstance(_look_at_file(_look_at_beginning, path), str)


def _look_at_beginning(path: Path) -> Seen:
    """Return the size of an image that begins as one, or why it can't be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return int(image.width), int(image.height)
    except Exception as error:  # PIL's plug-ins raise any exception
        return told(error, path)
