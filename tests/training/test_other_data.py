"""Other data than that of the training, to `evaluate`: it is never augmented, and samples that were seen are told."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from onnxgen.cli import run as cli
from onnxgen.training import evaluate, fit, load, open_model
from onnxgen.training.data import feed, open_data
from onnxgen.training.data.arrays import unaugmented
from onnxgen.training.runs.alike import _each, digests
from onnxgen.training.runs.keep import held_back
from onnxgen.training.runs.record import read_record
from onnxgen.training.settings import Settings
from samples.tasks.scenes import draw_scenes, write_masks, write_yolo
from tests.training import texts
from tests.training.small import network
from tests.training.test_data_placed import convolution
from tests.training.test_goals_images import Net

SIDE = 8
Kind = Callable[[Path], tuple[torch.nn.Module, Path]]
QUICK: dict[str, Any] = {"workers": 0, "device": "cpu", "loggers": (), "max_steps": 1, "show": "nothing"}


def picture(seed: int) -> Image.Image:
    """Colours that any augmentation changes, brighter with the seed's class."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(60 * (seed % 3), 256, (SIDE, SIDE, 3), dtype=np.uint8))


def folder(root: Path, seeds: range) -> Path:
    """Folders of three classes."""
    for seed in seeds:
        (root / "abc"[seed % 3]).mkdir(parents=True, exist_ok=True)
        picture(seed).save(root / "abc"[seed % 3] / f"{seed}.png")
    return root


def photos(path: Path) -> torch.nn.Module:
    return network(path, x=("float32", ["n", 3, SIDE, SIDE]))


def test_classes_may_be_in_a_column_of_another_name(tmp_path: Path) -> None:
    """Their names tell that they are those of the training: here of a column, there of folders."""
    root = folder(tmp_path / "data", range(18))
    names = [f"{'abc'[seed % 3]}/{seed}.png,{'abc'[seed % 3]}" for seed in range(18)]
    (root / "list.csv").write_text("\n".join(["image,kind", *names]))
    fit(photos(tmp_path), root / "list.csv", target="kind", normalize="0,1", out=tmp_path / "run", **QUICK)
    new = folder(tmp_path / "new", range(100, 112))
    names = [f"{'abc'[seed % 3]}/{seed}.png,{'abc'[seed % 3]}" for seed in range(100, 112)]
    (tmp_path / "new" / "list.csv").write_text("\n".join(["image,kind", *names]))
    wanted = load(tmp_path / "run", device="cpu").evaluate(new / "list.csv")
    assert load(tmp_path / "run", device="cpu").evaluate(new) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("part", ["", "train"])
def test_other_data_is_not_augmented(part: str, tmp_path: Path) -> None:
    """It may have a training part alone, as folders of classes do. The oracle is torch, by hand."""
    model = photos(tmp_path)
    fit(model, folder(tmp_path / "data", range(18)), augment="light,noise,erase", normalize="0,1",
        out=tmp_path / "run", **QUICK)  # fmt: skip
    folder(tmp_path / "other" / part, range(100, 130))
    trained, losses = open_model(tmp_path / "run").eval(), []
    for seed in range(100, 130):
        x = torch.from_numpy(np.asarray(picture(seed)).copy()).permute(2, 0, 1)[None] / 255
        with torch.no_grad():
            losses.append(F.cross_entropy(trained(x), torch.tensor([seed % 3])).item())
    found = load(tmp_path / "run", device="cpu").evaluate(tmp_path / "other", part=part or None)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6)


def boxes(path: Path) -> tuple[torch.nn.Module, Path]:
    return network(path, x=("float32", ["n", 3, SIDE, SIDE])), write_yolo(path / "data", {"train": draw_scenes(9)})


def masks(path: Path) -> tuple[torch.nn.Module, Path]:
    return convolution(path, 24, 32), write_masks(path / "data", {"train": draw_scenes(9)})


def pairs(path: Path) -> tuple[torch.nn.Module, Path]:
    for name in ("input", "target"):
        (path / "data" / name).mkdir(parents=True)
        for seed in range(9):
            picture(seed).save(path / "data" / name / f"{seed}.png")
    return Net(ins=3, outs=3), path / "data"


def anchors(path: Path) -> tuple[torch.nn.Module, Path]:
    for name in ("anchor", "positive"):
        (path / "data" / name).mkdir(parents=True)
        for seed in range(9):
            picture(seed).save(path / "data" / name / f"{seed}.png")
    return photos(path), path / "data"


TASKS = {boxes: "detection", masks: "auto", pairs: "image-to-image", anchors: "embedding"}


@pytest.mark.parametrize("kind", TASKS)
def test_what_was_opened_for_a_training_is_measured_without_augmentation(kind: Kind, tmp_path: Path) -> None:
    model, path = kind(tmp_path)
    settings = Settings(augment="flip,crop", normalize="0,1", val=0, task=TASKS[kind])
    drawn = open_data(path, model, settings).train
    plain = open_data(path, model, replace(settings, augment="none")).train
    assert drawn is not None and plain is not None
    augmented, measured, wanted = (samples.take(range(9), 3) for samples in (drawn, unaugmented(drawn), plain))
    for name in wanted:
        assert torch.equal(measured[name], wanted[name])
        if name != "inner":  # where the picture lies in its frame is needed, and known, without augmentation alone
            assert torch.equal(augmented[name], wanted[name]) == (name in ("pair", "role"))


def test_data_that_was_opened_for_a_training_is_not_augmented(tmp_path: Path) -> None:
    model, path, losses = photos(tmp_path), folder(tmp_path / "data", range(18)), []
    for augment in ("light,noise,erase", "none"):
        opened = open_data(path, model, Settings(augment=augment, normalize="0,1"))
        losses.append(evaluate(model, opened, part="train", device="cpu", workers=0))
    assert losses[0] == losses[1]


# ---- samples that were trained on ------------------------------------------------------------------------------------


def classes(path: Path) -> tuple[torch.nn.Module, Path]:
    return photos(path), folder(path / "data", range(9))


def listed(path: Path) -> tuple[torch.nn.Module, Path]:
    folder(path / "data", range(9))
    lines = [f"{'abc'[seed % 3]}/{seed}.png,{'abc'[seed % 3]}" for seed in range(9)]
    (path / "data" / "labels.csv").write_text("\n".join(["image,label", *lines]))
    return photos(path), path / "data"


def table(path: Path) -> tuple[torch.nn.Module, Path]:
    (path / "data.csv").write_text("\n".join(["p,q,target", *(f"{n},{n * n},{'abc'[n % 3]}" for n in range(9))]))
    return network(path, x=("float32", ["n", 2])), path / "data.csv"


def sounds(path: Path) -> tuple[torch.nn.Module, Path]:
    soundfile = pytest.importorskip("soundfile")
    for n in range(9):
        (path / "data" / "abc"[n % 3]).mkdir(parents=True, exist_ok=True)
        soundfile.write(path / "data" / "abc"[n % 3] / f"{n}.wav", np.full(16, n / 20), 8000)
    return network(path, x=("float32", ["n", 16])), path / "data"


KINDS = {**dict.fromkeys((classes, listed, table, sounds), "auto"), **TASKS}


@pytest.mark.parametrize("shares", [{"val": 0.3}, {"val": 0.0}])
@pytest.mark.parametrize("kind", KINDS)
def test_each_training_sample_has_a_digest(kind: Kind, shares: dict[str, float], tmp_path: Path) -> None:
    """Also if other parts were drawn from the data; and a copy of a sample has the same, wherever it stands."""
    model, path = kind(tmp_path)
    settings = Settings(normalize="none", task=KINDS[kind])
    data, whole = (open_data(path, model, replace(settings, **some)) for some in (shares, {"val": 0.0}))
    feeding = feed(data, model, settings)
    parts = [set(_each(digests(samples, feeding.inputs))) for samples in data.parts.values()]
    assert whole.train is not None
    assert [len(part) for part in parts] == [len(samples) for samples in data.parts.values()]
    assert set.union(*parts) == set(_each(digests(whole.train, feeding.inputs))) and len(set.union(*parts)) == 9


def test_what_is_drawn_for_a_sample_is_not_in_its_digest(tmp_path: Path) -> None:
    settings = Settings(normalize="0,1", val=0.0, augment="flip,noise", task="image-to-image", noise=0.1)
    arrays = {"image": np.stack([np.asarray(picture(seed)) for seed in range(9)])}
    ahead, later = (open_data(x, Net(ins=3, outs=3), settings) for x in (arrays, {"image": arrays["image"][::-1]}))
    one, other = (digests(data.parts["train"], ["image"]) for data in (ahead, later))
    assert one != other and sorted(_each(one)) == sorted(_each(other)) and len(set(_each(one))) == 9


@pytest.mark.parametrize("task", ["language-model", "masked-language-model", "embedding"])
def test_texts_are_told_whatever_their_padding_and_masks(task: str, tmp_path: Path) -> None:
    file = texts.tokenizer(tmp_path)
    net = texts.WithMask(texts.bert("MaskedLM", texts.size(file)) if task[0] == "m" else texts.gpt2(texts.size(file)))
    settings = Settings(tokenizer=file, task=task, val=0.0)
    names = ["anchor", "positive"] if task == "embedding" else ["text", "n"]
    rows = [[text, text[::-1] if task == "embedding" else 1] for text in texts.SENTENCES]
    found = []
    for some in (rows, [rows[4], rows[2]]):  # which are shorter than others
        data = open_data(texts.table(tmp_path / "x.csv", names, some), net, settings)
        found.append([*_each(digests(data.parts["train"], feed(data, net, settings).inputs, data.text))])
    assert found[1] == [found[0][4], found[0][2]] and len(set(found[0])) == 6


def test_the_samples_that_were_held_back_are_listed(tmp_path: Path) -> None:
    """Of files their names; no other one was trained on, by the digests of their contents."""
    files = sorted(folder(tmp_path / "data", range(18)).rglob("*.png"))
    fit(photos(tmp_path), tmp_path / "data", val=0.2, test=0.1, out=tmp_path / "run", **QUICK)
    rows = list(csv.DictReader((tmp_path / "run" / "held_back.csv").open()))
    assert [row["part"] for row in rows] == ["val"] * 4 + ["test"] * 2
    listed = {row["sample"] for row in rows}
    rest = [path for path in files if path.as_posix() not in listed]
    assert len(rest) == 12
    trained = {hashlib.blake2b(path.read_bytes(), digest_size=8).digest() for path in rest}
    assert trained == set(_each((tmp_path / "run" / "samples.bin").read_bytes()))


def test_rows_that_were_held_back_are_listed_by_their_numbers(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    data = open_data({"x": x, "y": np.arange(20) % 2}, network(tmp_path, x=("float32", ["n", 2])), Settings(val=0.2))
    assert data.val is not None
    rows = [line.split(",") for line in held_back(data.parts).splitlines()[1:]]
    assert [part for part, _ in rows] == ["val"] * 4
    assert (data.val.take(range(4), 0)["x"].numpy() == x[[int(row) for _, row in rows]]).all()
    assert held_back({"train": data.val}) == ""


def test_samples_of_which_a_part_was_held_back_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(photos(tmp_path), folder(tmp_path / "data", range(18)), val=0.2, out=tmp_path / "run", **QUICK)
    (trained,) = [part.samples for name, part in read_record(tmp_path / "run").parts.items() if name == "train"]
    folder(folder(tmp_path / "more", range(18)), range(100, 103))
    assert cli(["evaluate", "run", "--data", "more", "--device", "cpu"]) == 0
    assert f"{trained} of 21 samples were trained on" in capsys.readouterr().err


# ---- files to predict for --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, and with images in `new`."""
    path = tmp_path_factory.mktemp("place")
    fit(photos(path), folder(path / "data", range(18)), out=path / "run", **QUICK)
    folder(path / "new", range(6))
    return path


def test_a_file_that_is_no_data_is_skipped_beside_images(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    Path("new/a/Thumbs.db").write_bytes(b"\xd0\xcf")
    Path("new/a/.DS_Store").write_bytes(b"\0")
    for given in (["new/*/*"], [str(path) for path in sorted(Path("new").glob("*/[!.]*"))]):
        assert cli(["predict", "run", *given, "--device", "cpu", "-o", "out.csv", "--force"]) == 1
        assert "skipped: new/a/Thumbs.db can't be read: it is neither an image" in (said := capsys.readouterr().err)
        assert len(Path("out.csv").read_text().splitlines()) == 7 and "DS_Store" not in said
    assert cli(["predict", "run", "new/a/Thumbs.db", "--device", "cpu"]) == 2
    assert "can't read data from new/a/Thumbs.db" in capsys.readouterr().err
    Path("new/a/Thumbs.db").unlink()


def test_the_part_that_is_evaluated_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    for part, seeds in (("train", range(40, 46)), ("test", range(50, 56))):
        folder(Path("parts") / part, seeds)
    asked = (
        ("new", (), "6 samples of new"),
        ("parts", (), "6 samples of the test part of parts"),
        ("parts", ("--part", "train"), "6 samples of the train part of parts"),
    )
    for data, more, what in asked:
        assert cli(["evaluate", "run", "--data", data, *more, "--device", "cpu"]) == 0
        assert f"run on {what}: loss" in capsys.readouterr().out


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_notes_of_a_run_advise_no_option_of_the_training(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither `predict` nor `evaluate` has them; the order is that of the training."""
    monkeypatch.chdir(tmp_path)
    _broken_file(folder(Path("faulty"), range(18)))
    shutil.copy("faulty/a/3.png", "three.png")
    fit(photos(tmp_path), "faulty", val=0.3, out="run", channel_order=order, **QUICK)
    capsys.readouterr()
    _broken_file(folder(Path("new"), range(12)))
    for asked in (["evaluate", "run", "--data", "new"], ["predict", "run", "three.png"]):
        assert cli([*asked, "--device", "cpu"]) in (0, 1)
        notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
        options = re.findall(r"--[a-z][a-z-]+", " ".join(notes))
        assert any(f"order {order.upper()}, as" in note for note in notes) and options == []


def _broken_file(data: Path) -> str:
    (data / "a/0.png").write_bytes(b"\x89PNG")
    return "1 image of faulty can't be read, skipped: a/0.png ("


def _gaps_in_a_list(data: Path) -> str:
    names = [f"{'abc'[seed % 3]}/{seed}.png,{'abc'[seed % 3]}" for seed in range(6)]
    names[1:3] = ["b/1.png,", "c/gone.png,c"]
    (data / "labels.csv").write_text("\n".join(["image,label", *names]))
    first = "labels.csv, line 3: column 'label' has no value; labels.csv, line 4: c/gone.png: there is no such file"
    return f"2 faults in faulty: {first}; 2 images skipped"


@pytest.mark.parametrize("spoil", [_broken_file, _gaps_in_a_list])
def test_what_is_left_out_is_told_and_the_rest_is_counted(
    spoil: Callable[[Path], str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `train` tells it, and with the exit code of `predict`; the metrics are those of the other samples."""
    monkeypatch.chdir(place)
    shutil.rmtree("faulty", ignore_errors=True)
    said = spoil(folder(Path("faulty"), range(6)))
    left_out = int(said[0])
    asked = ["evaluate", "run", "--data", "faulty", "--device", "cpu"]
    assert cli(asked) == 1
    told = capsys.readouterr()
    assert f"note: {said}" in told.err and f"run on {6 - left_out} of 6 samples of faulty: loss" in told.out
    assert cli([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 6 - left_out and found["skipped"] == left_out
    with pytest.warns(UserWarning, match=re.escape(said)):
        alone = evaluate(open_model(Path("run")), "faulty", normalize=read_record(Path("run")).settings["normalize"])
    assert alone["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_what_the_training_skipped_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part that was held back is as it was, so the exit code is 0."""
    monkeypatch.chdir(tmp_path)
    said = _broken_file(folder(Path("faulty"), range(18)))
    fit(photos(tmp_path), "faulty", val=0.3, out="run", **QUICK)
    assert cli(["evaluate", "run", "--device", "cpu"]) == 0
    told = capsys.readouterr()
    count = read_record(Path("run")).parts["val"].samples
    assert f"note: {said}" in told.err and f"run on {count} samples of the val part of faulty: loss" in told.out


def test_samples_of_a_list_are_called_by_their_files(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the list; the answers are those of the images on their own."""
    monkeypatch.chdir(place)
    names = [f"{'abc'[seed % 3]}/{seed}.png" for seed in (4, 0, 5)]
    Path("new/labels.csv").write_text("\n".join(["image,label", *(f"{name},a" for name in names)]))
    found = load("run", device="cpu").predict("new/labels.csv")
    assert [one.source for one in found] == [f"new/{name}" for name in names]
    for one, alone in zip(found, load("run", device="cpu").predict([f"new/{name}" for name in names])):
        assert one.probabilities == pytest.approx(alone.probabilities, rel=1e-6)
