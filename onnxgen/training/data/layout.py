"""How files lie in folders: images in one for each class, and files that lie beside images.

Labels of YOLO and masks lie beside their images: a file for each image, with its name, in another
folder. Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError, Problem
from onnxgen.training.data.faults import Faults

PARTS = ("train", "val", "test")
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_TABLES = (".csv", ".tsv", ".jsonl", ".txt")
_HIDDEN = (".", "__")  # what begins the names of folders that programs add: .ipynb_checkpoints, __MACOSX
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
_UP = 4  # folders above a list that its paths may begin at
_TRIED = 100  # files that are looked for to find the folder that paths begin at
_SPELLED = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
_SPELLED |= {"test": "test", "testing": "test", "t10k": "test"}


class Layout(NamedTuple):
    """A folder for each part, the names of the classes, and by part each image with the number of its class."""

    parts: dict[str, Path]
    classes: tuple[str, ...]
    images: dict[str, list[tuple[Path, int]]]


def refuse_special(path: Path) -> None:
    """Refuse a pipe or a device as data: to read it may never end. Raises `OnnxgenError`."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OnnxgenError(f"{path} is neither a file nor a folder", help="save its contents in a file")


def part_called(name: str) -> str | None:
    """Return the part that is meant by the name of a folder, file or key; None if it means none."""
    return _SPELLED.get(name.lower())


def layout(folder: Path, labelled: bool = True) -> Layout:
    """Find `folder/class/*.png`, or `folder/train/class/*.png` beside `val`, `valid`, `validation` or `test`.

    Args:
        labelled: False allows images in the folder itself, without labels.

    Raises:
        OnnxgenError: there are no images, or a class has none.
    """
    parts, classes = class_folders(folder)
    if not classes and labelled:
        has = "has images but no folder for each class" if images_in(folder) else "has no images"
        raise OnnxgenError(f"{folder} {has}", help="lay it out as folder/class_name/*.png")
    return Layout(parts, classes, {part: _labelled(root, classes) for part, root in parts.items()})


def class_folders(path: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """Return the folder of each part, and the names of the classes, which have folders in these.

    Raises:
        OnnxgenError: there are only folders of parts, which have none for classes.
    """
    inner = folders(path) if path.is_dir() else []
    if inner and all(part_called(folder.name) and not folders(folder) for folder in inner):
        has = f"{path} has {listed(folder.name for folder in inner)}, with no folders for classes inside"
        tables = [file for file in files_in(path, *_TABLES) if part_called(file.stem)]
        way = f"name {tables[0]}" if tables else "put labels into a table, as labels.csv"
        raise OnnxgenError(has, help=f"lay it out as train/class_name/FILE, or {way}")
    parts = {part: folder for folder in inner if (part := part_called(folder.name)) and folders(folder)}
    parts = parts if "train" in parts else {"train": path}
    return parts, tuple(sorted({one.name for root in parts.values() if root.is_dir() for one in folders(root)}))


def refuse_nested(folder: Path, parts: Mapping[str, Path], suffixes: Sequence[str]) -> None:
    """Raise `OnnxgenError` if the only class has folders of its own, and no files: an archive was unpacked into one."""
    for root in parts.values() if len({p.name for r in parts.values() if r.is_dir() for p in folders(r)}) == 1 else ():
        if (path := nested(root, suffixes)) != root:
            what = f"{folder} has one folder, {path.relative_to(root).as_posix()}, which has folders itself: "
            way = f"if these are the classes or parts, name {path}"
            raise OnnxgenError(what + listed(p.name for p in folders(path)), help=way)


def nested(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """Return the first folder inside that has several, if each has no files on the way, but one folder; else `folder`.

    An archive of an archive has it deeper.
    """
    path = folder
    while len(inner := folders(path)) == 1 and not files_in(inner[0], *suffixes):
        path = inner[0]
    return path if len(inner) > 1 else folder


def folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted; not those that are hidden."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(_HIDDEN))


def files_in(folder: Path, *endings: str) -> list[Path]:
    """Return the files of a folder itself with these endings (in any case), sorted; not those that are hidden."""
    paths = (path for path in folder.iterdir() if path.suffix.lower() in endings) if folder.is_dir() else ()
    return sorted(path for path in paths if not path.name.startswith(".") and not path.is_dir())


def root_of(folder: Path, names: Sequence[str]) -> Path:
    """Return the folder that the names in a list begin at: that of the list, one above it, or the only one in it.

    It has some of the first files that are named; if none has, it is the folder of the list.
    """

    def has_some(root: Path) -> bool:
        return any((root / name).is_file() for name in names[:_TRIED])

    roots = [folder, *islice((folder / "list").absolute().parents, 1, _UP)]
    if (first := next(filter(has_some, roots), None)) is not None:
        return first
    inside = [*filter(has_some, folders(folder))]
    return inside[0] if len(inside) == 1 else folder


def files_below(folder: Path, *endings: str) -> Iterator[Path]:
    """Yield the files of a folder and of those in it with these endings (none: all), but nothing that is hidden.

    A folder with such an ending is yielded, too: it bears the name of a file, and is told to be none.
    """
    for root, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith(_HIDDEN))
        for name in sorted([*names, *(inner if endings else ())]):
            if not name.startswith(".") and (not endings or Path(name).suffix.lower() in endings):
                yield Path(root, name)


def images_in(folder: Path) -> list[Path]:
    return sorted(files_below(folder, *SUFFIXES))


def files_meant(item: Path | str) -> list[Path]:
    """Return the files that are meant by a path, a folder (its images) or a pattern, in sorted order.

    Raises `OnnxgenError` if there are none.
    """
    path = Path(item)
    if path.is_dir():
        known = (*SUFFIXES, *SOUNDS)
        if files := sorted(files_below(path, *known)):
            return files
        way = f"their names end in {', '.join(known)}"
        raise OnnxgenError(f"the folder {path} has no images or sounds", help=way)
    if path.exists():
        return [path]
    root = Path(path.anchor or ".")
    named = root.glob(str(path.relative_to(path.anchor))) if "*" in str(path) else ()
    files = sorted(p for p in named if p.is_file() and (not p.name.startswith(".") or path.name.startswith(".")))
    if not files:
        raise OnnxgenError(f"there is no file {path}", help="name image files, tables, arrays (.npz), or a folder")
    return files


def _labelled(root: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    if not classes:
        return [(path, 0) for path in images_in(root)]
    by_class = {path: images_in(path) for path in folders(root)}
    way = f"put images into it ({', '.join(SUFFIXES)}), or remove it"
    bare = [path for path, images in by_class.items() if not images]
    if bare:
        raise OnnxgenError(*(Problem(f"the class folder {path} has no images", help=way) for path in bare))
    return [(image, classes.index(path.name)) for path, images in by_class.items() for image in images]


IMAGES = "images"
Pairs = tuple[dict[Path, Path | None], int]  # the file beside each image, and how many images were left out


def laid_out(folder: Path, beside: str, images: str = IMAGES) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and of the files beside them by part; {} if the folder is laid out in another way.

    It is `images/` beside `labels/` (say), each perhaps with a folder for each part; or such a pair in each part. The
    names may have capitals.
    """
    here, other = called(folder, images), called(folder, beside)
    if here.is_dir() and other.is_dir():
        inner = _parts(here, lambda path: True)
        if "train" in inner:
            return {part: (path, other / path.name) for part, path in inner.items()}
        return {"train": (here, other)}
    inner = _parts(folder, lambda path: called(path, images).is_dir() and called(path, beside).is_dir())
    pairs = {part: (called(path, images), called(path, beside)) for part, path in inner.items()}
    return pairs if "train" in pairs else {}


def called(folder: Path, name: str) -> Path:
    """Return the folder of this name in another one, or the only one that has it with capitals."""
    path = folder / name
    matches = [inner for inner in folders(folder) if inner.name.lower() == name] if folder.is_dir() else []
    return matches[0] if len(matches) == 1 and not path.is_dir() else path


def _parts(folder: Path, fits: Callable[[Path], bool]) -> dict[str, Path]:
    parts: dict[str, Path] = {}
    for path in folders(folder):
        part = part_called(path.name)
        if part is None or not fits(path):
            continue
        if part in parts:
            raise OnnxgenError(f"{folder} has two folders for {part}: {parts[part].name} and {path.name}")
        parts[part] = path
    return parts


def unread(pairs: Mapping[str, tuple[Path, Path]]) -> list[str]:
    """Return the note that folders and images beside the parts' folders of images are ignored, if there are some."""
    used = {images for images, _ in pairs.values() if part_called(images.name)}
    beside = (path for root in {p.parent for p in used} for path in (*folders(root), *files_in(root, *SUFFIXES)))
    left = [path.name for path in sorted({*beside} - used)]
    inner = {images.parent.name for images in used}
    return [f"not part of the data, ignored: {listed(left)} in {listed(sorted(inner))}"] if left else []


def holds(folder: Path, suffixes: Iterable[str]) -> bool:
    """Return True if the folder, or one in it, has a file with one of these endings."""
    return any(True for _ in files_below(folder, *suffixes))


def paired(images: Path, other: Path, suffixes: Iterable[str], faults: Faults, what: str, ignored: str = "") -> Pairs:
    """Return the images of a folder, and the file of the same name in the other folder; None if there is none.

    Files without an image, and images that would share a file, are faults.

    Args:
        what: a file of the other folder, for messages.
        ignored: the name of a file that belongs to no image.
    """
    keys = {path: path.relative_to(images).with_suffix("").as_posix() for path in images_in(images)}
    files: dict[str, list[Path]] = {}
    for path in sorted(files_below(other, *suffixes)):
        if path.is_file() and path.name != ignored:
            files.setdefault(path.relative_to(other).with_suffix("").as_posix(), []).append(path)
    clashing = _clashing(keys, files, faults, what)
    for key in sorted({*files} - {*keys.values()}):
        faults.add(faults.place(files[key][0]), f"the {what} has no image in {faults.place(images)}")
    kept = {path: key for path, key in keys.items() if key not in clashing}
    return {path: files[key][0] if key in files else None for path, key in kept.items()}, len(keys) - len(kept)


def _clashing(keys: Mapping[Path, str], files: Mapping[str, list[Path]], faults: Faults, what: str) -> set[str]:
    """Return the keys that several images or several files have."""
    count = Counter(keys.values())
    several = {key for key, number in count.items() if number > 1}
    for key in sorted(several):
        both = [path for path, own in keys.items() if own == key]
        faults.add(faults.place(both[0]), f"{both[1].name} has the same {what}: rename one of them")
    for key, paths in files.items():
        if len(paths) > 1:
            faults.add(faults.place(paths[0]), f"{paths[1].name} is a second {what} of the same image")
            several.add(key)
    return several
