"""Reads boxes in the formats of COCO, YOLO and Pascal VOC.

COCO is a file of JSON (https://cocodataset.org/#format-data): "bbox" is x, y, width, height in
pixels.

YOLO is a text file for each image, with a line "class x y width height" for each box. The centre
and the size are shares of the image's width and height
(https://docs.ultralytics.com/datasets/detect/). A line with more numbers is a polygon, "class x1 y1
x2 y2 ...": its box is the one around it, as Ultralytics trains it.

Pascal VOC is a file of XML for each image (http://host.robots.ox.ac.uk/pascal/VOC/). Corners are in
pixels, counted from 1, and belong to the box: a box from 1 to the width covers the whole image. So
x1 and y1 lose 1, as in Detectron2 (`data/datasets/pascal_voc.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from xml.etree import ElementTree

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.training.data.boxes.pictures import Box, Picture, opened
from onnxgen.training.data.boxes.there import (
    ANNOTATIONS,
    FOLDER,
    LABELS,
    VOC_IMAGES,
    coco_files,
    described,
    yolo_file,
    yolo_pairs,
    yolo_root,
)
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import IMAGES, SUFFIXES, Pairs, called, files_in, images_in, paired, unread
from onnxgen.training.data.source import DataSource

_TRIED = 100  # images that are looked for to find their folder


def open_coco(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `annotations/instances_*.json`, `train/_annotations.coco.json`, or one .json; columns "image" and "boxes".

    Classes are numbered in the order of the categories' ids. Crowds are left out, and counted. Raises `OnnxgenError` if
    a file is not COCO's, or no image can be used.
    """
    files = {"train": path} if path.is_file() else coco_files(path)
    folder = path.parent if path.is_file() or path.name == FOLDER else path
    faults, read = Faults(folder), {part: _read(file) for part, file in files.items()}
    names = {part: _categories(files[part], content) for part, content in read.items()}
    notes: list[str] = []
    classes = _classes(read, names, notes)
    parts, crowds, lost = {}, 0, 0
    for part, content in read.items():
        reader = _Reader(files[part], faults, {key: classes.get(name, -1) for key, name in names[part].items()})
        parts[part] = reader.pictures(content["images"])
        reader.boxes(content["annotations"])
        crowds, lost = crowds + reader.crowds, lost + reader.lost
    if crowds:
        notes.append(f"{counted(crowds, 'annotation')} of crowds (iscrowd) left out")
    return opened(parts, tuple(classes), faults, pixels=True, strict=strict, labelled=labelled, lost=lost, notes=notes)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help="it must be COCO's JSON") from None
    if not isinstance(content, dict):
        raise OnnxgenError(f"{path} is not COCO's JSON: it is a {type(content).__name__}", help=_WAY)
    for key in ("images", "annotations", "categories"):
        if not isinstance(content.get(key), list):
            raise OnnxgenError(f"{path} is not COCO's JSON: it has no list {key!r}", help=_WAY)
    return content


_WAY = "COCO's JSON is an object with the lists images, annotations and categories"


def _categories(path: Path, content: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the categories by id, in the order of the ids."""
    names: dict[int, str] = {}
    for index, category in enumerate(content["categories"]):
        key, name = (category.get("id"), category.get("name")) if isinstance(category, dict) else (None, None)
        where = f"{path}, categories[{index}]"
        if type(key) is not int or not isinstance(name, str):
            raise OnnxgenError(f"{where}: a category needs an id (a whole number) and a name")
        if key in names or name in names.values():
            raise OnnxgenError(f"{where}: a second category with id {key} or name {legible(name)!r}")
        names[key] = name
    return dict(sorted(names.items()))


def _classes(read: Mapping[str, Any], names: Mapping[str, dict[int, str]], notes: list[str]) -> dict[str, int]:
    """Return the class index of each name. A category that only stands above others is none (Roboflow writes one)."""
    above = [  # not where a tool writes the category's own name twice
        c["supercategory"]
        for content in read.values()
        for c in content["categories"]
        if c.get("supercategory") not in (None, c["name"])
    ]
    used = {names[part].get(key) for part, content in read.items() for key in _category_ids(content)}
    every = dict.fromkeys(name for by_id in names.values() for name in by_id.values())
    left = [name for name in every if name in above and name not in used]
    if left:
        notes.append(f"no class: {listed(left)} has no boxes, and is the supercategory of others")
    return {name: index for index, name in enumerate(name for name in every if name not in left)}


def _category_ids(content: Mapping[str, Any]) -> list[int]:
    """Return the ids of the categories that have annotations."""
    known = (a.get("category_id") for a in content["annotations"] if isinstance(a, dict))
    return [key for key in known if type(key) is int]


class _Reader:
    """Reads the lists of one file."""

    def __init__(self, path: Path, faults: Faults, classes: Mapping[int, int]) -> None:
        self.path, self.faults, self.classes = path, faults, classes
        self.name = faults.place(path)
        self.by_id: dict[Any, Picture] = {}
        self.crowds = self.lost = 0

    def pictures(self, images: list[Any]) -> list[Picture]:
        root = self._root(image["file_name"] for image in images if not _unusable_image(image))
        for index, image in enumerate(images):
            where = f"{self.name}, images[{index}]"
            wrong = _unusable_image(image)
            if not wrong and image["id"] in self.by_id:
                wrong = f"a second image with the id {image['id']}"
                self.by_id[image["id"]].sound = False
            if wrong:
                self.faults.add(where, wrong)
                self.lost += 1
                continue
            size = image.get("width"), image.get("height")
            declared = (float(size[0]), float(size[1])) if all(type(n) in (int, float) for n in size) else None
            self.by_id[image["id"]] = Picture(root / image["file_name"], where, size=declared)
        return list(self.by_id.values())

    def _root(self, names: Iterable[str]) -> Path:
        """Return the folder of the images: the first usual place that has one of them."""
        here, part = self.path.parent, self.path.stem.removeprefix("instances_")
        beside = [here, here / "images"]
        beside += [here.parent / part, here.parent / "images" / part, here.parent / "images", here.parent]
        some = list(islice(names, _TRIED))
        if roots := [root for root in beside for name in some if (root / name).is_file()][:1]:
            return roots[0]
        if some:
            places = listed(f"{self.faults.place(root)}/" for root in beside)
            self.faults.why.append(f"{self.name}: none of its images is in any of {places}")
        return next((root for root in beside[2:4] if root.is_dir()), here)  # to say what is missing

    def boxes(self, annotations: list[Any]) -> None:
        for index, annotation in enumerate(annotations):
            where = f"{self.name}, annotations[{index}]"
            key = annotation.get("image_id") if isinstance(annotation, dict) else None
            picture = self.by_id.get(key) if isinstance(key, (int, str)) else None
            if picture is not None and annotation.get("iscrowd"):
                self.crowds += 1
                continue
            box, wrong = self._box(where, annotation, picture)
            if wrong:
                self.faults.add(where, wrong)
            if picture is not None and box is None:
                picture.sound = False
            elif picture is not None and box is not None:
                picture.boxes.append(box)

    def _box(self, where: str, annotation: Any, picture: Picture | None) -> tuple[Box | None, str]:
        if not isinstance(annotation, dict):
            return None, "an annotation must be an object"
        if picture is None:
            return None, f"no image has the id {legible(str(annotation.get('image_id')))}"
        key, box = annotation.get("category_id"), annotation.get("bbox")
        if type(key) is not int or key not in self.classes:
            return None, f"no category has the id {legible(str(key))}"
        if not isinstance(box, list) or len(box) != 4 or not all(type(number) in (int, float) for number in box):
            return None, "bbox is not a list of four numbers"
        try:
            x, y, width, height = map(float, box)
        except OverflowError:
            x = y = width = height = math.nan
        return Box(where, self.classes[key], (x, y, x + width, y + height)), ""


def _unusable_image(image: Any) -> str:
    """Return what is wrong with an entry of `images`; "" if nothing is."""
    if not isinstance(image, dict) or not isinstance(image.get("id"), (int, str)):
        return "an image must be an object with an id"
    name = image.get("file_name")
    if not isinstance(name, str) or not name.strip():
        return "the image has no file_name"
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0] or "\0" in name:
        return f"file_name {legible(name)} leaves the folder of the images"
    return ""


_NAMES = "classes.txt"  # labelImg and Label Studio write the names of the classes, one for each line
_LEAST = 7  # numbers of a polygon of three corners


def open_yolo(path: Path, *, strict: bool, labelled: bool = True, classes: tuple[str, ...] = ()) -> DataSource:
    """Open `data.yaml` with the folders or lists of images, or `images/` beside `labels/`: "image" and "boxes".

    An image without a file of labels has no boxes. Classes without names get those of `classes`. Raises `OnnxgenError`
    if `data.yaml` can't be read or has no names, or no image can be used.
    """
    file = yolo_file(path)
    folder = path.parent if path.is_file() else yolo_root(path)
    faults = Faults(folder)
    if file is not None:
        description = described(file, classes)
        classes, notes = description.names, [*description.notes]
        files = {part: _listed(places, description.root, faults) for part, places in description.parts.items()}
    else:
        pairs = yolo_pairs(folder)
        classes = _class_file(folder, called(folder, LABELS), *(labels for _, labels in pairs.values())) or classes
        files = {part: paired(*pair, [".txt"], faults, "label file", _NAMES) for part, pair in pairs.items()}
        notes = unread(pairs)
    parts = {
        part: [_picture(image, label, len(classes), faults) for image, label in labels.items()]
        for part, (labels, _) in files.items()
    }
    named = bool(classes)
    if not named:
        highest = max((box.label for pictures in parts.values() for p in pictures for box in p.boxes), default=-1)
        classes = tuple(map(str, range(highest + 1)))
    lost = sum(number for _, number in files.values())
    return opened(
        parts, classes, faults, pixels=False, named=named, strict=strict, labelled=labelled, lost=lost, notes=notes
    )


def _listed(places: Iterable[Path], root: Path, faults: Faults) -> Pairs:
    """Return the images of a part: of folders, and of text files with a path in each line."""
    pairs: dict[Path, Path | None] = {}
    lost = 0
    for place in places:
        if place.is_dir():
            matches, number = paired(place, _labels_of(place), [".txt"], faults, "label file", _NAMES)
            lost += number
            pairs |= matches
        else:
            pairs |= _of_list(place, root, faults)
    return pairs, lost


def _of_list(file: Path, root: Path, faults: Faults) -> dict[Path, Path | None]:
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise OnnxgenError(f"{file} can't be read: {one_line(error, 100)}", help="save it as text in UTF-8") from None
    pairs: dict[Path, Path | None] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line:
            continue
        image = next((p for p in (file.parent / line, root / line) if "\0" not in line and p.is_file()), root / line)
        if wrong := _unusable_line(line, image, pairs):
            faults.add(f"{faults.place(file)}, line {number}", f"{legible(line)} {wrong}")
        else:
            label = _labels_of(image).with_suffix(".txt")
            pairs[image] = label if label.is_file() else None
    return pairs


def _unusable_line(line: str, image: Path, pairs: Mapping[Path, Any]) -> str:
    """Return what is wrong with a line of a list; "" if nothing is."""
    if "\0" in line or ".." in Path(line).parts:
        return "leaves the folder"
    if not image.is_file():
        return "is no file"
    if image.suffix.lower() not in SUFFIXES:
        return "is no image"
    return "is listed twice" if image in pairs else ""


def _labels_of(path: Path) -> Path:
    """Return the place of labels for a place of images: the last folder called `images` becomes `labels`.

    The names may have capitals.
    """
    parts = list(path.parts)
    for index in reversed(range(len(parts))):
        if parts[index].lower() == IMAGES:
            return called(Path(*parts[:index]), LABELS).joinpath(*parts[index + 1 :])
    return path


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


def _picture(image: Path, label: Path | None, classes: int, faults: Faults) -> Picture:
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


SETS = "ImageSets"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def open_voc(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `Annotations/*.xml` with `JPEGImages` and perhaps `ImageSets/Main/*.txt`: "image" and "boxes".

    Classes are the names of the objects, in sorted order. Difficult objects count like others. Raises `OnnxgenError` if
    a list of a part can't be read, or no image can be used.
    """
    folder = path.parent if path.name == ANNOTATIONS else path
    faults = Faults(folder)
    images = images_by_stem(folder)
    parts = listed_parts(folder, "Main", faults) or {"train": _all(folder, images, faults)}
    read = {
        part: [_Read(folder, where, stem, images, faults) for where, stem in entries] for part, entries in parts.items()
    }
    classes = tuple(sorted({name for entries in read.values() for one in entries for name in one.names}))
    place = {name: index for index, name in enumerate(classes)}
    parted = {part: [one.picture(place) for one in entries if one.image] for part, entries in read.items()}
    lost = sum(one.image is None for entries in read.values() for one in entries)
    return opened(parted, classes, faults, pixels=True, strict=strict, labelled=labelled, lost=lost)


def images_by_stem(folder: Path) -> dict[str, list[Path]]:
    """Return the images of `JPEGImages` by their names without ending."""
    by_stem: dict[str, list[Path]] = {}
    for path in images_in(folder / VOC_IMAGES):
        by_stem.setdefault(path.stem, []).append(path)
    return by_stem


def listed_parts(folder: Path, kind: str, faults: Faults) -> dict[str, list[tuple[str, str]]]:
    """Return the names of `ImageSets/KIND/train.txt` and so on by part, each with its place; {} without such lists.

    `trainval` is the training part if there is no `train`.
    """
    parts: dict[str, list[tuple[str, str]]] = {}
    for part in ("train", "val", "test"):
        path = folder / SETS / kind / f"{part}.txt"
        if part == "train" and not path.is_file():
            path = path.with_name("trainval.txt")
        if not path.is_file():
            continue
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (UnicodeDecodeError, OSError) as error:
            raise OnnxgenError(f"{path} can't be read: {one_line(error, 100)}", help="save it in UTF-8") from None
        names = [
            (f"{faults.place(path)}, line {n}", line.split()[0]) for n, line in enumerate(lines, 1) if line.strip()
        ]
        parts[part] = _once(names, faults)
    if parts and "train" not in parts:
        what = f"{folder / SETS / kind} has no train.txt"
        raise OnnxgenError(what, help="list the names of the training images there")
    return parts


def _once(names: Sequence[tuple[str, str]], faults: Faults) -> list[tuple[str, str]]:
    places: dict[str, str] = {}
    for where, name in names:
        if name in places:
            faults.add(where, f"{legible(name)} is listed twice")
        elif "/" in name or "\\" in name or "\0" in name:
            faults.add(where, f"{legible(name)} is not the name of an image in {VOC_IMAGES}")
        else:
            places[name] = where
    return [(where, name) for name, where in places.items()]


def _all(folder: Path, images: dict[str, list[Path]], faults: Faults) -> list[tuple[str, str]]:
    files = {path.stem: path for path in files_in(folder / ANNOTATIONS, ".xml")}
    where = {stem: faults.place(path) for stem, path in files.items()}
    where |= {stem: faults.place(paths[0]) for stem, paths in images.items() if stem not in files}
    return sorted(((place, stem) for stem, place in where.items()), key=lambda entry: entry[1])


class _Read:
    """The annotation of one image.

    Attributes:
        image: None if there is no image.
        names: the names of its objects.
    """

    def __init__(self, folder: Path, where: str, stem: str, images: dict[str, list[Path]], faults: Faults) -> None:
        self.faults, self.where = faults, where
        self.image: Path | None = None
        self.names: list[str] = []
        self._boxes: list[tuple[str, tuple[float, ...]]] = []
        self._size: tuple[float, float] | None = None
        self._sound = True
        candidates = images.get(stem, [])
        if len(candidates) != 1:
            has = f"{len(candidates)} images of this name" if candidates else "no such image"
            whose = "" if where.endswith(".xml") else f"{legible(stem)}: "
            self._wrong(f"{whose}{VOC_IMAGES} has {has}")
            return
        self.image = candidates[0]
        file = folder / ANNOTATIONS / f"{stem}.xml"
        if not file.is_file():
            self._wrong(f"{ANNOTATIONS} has no {file.name}")
            return
        self.where = faults.place(file)
        try:
            root = ElementTree.fromstring(file.read_bytes())
        except (ElementTree.ParseError, ValueError, LookupError, OSError, RecursionError) as error:
            self._wrong(f"can't be read: {one_line(error, 100)}")
            return
        self._read(root)

    def _wrong(self, what: str, where: str = "") -> None:
        self.faults.add(where or self.where, what)
        self._sound = False

    def _read(self, root: ElementTree.Element) -> None:
        if root.tag != "annotation":
            self._wrong(f"not an annotation of VOC: it begins with {legible(root.tag)!r}")
            return
        sides = [root.findtext(f"size/{side}") for side in ("width", "height")]
        size = [_number(text) for text in sides]
        if size[0] and size[1]:  # some tools write 0 for what they don't know
            self._size = size[0], size[1]
        for number, element in enumerate(root.iterfind("object"), 1):
            where = f"{self.where}, object {number}"
            name = (element.findtext("name") or "").strip()
            texts = [element.findtext(f"bndbox/{corner}") for corner in _CORNERS]
            corners = [_number(text) for text in texts]
            if not name:
                self._wrong("the object has no name", where)
            elif None in corners:
                corner = corners.index(None)
                has = texts[corner]
                fault = "is missing" if has is None else f"is {legible(has)!r}, which is not a number"
                self._wrong(f"{_CORNERS[corner]} {fault}", where)
            else:
                x1, y1, x2, y2 = (corner for corner in corners if corner is not None)
                self.names.append(name)
                self._boxes.append((where, (x1 - 1, y1 - 1, x2, y2)))

    def picture(self, place: dict[str, int]) -> Picture:
        assert self.image is not None
        boxes = [Box(where, place[name], corners) for name, (where, corners) in zip(self.names, self._boxes)]
        return Picture(self.image, self.where, boxes, self._size, self._sound)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
