"""Reads boxes of Pascal VOC: a file of XML for each image (http://host.robots.ox.ac.uk/pascal/VOC/).

Corners are in pixels, counted from 1, and belong to the box: a box from 1 to the width covers the whole image. So x1
and y1 lose 1, as in Detectron2 (`data/datasets/pascal_voc.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from onnxgen.common.names import legible
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.data.boxes.pictures import Box, Picture, opened
from onnxgen.training.data.boxes.there import ANNOTATIONS, VOC_IMAGES
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.layout import files_in, images_in
from onnxgen.training.data.source import DataSource

SETS = "ImageSets"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def open_voc(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `Annotations/*.xml` with `JPEGImages` and perhaps `ImageSets/Main/*.txt`: "image" and "boxes".

    Classes are the names of the objects, in sorted order. Difficult objects count like others.

    Raises:
        OnnxgenError: a list of a part can't be read, or no image can be used.
    """
    folder = path.parent if path.name == ANNOTATIONS else path
    faults = Faults(folder)
    images = images_by_stem(folder)
    parts = listed_parts(folder, "Main", faults) or {"train": _all(folder, images, faults)}
    read = {
        part: [_Read(folder, where, stem, images, faults) for where, stem in found] for part, found in parts.items()
    }
    classes = tuple(sorted({name for found in read.values() for one in found for name in one.names}))
    place = {name: index for index, name in enumerate(classes)}
    parted = {part: [one.picture(place) for one in found if one.image] for part, found in read.items()}
    lost = sum(one.image is None for found in read.values() for one in found)
    return opened(parted, classes, faults, pixels=True, strict=strict, labelled=labelled, lost=lost)


def images_by_stem(folder: Path) -> dict[str, list[Path]]:
    """Return the images of `JPEGImages` by their names without ending."""
    found: dict[str, list[Path]] = {}
    for path in images_in(folder / VOC_IMAGES):
        found.setdefault(path.stem, []).append(path)
    return found


def listed_parts(folder: Path, kind: str, faults: Faults) -> dict[str, list[tuple[str, str]]]:
    """Return the names of `ImageSets/KIND/train.txt` and so on by part, each with its place; {} without such lists.

    `trainval` is the training part if there is no `train`.
    """
    found: dict[str, list[tuple[str, str]]] = {}
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
        found[part] = _once(names, faults)
    if found and "train" not in found:
        raise OnnxgenError(
            f"{folder / SETS / kind} has no train.txt", help="list the names of the training images there"
        )
    return found


def _once(names: Sequence[tuple[str, str]], faults: Faults) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for where, name in names:
        if name in found:
            faults.add(where, f"{legible(name)} is listed twice")
        elif "/" in name or "\\" in name or "\0" in name:
            faults.add(where, f"{legible(name)} is not the name of an image in {VOC_IMAGES}")
        else:
            found[name] = where
    return [(where, name) for name, where in found.items()]


def _all(folder: Path, images: dict[str, list[Path]], faults: Faults) -> list[tuple[str, str]]:
    """Return the names of all images and all annotations."""
    files = {path.stem: path for path in files_in(folder / ANNOTATIONS, ".xml")}
    where = {stem: faults.place(path) for stem, path in files.items()}
    where |= {stem: faults.place(paths[0]) for stem, paths in images.items() if stem not in files}
    return sorted(((place, stem) for stem, place in where.items()), key=lambda found: found[1])


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
        found = images.get(stem, [])
        if len(found) != 1:
            several = (
                f"{VOC_IMAGES} has {len(found)} images of this name" if found else f"{VOC_IMAGES} has no such image"
            )
            self._wrong(several if where.endswith(".xml") else f"{legible(stem)}: {several}")
            return
        self.image = found[0]
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
        told = [root.findtext(f"size/{side}") for side in ("width", "height")]
        size = [_number(text) for text in told]
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
                said = "is missing" if has is None else f"is {legible(has)!r}, which is not a number"
                self._wrong(f"{_CORNERS[corner]} {said}", where)
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
