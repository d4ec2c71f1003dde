"""Reads boxes in the JSON of COCO (https://cocodataset.org/#format-data): "bbox" is x, y, width, height in pixels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from onnxgen.common.names import legible, listed
from onnxgen.errors import OnnxgenError, counted, one_line
from onnxgen.training.data.boxes.pictures import Box, Picture, opened
from onnxgen.training.data.boxes.there import FOLDER, coco_files
from onnxgen.training.data.faults import Faults
from onnxgen.training.data.source import DataSource

_TRIED = 100  # images that are looked for to find their folder


def open_coco(path: Path, *, strict: bool, labelled: bool = True) -> DataSource:
    """Open `annotations/instances_*.json`, `train/_annotations.coco.json`, or one .json; columns "image" and "boxes".

    Classes are numbered in the order of the categories' ids. Crowds are left out, and counted.

    Raises:
        OnnxgenError: a file is not COCO's, or no image can be used.
    """
    files = {"train": path} if path.is_file() else coco_files(path)
    folder = path.parent if path.is_file() or path.name == FOLDER else path
    faults, read = Faults(folder), {part: _read(file) for part, file in files.items()}
    names = {part: _categories(files[part], found) for part, found in read.items()}
    notes: list[str] = []
    classes = _classes(read, names, notes)
    parts, crowds, lost = {}, 0, 0
    for part, found in read.items():
        reader = _Reader(files[part], faults, {key: classes.get(name, -1) for key, name in names[part].items()})
        parts[part] = reader.pictures(found["images"])
        reader.boxes(found["annotations"])
        crowds, lost = crowds + reader.crowds, lost + reader.lost
    if crowds:
        notes.append(f"{counted(crowds, 'annotation')} of crowds (iscrowd) left out")
    return opened(parts, tuple(classes), faults, pixels=True, strict=strict, labelled=labelled, lost=lost, notes=notes)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise OnnxgenError(f"{path} can't be read: {one_line(error, 200)}", help="it must be COCO's JSON") from None
    if not isinstance(found, dict):
        raise OnnxgenError(f"{path} is not COCO's JSON: it is a {type(found).__name__}", help=_WAY)
    for key in ("images", "annotations", "categories"):
        if not isinstance(found.get(key), list):
            raise OnnxgenError(f"{path} is not COCO's JSON: it has no list {key!r}", help=_WAY)
    return found


_WAY = "COCO's JSON is an object with the lists images, annotations and categories"


def _categories(path: Path, found: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the categories by id, in the order of the ids."""
    names: dict[int, str] = {}
    for index, category in enumerate(found["categories"]):
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
    each = [c for found in read.values() for c in found["categories"]]
    above = [c.get("supercategory") for c in each]
    used = {
        names[part].get(a["category_id"])
        for part, found in read.items()
        for a in found["annotations"]
        if isinstance(a, dict) and type(a.get("category_id")) is int
    }
    every = dict.fromkeys(name for found in names.values() for name in found.values())
    kept = [name for name in every if name in used or name not in above or _is_own(each, name)]
    if left := [name for name in every if name not in kept]:
        notes.append(f"no class: {listed(left)} has no boxes, and is the supercategory of others")
    return {name: index for index, name in enumerate(kept)}


def _is_own(each: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return True if only the category itself has this supercategory (many tools write the name twice)."""
    return all(c["name"] == name for c in each if c.get("supercategory") == name)


class _Reader:
    """Reads the lists of one file."""

    def __init__(self, path: Path, faults: Faults, classes: Mapping[int, int]) -> None:
        self.path, self.faults, self.classes = path, faults, classes
        self.name = faults.place(path)
        self.by_id: dict[Any, Picture] = {}
        self.crowds = self.lost = 0

    def pictures(self, images: list[Any]) -> list[Picture]:
        root = self._root(image["file_name"] for image in images if not _unusable(image))
        for index, image in enumerate(images):
            where = f"{self.name}, images[{index}]"
            if wrong := _unusable(image):
                self.faults.add(where, wrong)
                self.lost += 1
                continue
            if image["id"] in self.by_id:
                self.faults.add(where, f"a second image with the id {image['id']}")
                self.by_id[image["id"]].sound = False
                self.lost += 1
                continue
            size = image.get("width"), image.get("height")
            told = (float(size[0]), float(size[1])) if all(type(n) in (int, float) for n in size) else None
            self.by_id[image["id"]] = Picture(root / image["file_name"], where, size=told)
        return list(self.by_id.values())

    def _root(self, names: Iterable[str]) -> Path:
        """Return the folder of the images: the first usual place that has one of them."""
        here, part = self.path.parent, self.path.stem.removeprefix("instances_")
        beside = [here, here / "images"]
        beside += [here.parent / part, here.parent / "images" / part, here.parent / "images", here.parent]
        some = list(islice(names, _TRIED))
        if found := [root for root in beside for name in some if (root / name).is_file()][:1]:
            return found[0]
        if some:
            places = listed(f"{self.faults.place(root)}/" for root in beside)
            self.faults.why.append(f"{self.name}: none of its images is in any of {places}")
        return next((root for root in beside[2:4] if root.is_dir()), here)  # to say what is missing

    def boxes(self, annotations: list[Any]) -> None:
        for index, annotation in enumerate(annotations):
            where = f"{self.name}, annotations[{index}]"
            picture = self._picture(annotation)
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

    def _picture(self, annotation: Any) -> Picture | None:
        key = annotation.get("image_id") if isinstance(annotation, dict) else None
        return self.by_id.get(key) if isinstance(key, (int, str)) else None

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


def _unusable(image: Any) -> str:
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
