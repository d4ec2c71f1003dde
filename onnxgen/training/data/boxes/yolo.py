"""Reads boxes of YOLO: a text file for each image, with a line "class x y width height" for each box.

The centre and the size are shares of the image's width and height (https://docs.ultralytics.com/datasets/detect/). A
line with more numbers is a polygon, "class x1 y1 x2 y2 ...": its box is the one around it, as Ultralytics trains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.data.boxes.pictures import Box, Picture, opened
from onnxgen.training.data.boxes.there import LABELS, described, yolo_file, yolo_pairs, yolo_root
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import SUFFIXES
from onnxgen.training.data.pairs import IMAGES, called, paired, unread
from onnxgen.training.data.source import DataSource

_NAMES = "classes.txt"  # labelImg and Label Studio write the names of the classes, one for each line
_LEAST = 7  # numbers of a polygon of three corners


def open_yolo(path: Path, *, strict: bool, labelled: bool = True, classes: tuple[str, ...] = ()) -> DataSource:
    """Open `data.yaml` with the folders or lists of images, or `images/` beside `labels/`: "image" and "boxes".

    An image without a file of labels has no boxes. Classes without names get those of `classes`.

    Raises:
        OnnxgenError: `data.yaml` can't be read or has no names, or no image can be used.
    """
    file = yolo_file(path)
    folder = path.parent if path.is_file() else yolo_root(path)
    faults = Faults(folder)
    notes: list[str] = []
    if file is not None:
        said = described(file, classes)
        classes, notes = said.names, [*said.notes]
        found = {part: _listed(places, said.root, faults) for part, places in said.parts.items()}
    else:
        pairs = yolo_pairs(folder)
        classes = _class_file(folder, called(folder, LABELS), *(labels for _, labels in pairs.values())) or classes
        found = {part: _of_folder(images, labels, faults) for part, (images, labels) in pairs.items()}
        notes = unread(pairs)
    parts = {
        part: [_picture(i, label, len(classes), faults) for i, label in f.pairs.items()] for part, f in found.items()
    }
    named = bool(classes)
    if not named:
        highest = max((box.label for pictures in parts.values() for p in pictures for box in p.boxes), default=-1)
        classes = tuple(map(str, range(highest + 1)))
    lost = sum(files.lost for files in found.values())
    return opened(
        parts, classes, faults, pixels=False, named=named, strict=strict, labelled=labelled, lost=lost, notes=notes
    )


@dataclass(frozen=True)
class _Files:
    """Images with their files of labels; and how many images were left out."""

    pairs: Mapping[Path, Path | None]
    lost: int = 0


def _listed(places: Iterable[Path], root: Path, faults: Faults) -> _Files:
    """Return the images of a part: of folders, and of text files with a path in each line."""
    pairs: dict[Path, Path | None] = {}
    lost = 0
    for place in places:
        if place.is_dir():
            found, number = paired(place, _labels_of(place), [".txt"], faults, "label file", _NAMES)
            lost += number
            pairs |= found
        else:
            pairs |= _of_list(place, root, faults)
    return _Files(pairs, lost)


def _of_list(file: Path, root: Path, faults: Faults) -> dict[Path, Path | None]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise OnnxgenError(f"{file} can't be read: {one_line(error, 100)}", help="save it as text in UTF-8") from None
    found: dict[Path, Path | None] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        image = next((p for p in (file.parent / line, root / line) if "\0" not in line and p.is_file()), root / line)
        if wrong := _unusable(line, image, found):
            faults.add(f"{faults.place(file)}, line {number}", f"{legible(line)} {wrong}")
        else:
            label = _labels_of(image).with_suffix(".txt")
            found[image] = label if label.is_file() else None
    return found


def _unusable(line: str, image: Path, found: Mapping[Path, Any]) -> str:
    """Return what is wrong with a line of a list; "" if nothing is."""
    if "\0" in line or ".." in Path(line).parts:
        return "leaves the folder"
    if not image.is_file():
        return "is no file"
    if image.suffix.lower() not in SUFFIXES:
        return "is no image"
    return "is listed twice" if image in found else ""


def _labels_of(path: Path) -> Path:
    """Return the place of labels for a place of images: the last folder called `images` becomes `labels`.

    The names may have capitals.
    """
    parts = list(path.parts)
    for index in reversed(range(len(parts))):
        if parts[index].lower() == IMAGES:
            return called(Path(*parts[:index]), LABELS).joinpath(*parts[index + 1 :])
    return path


def _of_folder(images: Path, labels: Path, faults: Faults) -> _Files:
    return _Files(*paired(images, labels, [".txt"], faults, "label file", _NAMES))


def _class_file(*folders: Path) -> tuple[str, ...]:
    for path in (folder / _NAMES for folder in folders):
        if path.is_file():
            try:
                names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
            except UnicodeDecodeError as error:
                raise OnnxgenError(f"{path} can't be read: {error}", help="save it as text in UTF-8") from None
            if len({*names}) < len(names):
                raise OnnxgenError(f"{path} has a name twice", help="give each class its own name")
            return tuple(names)
    return ()


# ---- labels ----------------------------------------------------------------------------------------------------------


def _picture(image: Path, label: Path | None, classes: int, faults: Faults) -> Picture:
    """Return an image with the boxes of its label file."""
    if label is None:
        return Picture(image, faults.place(image))
    where = faults.place(label)
    picture = Picture(image, where)
    try:
        lines = label.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        faults.add(where, f"can't be read: {one_line(error, 100)}; save it as text in UTF-8")
        picture.sound = False
        return picture
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        box, wrong = _box(f"{where}, line {number}", line.split(), classes)
        if box is None:
            faults.add(f"{where}, line {number}", wrong)
            picture.sound = False
        else:
            picture.boxes.append(box)
    return picture


def _box(where: str, words: list[str], classes: int) -> tuple[Box | None, str]:
    try:
        label, *numbers = map(float, words)
    except ValueError:
        return None, f"{legible(' '.join(words))} is not a row of numbers"
    if not (len(words) == 5 or (len(words) >= _LEAST and len(words) % 2)):
        return None, f"{len(words)} numbers, but a box has 5: class x y width height"
    if not label.is_integer() or label < 0 or label >= (classes or 1 << 20):
        known = f": there are {classes}, from 0" if classes else ""
        return None, f"{words[0]} is no class{known}"
    if len(words) == 5:
        x, y, width, height = numbers
        return Box(where, int(label), (x - width / 2, y - height / 2, x + width / 2, y + height / 2)), ""
    xs, ys = numbers[::2], numbers[1::2]
    if any(number != number for number in numbers):
        return None, "a corner of the polygon is not a number"
    return Box(where, int(label), (min(xs), min(ys), max(xs), max(ys))), ""
