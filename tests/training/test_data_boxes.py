"""Boxes of COCO, YOLO and Pascal VOC, compared with the scenes that were drawn."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings
from onnxgen.training.data import Data, check, feed, open_data
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource
from samples.tasks.scenes import SHAPES, Scene, draw_scenes, write_coco, write_voc, write_yolo
from tests.training.small import network

HEIGHT, WIDTH = 30, 40
PARTS = {"train": draw_scenes(5, 3, HEIGHT, WIDTH), "val": draw_scenes(3, 2, HEIGHT, WIDTH)}
RAW = Settings(val=0, normalize="none", batch_size=2)
WRITERS: dict[str, Callable[..., Path]] = {"coco": write_coco, "yolo": write_yolo, "voc": write_voc}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> torch.nn.Module:
    return network(tmp_path_factory.mktemp("boxes"), image=("float32", ("batch", 3, 12, 16)))


def expected(scene: Scene, most: int) -> np.ndarray[Any, Any]:
    rows = [(label, x1 / WIDTH, y1 / HEIGHT, x2 / WIDTH, y2 / HEIGHT) for label, x1, y1, x2, y2 in scene.boxes]
    return np.array(rows + [(-1.0,) * 5] * (most - len(rows)), np.float32)


def opened(path: Path, **settings: Any) -> DataSource:
    found = open_source(path, Settings(**settings))
    assert isinstance(found, DataSource)
    return found


def boxes(found: DataSource | Data, part: str = "train", index: int = 0) -> np.ndarray[Any, Any]:
    samples = found.parts[part]
    return samples.take([index], 0)["boxes"][0].numpy() if isinstance(found, Data) else stored(samples)[index].numpy()


def stored(samples: Any) -> torch.Tensor:
    column = samples.column("boxes")
    assert column is not None
    return torch.as_tensor(column)


def check_all(found: DataSource | Data, parts: Any = PARTS) -> None:
    most = max(len(scene.boxes) for scenes in parts.values() for scene in scenes)
    for part, scenes in parts.items():
        assert len(found.parts[part]) == len(scenes)
        for index, scene in enumerate(scenes):
            np.testing.assert_allclose(boxes(found, part, index), expected(scene, most), atol=1e-6)


@pytest.mark.parametrize("kind", WRITERS)
def test_the_formats_hold_what_was_drawn(kind: str, model: torch.nn.Module, tmp_path: Path) -> None:
    data = open_data(WRITERS[kind](tmp_path, PARTS), model, RAW)
    feeding = feed(data, model, RAW)
    check(model, data, feeding, RAW)
    assert feeding.inputs == ("image",) and dict(feeding.targets) == {0: "boxes"} and data.target == "boxes"
    check_all(data)
    assert data.train is not None
    field = data.train.fields["boxes"]
    assert field.classes == SHAPES and field.dtype == torch.float32 and field.shape[1] == 5
    image = data.train.take([3], 0)["image"][0].permute(1, 2, 0).numpy()
    by_pil = Image.fromarray(PARTS["train"][3].pixels).resize((16, 12), Image.Resampling.BILINEAR)
    assert np.array_equal(image, np.asarray(by_pil, np.float32))
    assert torch.equal(pickle.loads(pickle.dumps(data.train)).take([0], 0)["boxes"], data.train.take([0], 0)["boxes"])


@pytest.mark.parametrize("kind", WRITERS)
def test_classes_are_numbered_as_the_user_says(kind: str, model: torch.nn.Module, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path, PARTS)
    order = ("triangle", "moon", "square", "circle")
    data = open_data(tmp_path, model, Settings(val=0, normalize="none", classes=order))
    assert data.train is not None and data.train.fields["boxes"].classes == order
    for index, scene in enumerate(PARTS["train"]):
        found = boxes(data, index=index)[:, 0]
        wanted = [order.index(SHAPES[label]) for label, *_ in scene.boxes]
        assert found.tolist() == wanted + [-1] * (len(found) - len(wanted))
    with pytest.raises(OnnxgenError, match="has class circle, and the classes are triangle, square"):
        open_data(tmp_path, model, Settings(classes=("triangle", "square")))


@pytest.mark.parametrize("kind", WRITERS)
def test_data_without_parts_is_split(kind: str, model: torch.nn.Module, tmp_path: Path) -> None:
    WRITERS[kind](tmp_path, {"train": PARTS["train"]})
    data = open_data(tmp_path, model, Settings(val=0.4, normalize="none"))
    assert data.train is not None and data.val is not None and (len(data.train), len(data.val)) == (3, 2)
    assert (
        "samples: 3 train, 2 val; val drawn from train with seed 0: held_back.csv of the run lists them" in data.notes
    )


@pytest.mark.parametrize("kind", WRITERS)
def test_boxes_of_a_file_that_exif_turns_are_of_the_upright_picture(kind: str, tmp_path: Path) -> None:
    folder = WRITERS[kind](tmp_path, PARTS)
    file = next(path for path in folder.rglob("train_000.png"))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    with Image.open(file) as image:
        upright = np.asarray(image)
        turned = image.transpose(Image.Transpose.ROTATE_90)
    turned.save(file, exif=exif)
    found = opened(folder, strict=True)
    check_all(found)
    samples: Any = found.parts["train"]
    assert np.array_equal(samples.sized(3, HEIGHT, WIDTH).take([0], 0)["image"][0].numpy(), upright)


# ---- COCO ------------------------------------------------------------------------------------------------------------


def told(folder: Path, part: str = "train") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"annotations/instances_{part}.json").read_text())
    return found


def roboflow(folder: Path) -> Path:
    """Lay data out as Roboflow does, with its category above the others."""
    write_coco(folder / "from", PARTS)
    for part, name in (("train", "train"), ("val", "valid")):
        made = told(folder / "from", part)
        made["categories"] = [{**c, "supercategory": "shapes"} for c in made["categories"]]
        made["categories"].insert(0, {"id": 0, "name": "shapes", "supercategory": "none"})
        shutil.copytree(folder / "from" / part, folder / name)
        (folder / name / "_annotations.coco.json").write_text(json.dumps(made))
    shutil.rmtree(folder / "from")
    return folder


def test_coco_as_roboflow_writes_it(tmp_path: Path) -> None:
    found = opened(roboflow(tmp_path))
    check_all(found)
    assert found.parts["train"].fields["boxes"].classes == SHAPES
    assert "no class: shapes has no boxes, and is the supercategory of others" in found.notes


@pytest.mark.parametrize("images", ["train2017", "images/train2017", "images", ".", "annotations"])
def test_places_of_the_images_of_coco(images: str, tmp_path: Path) -> None:
    write_coco(tmp_path, {"train": PARTS["train"]})
    annotations = tmp_path / "annotations"
    (annotations / "instances_train.json").rename(annotations / "instances_train2017.json")
    (tmp_path / images).mkdir(parents=True, exist_ok=True)
    for path in (tmp_path / "train").iterdir():
        path.rename(tmp_path / images / path.name)
    for path in (tmp_path, annotations, annotations / "instances_train2017.json"):
        check_all(opened(path, strict=True), {"train": PARTS["train"]})


def test_images_of_coco_that_are_elsewhere(tmp_path: Path) -> None:
    """All places that were looked at are told, not only that of the first usual one."""
    write_coco(tmp_path, {"train": PARTS["train"]})
    (tmp_path / "train").rename(tmp_path / "pictures")
    with pytest.raises(OnnxgenError) as error:
        opened(tmp_path)
    places = f"annotations/, annotations/images/, train/, images/train/, images/, {tmp_path}/"
    count = len(told(tmp_path)["images"])
    said = f"{count} faults in {tmp_path}: annotations/instances_train.json: none of its images is in any of {places}; "
    assert said in str(error.value) and "images[0]: there is no image annotations/train_000.png" in str(error.value)


def test_one_json_beside_its_images(tmp_path: Path) -> None:
    made = told(write_coco(tmp_path / "from", {"train": PARTS["train"]}))
    shutil.copytree(tmp_path / "from" / "train", tmp_path / "to" / "some")
    for image in made["images"]:
        image["file_name"] = f"some/{image['file_name']}"
        del image["width"]
    (tmp_path / "to" / "mine.json").write_text(json.dumps(made), encoding="utf-16")
    check_all(opened(tmp_path / "to" / "mine.json", strict=True), {"train": PARTS["train"]})


@pytest.mark.parametrize("names", [("train.json", "val.json"), ("result.json",)])
def test_files_of_coco_beside_the_folder_of_images(names: tuple[str, ...], tmp_path: Path) -> None:
    """As Label Studio and others lay them out."""
    parts = dict(list(PARTS.items())[: len(names)])
    write_coco(tmp_path / "from", parts)
    for name, part in zip(names, parts):
        shutil.copytree(tmp_path / "from" / part, tmp_path / "to" / "images", dirs_exist_ok=True)
        shutil.copy(tmp_path / "from" / "annotations" / f"instances_{part}.json", tmp_path / "to" / name)
    (tmp_path / "to" / "about.json").write_text('{"title": "shapes"}')
    check_all(opened(tmp_path / "to", strict=True), parts)
    shutil.copy(tmp_path / "to" / names[-1], tmp_path / "to" / "all.json")
    (tmp_path / "to" / names[0]).rename(tmp_path / "to" / "a.json")
    with pytest.raises(OnnxgenError, match="has a.json, all.json.*, but none is of train -> name one"):
        opened(tmp_path / "to")


def test_crowds_are_left_out_and_counted(tmp_path: Path) -> None:
    made = told(write_coco(tmp_path, {"train": PARTS["train"]}))
    crowd = {**made["annotations"][0], "iscrowd": 1, "bbox": [0, 0, 40, 30]}
    made["annotations"] = [crowd, *made["annotations"], crowd]
    (tmp_path / "annotations/instances_train.json").write_text(json.dumps(made))
    found = opened(tmp_path, strict=True)
    assert found.notes == ["2 annotations of crowds (iscrowd) left out"]
    check_all(found, {"train": PARTS["train"]})


def test_an_image_without_annotations_has_no_boxes(tmp_path: Path) -> None:
    made = told(write_coco(tmp_path, {"train": PARTS["train"]}))
    made["annotations"] = [a for a in made["annotations"] if a["image_id"] != 100]
    (tmp_path / "annotations/instances_train.json").write_text(json.dumps(made))
    found = opened(tmp_path, strict=True)
    assert (boxes(found) == -1).all() and found.notes == ["1 of 5 images have no boxes"]


def test_a_box_may_be_over_the_edge_by_a_pixel(tmp_path: Path) -> None:
    made = told(write_coco(tmp_path, {"train": PARTS["train"]}))
    made["annotations"][0]["bbox"] = [-0.5, -1, 41, 20]
    (tmp_path / "annotations/instances_train.json").write_text(json.dumps(made))
    np.testing.assert_allclose(boxes(opened(tmp_path, strict=True))[0, 1:], [0, 0, 1, 19 / HEIGHT], rtol=1e-6)


# ---- YOLO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names", ["names: {0: circle, 1: square, 2: triangle}", "names:\n- circle\n- square\n- triangle\nnc: 3"]
)
@pytest.mark.parametrize(
    "places",
    [
        "train: images/train\nval: images/val",
        "path: .\ntrain: [images/train]\nval: ./images/val\ntest:",
        "path: /nowhere/shapes\ntrain: ../images/train\nval: ../images/val",
        "train: train.txt\nval: [val.txt]",
    ],
)
def test_data_yaml(names: str, places: str, tmp_path: Path) -> None:
    write_yolo(tmp_path, PARTS)
    for part, scenes in PARTS.items():
        lines = [f"./images/{part}/{part}_{n:03}.png" for n in range(len(scenes))]
        (tmp_path / f"{part}.txt").write_text("\n".join([*lines[:-1], "", str(tmp_path / lines[-1])]))
    (tmp_path / "data.yaml").write_text(f"{places}\n{names}\n")
    for path in (tmp_path, tmp_path / "data.yaml"):
        found = opened(path, strict=True)
        check_all(found)
        assert found.parts["train"].fields["boxes"].classes == SHAPES


@pytest.mark.parametrize("classes", ["classes.txt", "labels/classes.txt", ""])
@pytest.mark.parametrize("inside", [True, False])
def test_yolo_without_data_yaml(classes: str, inside: bool, tmp_path: Path) -> None:
    write_yolo(tmp_path, PARTS)
    (tmp_path / "data.yaml").unlink()
    if classes:
        (tmp_path / classes).write_text("\n".join(SHAPES))
    if inside and not classes.startswith("labels"):  # train/images instead of images/train
        for what in ("images", "labels"):
            for part in PARTS:
                (tmp_path / part).mkdir(exist_ok=True)
                (tmp_path / what / part).rename(tmp_path / part / what)
            (tmp_path / what).rmdir()
    found = opened(tmp_path, strict=True)
    check_all(found)
    assert found.parts["train"].fields["boxes"].classes == (SHAPES if classes else ("0", "1", "2"))
    assert found.text == (frozenset({"boxes"}) if classes else frozenset())


@pytest.mark.parametrize("described", [True, False])
def test_folders_of_yolo_may_have_capitals(described: bool, tmp_path: Path) -> None:
    write_yolo(tmp_path, PARTS)
    for name in ("images", "labels"):
        (tmp_path / name).rename(tmp_path / name.upper())
    yaml = tmp_path / "data.yaml"
    yaml.write_text(yaml.read_text().replace("images/", "IMAGES/")) if described else yaml.unlink()
    for path in (tmp_path, tmp_path / "data.yaml" if described else tmp_path / "LABELS"):
        check_all(opened(path, strict=True))


@pytest.mark.parametrize("parts", [PARTS, {"train": PARTS["train"]}])
def test_labels_of_yolo_beside_their_images(parts: Any, tmp_path: Path) -> None:
    """As labelImg saves them."""
    write_yolo(tmp_path / "from", parts)
    for part in parts:
        to = tmp_path / "to" / part if len(parts) > 1 else tmp_path / "to"
        for what in ("images", "labels"):
            shutil.copytree(tmp_path / "from" / what / part, to, dirs_exist_ok=True)
        (to / "classes.txt").write_text("\n".join(SHAPES))
    found = opened(tmp_path / "to", strict=True)
    check_all(found, parts)
    assert found.parts["train"].fields["boxes"].classes == SHAPES
    (to / "gone.txt").write_text("0 0.5 0.5 0.1 0.1")
    assert f"the label file has no image in {to.name if len(parts) > 1 else to};" in "; ".join(
        [*opened(tmp_path / "to").notes, ""]
    )


def test_texts_beside_images_are_no_boxes(tmp_path: Path) -> None:
    for name in ("cat", "train"):
        (tmp_path / name).mkdir()
        Image.new("L", (5, 6)).save(tmp_path / name / "a.png")
        (tmp_path / name / "a.txt").write_text("1 cat on a mat")
    assert opened(tmp_path).target == "label"


@pytest.mark.parametrize("file", ["data.yaml", ""])
def test_yolo_without_names_gets_those_of_classes(file: str, tmp_path: Path) -> None:
    """`--classes` names the numbers in their order. A number beyond them is a fault."""
    write_yolo(tmp_path, PARTS)
    (tmp_path / "data.yaml").unlink()
    if file:
        (tmp_path / file).write_text("train: images/train\nval: images/val\n")
        with pytest.raises(OnnxgenError, match="has no names of the classes -> .*; or --classes cat,dog"):
            opened(tmp_path)
    found = opened(tmp_path, strict=True, classes=SHAPES[::-1])
    check_all(found)
    assert found.parts["train"].fields["boxes"].classes == SHAPES[::-1] and found.text == frozenset({"boxes"})
    with pytest.raises(OnnxgenError, match="2 is no class: there are 2, from 0"):
        opened(tmp_path, strict=True, classes=SHAPES[:2])


def test_labels_in_one_folder_without_parts(tmp_path: Path) -> None:
    write_yolo(tmp_path / "from", {"train": PARTS["train"]})
    for what in ("images", "labels"):
        shutil.copytree(tmp_path / "from" / what / "train", tmp_path / "to" / what)
    (tmp_path / "to" / "labels" / "classes.txt").write_text("\n".join(SHAPES))
    for path in (tmp_path / "to", tmp_path / "to" / "labels"):
        check_all(opened(path, strict=True), {"train": PARTS["train"]})


def test_a_test_part_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    write_yolo(tmp_path, PARTS)
    with (tmp_path / "data.yaml").open("a") as file:
        file.write("\ntest: ../test/images\n")
    found = opened(tmp_path, strict=True)
    check_all(found)
    assert found.notes == [
        f"{tmp_path / 'data.yaml'}: test is ../test/images, and there is no such place: it is left out"
    ]


def test_names_stay_text(tmp_path: Path) -> None:
    write_yolo(tmp_path, {"train": PARTS["train"]})
    (tmp_path / "data.yaml").write_text("train: images/train\nnames: [no, 01, 1.0]\n")
    assert opened(tmp_path).parts["train"].fields["boxes"].classes == ("no", "01", "1.0")


def test_the_box_around_a_polygon(tmp_path: Path) -> None:
    write_yolo(tmp_path, {"train": PARTS["train"]})
    (tmp_path / "labels/train/train_000.txt").write_text("2 0.5 0.1 0.75 0.5 0.25 0.625\n")
    assert boxes(opened(tmp_path, strict=True))[0].tolist() == pytest.approx([2, 0.25, 0.1, 0.75, 0.625])


def test_an_image_without_a_label_file_has_no_boxes(tmp_path: Path) -> None:
    write_yolo(tmp_path, {"train": PARTS["train"]})
    (tmp_path / "labels/train/train_000.txt").unlink()
    (tmp_path / "labels/train/train_001.txt").write_text("\n")
    found = opened(tmp_path, strict=True)
    assert (boxes(found) == -1).all() and (boxes(found, index=1) == -1).all()
    assert found.notes == ["2 of 5 images have no boxes"]


# ---- Pascal VOC ------------------------------------------------------------------------------------------------------


def test_voc_without_lists(tmp_path: Path) -> None:
    write_voc(tmp_path, {"train": PARTS["train"]})
    shutil.rmtree(tmp_path / "ImageSets")
    for path in (tmp_path, tmp_path / "Annotations"):
        check_all(opened(path, strict=True), {"train": PARTS["train"]})


def test_trainval_is_the_training_part_without_train(tmp_path: Path) -> None:
    write_voc(tmp_path, {"train": PARTS["train"]})
    lists = tmp_path / "ImageSets" / "Main"
    (lists / "train.txt").rename(lists / "trainval.txt")
    (lists / "circle_trainval.txt").write_text("train_000 -1\n")
    (lists / "test.txt").write_text("train_001  1\n")
    found = opened(tmp_path, strict=True)
    assert {part: len(samples) for part, samples in found.parts.items()} == {"train": 5, "test": 1}


def test_encodings_of_xml(tmp_path: Path) -> None:
    write_voc(tmp_path, {"train": PARTS["train"]})
    for number, encoding in enumerate(("utf-8", "utf-16", "iso-8859-1", "us-ascii")):
        file = tmp_path / f"Annotations/train_{number:03}.xml"
        tree = ElementTree.parse(file)
        ElementTree.SubElement(tree.getroot(), "folder").text = "Zürich"
        tree.write(file, encoding=encoding, xml_declaration=True)
    check_all(opened(tmp_path, strict=True), {"train": PARTS["train"]})


def test_a_size_of_0_is_not_told(tmp_path: Path) -> None:
    write_voc(tmp_path, {"train": PARTS["train"]})
    file = tmp_path / "Annotations/train_000.xml"
    text = file.read_text().replace("<height>30<", "<height>0<").replace("<width>40<", "<width>0<")
    assert text.count(">0<") >= 2
    file.write_text(text)
    check_all(opened(tmp_path, strict=True), {"train": PARTS["train"]})


def test_images_of_one_size_are_read_as_they_are_and_those_of_two_have_none(tmp_path: Path) -> None:
    write_coco(tmp_path / "one", {"train": PARTS["train"]})
    write_coco(tmp_path / "two", {"train": PARTS["train"], "val": draw_scenes(3, 2, 20, WIDTH)})
    one, two = (opened(tmp_path / name).parts["train"].fields["image"].shape for name in ("one", "two"))
    assert {HEIGHT, WIDTH} <= {*one} and not {HEIGHT, WIDTH, 20} & {*two}


# ---- which reader ----------------------------------------------------------------------------------------------------


def test_two_kinds_in_one_folder_are_named(tmp_path: Path) -> None:
    write_coco(write_voc(tmp_path, PARTS), PARTS)
    with pytest.raises(OnnxgenError) as caught:
        opened(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has boxes of COCO (name the .json) and boxes of Pascal VOC (name Annotations) "
        "-> name the one to train with"
    )
    check_all(opened(tmp_path / "Annotations"))
    check_all(opened(tmp_path / "annotations"))


def test_class_folders_are_read_as_before(tmp_path: Path) -> None:
    for name in ("images", "labels_of_wine", "train"):
        (tmp_path / name).mkdir()
        Image.new("L", (5, 6)).save(tmp_path / name / "a.png")
    assert opened(tmp_path).target == "label"


def test_images_alone_are_enough_to_predict(model: torch.nn.Module, tmp_path: Path) -> None:
    write_yolo(tmp_path, {"train": PARTS["train"]})
    for path in (tmp_path / "labels/train").iterdir():
        path.unlink()
    data = open_data(tmp_path, model, RAW, targets=False)
    assert data.train is not None and list(data.train.fields) == ["image"] and len(data.train) == 5
