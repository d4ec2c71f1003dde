"""Folders of images beside folders with a file for each image: labels of YOLO, masks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from onnxgen.common.names import listed
from onnxgen.errors import OnnxgenError
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import SUFFIXES, files_below, files_in, folders, images_in, part_called

IMAGES = "images"


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
    found = [inner for inner in folders(folder) if inner.name.lower() == name] if folder.is_dir() else []
    return found[0] if len(found) == 1 and not path.is_dir() else path


def _parts(folder: Path, fits: Callable[[Path], bool]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in folders(folder):
        part = part_called(path.name)
        if part is None or not fits(path):
            continue
        if part in found:
            raise OnnxgenError(f"{folder} has two folders for {part}: {found[part].name} and {path.name}")
        found[part] = path
    return found


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


def paired(
    images: Path, other: Path, suffixes: Iterable[str], faults: Faults, what: str, ignored: str = ""
) -> tuple[dict[Path, Path | None], int]:
    """Return the images of a folder, and the file of the same name in the other folder; None if there is none.

    Files without an image, and images that would share a file, are faults.

    Args:
        what: a file of the other folder, for messages.
        ignored: the name of a file that belongs to no image.

    Returns:
        The pairs; and how many images share a file.
    """
    found = images_in(images)
    keys = {path: path.relative_to(images).with_suffix("").as_posix() for path in found}
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
