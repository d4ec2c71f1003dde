"""Boxes that a run finds, in pixels of the original image; and letterboxed images."""

from __future__ import annotations

import csv
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image
from torch import Tensor

import onnxgen
from onnxgen.cli import run as command
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.training import evaluate, fit, load
from onnxgen.training.data.folder import decoded, size_of
from onnxgen.training.data.letterbox import Placing
from onnxgen.training.goals.detection.boxes import boxes_of
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.answers import Box
from onnxgen.training.runs.contract import Finding
from onnxgen.training.runs.record import Target
from onnxgen.training.settings import Settings
from samples.tasks.scenes import draw_scenes, write_coco, write_yolo
from tests.heads import small
from tests.training.detection.heads import distances

pytest.importorskip("faster_coco_eval")
GIVEN: dict[str, Any] = {"epochs": 1, "batch_size": 4, "lr": 0.01, "show": "nothing", "normalize": "0,1", "workers": 0}


# ---- letterbox -------------------------------------------------------------------------------------------------------


def test_proportions_stay_and_gray_fills_up() -> None:
    """A picture of 20x40 in 32x32: 16 rows of it, between 8 and 8 rows of gray, as Ultralytics' LetterBox has it."""
    picture = Image.new("RGB", (40, 20), (200, 10, 60))
    found = decoded(picture, (3, 32, 32), Placing("letterbox"))
    assert (found[:8] == 114).all() and (found[24:] == 114).all()
    assert (found[8:24] == (200, 10, 60)).all()
    assert (decoded(picture, (3, 32, 32)) == (200, 10, 60)).all()


def test_a_box_goes_into_the_frame_and_back() -> None:
    fit = Placing("letterbox").fit((20, 40), (32, 32))
    assert (fit.inner, fit.top, fit.left) == ((16, 32), 8, 0)
    box = torch.tensor([0.25, 0.5, 0.5, 1.0])  # x 8 to 16, y 8 + 8 to 8 + 16 of 32
    inside = fit.into_frame(box)
    assert inside.tolist() == [0.25, 0.5, 0.5, 0.75]
    torch.testing.assert_close(fit.out_of_frame(inside * 32), box)
    beyond = fit.out_of_frame(torch.tensor([-5.0, 0.0, 40.0, 32.0]))
    assert beyond.tolist() == [0, 0, 1, 1], "cut off at the edges"
    assert not Placing("stretch").fit((20, 40), (32, 32)).moves


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module, and scenes of 48x64 pixels in two forms of labels. The network takes 32x48."""
    folder = tmp_path_factory.mktemp("found")
    torch.manual_seed(0)
    small.export(small.Small((4, 1, 3), small.yolox), folder / "net.onnx")
    onnxgen.generate(folder / "net.onnx", folder / "net.py", Options(task="detection"))
    parts = {"train": draw_scenes(8, seed=0), "val": draw_scenes(4, seed=1)}
    write_yolo(folder / "data", parts)
    write_coco(folder / "coco", parts)
    return folder


def columns(place: Path, out: Path, data: Any, **given: Any) -> dict[str, Tensor]:
    """Return the first training batch that a run of this data would see."""
    values = {**GIVEN, "out": out, **given}
    values.pop("show")
    train = prepare(place / "net.py", data, Settings(**values)).data.train
    assert train is not None
    return train.take(range(min(8, len(train))), 0)


@pytest.mark.parametrize(("resize", "width"), [("corner", 43), ("line", 43)])
def test_boxes_move_with_images_that_lie_at_the_left(place: Path, tmp_path: Path, resize: str, width: int) -> None:
    """48x64 in 32x48 is 32x43, and 5 columns at the right are of the gray that was asked for."""
    batch = columns(place, tmp_path / "run", place / "data", resize=resize, beside=9)
    images, boxes = batch["image"], batch["boxes"]
    torch.testing.assert_close(images[..., width:], torch.full((8, 3, 32, 48 - width), 9 / 255))
    for image, rows in zip(images, boxes):
        for row in rows[rows[:, 0] >= 0]:
            x1, y1, x2, y2 = (row[1:] * torch.tensor([48, 32, 48, 32])).tolist()
            middle = image[:, int((y1 + y2) / 2), int((x1 + x2) / 2)]
            assert x2 <= width + 1e-4 and middle.max() > 0.5 and middle.argmax() == row[0]


@pytest.mark.parametrize("form", ["data", "coco"])
def test_boxes_lie_on_the_shapes_of_letterboxed_images(place: Path, tmp_path: Path, form: str) -> None:
    """48x64 in 32x48 is 32x43: stripes of 2 and 3 columns are gray, and each box is as bright as a shape."""
    batch = columns(place, tmp_path / "run", place / form)
    images, boxes = batch["image"], batch["boxes"]
    gray = torch.tensor(114 / 255)
    torch.testing.assert_close(images[..., :2], gray.expand(8, 3, 32, 2))
    torch.testing.assert_close(images[..., 45:], gray.expand(8, 3, 32, 3))
    for image, rows in zip(images, boxes):
        for row in rows[rows[:, 0] >= 0]:
            x1, y1, x2, y2 = (row[1:] * torch.tensor([48, 32, 48, 32])).tolist()
            middle = image[:, int((y1 + y2) / 2), int((x1 + x2) / 2)]
            assert middle.max() > 0.5 and middle.argmax() == row[0], "each kind of shape has its own colour"
            assert (x2 - x1) * 0.75 <= (y2 - y1) * 1.0 + 1.5, "squares stay squares"
    given = {name: value for name, value in GIVEN.items() if name != "show"}
    notes = prepare(place / "net.py", place / form, Settings(out=tmp_path / "run", **given)).notes
    assert "images of 48x64 are letterboxed to 32x48" in notes
    stretched = columns(place, tmp_path / "other", place / form, resize="stretch")
    assert (stretched["image"][..., 0] < 0.3).all()


def test_arrays_are_letterboxed_with_their_boxes(place: Path, tmp_path: Path) -> None:
    rows = np.full((8, 1, 5), -1, np.float32)
    rows[:, 0] = (1, 0.25, 0.25, 0.75, 0.75)
    images = np.zeros((8, 64, 48, 3), np.uint8)
    images[:, 16:48, 12:36] = 255
    batch = columns(place, tmp_path / "run", {"image": images, "boxes": rows}, task="detection")
    x1, y1, x2, y2 = (batch["boxes"][0, 0, 1:] * torch.tensor([48, 32, 48, 32])).tolist()
    assert (x1, y1, x2, y2) == (18, 8, 30, 24), "24 columns of 48 begin at 12"
    inside = batch["image"][0, :, 10:22, 20:28]
    torch.testing.assert_close(inside, torch.ones_like(inside))
    torch.testing.assert_close(batch["image"][0, :, :, :12], torch.full((3, 32, 12), 114 / 255))


@pytest.mark.parametrize("asked, by_ultralytics", [("auto", True), ("auto", False), ("0.5,0.25", True)])
def test_files_of_ultralytics_get_pixels_from_0_to_1(
    place: Path, tmp_path: Path, asked: str, by_ultralytics: bool
) -> None:
    model = onnx.load(place / "net.onnx")
    if by_ultralytics:
        model.metadata_props.add(key="imgsz", value="[32, 48]")  # as Ultralytics records it
    onnx.save(model, tmp_path / "net.onnx")
    onnxgen.generate(tmp_path / "net.onnx", tmp_path / "net.py", Options(task="detection"))
    values = {**GIVEN, "normalize": asked, "out": tmp_path / "run"}
    values.pop("show")
    plan = prepare(tmp_path / "net.py", place / "data", Settings(**values))
    assert plan.data.train is not None
    gray = plan.data.train.take([0], 0)["image"][0, :, 0, 0]  # 114, beside the letterboxed image
    is_plain = asked == "auto" and by_ultralytics
    mean, deviation = (0.0, 1.0) if is_plain else (0.5, 0.25)
    if asked != "auto" or by_ultralytics:
        torch.testing.assert_close(gray, torch.full((3,), (114 / 255 - mean) / deviation))
    told = "net.onnx is a file of Ultralytics (its metadata has imgsz), which trains on pixels of 0 to 1"
    assert (told in plan.notes) == is_plain
    assert any("mean and deviation of the train part" in note for note in plan.notes) == (not by_ultralytics)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        evaluate(tmp_path / "net.py", place / "data", task="detection", normalize=asked, device="cpu", workers=0)
    assert any("their own mean and deviation" in str(one.message) for one in warned) == (not by_ultralytics)


def test_what_would_not_move_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(OnnxgenError, match="resize must be one of auto, stretch, letterbox, corner, line, not 'crop'"):
        Settings(resize="crop")


# ---- predictions -----------------------------------------------------------------------------------------------------


def test_boxes_come_back_to_the_original() -> None:
    """A head of distances, whose maps say one box, by hand: stride 8, point (1, 2), 1 to each side, 2 up and down."""
    tail = distances(classes=3, bins=1, size=32)
    maps = [torch.full((1, c, s, s), -9.0) for s in (4, 2) for c in (4, 3)]
    for raw in maps[::2]:
        raw.fill_(0.0)
    maps[0][0, :, 2, 1] = torch.tensor([1.0, 2.0, 1.0, 2.0])
    maps[1][0, 2, 2, 1] = 2.0
    target = Target(0, "boxes", "boxes", "boxes", "", 3, 1, ("a", "b", "c"), head={"tail": tail.record()})
    fit = Placing("letterbox").fit((100, 200), (32, 32))  # 16 rows of 32, from row 8 on; 6.25 pixels for each
    found = boxes_of(maps, target, fit, (100, 200), Finding(0.25))
    (box,) = found.boxes or ()
    assert box.label == "c" and box.score == pytest.approx(1 / (1 + np.exp(-2)), abs=1e-6)
    assert box.corners == pytest.approx(((12 - 8) * 6.25, 0, (12 + 8) * 6.25, 100)), "y from 4 to 36, cut off"
    assert found.value.shape == (1, 6) and found.label == ("c",)
    assert boxes_of(maps, target, fit, (100, 200), Finding(0.9)).boxes == ()


def test_a_run_predicts_boxes(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as unsure:
        unsure.setattr("onnxgen.training.runs.contract.LIKELY_BOX", 0.99)
        fit(place / "net.py", place / "data", out=tmp_path / "run", **{**GIVEN, "show": "lines"})
        note = "note: no box has a score of 0.99, below which predict leaves boxes out: the best one has 0."
        assert capsys.readouterr().out.count(note) == 1
        assert command(["evaluate", str(tmp_path / "run"), "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    (score,) = map(float, re.findall("best_score ([0-9.]+)", captured.out))
    assert f"{note[:-2]}{score:.3g} ->" in captured.err and 0 < score < 0.99
    run = load(tmp_path / "run")
    images = sorted((place / "data" / "images" / "val").iterdir())
    found = run.predict(images, min_score=0.001)
    assert [one.source for one in found] == [str(path) for path in images]
    boxes = [box for one in found for box in one.answer.boxes or ()]
    assert boxes and {box.label for box in boxes} <= {"circle", "square", "triangle"}
    assert all(0 <= b.corners[0] <= b.corners[2] <= 64 and 0 <= b.corners[1] <= b.corners[3] <= 48 for b in boxes)
    array = np.stack([np.asarray(Image.open(path)) for path in images])
    again = run.predict(array, min_score=0.001)
    assert [len(a.answer.boxes or ()) for a in again] == [len(f.answer.boxes or ()) for f in found]

    def ask(*words: str) -> str:
        assert command(["predict", str(tmp_path / "run"), *map(str, images), "--min-score", "0.001", *words]) == 0
        return capsys.readouterr().out

    shown = ask("--top", "2")
    assert "objects in 4 images" in shown and "x1" in shown
    first = json.loads(ask("--json", "--top", "2"))[0]["outputs"]["boxes"]["boxes"][0]
    surest = (found[0].answer.boxes or ())[0]
    assert first["label"] == surest.label and first["box"] == pytest.approx(surest.corners, abs=1e-3)
    scores = [box.score for box in boxes]
    assert command(["predict", str(tmp_path / "run"), *map(str, images), "--min-score", "0.999"]) == 0
    assert f"0 objects in 4 images (best score {max(scores):.1%}, below --min-score 0.999)" in capsys.readouterr().out
    fewer = run.predict(images, min_score=0.001, max_overlap=0.1, across_classes=True)
    count = sum(len(one.answer.boxes or ()) for one in fewer)
    assert f"{count} objects in 4 images" in ask("--max-overlap", "0.1", "--across-classes") and 0 < count < len(boxes)
    wrote = ask("-o", str(tmp_path / "out.csv"))
    assert f"wrote {tmp_path / 'out.csv'}: {len(boxes)} objects in 4 images\n" in wrote
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == len(boxes) and float(rows[0]["x1"]) == pytest.approx(surest.corners[0], abs=1e-3)
    ask("-o", str(tmp_path / "out.npz"))
    arrays = np.load(tmp_path / "out.npz")
    assert arrays["boxes"].shape == (len(boxes), 6) and np.bincount(arrays["image"]).sum() == len(boxes)
    ask("-o", str(tmp_path / "pictures"), "--top", "2")
    drawn = sorted((tmp_path / "pictures").iterdir())
    assert [path.name for path in drawn] == [path.name for path in images] and size_of(drawn[0]) == (48, 64)
    assert (np.asarray(Image.open(drawn[0])) != np.asarray(Image.open(images[0]))).any()


def by_coco(run: Path, images: list[Path], truth: list[tuple[int, Box]]) -> float:
    """Return the mAP of what a run predicts, computed by faster-coco-eval from the boxes alone."""
    coco = pytest.importorskip("faster_coco_eval")
    found = [(n, box) for n, one in enumerate(load(run).predict(images, min_score=0)) for box in one.answer.boxes or ()]
    names = sorted({box.label for _, box in (*found, *truth)})

    def row(number: int, image: int, box: Box) -> dict[str, Any]:
        x1, y1, x2, y2 = box.corners
        whole = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1), "iscrowd": 0, "score": box.score}
        return {"id": number + 1, "image_id": image, "category_id": names.index(box.label), **whole}

    right = coco.COCO(
        {
            "images": [{"id": n} for n in range(len(images))],
            "categories": [{"id": n, "name": name} for n, name in enumerate(names)],
            "annotations": [row(n, *one) for n, one in enumerate(truth)],
        }
    )
    score = coco.COCOeval_faster(right, right.loadRes([row(n, *one) for n, one in enumerate(found)]), "bbox")
    score.evaluate()
    score.accumulate()
    score.summarize()
    return float(score.stats_as_dict["AP_all"])


@pytest.mark.parametrize("resize", ["letterbox", "stretch"])
def test_an_evaluation_scores_what_is_predicted(place: Path, tmp_path: Path, resize: str) -> None:
    """The labels are boxes that the run finds itself, moved a little; many of them end at an edge of the picture."""
    run = tmp_path / "run"
    fit(place / "net.py", place / "data", out=run, resize=resize, **GIVEN)
    images = sorted((place / "data" / "images" / "val").iterdir())
    said = load(run).predict(images, min_score=0)
    found = [(n, box) for n, one in enumerate(said) for box in (one.answer.boxes or ())[:9]]
    large = [(n, b) for n, b in found if b.corners[2] - b.corners[0] > 4 and b.corners[3] - b.corners[1] > 4]
    truth = [(n, replace(b, corners=(*b.corners[:2], b.corners[2] - 1.0, b.corners[3]))) for n, b in large]
    assert any(b.corners[0] == 0 or b.corners[1] == 0 or b.corners[3] == 48 for _, b in truth)
    names = {name: n for n, name in enumerate(load(run).record.classes)}
    for n, path in enumerate(images):
        lines = []
        for box in (b for image, b in truth if image == n):
            x1, y1, x2, y2 = (corner / side for corner, side in zip(box.corners, (64, 48, 64, 48)))
            lines.append(f"{names[box.label]} {(x1 + x2) / 2} {(y1 + y2) / 2} {x2 - x1} {y2 - y1}")
        (tmp_path / "new" / "labels").mkdir(parents=True, exist_ok=True)
        (tmp_path / "new" / "images").mkdir(exist_ok=True)
        (tmp_path / "new" / "images" / path.name).write_bytes(path.read_bytes())
        (tmp_path / "new" / "labels" / f"{path.stem}.txt").write_text("\n".join(lines))
    (tmp_path / "new" / "data.yaml").write_text(f"train: images\nnames: {list(names)}\n")
    wanted = by_coco(run, images, truth)
    assert 0 < wanted < 1
    assert load(run).evaluate(tmp_path / "new")["map"] == pytest.approx(wanted, abs=1e-6)


def test_a_turned_photo_counts_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter
    Image.new("RGB", (40, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert size_of(tmp_path / "turned.jpg") == (40, 20)
    assert decoded(tmp_path / "turned.jpg", (3, 40, 20)).shape == (40, 20, 3)
