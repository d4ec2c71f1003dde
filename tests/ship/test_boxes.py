"""A detector is shipped as the whole graph, and compared at the raw maps that were trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import onnxgen
from onnxgen.ship import ship
from onnxgen.training import fit
from samples.tasks.scenes import draw_scenes, write_yolo
from tests.heads import small

pytest.importorskip("faster_coco_eval")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a detector whose file takes one picture at a time, and decodes its boxes."""
    folder = tmp_path_factory.mktemp("boxes")
    torch.manual_seed(0)
    small.export(small.Small((4, 1, 5), small.yolox), folder / "net.onnx")
    onnxgen.generate(folder / "net.onnx", folder / "net.py")
    write_yolo(folder / "data", {"train": draw_scenes(8, seed=0), "val": draw_scenes(5, seed=1)})
    given = {"epochs": 1, "batch_size": 4, "lr": 0.01, "normalize": "0,1", "workers": 0, "show": "nothing"}
    fit(folder / "net.py", folder / "data", out=folder / "run", **given)
    return folder / "run"


@pytest.mark.parametrize("to", ["onnx", "onnx-int8"])
def test_a_file_with_the_decoding_is_compared_before_it(run: Path, tmp_path: Path, to: str) -> None:
    report = ship(run, to, tmp_path / "net.onnx", **({"may_lose": 100} if to == "onnx-int8" else {}))
    assert report.compared == 5 and report.batch == 1
    assert report.difference < (1e-5 if to == "onnx" else 0.5)
    if to == "onnx":
        assert report.after == pytest.approx(report.before, abs=1e-6)
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    (whole,) = session.run(None, {"images": np.zeros((1, 3, *small.IMAGE), np.float32)})
    assert whole.shape == (1, 30, 5 + 3) and [output.name for output in session.get_outputs()] == ["output0"]
