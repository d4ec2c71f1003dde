"""Draws scenes of circles, squares and triangles on noise, and writes them as COCO, YOLO, Pascal VOC and masks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SHAPES = ("circle", "square", "triangle")
COLOURS = ((220, 90, 80), (90, 200, 90), (90, 110, 230))
PALETTE = [0, 0, 0, *(value for colour in COLOURS for value in colour)]


@dataclass(frozen=True)
class Scene:
    """A picture with what is in it.

    Attributes:
        pixels: uint8 [H, W, 3].
        mask: uint8 [H, W]: 0 is the background, 1 a circle, 2 a square, 3 a triangle.
        boxes: for each shape its place in `SHAPES`, and the edges x1, y1, x2, y2 in pixels from 0.
    """

    pixels: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    boxes: tuple[tuple[int, int, int, int, int], ...]


def draw(rng: np.random.Generator, height: int, width: int) -> Scene:
    """Draw one to three shapes that do not overlap."""
    ys, xs = np.mgrid[:height, :width]
    mask, boxes = np.zeros((height, width), np.uint8), []
    for _ in range(rng.integers(1, 4)):
        label, half = int(rng.integers(len(SHAPES))), int(rng.integers(3, max(4, min(height, width) // 5)))
        y, x = int(rng.integers(half, height - half)), int(rng.integers(half, width - half))
        down, right = ys - y, xs - x
        square = (abs(down) <= half) & (abs(right) <= half)
        inside = (down**2 + right**2 <= half**2, square, square & (2 * abs(right) <= down + half))[label]
        if not (mask[max(0, y - half - 1) : y + half + 2, max(0, x - half - 1) : x + half + 2]).any():
            mask[inside] = label + 1
            rows, columns = np.nonzero(inside)
            box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            boxes.append((label, *map(int, box)))
    pixels = rng.integers(0, 60, (height, width, 3))
    for label, colour in enumerate(COLOURS):
        pixels[mask == label + 1] += np.array(colour) - 60
    return Scene(pixels.astype(np.uint8), mask, tuple(boxes))


def draw_scenes(count: int, seed: int = 0, height: int = 48, width: int = 64) -> list[Scene]:
    """Draw scenes; the same seed draws the same."""
    rng = np.random.default_rng(seed)
    return [draw(rng, height, width) for _ in range(count)]


Parts = Mapping[str, Sequence[Scene]]  # by the name of a part's folder


def _save(scene: Scene, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(scene.pixels).save(path)


def _name(part: str, number: int) -> str:
    return f"{part}_{number:03}"


def write_coco(folder: Path, parts: Parts) -> Path:
    """Write `annotations/instances_PART.json`, with the images in `PART/`. Ids begin at 7, and leave gaps."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for part, scenes in parts.items():
        images, annotations = [], []
        for number, scene in enumerate(scenes):
            name = f"{_name(part, number)}.png"
            _save(scene, folder / part / name)
            height, width = scene.mask.shape
            images.append({"id": 100 + 3 * number, "file_name": name, "width": width, "height": height})
            for label, x1, y1, x2, y2 in scene.boxes:
                box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0}
                found = {"id": len(annotations) + 1, "image_id": 100 + 3 * number, "category_id": 7 + 2 * label}
                annotations.append(found | box)
        categories = [{"id": 7 + 2 * label, "name": name} for label, name in enumerate(SHAPES)]
        told = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "annotations" / f"instances_{part}.json").write_text(json.dumps(told, indent=1))
    return folder


def write_yolo(folder: Path, parts: Parts) -> Path:
    """Write `data.yaml`, `images/PART/` and `labels/PART/`. An image without shapes has no file of labels."""
    for part, scenes in parts.items():
        (folder / "labels" / part).mkdir(parents=True, exist_ok=True)
        for number, scene in enumerate(scenes):
            _save(scene, folder / "images" / part / f"{_name(part, number)}.png")
            height, width = scene.mask.shape
            lines = [
                f"{label} {(x1 + x2) / 2 / width:.6f} {(y1 + y2) / 2 / height:.6f} "
                f"{(x2 - x1) / width:.6f} {(y2 - y1) / height:.6f}\n"
                for label, x1, y1, x2, y2 in scene.boxes
            ]
            if lines:
                (folder / "labels" / part / f"{_name(part, number)}.txt").write_text("".join(lines))
    places = "".join(f"{part}: images/{part}\n" for part in parts)
    (folder / "data.yaml").write_text(f"{places}names: [{', '.join(SHAPES)}]\n")
    return folder


def write_voc(folder: Path, parts: Parts) -> Path:
    """Write `Annotations/`, `JPEGImages/` and `ImageSets/Main/`; corners count from 1. The images are PNG files."""
    for made in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / made).mkdir(parents=True, exist_ok=True)
    for part, scenes in parts.items():
        names = [_name(part, number) for number in range(len(scenes))]
        (folder / "ImageSets" / "Main" / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))
        for name, scene in zip(names, scenes):
            _save(scene, folder / "JPEGImages" / f"{name}.png")
            root = ElementTree.Element("annotation")
            ElementTree.SubElement(root, "filename").text = f"{name}.png"
            size = ElementTree.SubElement(root, "size")
            for side, value in zip(("height", "width", "depth"), scene.pixels.shape):
                ElementTree.SubElement(size, side).text = str(value)
            for label, x1, y1, x2, y2 in scene.boxes:
                thing = ElementTree.SubElement(root, "object")
                ElementTree.SubElement(thing, "name").text = SHAPES[label]
                box = ElementTree.SubElement(thing, "bndbox")
                for corner, value in zip(("xmin", "ymin", "xmax", "ymax"), (x1 + 1, y1 + 1, x2, y2)):
                    ElementTree.SubElement(box, corner).text = str(value)
            ElementTree.indent(root)
            ElementTree.ElementTree(root).write(folder / "Annotations" / f"{name}.xml")
    return folder


def write_masks(folder: Path, parts: Parts) -> Path:
    """Write `images/PART/` and `masks/PART/`. Masks are indexed PNG files."""
    for part, scenes in parts.items():
        (folder / "masks" / part).mkdir(parents=True, exist_ok=True)
        for number, scene in enumerate(scenes):
            _save(scene, folder / "images" / part / f"{_name(part, number)}.png")
            mask = Image.fromarray(scene.mask)
            mask.putpalette(PALETTE)
            mask.save(folder / "masks" / part / f"{_name(part, number)}.png")
    return folder
