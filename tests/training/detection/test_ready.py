"""A detector is trained with one command: size, task and module are found, and all that is wrong is told at once."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import onnxgen
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from onnxgen.record.asked import recorded_options
from onnxgen.record.sidecar import metadata_at, read_header
from onnxgen.surgery.head import find_head
from onnxgen.training import fit
from onnxgen.training.data.glance import glance
from onnxgen.training.data.opening import open_source
from onnxgen.training.data.source import DataSource
from onnxgen.training.goals.detection import ready
from onnxgen.training.goals.detection.ready import part_to_train
from onnxgen.training.prepare import prepare
from onnxgen.training.runs.metrics import Run, compared, listed, page, read_rows
from onnxgen.training.settings import Settings, command_words, in_command
from samples.tasks.scenes import draw_scenes, write_coco, write_yolo
from tests.heads import small
from tests.training.test_early import ran
from tests.zoo import detectors

PARTS = {"train": draw_scenes(6, seed=0), "val": draw_scenes(3, seed=1, height=40)}  # of several sizes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a detector that takes any size, and with one of a fixed size."""
    folder = tmp_path_factory.mktemp("detector")
    torch.manual_seed(0)
    small.export(small.Thin(detectors.yolov8()), folder / "free.onnx", free=True)
    small.export(small.Small((4, 1, 3), small.yolox), folder / "fixed.onnx")
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    for name in ("free.onnx", "fixed.onnx"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    return tmp_path


def sizes_of(module: Path) -> str:
    """Return the dims of the first input, as the module's first lines tell them."""
    return re.findall(r"Inputs .*(\[.*\])", module.read_text())[0]


def test_a_free_size_is_that_of_the_training(place: Path) -> None:
    model = onnx.load(place / "free.onnx")
    model.metadata_props.add(key="imgsz", value="[32, 48]")  # as Ultralytics records it
    onnx.save(model, place / "free.onnx")
    onnxgen.generate(place / "free.onnx", place / "free.py", Options(annotate=True, frozen="fine.bias"))
    part, notes = part_to_train(place / "free.py")
    assert part == place / "free_maps_32x48.py" and sizes_of(part) == "[batch, 3, 32, 48]"
    assert "trained with 32x48, which free.onnx tells (imgsz)" in notes[1]
    given = recorded_options(metadata_at(part.with_suffix(".safetensors")), place)
    shape = {"images": (-1, 3, 32, 48)}
    assert given == Options(annotate=True, frozen="fine.bias", task="detection", input_shapes=shape)


def test_another_size_is_asked_for(place: Path) -> None:
    onnxgen.generate(place / "free.onnx", place / "free.py")
    part, _ = part_to_train(place / "free.py", "40x64")
    assert sizes_of(part) == "[batch, 3, 40, 64]"
    written = part.read_bytes()
    again, notes = part_to_train(part, "32x32")  # of a module of raw maps, too
    part_to_train(place / "free.py", "32x32")
    assert part.read_bytes() == written, "an earlier run needs it"
    assert again == place / "free_maps_32x32.py" and sizes_of(again) == "[batch, 3, 32, 32]"
    assert notes == [f"images takes images of any size, and is trained with 32x32, as asked: {again} is trained"]
    assert part_to_train(part, "40x64") == (part, []) == part_to_train(part)


class Enlarging(small.Thin):
    """Adds what it enlarges to what it kept, so it takes multiples of 16 alone."""

    def __init__(self) -> None:
        super().__init__(detectors.yolov8())
        self.fine = nn.Sequential(*(nn.Conv2d(count, 16, 3, 2, 1) for count in (3, 16, 16)))

    def forward(self, images: Tensor) -> Tensor:
        fine = self.fine(images).relu()
        coarse = self.coarse(fine).relu()
        found: Tensor = self.head([fine + F.interpolate(coarse[:, :16], scale_factor=2.0), coarse])
        return found


def test_a_size_that_the_network_does_not_take_is_refused_before_anything_is_written(place: Path) -> None:
    small.export(Enlarging(), place / "net.onnx", free=True)
    onnxgen.generate(place / "net.onnx", place / "net.py")
    before = sorted(place.iterdir())
    session = onnxruntime.InferenceSession(place / "net.onnx")
    for size, way in (("40x64", "32x64"), ("41x70", "48x64")):
        said = f"net.onnx takes no images of {size}: the sizes height, width must be multiples of 16 -> --size {way}"
        with pytest.raises(OnnxgenError) as error:
            part_to_train(place / "net.py", size)
        assert str(error.value) == said and sorted(place.iterdir()) == before
        for tried, taken in ((size, False), (way, True)):
            height, width = map(int, tried.split("x"))
            with nullcontext() if taken else pytest.raises(Exception, match="Error. : . : (FAIL|RUNTIME_EXCEPTION)"):
                session.run(None, {"images": np.zeros((1, 3, height, width), np.float32)})


def test_a_run_needs_its_origin_only_for_the_place_of_the_file(place: Path) -> None:
    write_yolo(place / "data", PARTS)
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    out = place / "run"
    given: dict[str, Any] = {"epochs": 1, "replace_head": 5, "show": "nothing", "workers": 0, "device": "cpu"}
    fit(place / "net.py", place / "data" / "data.yaml", out=out, **given)
    (place / "net_maps.py").unlink()
    assert cli(["evaluate", str(out), "--quiet"]) == 0


def test_what_was_written_before_is_not_written_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxgen.generate(place / "fixed.onnx", place / "fixed.py")
    first = part_to_train(place / "fixed.py")
    for name in ("generate", "check"):
        monkeypatch.setattr(ready, name, lambda *_: pytest.fail("generated again"))
    assert part_to_train(place / "fixed.py") == first
    edited(first[0])
    with pytest.raises(pytest.fail.Exception):
        part_to_train(place / "fixed.py")


def edited(module: Path) -> None:
    text = module.read_text()
    module.write_text(text.replace("F.relu(", "F.gelu("))
    assert module.read_text() != text


def trained(module: Path) -> None:
    path = module.with_suffix(".safetensors")
    save_file({key: tensor + 1 for key, tensor in load_file(path).items()}, path, read_header(path)[0])


@pytest.mark.parametrize("change", [edited, trained])
def test_what_would_be_lost_is_refused_with_the_whole_command(place: Path, change: Any) -> None:
    onnxgen.generate(place / "fixed.onnx", place / "net.py", Options(dtype="float64", frozen="fine.bias|a b"))
    change(place / "net.py")
    command = f"onnxgen {place / 'fixed.onnx'} -o {place / 'net_maps.py'} --dtype float64"
    wanted = f"train {place / 'net_maps.py'}: {command} --task detection --frozen 'fine.bias|a b'"
    with pytest.raises(OnnxgenError, match=re.escape(wanted)):
        part_to_train(place / "net.py")
    assert not (place / "net_maps.py").exists()


def test_one_command_trains_a_free_detector_with_other_classes(place: Path) -> None:
    write_coco(place / "data", PARTS)
    onnxgen.generate(place / "free.onnx", place / "free.py")
    data = place / "data" / "annotations" / "instances_train.json"
    given: dict[str, Any] = {"epochs": 1, "show": "nothing", "normalize": "0,1", "workers": 0, "replace_head": 5}
    found = fit(place / "free.py", data, size="32x48", out=place / "run", **given)
    assert found.model(torch.zeros(1, 3, 32, 48))[1].shape[1] == 5
    weights = place / "run" / "best.safetensors"
    report = onnxgen.export(place / "free_maps_32x48.py", weights=weights, out=place / "new.onnx")
    assert report.method == "written back"


def test_a_stopped_run_goes_on_with_the_printed_command(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    write_yolo(place / "data", PARTS)
    onnxgen.generate("fixed.onnx", "net.py")
    out = Path("runs", "net")
    fit("net.py", "data/data.yaml", epochs=1, out=out, replace_head=5, show="nothing", workers=0, device="cpu")
    assert (out / "config.toml").read_text().count('model = "../../net_maps.py"') == 1
    assert cli(["train", "--resume", "--out", str(out), "--epochs", "2", "--quiet"]) == 0
    assert [line.split(",")[0] for line in (out / "metrics.csv").read_text().splitlines()] == ["epoch", "1", "2"]


def test_runs_are_compared_by_the_metric_that_decides(place: Path) -> None:
    """Of a detector that is `map`, of a reader of lines `character_error`."""
    write_yolo(place / "data", PARTS)
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    given: dict[str, Any] = {"epochs": 1, "replace_head": 5, "show": "nothing", "workers": 0, "device": "cpu"}
    fit(place / "net.py", place / "data" / "data.yaml", out=place / "runs" / "net", **given)
    ((run,), _) = listed(place / "runs")
    (row,) = read_rows(place / "runs" / "net" / "metrics.csv")
    record = replace(run.record, monitor="val_character_error", result={})
    read = Run(place / "text", record, [{"epoch": 1.0, "val_character_error": 0.25}])
    titles, (first, second) = compared([run, read])
    assert first[titles.index("val map")] == f"{row['val_map']:.4g}" and second[titles.index("val map")] == ""
    assert second[titles.index("val character error")] == "0.25" and first[titles.index("val character error")] == ""
    assert page(place, [run, read]).count('<img src="data:image/png') == 4, "val loss, train loss, and one of each"


def test_all_is_told_at_once_and_before_torch_is_imported(place: Path) -> None:
    write_yolo(place / "data", PARTS)
    yaml = place / "data" / "data.yaml"
    yaml.write_text(yaml.read_text().replace("names", "labels"))
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    edited(place / "net.py")
    ((code, imported, said),) = ran((place, ["train", "net.py", "--data", "data/data.yaml"]))
    assert (code, imported) == (2, [])
    assert re.findall("error: (.*?) ->", said) == [
        "data/data.yaml has no names of the classes",
        "net.py does not end in the raw maps of the detector, at one size",
    ]


def test_a_folder_around_the_labels_is_the_data(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of the file is not in the way: another part of the detector is trained."""
    write_yolo(place / "data" / "unpacked", PARTS)
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    asked: list[Path] = []
    monkeypatch.setattr(ready, "part_to_train", lambda module, *_: asked.append(module) or (module, []))
    for _ in range(2):
        glance(place / "net.py", str(place / "data"), Settings())
        (place / "data" / "unpacked" / "data.yaml").unlink(missing_ok=True)
    assert asked == [place / "net.py"] * 2
    read = open_source(place / "data", Settings())
    assert isinstance(read, DataSource) and read.task == "detection"
    assert read.notes[0] == f"{place / 'data'} has nothing but the folder unpacked: it is the data"


def test_every_missing_package_is_named_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_yolo(place / "data", PARTS)
    lacking = ("faster_coco_eval", "peft")
    monkeypatch.setattr("onnxgen.common.paths.find_spec", lambda name: None if name in lacking else find_spec(name))
    monkeypatch.setattr(ready, "part_to_train", lambda *_: pytest.fail("too late"))
    with pytest.raises(OnnxgenError) as error:
        glance(place / "net.py", str(place / "data" / "data.yaml"), Settings(lora=4))
    said = [problem.what for problem in error.value.problems]
    assert said == ["the module peft is not installed", "the module faster_coco_eval is not installed"]


@pytest.mark.parametrize("task", ["outputs", "embedding"])
def test_boxes_of_another_task_leave_the_module(place: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    write_yolo(place / "data", PARTS)
    monkeypatch.setattr(ready, "part_to_train", lambda *_: pytest.fail("cut"))
    glance(place / "net.py", str(place / "data" / "data.yaml"), Settings(task=task))


@pytest.mark.parametrize("classes", [None, 5])
def test_the_layers_of_the_classes_are_the_head(place: Path, classes: int | None) -> None:
    """The head alone is trained at first: in an epoch nothing else changes. Of three classes it is the file's own."""
    write_yolo(place / "data", PARTS)
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    given: dict[str, Any] = {"epochs": 1, "replace_head": classes, "show": "nothing", "workers": 0, "device": "cpu"}
    found = fit(place / "net.py", place / "data", out=place / "run", head_first=1, head_lr=2, **given)
    before = load_file(place / "net_maps.safetensors")
    changed = {key for key, tensor in found.model.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed == {f"heads.{level}.2.{name}" for level in (0, 1) for name in ("weight", "bias")}


def test_the_command_line_names_options_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OnnxgenError) as error, command_words():
        find_head(nn.Conv2d(3, 4, 1), torch.zeros(1, 3, 8, 8))
    assert "-> only Python can name it, when it calls replace_head; there are " in str(error.value)
    assert in_command("a has owl, but classes= has cat") == "a has owl, but --classes has cat"
    assert in_command("--inputs a=classes+b, lr=0.1") == "--inputs a=classes+b, lr=0.1"
    write_yolo(place / "data", PARTS)
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    command = ["train", str(place / "net.py"), "--data", str(place / "data"), "--replace-head", "2", "--keep"]
    assert cli([*command, "--out", str(place / "run")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("all classes of a detector's new head are new -> leave out --keep")


def test_an_exported_file_tells_the_size_that_it_takes(place: Path) -> None:
    """As Ultralytics' metadata does, and in the shapes of its outputs, which were formulas of other sizes."""
    model = onnx.load(place / "free.onnx")
    told = {"imgsz": "[320, 320]", "batch": "7", "stride": "32"}
    onnx.helper.set_model_props(model, told)
    model.graph.output[0].type.tensor_type.shape.dim[2].dim_param = "floor(height/8) + 1"
    onnx.save(model, place / "free.onnx")
    onnxgen.generate(place / "free.onnx", place / "free.py")
    part, _ = part_to_train(place / "free.py", "32x64")
    onnxgen.export(part, out=place / "new.onnx")
    made = onnx.load(place / "new.onnx")
    assert {entry.key: entry.value for entry in made.metadata_props} == {**told, "imgsz": "[32, 64]"}
    session = onnxruntime.InferenceSession(place / "new.onnx")
    (found,) = session.run(None, {"images": np.zeros((1, 3, 32, 64), np.float32)})
    assert session.get_outputs()[0].shape[1:] == list(found.shape[1:])
    weights = load_file(part.with_suffix(".safetensors"))
    fewer = {key: tensor[:2] if len(tensor) == 3 else tensor for key, tensor in weights.items()}
    save_file(fewer, place / "fewer.safetensors")
    onnxgen.export(part, weights=place / "fewer.safetensors", out=place / "fewer.onnx")
    dims = onnx.load(place / "fewer.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims][1:] == [found.shape[1] - 1, found.shape[2]], (
        "of two classes in place of three"
    )
    shape = {"images": (2, 3, 32, 64)}
    onnxgen.generate(place / "free.onnx", place / "two.py", Options(input_shapes=shape))
    onnxgen.export(place / "two.py", out=place / "two.onnx")
    made = onnx.load(place / "two.onnx")
    assert {entry.key: entry.value for entry in made.metadata_props}["batch"] == "2"


def test_classes_without_names_are_told(place: Path) -> None:
    write_yolo(place / "data", PARTS)
    (place / "data" / "data.yaml").unlink()
    onnxgen.generate(place / "fixed.onnx", place / "net.py")
    way = "name them with --classes, in data.yaml (names) or classes.txt"
    for head, said in (
        (None, f"they are the first 3 of the model's 3, called 0, 1, 2 -> {way}, for a head of their own"),
        (4, f"they are called 0, 1, 2 -> {way}"),
    ):
        plan = prepare(place / "net.py", place / "data", Settings(replace_head=head, device="cpu"))
        assert f"data has no names of its classes: {said}" in plan.notes
    named = Settings(classes=("circle", "square", "triangle"), device="cpu")
    assert prepare(place / "net.py", place / "data", named).settings.classes == named.classes
    (place / "data" / "classes.txt").write_text("circle\nsquare\ntriangle\n")
    plan = prepare(place / "net.py", place / "data", Settings(device="cpu"))
    assert not any("has no names" in note for note in plan.notes)
