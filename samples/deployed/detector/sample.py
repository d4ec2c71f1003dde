"""Two symbols among others, found by the detector of ddddocr: data, score, and the ways that are compared.

Pictures are drawn in FOLDER/data, with YOLO's labels there and COCO's in FOLDER/data.json, and others in FOLDER/test.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from samples.deployed.compare import Sample
from samples.deployed.file import find

if TYPE_CHECKING:
    from ddddocr.core.detection_engine import DetectionEngine

SIZE = 416  # of a picture, as the package feeds it
CLASSES = {"umbrella": "☂", "scissors": "✂"}
OTHERS = "☎✈☀♞⚓♫☺♣⚑☕"
TEST = 60  # pictures
Box = tuple[int, int, int, int, int]  # class, and x1, y1, x2, y2 in pixels


def background(size: int, draw: random.Random) -> Image.Image:
    """Draw clouds of two colours, with lines over them."""
    noise = np.random.default_rng(draw.getrandbits(32))
    coarse = noise.integers(0, 256, (size // 32, size // 32), np.uint8)
    clouds = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
    colours = [Image.new("RGB", (size, size), tuple(draw.randrange(60, 256) for _ in "rgb")) for _ in range(2)]
    image = Image.composite(*colours, clouds)
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        ends = [draw.randrange(size) for _ in range(4)]
        pen.line(ends, tuple(draw.randrange(256) for _ in "rgb"), draw.randrange(1, 4))
    return image.filter(ImageFilter.GaussianBlur(1))


def symbol(text: str, draw: random.Random) -> Image.Image:
    """Draw a symbol on a transparent picture that ends where it ends."""
    height = draw.randrange(44, 88)
    font = ImageFont.truetype(str(find("matplotlib/DejaVuSans.ttf")), height)
    image = Image.new("RGBA", (2 * height, 2 * height))
    colour = tuple(draw.randrange(0, 120) for _ in "rgb")
    ImageDraw.Draw(image).text((height, height), text, colour, font, "mm")
    image = image.rotate(draw.uniform(-40, 40), Image.Resampling.BICUBIC)
    return image.crop(image.getchannel("A").point(lambda a: 255 * (a > 64)).getbbox())


def scene(size: int, seed: str) -> tuple[Image.Image, list[Box]]:
    """Draw symbols that don't overlap, up to three of each class among others. Returns the picture and its boxes."""
    draw = random.Random(seed)
    image, taken, boxes = background(size, draw), list[Box](), list[Box]()
    labels = [n for n in range(len(CLASSES)) for _ in range(draw.randrange(4))] + [-1] * draw.randrange(2, 5)
    for label in labels:
        drawn = symbol([*CLASSES.values()][label] if label >= 0 else draw.choice(OTHERS), draw)
        for _ in range(30):
            x, y = (draw.randrange(size - side) for side in drawn.size)
            box = (label, x, y, x + drawn.width, y + drawn.height)
            if all(box[1] > b[3] or box[3] < b[1] or box[2] > b[4] or box[4] < b[2] for b in taken):
                image.paste(drawn, (x, y), drawn)
                taken.append(box)
                boxes += [box] if label >= 0 else []
                break
    return image, boxes


def write(folder: Path, count: int, seed: str) -> None:
    """Write scenes to FOLDER/images, with labels as YOLO's, and as COCO's in FOLDER.json."""
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    (folder / "data.yaml").write_text(f"path: .\ntrain: images\nnames: [{', '.join(CLASSES)}]\n")
    coco: dict[str, list[dict[str, Any]]] = {"images": [], "annotations": []}
    coco["categories"] = [{"id": n, "name": name} for n, name in enumerate(CLASSES)]
    for number in range(count):
        image, boxes = scene(SIZE, f"{seed} {number}")
        image.save(folder / "images" / f"{number:04}.png")
        file = f"{folder.name}/images/{number:04}.png"
        coco["images"].append({"id": number, "file_name": file, "width": SIZE, "height": SIZE})
        lines = []
        for c, x1, y1, x2, y2 in boxes:
            lines.append(f"{c} {(x1 + x2) / 2 / SIZE} {(y1 + y2) / 2 / SIZE} {(x2 - x1) / SIZE} {(y2 - y1) / SIZE}\n")
            row = {"id": len(coco["annotations"]), "image_id": number, "category_id": c, "iscrowd": 0}
            coco["annotations"].append({**row, "bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)})
        (folder / "labels" / f"{number:04}.txt").write_text("".join(lines))
    folder.with_suffix(".json").write_text(json.dumps(coco))


def draw(folder: Path, images: int, seed: int) -> None:
    """Draw what is trained on, and what is measured."""
    write(folder / "data", images, f"train {seed}")
    write(folder / "test", TEST, "test")


def detector(file: Path) -> DetectionEngine:
    """Return the package's detector with another file."""
    from ddddocr.core.detection_engine import DetectionEngine

    engine = DetectionEngine()
    engine.session = engine.model_loader.load_model(str(file))
    return engine


def found(engine: DetectionEngine, picture: bytes) -> list[tuple[list[int], int, float, list[float]]]:
    """Return boxes as the package returns them, each with its class, its score, and its corners before rounding.

    The package returns corners alone. It has decoded the rest: the rows that its suppression leaves have score and
    class behind the corners.
    """
    rows: list[Any] = []
    suppress = type(engine).multiclass_nms
    engine.multiclass_nms = lambda *given, **named: rows.append(suppress(engine, *given, **named)) or rows[0]
    boxes = engine.predict(picture)
    return [(box, int(row[5]), float(row[4]), row[:4].tolist()) for box, row in zip(boxes, rows[0] if boxes else ())]


def score(file: Path, folder: Path) -> float:
    """Return the mean average precision at an IoU of 0.5. A file of one class says of each box that it is of both."""
    from onnxgen.training.goals.detection.goal import Row, average_precision

    engine = detector(file)
    both = engine.session.get_outputs()[0].shape[2] == 6
    labels = json.loads((folder / "test.json").read_text())
    truth, answers = [], []
    for box in labels["annotations"]:
        x, y, width, height = box["bbox"]
        truth.append(Row(box["image_id"], box["category_id"], (x, y, x + width, y + height)))
    for image in labels["images"]:
        for corners, label, sure, _ in found(engine, (folder / image["file_name"]).read_bytes()):
            every = range(len(CLASSES)) if both else (label,)
            answers += [Row(image["id"], each, tuple(corners), sure) for each in every]
    return average_precision(answers, truth, len(labels["images"]))["AP_50"]


AS_THE_PACKAGE = ("--resize", "corner", "--beside", "114", "--channel-order", "bgr", "--normalize", "none")
STEPS = ("--train-size", "256x256", "--batch-size", "8", "--max-steps", "45", "--epochs", "60")
GENTLY = ("--schedule", "onecyclelr", "--head-lr", "10", "--augment", "flip,crop", "--val", "0.2", "--workers", "0")
BODY = ("conv*", "stage*", "block*")  # all but the heads of the three scales
SAMPLE = Sample(
    "ddddocr/common_det.onnx",
    "mean average precision at an IoU of 0.5, of two classes",
    {20: (), 60: (), 200: ()},
    {
        "from scratch": ("--from-scratch", "--lr", "0.003"),
        "frozen body": ("--lr", "0.001", *(word for part in BODY for word in ("--freeze", part))),
        "fine-tuned": ("--lr", "0.001"),
    },
    (*AS_THE_PACKAGE, *STEPS, *GENTLY),
    draw,
    score,
    generate=("--restore-batchnorm",),  # the exporter folded the norms
)
