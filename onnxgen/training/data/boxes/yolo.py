"""Reads boxes of YOLO: a text file for each image, with a line "class x y width height" for each box.

The centre and the size are shares of the image's width and height (https://docs.ultralytics.com/datasets/detect/). A
line with more numbers is a polygon, "class x1 y1 x2 y2 ...": its box is the one around it, as Ultralytics trains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgen.common.names import printable
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.data.boxes.pictures import Box, Picture, opened
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import SUFFIXES
from onnxgen.training.data.pairs import IMAGES, holds, laid_out, paired, unread
from onnxgen.training.data.samples import PARTS
from onnxgen.training.data.source import DataSource

LABELS = "labels"
_YAML = ("data.yaml", "data.yml")
_NAMES = "classes.txt"  # labelImg and Label Studio write the names of the classes, one for each line
_LEAST = 7  # numbers of a polygon of three corners


def is_yolo(path: Path) -> bool:
    """Return True for a .yaml file, a folder with `data.yaml`, and one with images beside labels in text files."""
    if path.is_file():
        return path.suffix.lower() in (".yaml", ".yml")
    if any((path / name).is_file() for name in _YAML):
        return True
    pairs = laid_out(_root(path), LABELS).values()
    return bool(pairs) and all(holds(labels, [".txt"]) or not holds(labels, SUFFIXES) for _, labels in pairs)


def _root(path: Path) -> Path:
    return path.parent if path.name == LABELS else path


def open_yolo(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `data.yaml` with the folders or lists of images, or `images/` beside `labels/`: "image" and "boxes".

    An image without a file of labels has no boxes.

    Raises:
        OnnxgenError: `data.yaml` can't be read or has no names, or no image can be used.
    """
    file = path if path.is_file() else next((path / name for name in _YAML if (path / name).is_file()), None)
    folder = path.parent if path.is_file() else _root(path)
    faults = Faults(folder)
    notes: list[str] = []
    if file is not None:
        given = _read(file)
        classes = _names(file, given)
        found = {part: _listed(file, given, part, faults) for part in PARTS if given.get(part)}
        if "train" not in found:
            raise OnnxgenError(f"{file} has no train", help="say where the images are: train: images/train")
    else:
        classes, pairs = _class_file(folder), laid_out(folder, LABELS)
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


# ---- data.yaml -------------------------------------------------------------------------------------------------------


def _read(file: Path) -> dict[str, Any]:
    """Read the file; every scalar is text, so that a class may be called "no" or "01"."""
    need(["yaml"])
    import yaml

    try:
        found = yaml.load(file.read_bytes(), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise OnnxgenError(f"{file} can't be read: {one_line(error, 200)}", help="it must be YAML in UTF-8") from None
    if not isinstance(found, dict):
        raise OnnxgenError(f"{file} is not a data.yaml of YOLO", help=_FORM)
    return found


_FORM = "it has lines such as train: images/train, and names: [cat, dog]"


def _names(file: Path, given: Mapping[str, Any]) -> tuple[str, ...]:
    names = given.get("names")
    if not names:
        raise OnnxgenError(
            f"{file} has no names of the classes", help="names: [cat, dog], in the order of their numbers"
        )
    if isinstance(names, dict):
        numbers = [str(number) for number in range(len(names))]
        if {*names} != {*numbers}:
            what = f"{file}: names has the keys {printable(', '.join(map(str, names)))}"
            raise OnnxgenError(what, help=f"number the classes 0 to {len(names) - 1}")
        names = [names[number] for number in numbers]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise OnnxgenError(f"{file}: names is not a list of names", help="names: [cat, dog]")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise OnnxgenError(f"{file}: two classes are called {printable(twice[0])!r}", help="give each its own name")
    if (count := given.get("nc", str(len(names)))) != str(len(names)):
        raise OnnxgenError(f"{file}: nc is {printable(str(count))}, but there are {len(names)} names", help="remove nc")
    return tuple(names)


def _listed(file: Path, given: Mapping[str, Any], part: str, faults: Faults) -> _Files:
    """Return the images of a part: of folders, of text files with a path in each line, or one of these alone."""
    said = given[part] if isinstance(given[part], list) else [given[part]]
    base = given.get("path", "")
    root = file.parent / base if isinstance(base, str) else file.parent
    root = root if root.is_dir() else file.parent  # written for another machine
    pairs: dict[Path, Path | None] = {}
    lost = 0
    for entry in said:
        place = _place(root, entry)
        if place is None:
            way = "it is a folder of images, or a .txt with the path of an image in each line"
            raise OnnxgenError(f"{file}: {part} is {printable(str(entry))}, and there is no such place", help=way)
        if place.is_dir():
            found, number = paired(place, _labels_of(place), [".txt"], faults, "label file", _NAMES)
            lost += number
            pairs |= found
        else:
            pairs |= _of_list(place, root, faults)
    return _Files(pairs, lost)


def _place(root: Path, entry: Any) -> Path | None:
    """Return the folder or list that an entry means. Roboflow writes `../train/images` for `train/images`."""
    if not isinstance(entry, str) or "\0" in entry:
        return None
    tried = [root / entry, root / entry.removeprefix("../")]
    return next((path for path in tried if path.is_dir() or (path.is_file() and path.suffix == ".txt")), None)


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
            faults.add(f"{faults.place(file)}, line {number}", f"{printable(line)} {wrong}")
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
    """Return the place of labels for a place of images: the last folder called `images` becomes `labels`."""
    parts = list(path.parts)
    for index in reversed(range(len(parts))):
        if parts[index] == IMAGES:
            return Path(*parts[:index], LABELS, *parts[index + 1 :])
    return path


def _of_folder(images: Path, labels: Path, faults: Faults) -> _Files:
    return _Files(*paired(images, labels, [".txt"], faults, "label file", _NAMES))


def _class_file(folder: Path) -> tuple[str, ...]:
    for path in (folder / _NAMES, folder / LABELS / _NAMES):
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
        return None, f"{printable(' '.join(words))} is not a row of numbers"
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
