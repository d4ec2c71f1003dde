"""Drawn mistakes: whatever a person does wrong, no command calls it a bug. `tests/training/mistakes` draws more."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from onnxgen.cli import run as cli
from tests.support.tiers import drawn
from tests.training.mistakes import worlds
from tests.training.mistakes.drawing import DRAW, tried
from tests.training.sketches import sketched

Out = pytest.CaptureFixture[str]
COUNTS = {"options": 40, "data": 8, "modules": 5}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("faster_coco_eval")
    with sketched():
        yield worlds.made(tmp_path_factory.mktemp("worlds"))


@pytest.mark.parametrize("kind", DRAW)
def test_drawn_mistakes_are_no_bugs(kind: str, made: Path) -> None:
    wrong = []
    for seed in range(drawn(COUNTS[kind])):
        draw = random.Random(f"{kind} {seed}")
        wrong += [(seed, *one) for one in tried(kind, made / draw.choice([*worlds.MAKE]), draw) if one[2]]
    assert wrong == []


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "in")
    monkeypatch.chdir(tmp_path / "in")
    return tmp_path / "in"


SHORT = ("-q", "--workers", "0", "--device", "cpu", "--max-steps", "1", "--logger", "none", "--out", "new")


def refused(capsys: Out, *command: str) -> str:
    capsys.readouterr()
    assert cli([*command]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said


def test_a_module_that_ends_the_program(place: Path, capsys: Out) -> None:
    file = place / "table" / "small.py"
    before = file.read_text()
    file.write_text(before + "\nimport sys; sys.exit(3)\n")
    for command in (["train", str(file), "--data", "table/d.csv", *SHORT], ["verify", "table/small.onnx", str(file)]):
        assert "small.py can't be imported: SystemExit: 3" in refused(capsys, *command)
    file.write_text(re.sub(r"(def forward\(.*\n)", r"\1        raise SystemExit\n", before))
    assert "ended the program" in refused(capsys, "train", str(file), "--data", "table/d.csv", *SHORT)


def test_a_class_that_cant_be_built(place: Path, capsys: Out) -> None:
    file = place / "table" / "small.py"
    file.write_text(file.read_text().replace("super().__init__()", "super().__init__()\n        self.fc = nothing"))
    for more in ([], ["--from-scratch"]):
        said = refused(capsys, "train", str(file), "--data", "table/d.csv", *SHORT, *more)
        assert "its Model can't be built: NameError" in said and "weights" not in said


def test_code_of_a_person_that_fails(place: Path, capsys: Out) -> None:
    """It works without gradients, and fails with them."""
    file = place / "table" / "small.py"
    file.write_text(file.read_text().replace("return scores", "return torch.tensor(scores.numpy())"))
    said = refused(capsys, "train", str(file), "--data", "table/d.csv", *SHORT)
    assert "small.py, line " in said and "fails: RuntimeError: Can't call numpy()" in said


def test_an_output_of_whole_numbers(place: Path, capsys: Out) -> None:
    file = place / "table" / "small.py"
    file.write_text(file.read_text().replace("return scores", "return scores.long()"))
    said = refused(capsys, "train", str(file), "--data", "table/d.csv", *SHORT)
    assert "is int64: only real numbers can be trained" in said


def test_a_link_to_itself(place: Path, capsys: Out) -> None:
    (place / "loop.npz").symlink_to("loop.npz")
    assert "loop.npz" in refused(capsys, "evaluate", "table/run", "--data", "loop.npz", "--device", "cpu")
    (place / "loop.py").symlink_to("loop.py")
    refused(capsys, "train", "loop.py", "--data", "table/d.csv", *SHORT)


def test_a_sound_whose_name_is_not_unicode(place: Path) -> None:
    name = "sounds/d/a/\udcff.wav"
    try:
        soundfile.write(name.encode(errors="surrogateescape"), np.zeros(96, np.float32), 800, format="WAV")
    except (OSError, soundfile.LibsndfileError):
        pytest.skip("the file system takes no such name")
    assert cli(["train", "sounds/small.py", "--data", "sounds/d", *SHORT]) == 0


def test_labels_of_several_kinds_in_a_list_of_images(place: Path, capsys: Out) -> None:
    file = place / "images" / "list.jsonl"
    lines = file.read_text().splitlines()
    lines[3] = json.dumps({**json.loads(lines[3]), "label": 7})
    file.write_text("\n".join(lines))
    said = refused(capsys, "train", "images/small.py", "--data", str(file), *SHORT)
    assert "column 'label' holds text (line 1) and a number (line 4)" in said


@pytest.mark.parametrize("weights", ["", "."])
def test_weights_without_a_name(weights: str, place: Path, capsys: Out) -> None:
    refused(capsys, "evaluate", "table/run", "--weights", weights, "--device", "cpu")


@pytest.mark.parametrize("number", [b"0", b"\xff"])
def test_classes_as_bytes(number: bytes, place: Path, capsys: Out) -> None:
    with np.load("table/d.npz") as found:
        np.savez("table/d.npz", x=found["x"], y=np.where(found["y"] == 0, number, found["y"].astype(bytes)))
    command = ["train", "table/small.py", "--data", "table/d.npz", *SHORT]
    if number == b"0":
        assert cli(command) == 0 and json.loads(Path("new/run.json").read_text())["targets"][0]["names"] == [*"012"]
    else:
        assert "column 'y' holds bytes that are no text" in refused(capsys, *command)


def test_an_output_that_was_summed_by_hand(place: Path, capsys: Out) -> None:
    """The signature still says that it has the batch's axis."""
    file = place / "sounds" / "small.py"
    file.write_text(file.read_text().replace("return scores", "return scores.sum()"))
    said = refused(capsys, "train", str(file), "--data", "sounds/d", *SHORT)
    assert "the network takes one sample: of 2 of them it makes an output 'scores' of []" in said


def test_an_output_without_values(place: Path, capsys: Out) -> None:
    file = place / "sounds" / "small.py"
    file.write_text(file.read_text().replace("return scores", "return scores.to('meta')"))
    capsys.readouterr()
    assert cli(["export", str(file), "-o", "new.onnx"]) == cli(["verify", "sounds/small.onnx", str(file)]) == 1
    said = capsys.readouterr()
    for shown in (said.err, said.out):
        assert "output 0 is a tensor on the device meta, which has no values" in shown


def test_numbers_that_torch_lacks(place: Path, capsys: Out) -> None:
    if np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("longdouble is float64 here")
    with np.load("table/d.npz") as found:
        np.savez("table/d.npz", x=found["x"].astype(np.longdouble), y=found["y"])
    said = refused(capsys, "train", "table/small.py", "--data", "table/d.npz", *SHORT)
    assert f"has dtype {np.dtype(np.longdouble)}" in said


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("scores.detach()", "no gradient reaches a parameter from the loss"),
        ("scores.to('meta')", "output 0 is a tensor on the device meta, and no tensor with values"),
        ("None", "output 0 is nothing, and no tensor with values"),
        ("(scores for _ in range(2))", "output 0 is a generator, and no tensor with values"),
    ],
)
def test_outputs_that_cant_be_trained(returned: str, told: str, place: Path, capsys: Out) -> None:
    file = place / "sounds" / "small.py"
    file.write_text(file.read_text().replace("return scores", f"return {returned}"))
    assert told in refused(capsys, "train", str(file), "--data", "sounds/d", *SHORT)
