"""Broken data sets: each fault has its place in one line; the sample is skipped and counted, or `--strict` ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings
from onnxgen.training.data.faults import LeftOut
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource
from samples.tasks.scenes import draw_scenes, write_coco, write_masks, write_voc, write_yolo

COUNT = 4
SCENES = draw_scenes(COUNT, seed=3, height=30, width=40)
FATAL = -1  # in place of the number of images that are left

Breaks = Callable[[Path], Any]
Case = tuple[Any, ...]  # its name, what breaks the data, a part of the message, and the arguments of `judge`


def ids(cases: list[Case]) -> Any:
    return [pytest.param(case[1], case[2], case[3:], id=case[0]) for case in cases]


def judge(folder: Path, says: str, left: int, skipped: int | None = None) -> None:
    """Open broken data twice, with `--strict` and without.

    Args:
        says: a part of the message.
        left: how many of the images are used; `FATAL` if the data can't be used at all.
        skipped: how many are not; default: the others.
    """
    with pytest.raises(OnnxgenError) as strict:
        open_source(folder, Settings(strict=True))
    said = str(strict.value)
    assert says in said and "\n" not in said and strict.value.exit_code == 2, said
    if left == FATAL:
        with pytest.raises(OnnxgenError) as caught:
            open_source(folder, Settings())
        assert says in str(caught.value) and "\n" not in str(caught.value)
        return
    found = open_source(folder, Settings())
    assert isinstance(found, DataSource)
    assert len(found.parts["train"]) == left
    note = next(note for note in found.notes if says in note)
    skipped = COUNT - left if skipped is None else skipped
    said = f"; {skipped} image{'s' if skipped != 1 else ''} skipped"
    assert isinstance(note, LeftOut) and note.samples == skipped, "evaluate tells and counts it"
    assert "\n" not in note and (note.endswith(said) if skipped else "skipped" not in note), note


def cut(path: Path, share: float = 0.5) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


def turned(path: Path) -> None:
    """Store an image turned by a quarter, with the EXIF tag that turns it back."""
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        stored = image.transpose(Image.Transpose.ROTATE_90)
    stored.save(path, exif=exif)


def turning(path: Path) -> None:
    """Add the EXIF tag that turns an image to one that is upright: labels are then of the stored picture."""
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(path) as image:
        image.load()
    image.save(path, exif=exif)


def copied(path: Path, suffix: str) -> None:
    with Image.open(path) as image:
        image.convert("RGB").save(path.with_suffix(suffix))


# ---- COCO ------------------------------------------------------------------------------------------------------------

JSON = "annotations/instances_train.json"
FIRST = "train/train_000.png"


def coco(change: Callable[[dict[str, Any]], Any]) -> Breaks:
    """Return what changes the JSON."""

    def breaks(folder: Path) -> None:
        told = json.loads((folder / JSON).read_text())
        made = change(told)
        (folder / JSON).write_text(json.dumps(told if made is None else made, ensure_ascii=False))

    return breaks


def box(*values: Any) -> Breaks:
    return coco(lambda told: told["annotations"][0].update(bbox=list(values)))


def raw(encoding: str) -> Breaks:
    return lambda folder: (folder / JSON).write_bytes(
        (folder / JSON).read_text().replace("circle", "é").encode(encoding)
    )


COCO: list[Case] = [
    ("missing image", lambda f: (f / FIRST).unlink(), f"{JSON}, images[0]: there is no image {FIRST}", 3),
    ("damaged image", lambda f: cut(f / FIRST), f"{FIRST}: can't be read: ", 3),
    ("text as an image", lambda f: (f / FIRST).write_text("hello"), f"{FIRST}: can't be read: cannot identify", 3),
    (
        "a box outside", box(35, 5, 10, 10),
        f"{JSON}, annotations[0]: the box leaves the image of 40x30: 35, 5, 45, 15", 3,
    ),
    ("a box beside", box(-9, 5, 8, 10), f"{JSON}, annotations[0]: the box leaves the image of 40x30: -9, 5, -1, 15", 3),
    ("no width", box(5, 5, 0, 10), f"{JSON}, annotations[0]: the box has no area: 0 wide and 10 high", 3),
    ("negative height", box(5, 15, 4, -3), f"{JSON}, annotations[0]: the box has no area: 4 wide and -3 high", 3),
    ("NaN", box(5, float("nan"), 4, 3), f"{JSON}, annotations[0]: a corner of the box is not a finite number", 3),
    ("infinity", box(5, 1e400, 4, 3), f"{JSON}, annotations[0]: a corner of the box is not a finite number", 3),
    ("a number too large", box(5, 10**400, 4, 3), f"{JSON}, annotations[0]: a corner of the box is not a finite", 3),
    ("text for a number", box(5, "5", 4, 3), f"{JSON}, annotations[0]: bbox is not a list of four numbers", 3),
    ("three numbers", box(5, 5, 4), f"{JSON}, annotations[0]: bbox is not a list of four numbers", 3),
    (
        "no bbox", coco(lambda t: t["annotations"][0].pop("bbox") and None),
        "annotations[0]: bbox is not a list of four", 3,
    ),
    (
        "unknown image", coco(lambda t: t["annotations"].append({**t["annotations"][0], "image_id": 1})),
        ": no image has the id 1", 4,
    ),
    (
        "unknown category", coco(lambda t: t["annotations"][0].update(category_id=99)),
        f"{JSON}, annotations[0]: no category has the id 99", 3,
    ),
    (
        "an id twice", coco(lambda t: t["images"][1].update(id=t["images"][0]["id"])),
        f"{JSON}, images[1]: a second image with the id 100", 2,
    ),
    (
        "a path outside", coco(lambda t: t["images"][0].update(file_name="../../etc/secret.png")),
        f"{JSON}, images[0]: file_name ../../etc/secret.png leaves the folder of the images", 3,
    ),
    (
        "an absolute path", coco(lambda t: t["images"][0].update(file_name="/etc/secret.png")),
        f"{JSON}, images[0]: file_name /etc/secret.png leaves the folder of the images", 3,
    ),
    (
        "no file name", coco(lambda t: t["images"][0].pop("file_name") and None),
        f"{JSON}, images[0]: the image has no file_name", 3,
    ),
    (
        "an image that is a number", coco(lambda t: t["images"].__setitem__(0, 7)),
        f"{JSON}, images[0]: an image must", 3,
    ),
    (
        "another size", coco(lambda t: t["images"][0].update(width=400)),
        f"{JSON}, images[0]: labels for an image of 400x30, but train_000.png is 40x30", 3,
    ),
    (
        "turned by EXIF", lambda f: turning(f / FIRST),
        "labels for an image of 40x30, but train_000.png is 30x40 (EXIF turns it; labels must be of the upright", 3,
    ),
    ("cut", lambda f: cut(f / JSON), f"{JSON} can't be read: ", FATAL),
    ("Latin-1", raw("latin-1"), f"{JSON} can't be read: 'utf-8' codec can't decode", FATAL),
    ("a list", coco(lambda t: [t]), f"{JSON} is not COCO's JSON: it is a list", FATAL),
    ("no categories", coco(lambda t: t.pop("categories") and None), "it has no list 'categories'", FATAL),
    (
        "a category without a name", coco(lambda t: t["categories"][1].pop("name") and None),
        "categories[1]: a category", FATAL,
    ),
    ("a category twice", coco(lambda t: t["categories"][1].update(id=7)), "categories[1]: a second category", FATAL),
    ("no boxes", coco(lambda t: t["annotations"].clear()), "has no boxes: no image has a label", FATAL),
    ("no images", coco(lambda t: (t["images"].clear(), None)[1]), "no image of the train part can be used: ", FATAL),
    (
        "no file of an image", lambda f: [path.unlink() for path in (f / "train").iterdir()],
        "no image of the train part can be used: 4 faults in ", FATAL,
    ),
]  # fmt: skip


@pytest.mark.parametrize("breaks, says, numbers", ids(COCO))
def test_coco(breaks: Breaks, says: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    breaks(write_coco(tmp_path, {"train": SCENES}))
    judge(tmp_path, says, *numbers)


# ---- YOLO ------------------------------------------------------------------------------------------------------------

LABEL, IMAGE = "labels/train/train_000.txt", "images/train/train_000.png"


def line(text: str) -> Breaks:
    return lambda folder: (folder / LABEL).write_text(f"\n{text}\n")


def data(**changes: Any) -> Breaks:
    def breaks(folder: Path) -> None:
        told = yaml.safe_load((folder / "data.yaml").read_text()) | changes
        (folder / "data.yaml").write_text(yaml.safe_dump({k: v for k, v in told.items() if v is not None}))

    return breaks


def listing(*lines: str) -> Breaks:
    def breaks(folder: Path) -> None:
        paths = [f"./images/train/train_{number:03}.png" for number in range(COUNT)]
        (folder / "train.txt").write_text("\n".join([*paths[: COUNT - len(lines)], *lines]))
        data(train="train.txt")(folder)

    return breaks


YOLO: list[Case] = [
    ("damaged image", lambda f: cut(f / IMAGE), f"{IMAGE}: can't be read: ", 3),
    ("empty image", lambda f: (f / IMAGE).write_bytes(b""), f"{IMAGE}: can't be read: ", 3),
    ("a box outside", line("0 0.9 0.5 0.4 0.2"), f"{LABEL}, line 2: the box leaves the image of 40x30", 3),
    ("pixels", line("0 20 15 10 10"), f"{LABEL}, line 2: the box leaves the image of 40x30: 15, 10, 25, 20", 3),
    ("no width", line("0 0.5 0.5 0 0.2"), f"{LABEL}, line 2: the box has no area", 3),
    ("negative height", line("0 0.5 0.5 0.1 -0.2"), f"{LABEL}, line 2: the box has no area", 3),
    ("class out of range", line("3 0.5 0.5 0.1 0.2"), f"{LABEL}, line 2: 3 is no class: there are 3, from 0", 3),
    ("negative class", line("-1 0.5 0.5 0.1 0.2"), f"{LABEL}, line 2: -1 is no class", 3),
    ("half a class", line("0.5 0.5 0.5 0.1 0.2"), f"{LABEL}, line 2: 0.5 is no class", 3),
    ("NaN", line("0 nan 0.5 0.1 0.2"), f"{LABEL}, line 2: a corner of the box is not a finite number", 3),
    ("NaN in a class", line("nan 0.5 0.5 0.1 0.2"), f"{LABEL}, line 2: nan is no class", 3),
    ("NaN in a polygon", line("0 0.1 0.1 nan 0.2 0.2 0.2"), f"{LABEL}, line 2: a corner of the polygon is", 3),
    ("infinity", line("0 0.5 0.5 inf 0.2"), f"{LABEL}, line 2: a corner of the box is not a finite number", 3),
    ("text", line("circle 0.5 0.5 0.1 0.2"), f"{LABEL}, line 2: circle 0.5 0.5 0.1 0.2 is not a row of numbers", 3),
    ("decimal commas", line("0 0,5 0,5 0,1 0,2"), f"{LABEL}, line 2: 0 0,5 0,5 0,1 0,2 is not a row of numbers", 3),
    ("four numbers", line("0 0.5 0.5 0.1"), f"{LABEL}, line 2: 4 numbers, but a box has 5", 3),
    ("a score", line("0 0.5 0.5 0.1 0.2 0.9"), f"{LABEL}, line 2: 6 numbers, but a box has 5", 3),
    ("UTF-16", lambda f: (f / LABEL).write_text("0 .5 .5 .1 .2", "utf-16"), f"{LABEL}: can't be read: 'utf-8'", 3),
    (
        "a label without an image", lambda f: (f / LABEL).with_name("other.txt").write_text(""),
        "other.txt: the label", 4,
    ),
    (
        "two images of one name", lambda f: copied(f / IMAGE, ".jpg"),
        "train_000.jpg: train_000.png has the same label", 3, 2,
    ),
    ("a listed image is missing", listing("images/none.png"), "train.txt, line 4: images/none.png is no file", 3, 0),
    ("a list leads outside", listing("../secret.png"), "train.txt, line 4: ../secret.png leaves the folder", 3, 0),
    ("listed twice", listing("./images/train/train_000.png"), "train_000.png is listed twice", 3, 0),
    ("a list of labels", listing(LABEL), f"train.txt, line 4: {LABEL} is no image", 3, 0),
    (
        "a list in UTF-16", lambda f: (listing()(f), (f / "train.txt").write_text("a", "utf-16")),
        "train.txt can't", FATAL,
    ),
    ("no names", data(names=None), "data.yaml has no names of the classes", FATAL),
    ("numbers with a gap", data(names={0: "a", 2: "b"}), "names has the keys 0, 2 -> number the classes 0 to 1", FATAL),
    ("a name twice", data(names=["a", "b", "a"]), "two classes are called 'a'", FATAL),
    ("names that are one text", data(names="circle"), "names is not a list of names", FATAL),
    ("another nc", data(nc=5), "nc is 5, but there are 3 names", FATAL),
    ("no train", data(train=None), "data.yaml has no train", FATAL),
    ("no such folder", data(train="nowhere"), "train is nowhere, and there is no such place", FATAL),
    ("no such val", data(val="nowhere"), "val is nowhere, and there is no such place", FATAL),
    ("a number for a folder", data(train=[[7]]), "and there is no such place", FATAL),
    (
        "damaged YAML", lambda f: (f / "data.yaml").write_text("names: [a, b\ntrain: x"),
        "data.yaml can't be read", FATAL,
    ),
    ("a list in YAML", lambda f: (f / "data.yaml").write_text("[1, 2]"), "is not a data.yaml of YOLO", FATAL),
    ("Latin-1", lambda f: (f / "data.yaml").write_bytes(b"names: [caf\xe9]"), "data.yaml can't be read", FATAL),
    (
        "an empty folder", lambda f: [p.unlink() for p in (f / "images/train").iterdir()],
        "no image of the train part", FATAL,
    ),
    ("no labels", lambda f: [p.unlink() for p in (f / "labels/train").iterdir()], "has no boxes", FATAL),
]  # fmt: skip


@pytest.mark.parametrize("breaks, says, numbers", ids(YOLO))
def test_yolo(breaks: Breaks, says: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    breaks(write_yolo(tmp_path, {"train": SCENES}))
    judge(tmp_path, says, *numbers)


# ---- Pascal VOC ------------------------------------------------------------------------------------------------------

XML, PICTURE, LIST = "Annotations/train_000.xml", "JPEGImages/train_000.png", "ImageSets/Main/train.txt"


def xml(old: str, new: str, encoding: str = "utf-8") -> Breaks:
    def breaks(folder: Path) -> None:
        text = (folder / XML).read_text()
        assert old in text
        (folder / XML).write_bytes(text.replace(old, new, 1).encode(encoding))

    return breaks


def corner(name: str, value: str) -> Breaks:
    def breaks(folder: Path) -> None:
        text = (folder / XML).read_text()
        before, rest = text.split(f"<{name}>", 1)
        (folder / XML).write_text(f"{before}<{name}>{value}{rest[rest.index('</') :]}")

    return breaks


def dropped(tag: str) -> Breaks:
    def breaks(folder: Path) -> None:
        text = (folder / XML).read_text()
        start, end = text.index(f"<{tag}>"), text.index(f"</{tag}>")
        (folder / XML).write_text(text[:start] + text[end + len(tag) + 3 :])

    return breaks


def listed(*more: str) -> Breaks:
    return lambda folder: (folder / LIST).write_text((folder / LIST).read_text() + "\n".join(more))


def unlisted(breaks: Breaks) -> Breaks:
    def both(folder: Path) -> None:
        (folder / LIST).unlink()
        breaks(folder)

    return both


def without_boxes(folder: Path) -> None:
    for path in (folder / "Annotations").iterdir():
        path.write_text("<annotation/>")


VOC: list[Case] = [
    ("missing image", lambda f: (f / PICTURE).unlink(), f"{LIST}, line 1: train_000: JPEGImages has no such image", 3),
    ("missing label", lambda f: (f / XML).unlink(), f"{LIST}, line 1: Annotations has no train_000.xml", 3),
    ("damaged image", lambda f: cut(f / PICTURE), f"{PICTURE}: can't be read: ", 3),
    ("a box outside", corner("xmax", "55"), f"{XML}, object 1: the box leaves the image of 40x30", 3),
    ("no height", corner("ymax", "1"), f"{XML}, object 1: the box has no area", 3),
    ("turned round", corner("xmin", "39"), f"{XML}, object 1: the box has no area", 3),
    ("NaN", corner("xmin", "NaN"), f"{XML}, object 1: a corner of the box is not a finite number", 3),
    ("text for a number", corner("ymin", "top"), f"{XML}, object 1: ymin is 'top', which is not a number", 3),
    ("an empty number", corner("ymin", ""), f"{XML}, object 1: ymin is '', which is not a number", 3),
    ("a missing corner", dropped("xmax"), f"{XML}, object 1: xmax is missing", 3),
    ("no corners", dropped("bndbox"), f"{XML}, object 1: xmin is missing", 3),
    ("a tag that does not end", xml("</bndbox>", ""), f"{XML}: can't be read: mismatched tag", 3),
    ("no name", corner("name", " "), f"{XML}, object 1: the object has no name", 3),
    ("cut", lambda f: cut(f / XML), f"{XML}: can't be read: ", 3),
    ("Latin-1 without saying so", xml("<name>", "<name>\xe9", "latin-1"), f"{XML}: can't be read: not well-formed", 3),
    (
        "UTF-16 that says UTF-8", xml("<annotation>", "<?xml version='1.0' encoding='utf-8'?><annotation>", "utf-16"),
        f"{XML}: can't be read: encoding specified in XML declaration is incorrect", 3,
    ),
    (
        "an unknown encoding", xml("<annotation>", "<?xml version='1.0' encoding='klingon'?><annotation>"),
        f"{XML}: can't be read: unknown encoding", 3,
    ),
    (
        "another document", lambda f: (f / XML).write_text("<html/>"),
        f"{XML}: not an annotation of VOC: it begins with", 3,
    ),
    ("another size", corner("width", "41"), f"{XML}: labels for an image of 41x30, but train_000.png is 40x30", 3),
    (
        "turned by EXIF", lambda f: turning(f / PICTURE),
        f"{XML}: labels for an image of 40x30, but train_000.png is 30x40", 3,
    ),
    (
        "two images of one name", lambda f: copied(f / PICTURE, ".jpg"),
        "train_000: JPEGImages has 2 images of this name", 3,
    ),
    ("a list leads outside", listed("../secret"), f"{LIST}, line 5: ../secret is not the name of an image", 4),
    ("listed twice", listed("train_000"), f"{LIST}, line 5: train_000 is listed twice", 4),
    ("a label without an image", unlisted(lambda f: (f / PICTURE).unlink()), f"{XML}: JPEGImages has no such image", 3),
    (
        "an image without a label", unlisted(lambda f: (f / XML).unlink()),
        f"{PICTURE}: Annotations has no train_000.xml", 3,
    ),
    (
        "a list in UTF-16", lambda f: (f / LIST).write_text("train_000", "utf-16"),
        f"{LIST} can't be read: 'utf-8'", FATAL,
    ),
    ("no list of train", lambda f: (f / LIST).rename((f / LIST).with_name("val.txt")), "has no train.txt", FATAL),
    ("an empty list", lambda f: (f / LIST).write_text("\n"), "no image of the train part can be used", FATAL),
    (
        "an empty folder", unlisted(lambda f: [p.unlink() for p in f.glob("*/train*")]),
        "no image of the train part", FATAL,
    ),
    ("no boxes", without_boxes, "has no boxes: no image has a label", FATAL),
]  # fmt: skip


@pytest.mark.parametrize("breaks, says, numbers", ids(VOC))
def test_voc(breaks: Breaks, says: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    breaks(write_voc(tmp_path, {"train": SCENES}))
    judge(tmp_path, says, *numbers)


# ---- masks -----------------------------------------------------------------------------------------------------------

MASK = "masks/train/train_000.png"


def mask(made: Callable[[np.ndarray[Any, Any]], Image.Image], suffix: str = ".png") -> Breaks:
    def breaks(folder: Path) -> None:
        (folder / MASK).unlink()
        made(SCENES[0].mask).save((folder / MASK).with_suffix(suffix))

    return breaks


def all_masks(change: Callable[[np.ndarray[Any, Any]], Any]) -> Breaks:
    def breaks(folder: Path) -> None:
        for number, scene in enumerate(SCENES):
            Image.fromarray(change(scene.mask)).save(folder / f"masks/train/train_{number:03}.png")

    return breaks


def colours(values: np.ndarray[Any, Any]) -> Image.Image:
    return Image.fromarray(np.stack([values * 80, values * 20, values * 50], -1).astype(np.uint8))


MASKS: list[Case] = [
    ("an image without a mask", lambda f: (f / MASK).unlink(), f"{IMAGE}: the image has no mask", 3),
    ("a mask without an image", lambda f: (f / IMAGE).unlink(), f"{MASK}: the mask has no image in images/train", 3, 0),
    ("damaged mask", lambda f: cut(f / MASK), f"{MASK}: can't be read: ", 3),
    ("damaged image", lambda f: cut(f / IMAGE), f"{IMAGE}: can't be read: ", 3),
    ("an empty file", lambda f: (f / MASK).write_bytes(b""), f"{MASK}: can't be read: cannot identify image file", 3),
    ("text", lambda f: (f / MASK).write_text("0 0 1"), f"{MASK}: can't be read: cannot identify image file", 3),
    (
        "another size", mask(lambda m: Image.fromarray(m[:-2])),
        f"{MASK}: the mask is 40x28, but train_000.png is 40x30", 3,
    ),
    ("colours", mask(colours), f"{MASK}: can't be read: it is a colour image; save it as an indexed or gray PNG", 3),
    (
        "colours and alpha", mask(lambda m: colours(m).convert("RGBA")),
        f"{MASK}: can't be read: it is a colour image", 3,
    ),
    ("JPEG", mask(Image.fromarray, ".jpg"), "masks/train/train_000.jpg: can't be read: .jpg may change values", 3),
    ("all ignored", mask(lambda m: Image.fromarray(np.full_like(m, 255))), f"{MASK}: all of the mask is ignored", 3),
    (
        "floats", mask(lambda m: Image.fromarray(m.astype(np.float32)), ".tif"),
        "train_000.tif: can't be read: its mode is F", 3,
    ),
    (
        "32 bits", mask(lambda m: Image.fromarray(m.astype(np.int32)), ".tif"),
        "train_000.tif: can't be read: its mode is I", 3,
    ),
    ("CMYK", mask(lambda m: Image.fromarray(m).convert("CMYK"), ".tif"), "can't be read: its mode is CMYK", 3),
    (
        "two images of one name", lambda f: copied(f / IMAGE, ".jpg"),
        "train_000.jpg: train_000.png has the same mask", 3, 2,
    ),
    ("two masks of one name", lambda f: copied(f / MASK, ".bmp"), "train_000.bmp: train_000.png is a second mask", 3),
    (
        "turned by EXIF", lambda f: turning(f / IMAGE),
        f"{MASK}: the mask is 40x30, but train_000.png is 30x40 (upright)", 3,
    ),
    (
        "a folder called like a mask", lambda f: ((f / MASK).unlink(), (f / MASK).mkdir()),
        f"{IMAGE}: the image has no", 3,
    ),
    ("a link to nothing", lambda f: ((f / MASK).unlink(), (f / MASK).symlink_to("none")), "the image has no mask", 3),
    (
        "all colours", all_masks(lambda m: np.array(colours(m))),
        "no image of the train part can be used: 4 faults", FATAL,
    ),
    ("no masks", lambda f: [p.unlink() for p in (f / "masks/train").iterdir()], "the image has no mask", FATAL),
    (
        "an empty folder", lambda f: [p.unlink() for p in f.glob("*/train/*")],
        "no image of the train part can be used", FATAL,
    ),
    ("two folders of one part", lambda f: (f / "images/training").mkdir(), "has two folders for train", FATAL),
]  # fmt: skip


@pytest.mark.parametrize("breaks, says, numbers", ids(MASKS))
def test_masks(breaks: Breaks, says: str, numbers: tuple[int, ...], tmp_path: Path) -> None:
    breaks(write_masks(tmp_path, {"train": SCENES}))
    judge(tmp_path, says, *numbers)


# ---- many faults -----------------------------------------------------------------------------------------------------


def test_five_faults_are_named_and_all_counted(tmp_path: Path) -> None:
    write_yolo(tmp_path, {"train": draw_scenes(9, 1, 30, 40)})
    for number in range(7):
        (tmp_path / f"labels/train/train_{number:03}.txt").write_text("0 .5 .5 0 .5\n9 .5 .5 .5 .5\n")
    found = open_source(tmp_path, Settings())
    (note,) = [note for note in found.notes if "fault" in note]
    assert note.startswith(f"14 faults in {tmp_path}: labels/train/train_000.txt, line 2: 9 is no class")
    assert note.count(".txt, line") == 5 and note.endswith("; ... (14 in all); 7 images skipped")


def test_sound_data_has_no_note(tmp_path: Path) -> None:
    turned(write_coco(tmp_path, {"train": SCENES}) / FIRST)  # upright, it has the size that the JSON tells
    assert open_source(tmp_path, Settings(strict=True)).notes == []
