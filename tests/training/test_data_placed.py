"""Masks in files, and masks and boxes that move with their image; compared with PIL and numbers computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from onnxgen import generate
from onnxgen.errors import OnnxgenError
from onnxgen.training import Settings, fit, open_model
from onnxgen.training.data import Data, check, feed, image_pairs, looking, open_data
from onnxgen.training.data.image_options import RECIPES
from onnxgen.training.data.image_targets import moved_boxes, moved_masks
from onnxgen.training.data.images import Augment
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource
from onnxgen.training.losses import IGNORED_CLASS
from samples.tasks.scenes import draw_scenes, write_masks
from tests.training.small import network

HEIGHT, WIDTH = 30, 40
PARTS = {"train": draw_scenes(6, 1, HEIGHT, WIDTH), "val": draw_scenes(3, 2, HEIGHT, WIDTH)}
RAW = Settings(val=0, normalize="none", batch_size=2)
MOVING = ("flip", "vflip", "rotate", "shift", "crop")


def convolution(folder: Path, height: Any, width: Any, stride: int = 1, last: bool = False) -> torch.nn.Module:
    """Return a generated model of one convolution, from [n, 3, H, W] to scores of four classes."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3), scale=0.1).astype(np.float32)
    nodes = [helper.make_node("Conv", ["image", "weight", "bias"], ["map"], pads=[1] * 4, strides=[stride] * 2)]
    sides = [n // stride if isinstance(n, int) else f"{n}_out" for n in (height, width)]
    dims = ["batch", *sides, 4] if last else ["batch", 4, *sides]
    if last:
        nodes.append(helper.make_node("Transpose", ["map"], ["scores"], perm=[0, 2, 3, 1]))
    else:
        nodes[0].output[0] = "scores"
    graph = helper.make_graph(
        nodes,
        "maps",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, height, width])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(np.zeros(4, np.float32), "bias")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "maps.onnx")
    generate(folder / "maps.onnx", folder / "maps.py", force=True)
    return open_model(folder / "maps.py")


def opened(path: Path, **settings: Any) -> DataSource:
    found = open_source(path, Settings(**settings))
    assert isinstance(found, DataSource)
    return found


def mask_of(samples: Any, index: int = 0) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = samples.take([index], 0)["mask"][0].numpy()
    return found


# ---- masks in files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["P", "L", "RGB", "LA", "16 bits", "bmp"])
def test_kinds_of_masks(kind: str, tmp_path: Path) -> None:
    """The highest value of 8 or 16 bits is ignored."""
    write_masks(tmp_path, PARTS)
    mask = PARTS["train"][0].mask.copy()
    mask[:2] = 255
    wanted = np.where(mask == 255, IGNORED_CLASS, mask.astype(np.int64))
    file = tmp_path / "masks/train/train_000.png"
    if kind == "16 bits":
        deep = mask.astype(np.uint16)
        deep[:2], deep[2, 0], wanted[2, 0] = 0xFFFF, 255, 255
        Image.fromarray(deep).save(file)
    elif kind == "bmp":
        file.unlink()
        Image.fromarray(mask).save(file.with_suffix(".bmp"))
    elif kind == "P":
        indexed = Image.fromarray(mask)
        indexed.putpalette([value for number in range(256) for value in (number, 0, 255 - number)])
        indexed.save(file)
    else:
        Image.fromarray(mask).convert(kind).save(file)
    found = opened(tmp_path, strict=True)
    assert np.array_equal(mask_of(found.parts["train"]), wanted)
    count = 256 if kind == "16 bits" else 4
    assert found.parts["train"].fields["mask"].classes == tuple(map(str, range(count)))


def test_white_is_a_class_only_if_all_masks_are_black_and_white(tmp_path: Path) -> None:
    write_masks(tmp_path, PARTS)
    files = sorted((tmp_path / "masks").rglob("*.png"))
    drawn = [np.where(np.asarray(Image.open(file)) > 0, np.uint8(255), np.uint8(0)) for file in files]
    drawn[0][:] = 255  # one that is all white counts, too
    for file, mask in zip(files, drawn):
        Image.fromarray(mask).save(file)
    found = opened(tmp_path, strict=True)
    train = found.parts["train"]
    assert train.fields["mask"].classes == ("0", "1")
    for number, mask in enumerate(drawn[: len(train)]):
        assert np.array_equal(mask_of(train, number), mask // 255)
    assert "the masks are black and white: white (255) is class 1" in found.notes
    drawn[1][0, 0] = 2
    Image.fromarray(drawn[1]).save(files[1])
    again = opened(tmp_path).parts["train"]
    assert len(again) == len(train) - 1, "the white mask is all ignored"
    assert {*mask_of(again).flatten().tolist()} == {0, 2, IGNORED_CLASS}


@pytest.mark.parametrize("layout", ["parts outside", "labels", "no parts", "named"])
def test_layouts_of_masks(layout: str, tmp_path: Path) -> None:
    write_masks(tmp_path, PARTS)
    parts = dict(PARTS)
    if layout == "parts outside":
        for what in ("images", "masks"):
            for part in PARTS:
                (tmp_path / part).mkdir(exist_ok=True)
                (tmp_path / what / part).rename(tmp_path / part / what)
            (tmp_path / what).rmdir()
    elif layout == "labels":
        (tmp_path / "masks").rename(tmp_path / "labels")
    elif layout == "no parts":
        for what in ("images", "masks"):
            (tmp_path / what / "train").rename(tmp_path / "some")
            for path in (tmp_path / what / "val").iterdir():
                path.unlink()
            (tmp_path / what / "val").rmdir()
            (tmp_path / what).rmdir()
            (tmp_path / "some").rename(tmp_path / what)
        del parts["val"]
    found = opened(tmp_path / "masks" if layout == "named" else tmp_path, strict=True)
    assert found.target == "mask" and found.parts.keys() == parts.keys() and found.notes == []
    for part, scenes in parts.items():
        assert all(np.array_equal(mask_of(found.parts[part], n), scene.mask) for n, scene in enumerate(scenes))


def test_what_is_beside_the_parts_is_named(tmp_path: Path) -> None:
    write_masks(tmp_path, PARTS)
    (tmp_path / "images" / "more").mkdir()
    Image.new("L", (5, 6)).save(tmp_path / "images" / "a.png")
    assert opened(tmp_path, strict=True).notes == ["not part of the data, ignored: a.png, more in images"]


def test_facts_of_masks_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_masks(tmp_path / "data", PARTS)
    monkeypatch.setenv("ONNXGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(looking, "MIN_CACHED", 1)
    first = opened(tmp_path / "data")
    monkeypatch.setattr(image_pairs, "classes_in", None)  # no mask is decoded again
    again = opened(tmp_path / "data", strict=True)
    assert first.parts == again.parts


def test_masks_of_voc(tmp_path: Path) -> None:
    write_masks(tmp_path / "from", PARTS)
    root = tmp_path / "voc"
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for what, name in (("images", "JPEGImages"), ("masks", "SegmentationClass")):
        (root / name).mkdir()
        for path in (tmp_path / "from" / what).glob("*/*.png"):
            path.rename(root / name / path.name)
    for part, scenes in PARTS.items():
        (lists / f"{part}.txt").write_text("\n".join(f"{part}_{n:03}" for n in range(len(scenes))))
    found = opened(root, strict=True)
    assert {part: len(samples) for part, samples in found.parts.items()} == {"train": 6, "val": 3}
    assert np.array_equal(mask_of(found.parts["val"], 2), PARTS["val"][2].mask)
    (root / "Annotations").mkdir()
    with pytest.raises(OnnxgenError, match=r"boxes of Pascal VOC \(name Annotations\) and masks \(name their folder\)"):
        opened(root)
    assert opened(root / "SegmentationClass").target == "mask"


@pytest.mark.parametrize(
    "height, width, stride, last, size",
    [
        (12, 16, 1, False, (12, 16)),
        (12, 16, 2, False, (6, 8)),
        (12, 16, 4, True, (3, 4)),
        (60, 80, 1, False, (60, 80)),
        ("h", "w", 1, False, (30, 40)),
        ("h", "w", 2, False, (15, 20)),
        ("h", "w", 2, True, (15, 20)),
    ],
)
def test_a_mask_gets_the_size_of_the_outputs_map(
    height: Any, width: Any, stride: int, last: bool, size: tuple[int, int], tmp_path: Path
) -> None:
    write_masks(tmp_path, PARTS)
    model = convolution(tmp_path, height, width, stride, last)
    data = open_data(tmp_path, model, RAW)
    check(model, data, feed(data, model, RAW), RAW)
    assert data.train is not None and data.train.fields["mask"].shape == size
    for index, scene in enumerate(PARTS["train"]):
        by_pil = Image.fromarray(scene.mask).resize(size[::-1], Image.Resampling.NEAREST)
        assert np.array_equal(mask_of(data.train, index), np.asarray(by_pil))


def test_a_model_with_too_few_classes(tmp_path: Path) -> None:
    write_masks(tmp_path, {"train": PARTS["train"]})
    Image.fromarray(np.full((HEIGHT, WIDTH), 4, np.uint8)).save(tmp_path / "masks/train/train_001.png")
    model = convolution(tmp_path, 12, 16)
    data = open_data(tmp_path, model, RAW)
    with pytest.raises(OnnxgenError, match=r"the data has 5 classes \(0, 1, 2, ...\), but the model has 4"):
        check(model, data, feed(data, model, RAW), RAW)


def test_images_alone_are_enough_to_predict(tmp_path: Path) -> None:
    write_masks(tmp_path, {"train": PARTS["train"]})
    data = open_data(tmp_path, convolution(tmp_path, "h", "w"), RAW, targets=False)
    assert data.train is not None and list(data.train.take([0], 0)) == ["image"]


@pytest.mark.parametrize("size", [(12, 16), ("h", "w")])
def test_segmentation_is_trained(size: tuple[Any, Any], tmp_path: Path) -> None:
    write_masks(tmp_path / "data", {"train": draw_scenes(40, 5, HEIGHT, WIDTH), "val": PARTS["val"]})
    model = convolution(tmp_path, *size)
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 4, "lr": 0.03, "augment": "flip,shift", "workers": 0}
    result = fit(model, tmp_path / "data", out=tmp_path / "run", **settings)
    before = json.loads((tmp_path / "run" / "run.json").read_text())["result"]["before"]["val_loss"]
    assert result.history[0]["val_loss"] < 0.8 * before
    assert "val_accuracy" in result.history[0]


# ---- moved with the image --------------------------------------------------------------------------------------------


def one(**numbers: float) -> np.ndarray[Any, Any]:
    """Return one affine map from the result to the image, from -1 to 1."""
    found = np.array([[[1.0, 0, 0], [0, 1.0, 0]]])
    places = {"xx": (0, 0), "xy": (0, 1), "x": (0, 2), "yx": (1, 0), "yy": (1, 1), "y": (1, 2)}
    for name, value in numbers.items():
        found[(0, *places[name])] = value
    return found


@pytest.mark.parametrize(
    "maps, wanted",
    [
        (one(), (0.2, 0.1, 0.6, 0.4)),
        (one(xx=-1), (0.4, 0.1, 0.8, 0.4)),  # mirrored
        (one(yy=-1), (0.2, 0.6, 0.6, 0.9)),
        (one(x=0.2), (0.1, 0.1, 0.5, 0.4)),  # what is at 0.2 comes from 0.3
        (one(x=0.8), (0.0, 0.1, 0.2, 0.4)),  # half is left
        (one(xx=0.5, yy=0.5), (0.0, 0.0, 0.7, 0.3)),  # a cut-out of the middle, enlarged
        (one(xx=0, xy=1, yx=1, yy=0), (0.1, 0.2, 0.4, 0.6)),  # the axes change places
        (one(y=0.55), (0.2, 0.0, 0.6, 0.125)),  # 42 % are left
        (one(y=0.7), None),  # 17 % would be left
    ],
)
def test_boxes_move_by_hand(maps: np.ndarray[Any, Any], wanted: tuple[float, ...] | None) -> None:
    x = torch.tensor([[[2.0, 0.2, 0.1, 0.6, 0.4], [-1.0] * 5]])
    found = moved_boxes(x, maps)[0].tolist()
    assert found[0] == (pytest.approx([2.0, *wanted]) if wanted else [-1.0] * 5)
    assert found[1] == [-1.0] * 5


def test_a_quarter_must_be_left_and_no_gap_stays() -> None:
    x = torch.tensor([[[0.0, 0.0, 0.0, 0.4, 0.4], [1.0, 0.5, 0.5, 0.9, 0.9], [2.0, 0.0, 0.0, 0.8, 0.4]]])
    found = moved_boxes(x, one(x=0.61))[0]  # 0.305 of the width leave at the left: 24 % and 62 % are left
    assert found[:, 0].tolist() == [1.0, 2.0, -1.0]
    assert found[0].tolist() == pytest.approx([1.0, 0.195, 0.5, 0.595, 0.9])
    assert found[1].tolist() == pytest.approx([2.0, 0.0, 0.0, 0.495, 0.4])
    assert moved_boxes(x, one(x=0.59))[0, :, 0].tolist() == [0.0, 1.0, 2.0]  # 26 %


@pytest.mark.parametrize("name", MOVING)
def test_masks_move_as_pil_moves_them(name: str) -> None:
    masks = torch.from_numpy(np.stack([scene.mask for scene in PARTS["train"]]).astype(np.int64))
    maps = Augment((name,)).maps(range(6), 3, WIDTH / HEIGHT)
    found = moved_masks(masks, maps).numpy()
    differing = 0
    for mask, made, m in zip(masks.numpy(), found, maps):
        # From the result's pixels to the image's: shares of -1 to 1 are pixels / half of a side - 1.
        half = np.diag([2 / WIDTH, 2 / HEIGHT, 1.0])
        half[:2, 2] = -1
        pixels = (np.linalg.inv(half) @ np.vstack([m, [0, 0, 1]]) @ half)[:2].flatten()
        stored = Image.fromarray(mask.astype(np.uint8))
        by_pil = stored.transform(
            (WIDTH, HEIGHT), Image.Transform.AFFINE, pixels.tolist(), Image.Resampling.NEAREST, fillcolor=99
        )
        wanted = np.where(np.asarray(by_pil) == 99, IGNORED_CLASS, np.asarray(by_pil).astype(np.int64))
        differing += int((wanted != made).sum())
    assert differing <= 3  # of 7,200 pixels: PIL computes with fixed point numbers
    assert (found == IGNORED_CLASS).any() == (name in ("rotate", "shift"))


@pytest.mark.parametrize("names", [*MOVING, ",".join(MOVING)])
def test_image_mask_and_box_stay_together(names: str, tmp_path: Path) -> None:
    """A white rectangle on black, its mask and its box: after augmentation they still cover each other."""
    rng = np.random.default_rng(0)
    scenes = []
    for _ in range(12):
        y, x = rng.integers(12, 20, 2)
        mask = np.zeros((48, 64), np.uint8)
        mask[y : y + 14, x : x + 20] = 1
        scenes.append((mask, (0.0, x / 64, y / 48, (x + 20) / 64, (y + 14) / 48)))
    augment = Augment(tuple(names.split(",")))
    masks = torch.from_numpy(np.stack([mask for mask, _ in scenes]).astype(np.int64))
    images = augment(masks[:, None].float() * 255, range(12), 7, 255.0)[:, 0].numpy() > 127
    maps = augment.maps(range(12), 7, 64 / 48)
    moved, boxes = moved_masks(masks, maps).numpy(), moved_boxes(torch.tensor([[box] for _, box in scenes]), maps)
    assert not all(map(np.array_equal, moved, masks.numpy()))
    for image, mask, box in zip(images, moved, boxes[:, 0].numpy()):
        assert (image != (mask == 1)).sum() <= 20  # of some 280: pixels on the edge
        rows, columns = np.nonzero(image)
        seen = [columns.min() / 64, rows.min() / 48, (columns.max() + 1) / 64, (rows.max() + 1) / 48]
        np.testing.assert_allclose(box[1:], seen, atol=1.6 / 48)


def augmented(folder: Path, names: str) -> Data:
    return open_data(folder, convolution(folder, 24, 32), Settings(val=0, normalize="none", augment=names))


@pytest.mark.parametrize("names", [*RECIPES, ",".join(RECIPES)])
def test_augmented_masks_depend_only_on_seed_and_sample(names: str, tmp_path: Path) -> None:
    data = augmented(write_masks(tmp_path, PARTS), names)
    assert data.train is not None and data.val is not None
    whole = data.train.take(range(6), 7)
    for batch in ([3], [5, 3], list(range(5, -1, -1))):
        found = data.train.take(batch, 7)
        assert torch.equal(found["mask"], whole["mask"][batch]) and torch.equal(found["image"], whole["image"][batch])
    plain = augmented(tmp_path, "none")
    assert plain.train is not None and plain.val is not None
    moves = bool({*names.split(",")} & {*MOVING})
    assert torch.equal(whole["mask"], plain.train.take(range(6), 7)["mask"]) != moves
    assert torch.equal(data.val.take(range(3), 7)["mask"], plain.val.take(range(3), 0)["mask"])


# ---- maps in arrays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool])
def test_maps_in_arrays_move_too(dtype: type, tmp_path: Path) -> None:
    images = np.stack([scene.pixels for scene in PARTS["train"]])
    masks = np.stack([scene.mask > 0 for scene in PARTS["train"]]).astype(dtype)
    model = convolution(tmp_path, HEIGHT, WIDTH)
    data = open_data((images, masks), model, Settings(val=0, normalize="none", augment="flip"))
    assert data.train is not None
    found = data.train.take(range(6), 1)
    for image, mask, stored, wanted in zip(found["image" if "image" in found else "0"], found["target"], images, masks):
        flipped = np.allclose(image.permute(1, 2, 0).numpy(), stored[:, ::-1], atol=0.01)
        assert np.array_equal(mask.numpy(), wanted[:, ::-1] if flipped else wanted)


def test_a_map_of_other_numbers_does_not_stay_behind(tmp_path: Path) -> None:
    images = np.stack([scene.pixels for scene in PARTS["train"]])
    depth = images.mean(-1).astype(np.float32)[:, None]
    model = network(tmp_path, image=("float32", ("batch", 3, HEIGHT, WIDTH)))
    with pytest.raises(OnnxgenError, match="--augment rotate moves images, but target 'target' has"):
        open_data((images, depth), model, Settings(augment="rotate"))
    assert open_data((images, depth), model, Settings(augment="light")).train is not None
