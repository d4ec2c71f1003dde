"""Which labels of boxes are there, and what a `data.yaml` of YOLO says. It imports no torch: errors come at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxgen.common.names import legible
from onnxgen.common.paths import need
from onnxgen.errors import OnnxgenError, one_line
from onnxgen.training.data.layout import PARTS, SUFFIXES, files_in, folders, holds, laid_out, part_called

ROBOFLOW = "_annotations.coco.json"
FOLDER = "annotations"  # of COCO
ANNOTATIONS, VOC_IMAGES = "Annotations", "JPEGImages"
LABELS = "labels"  # of YOLO
_YAML = ("data.yaml", "data.yml")
_BOX = re.compile(r"\d+( [\d.eE+-]+){4,}")
_COCO = re.compile(rb"""(?:\xef\xbb\xbf)?\s*\{\s*"(info|licenses|images|annotations|categories)"\s*:""")
_INSTANCES = re.compile(r"(?:instances_)?(?P<part>[A-Za-z]+)\d*")


def is_boxes(path: Path) -> bool:
    """Return True if there are boxes of COCO, YOLO or Pascal VOC."""
    return path.exists() and (is_coco(path) or is_yolo(path) or is_voc(path))


def is_coco(path: Path) -> bool:
    """Return True for a .json file, a folder with files of COCO, and its folder `annotations`."""
    return path.suffix.lower() == ".json" if path.is_file() else bool(coco_files(path))


def coco_files(folder: Path) -> dict[str, Path]:
    """Return the files of a folder by part; {} if there are none.

    Raises `OnnxgenError` if there are several, and their names do not tell the training part.
    """
    inner = folder if folder.name == FOLDER else folder / FOLDER
    named = [path for path in files_in(inner, ".json") if path.is_file() and _INSTANCES.fullmatch(path.stem)]
    beside = [path for path in files_in(folder, ".json") if inner != folder and _is_coco_file(path)]
    of_roboflow = [(path / ROBOFLOW, part_called(path.name)) for path in folders(folder)]
    parts: dict[str, Path] = {}
    for path, part in (*zip(named, map(_part_of, named)), *of_roboflow, *zip(beside, map(_part_of, beside))):
        if part is None or not path.is_file():
            continue
        if part in parts:
            raise OnnxgenError(f"{folder} has two files for {part}: {parts[part]} and {path}", help="name one of them")
        parts[part] = path
    return parts if "train" in parts else _only(folder, named, beside)


def _only(folder: Path, named: Sequence[Path], beside: Sequence[Path]) -> dict[str, Path]:
    """Return the only file of instances as the training part, since no name tells which it is."""
    single = [*(path for path in named if path.stem.startswith("instances_")), *beside]
    if len(single) > 1:
        what = f"{folder} has {', '.join(legible(p.name) for p in single)}, but none is of train"
        raise OnnxgenError(what, help="name one")
    return {"train": single[0]} if single else {}


def _is_coco_file(path: Path) -> bool:
    """Return True for Roboflow's file, and for one that begins as those of COCO do."""
    if not path.is_file() or path.name == ROBOFLOW:
        return path.is_file()
    with path.open("rb") as file:
        return bool(_COCO.match(file.read(4096)))


def _part_of(path: Path) -> str | None:
    match = _INSTANCES.fullmatch(path.stem)
    return part_called(match["part"]) if match else None


def is_voc(path: Path) -> bool:
    """Return True for a folder with `Annotations` and `JPEGImages`, and for that `Annotations`."""
    root = path.parent if path.name == ANNOTATIONS else path
    return path.is_dir() and (root / ANNOTATIONS).is_dir() and (root / VOC_IMAGES).is_dir()


def is_yolo(path: Path) -> bool:
    """Return True for a .yaml file, a folder with `data.yaml`, and one with images beside labels in text files."""
    if path.is_file():
        return path.suffix.lower() in (".yaml", ".yml")
    if yolo_file(path) is not None:
        return True
    pairs = yolo_pairs(yolo_root(path)).values()
    return bool(pairs) and all(holds(labels, [".txt"]) or not holds(labels, SUFFIXES) for _, labels in pairs)


def yolo_root(path: Path) -> Path:
    return path.parent if path.name.lower() == LABELS else path


def yolo_pairs(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and of labels by part: both are one, if labels lie beside their images."""
    if pairs := laid_out(folder, LABELS):
        return pairs
    if not folder.is_dir():
        return {}
    parts = {part: path for path in folders(folder) if (part := part_called(path.name)) and _is_mixed(path)}
    parts = parts if "train" in parts else {"train": folder} if _is_mixed(folder) else {}
    return {part: (path, path) for part, path in parts.items()}


def _is_mixed(folder: Path) -> bool:
    """Return True if there are no folders, and the first image with a text file beside it has a box of YOLO in that."""
    texts = (path.with_suffix(".txt") for path in files_in(folder, *SUFFIXES))
    first = next((path for path in texts if path.is_file() and path.stat().st_size), None)
    if first is None or folders(folder):
        return False
    with first.open(encoding="utf-8-sig", errors="replace") as lines:
        return bool(_BOX.fullmatch(next(lines, "").strip()))


def yolo_file(path: Path) -> Path | None:
    """Return the `data.yaml` that a path is or has."""
    return path if path.is_file() else next((path / name for name in _YAML if (path / name).is_file()), None)


@dataclass(frozen=True)
class Described:
    """What a `data.yaml` says.

    Attributes:
        names: of the classes.
        root: the folder that entries of lists are seen from.
        parts: the folders of images and the lists of them, by part.
        notes: of what it names and is left out.
    """

    names: tuple[str, ...]
    root: Path
    parts: Mapping[str, tuple[Path, ...]]
    notes: tuple[str, ...] = ()


def described(file: Path, classes: Sequence[str] = ()) -> Described:
    """Read a `data.yaml`. `classes` are the names if it has none.

    Raises:
        OnnxgenError: it can't be read, or has no names or no train, or names a place of train or val that is not there.
    """
    entries = _read(file)
    names = _names(file, {**entries, "names": entries.get("names") or [*classes]})
    base = entries.get("path", "")
    root = file.parent / base if isinstance(base, str) else file.parent
    root = root if root.is_dir() else file.parent  # written for another machine
    parts, notes = {}, []
    for part in (part for part in PARTS if entries.get(part)):
        try:
            parts[part] = _places(file, root, part, entries[part])
        except OnnxgenError as error:
            if part != "test":  # which nobody needs to train, so published files name it and come without
                raise
            notes.append(f"{error.problems[0].what}: it is left out")
    if "train" not in parts:
        raise OnnxgenError(f"{file} has no train", help="say where the images are: train: images/train")
    return Described(names, root, parts, tuple(notes))


def _places(file: Path, root: Path, part: str, entries: Any) -> tuple[Path, ...]:
    places = []
    for entry in entries if isinstance(entries, list) else [entries]:
        place = _place(root, entry)
        if place is None:
            way = "it is a folder of images, or a .txt with the path of an image in each line"
            raise OnnxgenError(f"{file}: {part} is {legible(str(entry))}, and there is no such place", help=way)
        places.append(place)
    return tuple(places)


def _place(root: Path, entry: Any) -> Path | None:
    """Return the folder or list that an entry means. Roboflow writes `../train/images` for `train/images`."""
    if not isinstance(entry, str) or "\0" in entry:
        return None
    tried = [root / entry, root / entry.removeprefix("../")]
    return next((path for path in tried if path.is_dir() or (path.is_file() and path.suffix == ".txt")), None)


def _read(file: Path) -> dict[str, Any]:
    """Read the file; every scalar is text, so that a class may be called "no" or "01"."""
    need(["yaml"])
    import yaml

    try:
        content = yaml.load(file.read_bytes(), Loader=yaml.BaseLoader)
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise OnnxgenError(f"{file} can't be read: {one_line(error, 200)}", help="it must be YAML in UTF-8") from None
    if not isinstance(content, dict):
        raise OnnxgenError(f"{file} is not a data.yaml of YOLO", help=_FORM)
    return content


_FORM = "it has lines such as train: images/train, and names: [cat, dog]"


def _names(file: Path, entries: Mapping[str, Any]) -> tuple[str, ...]:
    names = entries.get("names")
    if not names:
        way = "names: [cat, dog], in the order of their numbers; or --classes cat,dog"
        raise OnnxgenError(f"{file} has no names of the classes", help=way)
    if isinstance(names, dict):
        numbers = [str(number) for number in range(len(names))]
        if {*names} != {*numbers}:
            what = f"{file}: names has the keys {legible(', '.join(map(str, names)))}"
            raise OnnxgenError(what, help=f"number the classes 0 to {len(names) - 1}")
        names = [names[number] for number in numbers]
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise OnnxgenError(f"{file}: names is not a list of names", help="names: [cat, dog]")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise OnnxgenError(f"{file}: two classes are called {legible(twice[0])!r}", help="give each its own name")
    if (count := entries.get("nc", str(len(names)))) != str(len(names)):
        raise OnnxgenError(f"{file}: nc is {legible(str(count))}, but there are {len(names)} names", help="remove nc")
    return tuple(names)
