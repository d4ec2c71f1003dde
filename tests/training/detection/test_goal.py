"""`--task detection`: from a detector that decodes boxes and a folder of labels to the same graph with new weights."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.heads.reading import find_tail
from onnxgen.reader import read
from onnxgen.training import Settings, evaluate, fit, load, open_model
from onnxgen.training.prepare import prepare
from samples.tasks.scenes import draw_scenes, write_yolo
from tests.conftest import ROOT
from tests.heads.small import IMAGE, Small, export, yolox

pytest.importorskip("faster_coco_eval")
PARTS = {"train": draw_scenes(8, seed=0), "val": draw_scenes(4, seed=1)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a detector of three classes, the module of its raw maps, that of all of it, and a data set."""
    folder = tmp_path_factory.mktemp("detector")
    torch.manual_seed(0)
    export(Small((4, 1, 3), yolox), folder / "net.onnx")
    write_yolo(folder / "data", PARTS)
    onnxgen.generate(folder / "net.onnx", folder / "whole.py")
    tail = find_tail(read(folder / "net.onnx", onnxgen.Options()))
    onnxgen.generate(folder / "net.onnx", folder / "net.py", onnxgen.Options(outputs=tail.maps, dynamic_batch=True))
    return folder


def trained(place: Path, **settings: Any) -> Any:
    given = {"epochs": 2, "batch_size": 4, "lr": 0.01, "show": "nothing", "normalize": "0,1"}
    return fit(place / "net.py", place / "data", **{**given, **settings})


def test_a_folder_of_boxes_trains_the_raw_maps(place: Path, tmp_path: Path) -> None:
    found = trained(place, out=tmp_path / "run")
    assert {"val_map", "val_map50", "val_map75", "val_loss", "train_loss"} <= found.history[0].keys()
    assert found.history[1]["train_loss"] < found.history[0]["train_loss"]
    run = load(tmp_path / "run")
    assert run.settings.task == "detection"
    again, best = run.evaluate(), found.history[found.best_epoch]
    assert again == pytest.approx({name: best[f"val_{name}"] for name in again}, abs=1e-6)
    assert (tmp_path / "run" / "examples.png").is_file()


def test_how_yolox_feeds_images_is_told(place: Path) -> None:
    """Until the settings say all of it."""
    settings = Settings(device="cpu")
    told = "its boxes are offsets as YOLOX's; YOLOX feeds images with"
    notes = prepare(place / "net.py", place / "data", settings).notes
    whole = f"{told} --channel-order bgr --resize corner --normalize none, and 114 beside them, the default"
    whole += " -> --preprocess yolox"
    assert [note for note in notes if "YOLOX" in note] == [whole]
    given = replace(settings, channel_order="bgr", normalize="none")
    assert f"{told} --resize corner, and" in "\n".join(prepare(place / "net.py", place / "data", given).notes)
    given = replace(given, resize="corner")
    assert "YOLOX" not in "\n".join(prepare(place / "net.py", place / "data", given).notes)
    plan = prepare(place / "net.py", place / "data", replace(settings, preprocess="yolox"))
    assert [note.split(",")[0] for note in plan.notes if "YOLOX" in note] == ["fed as YOLOX does"]
    assert (plan.settings.channel_order, plan.settings.resize, plan.settings.normalize) == ("bgr", "corner", "none")


def test_the_whole_graph_gets_the_weights(place: Path, tmp_path: Path) -> None:
    found = trained(place, out=tmp_path / "run")
    onnxgen.export(place / "net.py", weights=found.model, out=tmp_path / "tuned.onnx")
    before, after = onnx.load(place / "net.onnx"), onnx.load(tmp_path / "tuned.onnx")
    assert [node.op_type for node in before.graph.node] == [node.op_type for node in after.graph.node]
    x = np.random.default_rng(0).random((1, 3, *IMAGE), np.float32)
    was, now = (
        onnxruntime.InferenceSession(place / name).run(None, {"images": x})[0]
        for name in (place / "net.onnx", tmp_path / "tuned.onnx")
    )
    assert now.shape == was.shape and not np.allclose(now, was), "the boxes of the trained network, decoded"


def test_scores_do_not_depend_on_the_batches(place: Path) -> None:
    model = place / "net.py"
    given = {"normalize": "0,1", "part": "val"}
    found = [evaluate(model, place / "data", batch_size=size, **given) for size in (1, 3, 4)]
    assert all(one == pytest.approx(found[0], abs=1e-6) for one in found[1:])


def test_a_model_with_the_decoding_inside_is_refused(place: Path, tmp_path: Path) -> None:
    """A model in memory can't be cut; the path of its file can (see test_classes.py)."""
    with pytest.raises(OnnxgenError, match=r"is no output -> onnxgen .*net.onnx -o .*whole_maps.py --task detection"):
        fit(open_model(place / "whole.py"), place / "data", out=tmp_path / "run", show="nothing", batch_size=1)


def test_the_sample(script: Callable[..., str], tmp_path: Path) -> None:
    said = script(ROOT / "samples" / "detection" / "tune.py", "--out", tmp_path, "--epochs", "10", "--count", "40")
    assert "written back: 18 tensors changed" in said
    assert float(re.findall(r"differ by (\S+) pixels", said)[0]) < 1e-3


def test_more_classes_than_the_head_has(place: Path, tmp_path: Path) -> None:
    names = tmp_path / "data" / "data.yaml"
    write_yolo(tmp_path / "data", PARTS)
    label = next((tmp_path / "data").rglob("labels/**/*.txt"))
    label.write_text("7 0.5 0.5 0.2 0.2\n")
    names.unlink()  # the classes have no names, so they are those of the head
    with pytest.raises(OnnxgenError, match=r"is of a class that is none of 0 to 2 -> replace_head=8 makes"):
        fit(place / "net.py", tmp_path / "data", out=tmp_path / "run", show="nothing")


def test_what_has_no_boxes_is_told(place: Path, tmp_path: Path) -> None:
    for n, name in enumerate("aabb"):
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), n, np.uint8)).save(tmp_path / "data" / name / f"{n}.png")
    with pytest.raises(OnnxgenError, match="detection trains boxes, and data has none"):
        fit(
            place / "net.py", tmp_path / "data", task="detection", normalize="0,1", out=tmp_path / "run", show="nothing"
        )


def test_a_map_that_forward_lost_is_named(place: Path, tmp_path: Path) -> None:
    text = (place / "net.py").read_text()
    shutil.copy(place / "net.safetensors", tmp_path / "lost.safetensors")
    shutil.copy(place / "net.onnx", tmp_path)
    text = text.replace("net.safetensors", "lost.safetensors")
    head, forward, last = text.rpartition("def forward(")
    last = re.sub(r"(?m)^        return .*", "        return ()", last, count=1)
    (tmp_path / "lost.py").write_text(head + forward + last)
    with pytest.raises(OnnxgenError, match="the model returns 0 outputs, without the raw map '.*' -> let forward"):
        fit(tmp_path / "lost.py", place / "data", normalize="0,1", out=tmp_path / "run", show="nothing")
