"""Captchas of one style, which ddddocr's reader of 8,209 characters is tuned to: 36 characters, warped, with lines."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from unittest import mock

import captcha.image
import ddddocr
import onnx

from samples.captcha.draw import CHARACTERS, LENGTH, Seeded
from samples.deployed.compare import Sample

FILE = "ddddocr/common.onnx"
HEIGHT, WIDTH = 64, 96
VAL, TEST = 150, 500


def paint(folder: Path, part: str, count: int, seed: int, table: str = "labels") -> None:
    """Write so many captchas to FOLDER/PART, and their answers to FOLDER/TABLE.csv."""
    (folder / part).mkdir(parents=True)
    seeded = Seeded(seed)
    rows = []
    with mock.patch.object(captcha.image, "secrets", seeded):
        painter = captcha.image.ImageCaptcha(WIDTH, HEIGHT, font_sizes=(32, 36, 40))
        for i in range(count):
            text = "".join(seeded.random.choices(CHARACTERS, k=LENGTH))
            name = f"{part}/{i:04}.png"
            painter.generate_image(text).save(folder / name)
            rows.append((name, text))
    with (folder / f"{table}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "text"), *rows])


def known() -> list[str]:
    """What the classes of the file stand for, which the package knows and the file does not say: first the blank."""
    return ddddocr.DdddOcr(beta=True, show_ad=False).get_charset()


def draw(folder: Path, amount: int, seed: int) -> None:
    """Write data to train with, a test part, and a list of the characters that ddddocr's file knows."""
    paint(folder / "data", "train", amount, 1000 + seed, "train")
    paint(folder / "data", "val", VAL, 2000 + seed, "val")
    paint(folder / "test", "pictures", TEST, 3000)
    (folder / "characters.json").write_text(json.dumps(known(), ensure_ascii=False), encoding="utf-8")


def reader(file: Path) -> ddddocr.DdddOcr:
    """ddddocr with a file: its own, or an exported one, whose metadata has the characters."""
    metadata = {p.key: p.value for p in onnx.load(file).metadata_props}
    if "onnxgen.classes" not in metadata:
        return ddddocr.DdddOcr(beta=True, show_ad=False)
    charset = ["", *json.loads(metadata["onnxgen.classes"])]  # the blank is class 0
    path = file.with_suffix(".charset.json")
    path.write_text(json.dumps({"charset": charset, "word": False, "image": [-1, HEIGHT], "channel": 1}))
    return ddddocr.DdddOcr(show_ad=False, import_onnx_path=os.fspath(file), charsets_path=os.fspath(path))


def score(file: Path, folder: Path) -> float:
    """The share of whole captchas that ddddocr reads rightly; small letters count as capitals."""
    read = reader(file)
    with (folder / "test" / "labels.csv").open() as table:
        answers = {row["image"]: row["text"] for row in csv.DictReader(table)}
    right = [read.classification((folder / "test" / n).read_bytes()).upper() == text for n, text in answers.items()]
    return sum(right) / len(right)


KNOWN = ("--keep", "--own-classes", "{folder}/characters.json")
FROZEN = ("--freeze", "conv", "--freeze", "bn", "--freeze", "stage*", "--freeze", "lstm")
SAMPLE = Sample(
    file=FILE,
    metric="the share of captchas that ddddocr reads without an error",
    amounts={
        300: ("--epochs", "15", "--batch-size", "8"),
        1000: ("--epochs", "6", "--batch-size", "16"),
        3000: ("--epochs", "4", "--batch-size", "64"),
    },
    ways={
        "from scratch": ("--from-scratch", "--lr", "0.001"),
        "new head, frozen body": (*KNOWN, *FROZEN, "--lr", "0.003"),
        "fine-tuned": KNOWN,
    },
    train=("--task", "ctc", "--replace-head", "37", "--normalize", "0,1", "--device", "cpu"),
    draw=draw,
    score=score,
    generate=("--dynamic-batch", "--restore-batchnorm"),
)
