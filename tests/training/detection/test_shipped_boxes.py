"""The boxes of an exported detector, read without onnxgen as its metadata says, are those of `onnxgen predict`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from onnxgen import export, generate
from onnxgen.options import Options
from onnxgen.training import fit, load
from onnxgen.training.runs.way_back import of_run
from samples.tasks.scenes import draw_scenes, write_yolo
from tests.heads import small
from tests.heads.test_reading import undecoded
from tests.training.shipping import QUIET, entries, need_same, shipped, shot, with_entry

pytest.importorskip("faster_coco_eval")
HEADS = {
    "yolox": lambda: small.Small((4, 1, 5), small.yolox),
    "yolov3": lambda: small.Small((16,), small.yolov3, True),
    "ssd": lambda: small.Small((12, 9), small.ssd, True),
    "offsets": lambda: small.Small((4, 1, 5), undecoded),
    "offsets, coarse first": lambda: small.Small((4, 1, 5), lambda levels: undecoded(levels[::-1])),
    "fcos": lambda: small.Small((4, 3, 1), small.fcos, True),
}


@pytest.mark.parametrize(
    ("head", "resize"), [*zip(HEADS, ["auto", "stretch"] * 3), ("yolox", "corner"), ("ssd", "line")]
)
def test_boxes(head: str, resize: str, tmp_path: Path) -> None:
    """Heads of another number of classes than the data has, and a list of names that is then wrong."""
    torch.manual_seed(0)
    path = small.export(HEADS[head](), tmp_path / "net.onnx")
    with_entry(path, "names", str(dict(enumerate("abcde"))))
    generate(path, tmp_path / "net.py", Options(task="detection"))
    write_yolo(tmp_path / "data", {"train": draw_scenes(8, seed=0), "val": draw_scenes(2, seed=1)})
    order = "bgr" if resize in ("corner", "line") else "auto"
    settings = {"normalize": "0,1", "resize": resize, "channel_order": order}
    run = shipped(tmp_path / "net.py", tmp_path / "data", tmp_path / "run", **settings)
    assert entries(run)["names"] == "{0: 'circle', 1: 'square', 2: 'triangle'}"
    picture = shot(tmp_path / "new.png", (50, 91))
    scores = [box.score for box in load(run).predict(picture, min_score=0.001)[0].answer.boxes or ()]
    need_same(run, picture, score=(scores[20] + scores[21]) / 2)


def test_the_export_says_who_decodes(tmp_path: Path) -> None:
    for head, undecided in (("yolox", 0), ("offsets", 1)):
        path = small.export(HEADS[head](), tmp_path / f"{head}.onnx")
        generate(path, tmp_path / f"{head}.py", Options(task="detection"))
        write_yolo(tmp_path / "data", {"train": draw_scenes(4, seed=0)})
        run = tmp_path / head
        fit(tmp_path / f"{head}.py", tmp_path / "data", out=run, normalize="0,1", **QUIET)
        module, given = of_run(run, {"weights": None, "onnx": None, "out": run / "tuned.onnx"})
        notes = [note for note in export(module, **given).notes if "the file does not decode boxes: output" in note]
        assert len(notes) == undecided


def test_an_edited_detector_ends_in_its_raw_maps(tmp_path: Path) -> None:
    """It is exported anew, without the decoding: nothing is said of outputs that the file does not have."""
    torch.manual_seed(0)
    path = small.export(small.Small((4, 1, 3), small.yolox), tmp_path / "net.onnx")
    generate(path, tmp_path / "net.py", Options(task="detection"))
    text = (tmp_path / "net.py").read_text()
    (tmp_path / "net.py").write_text(text.replace("relu(", "silu("))
    write_yolo(tmp_path / "data", {"train": draw_scenes(8, seed=0)})
    run = tmp_path / "run"
    fit(tmp_path / "net.py", tmp_path / "data", out=run, normalize="0,1", **QUIET)
    module, given = of_run(run, {"weights": None, "onnx": None, "out": run / "tuned.onnx"})
    report = export(module, **given)
    assert report.method == "exported anew"
    note = "the file has no output output0, which the run's answers are read from: its metadata does not say how"
    assert note in report.notes
    assert json.loads(entries(run)["onnxgen.preprocessing"])["outputs"] == []
