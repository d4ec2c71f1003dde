"""ddddocr's detector, tuned to two classes of drawn scenes, in the package's own code: `samples/deployed/detector`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import onnxgen
from onnxgen.cli import run as cli
from onnxgen.training import fit, load, open_model
from onnxgen.training.goals.detection.boxes import Decoder
from onnxgen.training.goals.detection.head import detector_of
from onnxgen.training.goals.detection.loss import DetectionLoss
from samples.deployed.detector.sample import CLASSES, SIZE, detector, found, scene, write
from samples.deployed.file import find

pytest.importorskip("ddddocr")
pytest.importorskip("matplotlib")
pytest.importorskip("faster_coco_eval")
FEW = 4  # pictures
RAISED = {1: [3.0], len(CLASSES): [5.5, 5.5]}  # what is added to biases of objects and classes
FED = {"resize": "corner", "beside": 114, "channel_order": "bgr", "normalize": "none"}
STEPS = {"optimizer": "sgd", "lr": 3e-4, "batch_size": FEW, "max_steps": 2, "val": 0.0, "train_size": "128x128"}
GIVEN: dict[str, Any] = {**FED, **STEPS, "workers": 0, "show": "nothing", "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with pictures, the generated module, and a run."""
    folder = tmp_path_factory.mktemp("detector")
    write(folder / "data", FEW, "test")
    shutil.copy(find("ddddocr/common_det.onnx"), folder)
    onnxgen.generate(folder / "common_det.onnx", folder / "model.py")
    torch.manual_seed(0)
    fit(folder / "model.py", folder / "data", **GIVEN, out=folder / "run")
    return folder


def test_the_package_finds_what_the_run_predicts(place: Path) -> None:
    """Boxes, classes and scores. Biases are raised, as by a longer training: else nothing is found."""
    state = load_file(place / "run" / "best.safetensors")
    for key, value in state.items():
        if value.ndim == 1 and len(value) in RAISED:
            state[key] = value + torch.tensor(RAISED[len(value)])
    save_file(state, place / "raised.safetensors")
    words = ["--weights", place / "raised.safetensors", "-o", place / "tuned.onnx", "--runs", 1, "--quiet"]
    assert cli(["export", str(place / "run"), *map(str, words)]) == 0
    engine, run = detector(place / "tuned.onnx"), load(place / "run", weights=place / "raised.safetensors")
    files = sorted((place / "data" / "images").iterdir())
    labels = list[int]()
    for file, said in zip(files, run.predict(files, min_score=0.1, max_overlap=0.45, across_classes=True)):
        mine, others = said.answer.boxes or (), found(engine, file.read_bytes())
        assert len(mine) == len(others)
        for box, (rounded, label, score, corners) in zip(mine, others):
            assert box.label == [*CLASSES][label] and abs(box.score - score) < 1e-4
            np.testing.assert_allclose(box.corners, np.clip(corners, 0, SIZE), rtol=1e-4, atol=1e-2)
            assert rounded == [int(number) for number in np.clip(corners, 0, SIZE)]
            labels.append(label)
    assert {*labels} == {0, 1} and len(labels) > FEW


def test_labels_of_coco_give_the_same_run(place: Path) -> None:
    torch.manual_seed(0)
    fit(place / "model.py", place / "data.json", **GIVEN, out=place / "coco")
    yolo, coco = (load_file(place / run / "best.safetensors") for run in ("run", "coco"))
    assert yolo.keys() == coco.keys() and all(torch.equal(yolo[key], coco[key]) for key in yolo)


def test_the_run_is_that_of_a_loop_by_hand(place: Path) -> None:
    """The same start, with pictures as the package's own `preproc` makes them, and plain torch."""
    engine = detector(place / "common_det.onnx")
    images, rows = [], torch.full((FEW, 12, 5), -1.0)
    for number in range(FEW):
        picture, boxes = scene(SIZE, f"test {number}")
        images.append(engine.preproc(np.asarray(picture)[..., ::-1], (SIZE, SIZE))[0])
        for row, box in zip(rows[number], boxes):
            row[:] = torch.tensor([box[0], *(side / SIZE for side in box[1:])])
    x = F.interpolate(torch.from_numpy(np.stack(images)), (128, 128), mode="bilinear", antialias=True)
    before = place / "before"
    torch.manual_seed(0)
    fit(place / "model.py", place / "data", **{**GIVEN, "lr": 1e-30, "max_steps": 1}, out=before)  # with its new head
    model = open_model(before).train()
    tail = detector_of(model).tail.of_classes(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=GIVEN["lr"])
    for _ in range(GIVEN["max_steps"]):
        optimizer.zero_grad()
        DetectionLoss(Decoder(tail)).loss(model(x), {"boxes": rows}, training=True).backward()
        optimizer.step()
    first, trained = (load_file(run / "last.safetensors") for run in (before, place / "run"))
    assert max(float((trained[key] - first[key]).abs().max()) for key in first) > 1e-3, "it learned something"
    for key, value in model.state_dict().items():
        torch.testing.assert_close(trained[key], value, rtol=1e-5, atol=1e-5)
