"""What a training says of its data: folders of classes in another folder, the classes, and each conversion."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from PIL import Image
from torch import nn

from onnxgen.cli import run as cli
from onnxgen.training.data import open_data
from onnxgen.training.settings import Settings
from tests.training.small import network
from tests.training.test_hidden import hide

Out = pytest.CaptureFixture[str]
GIVEN = ["--workers", "0", "--device", "cpu", "--logger", "none", "--max-steps", "1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a network and images of three classes in `unzipped/photos`."""
    network(tmp_path, x=("float32", ["n", 1, 8, 8]))
    for n in range(36):
        (tmp_path / "unzipped" / "photos" / "abc"[n % 3]).mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB" if n % 2 else "L", (8, 8) if n % 2 else (12, 10), 7 * n)
        picture.save(tmp_path / "unzipped" / "photos" / "abc"[n % 3] / f"{n}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_around_the_classes_is_the_data(here: Path, capsys: Out) -> None:
    """As an archive is unpacked. It is taken by every command, and a note says so."""
    assert cli(["train", "small.py", "--data", "unzipped", "--val", "0", "--out", "run", *GIVEN]) == 0
    said = capsys.readouterr().out
    note = "note: unzipped has nothing but the folder photos: it is the data"
    assert note in said and "samples of train: a 12, b 12, c 12" in said
    shutil.copytree("unzipped", "new")
    Path("new/photos/a/0.png").unlink()
    found = []
    for data in ("new", "new/photos"):
        assert cli(["evaluate", "run", "--data", data, "--device", "cpu", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["accuracy"] == found[1]["accuracy"] and found[0]["loss"] == found[1]["loss"]
    assert cli(["predict", "run", "unzipped", "-o", "out.csv", "--device", "cpu"]) == 0
    assert len(Path("out.csv").read_text().splitlines()) == 37


def a_page() -> None:
    Path("unzipped/about.html").write_text("which of these are the classes?")


def an_image() -> None:
    Image.new("L", (8, 8)).save("unzipped/a.png")


def one_class() -> None:
    for path in (path for name in "ab" for path in Path("unzipped/photos", name).iterdir()):
        path.unlink()


@pytest.mark.parametrize("change", [a_page, an_image, one_class])
def test_a_folder_around_the_classes_is_refused_if_it_may_be_another(
    here: Path, change: Callable[[], None], capsys: Out
) -> None:
    change()
    assert cli(["train", "small.py", "--data", "unzipped", *GIVEN]) == 2
    line = capsys.readouterr().err
    assert "unzipped has one folder, photos, which has folders itself: a, b, c" in line
    assert "name unzipped/photos" in line and not Path("runs").exists()


def test_a_folder_around_the_classes_of_a_part_is_refused(here: Path, capsys: Out) -> None:
    shutil.copytree("unzipped/photos", "in/train/all")
    assert cli(["train", "small.py", "--data", "in", *GIVEN]) == 2
    assert "name in/train" in capsys.readouterr().err


def test_what_is_hidden_does_not_count(here: Path, capsys: Out) -> None:
    """It is neither a class nor a sample, and it does not hide that an archive was unpacked into one folder."""
    hide(here / "unzipped")
    (here / "unzipped").rename(here / "photos-main")
    (here / "in").mkdir()
    (here / "photos-main").rename(here / "in" / "photos-main")
    (here / "in" / "__MACOSX").mkdir()
    (here / "in" / "photos-main" / "README.md").write_text("photos")
    assert cli(["train", "small.py", "--data", "in", "--val", "0", "--out", "run", *GIVEN]) == 0
    said = capsys.readouterr().out
    assert "in has nothing but the folder photos-main/photos: it is the data" in said
    assert "samples of train: a 12, b 12, c 12" in said and "read" not in said and "ignored" not in said


def test_an_unknown_class_is_told_in_words_of_the_command(here: Path, capsys: Out) -> None:
    assert cli(["train", "small.py", "--data", "unzipped/photos", "--val", "0", "--out", "run", *GIVEN]) == 0
    (here / "unzipped" / "photos" / "a").rename(here / "unzipped" / "photos" / "d")
    capsys.readouterr()
    assert cli(["evaluate", "run", "--data", "unzipped/photos", "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: photos has class d, and the classes are a, b, c -> give data like"
    )


def test_one_class_is_refused(here: Path, capsys: Out) -> None:
    for name in "bc":
        shutil.rmtree(here / "unzipped" / "photos" / name)
    for data in ("unzipped/photos", "unzipped"):
        assert cli(["train", "small.py", "--data", data, *GIVEN]) == 2
        assert "one class alone" in capsys.readouterr().err


def test_classes_and_conversions_are_told(here: Path, capsys: Out) -> None:
    assert cli(["train", "small.py", "--data", "unzipped/photos", "--val", "0.25", "--test", "0.25", *GIVEN]) == 0
    said = capsys.readouterr().out
    assert "classes in their order, samples of train + val + test: a 6 + 3 + 3, b 6 + 3 + 3, c 6 + 3 + 3" in said
    assert "note: images of 10x12 are stretched to 8x8" in said and "note: colours become gray" in said
    assert re.search("note: x is normalised by|note: image is normalised by", said)


@pytest.mark.parametrize(
    ("kind", "channels"), [*product(["classes", "list", "boxes", "anchors"], [1, 3, 4]), ("pairs", 3)]
)
def test_colours_that_are_converted_are_told(kind: str, channels: int, tmp_path: Path) -> None:
    """In all data of images: gray ones, those with an alpha channel, and CMYK."""
    pictures = [Image.new(mode, (8, 8)) for mode in ("RGB", "L", "RGBA", "LA", "RGB", "RGB")]
    pictures += [Image.new("P", (8, 8)), Image.new("CMYK", (8, 8))]
    folders = {"boxes": ["images"], "pairs": ["input"], "anchors": ["anchor"], "list": ["."]}.get(kind, ["a", "b"])
    for n, image in enumerate(pictures):
        file = tmp_path / folders[n % len(folders)] / f"{n}.{'jpg' if image.mode == 'CMYK' else 'png'}"
        file.parent.mkdir(exist_ok=True)
        image.save(file, **{5: {"transparency": (0, 0, 0)}, 6: {"transparency": 0}}.get(n, {}))
        for beside in ("target", "positive"):
            if kind == {"target": "pairs", "positive": "anchors"}[beside]:
                (tmp_path / beside).mkdir(exist_ok=True)
                Image.new("RGB", (8, 8)).save(tmp_path / beside / f"{n}.png")
    rows = [f"{n}.{'jpg' if n == 7 else 'png'},{'ab'[n % 2]}\n" for n in range(8)]
    if kind == "list":
        (tmp_path / "labels.csv").write_text("image,label\n" + "".join(rows))
    if kind == "boxes":
        (tmp_path / "labels").mkdir()
        for n in range(8):
            (tmp_path / "labels" / f"{n}.txt").write_text("0 0.5 0.5 0.2 0.2\n")
    model: nn.Module = nn.Conv2d(channels, 3, 3)
    if kind != "pairs":
        model = network(tmp_path, x=("float32", ["n", channels, 8, 8]))
    task = {"pairs": "image-to-image", "anchors": "embedding"}.get(kind, "auto")
    size = "8x8" if isinstance(model, nn.Conv2d) else "auto"
    said = open_data(tmp_path, model, Settings(val=0, normalize="none", task=task, size=size)).notes
    assert ("colours become gray" in said) == (channels == 1)
    assert (f"gray images get {channels} equal channels" in said) == (channels > 1)
    alpha = "4 images with an alpha channel: it is dropped, and the colours below it count"
    assert (alpha in said) == (channels < 4)
    assert "1 image of CMYK: the colours become RGB, without a colour profile" in said


def test_the_digits_are_told(here: Path, capsys: Out) -> None:
    network(here, classes=10, x=("float32", ["n", 1, 8, 8]))
    assert cli(["train", "small.py", *GIVEN]) == 0
    assert capsys.readouterr().out.startswith("no --data is given: trains on the digits")
    assert cli(["train", "small.py", "--data", "digits", *GIVEN]) == 0
    assert not capsys.readouterr().out.startswith("no --data")


@pytest.mark.parametrize("kind", ["images", "table"])
def test_samples_that_were_trained_on_are_counted(kind: str, here: Path, capsys: Out) -> None:
    """Also if a part of the data was copied, so that it is not the data of the run."""
    if kind == "images":
        data, again, other = Path("unzipped/photos"), Path("again"), Path("new")
        for name in "abc":
            for folder, numbers in ((again, range(18)), (other, ())):
                (folder / name).mkdir(parents=True)
                for file in [data / name / f"{n}.png" for n in numbers if (data / name / f"{n}.png").exists()]:
                    shutil.copy(file, folder / name)
            Image.new("L", (9, 9), ord(name)).save(other / name / "new.png")
    else:
        network(here, x=("float32", ["n", 2]))
        data, again, other = Path("d.csv"), Path("again.csv"), Path("new.csv")
        rows = [f"{n},{n * n},{'abc'[n % 3]}" for n in range(36)]
        for path, some in ((data, rows), (again, rows[:18]), (other, [f"{n}.5,1,{'abc'[n]}" for n in range(3)])):
            path.write_text("\n".join(["p,q,target", *some]) + "\n")
    assert cli(["train", "small.py", "--data", str(data), "--val", "0", "--out", "run", *GIVEN]) == 0
    capsys.readouterr()
    assert cli(["evaluate", "run", "--data", str(again), "--device", "cpu"]) == 0
    assert "note: 18 of 18 samples were trained on" in capsys.readouterr().err
    assert cli(["evaluate", "run", "--data", str(other), "--device", "cpu"]) == 0
    assert "trained on" not in capsys.readouterr().err


def test_letters_of_any_language_are_told(here: Path, capsys: Out) -> None:
    """Of classes, columns and files, in notes and errors."""
    for old, new in zip("abc", ("Kätzchen", "Ąß", "猫")):
        (here / "unzipped" / "photos" / old).rename(here / "unzipped" / "photos" / new)
    (here / "unzipped" / "photos" / "猫" / "Łódź.png").write_bytes(b"no image")
    assert cli(["train", "small.py", "--data", "unzipped/photos", "--val", "0", *GIVEN]) == 0
    said = capsys.readouterr().out
    assert "classes in their order, samples of train: Kätzchen 12, Ąß 12, 猫 12" in said and "猫/Łódź.png (" in said
    (here / "d.csv").write_text("ä,ö\n1,Ü\n,Ö\n", encoding="utf-8")
    assert cli(["train", "small.py", "--data", "d.csv", "--target", "ß", *GIVEN]) == 2
    assert "--target ß: the data has no such column (it has ä, ö)" in capsys.readouterr().err
