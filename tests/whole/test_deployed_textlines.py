"""PP-OCRv4's reader, tuned with four letters that its alphabet lacks, is read by the package's own code."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.training import fit, load, open_model, replace_head
from samples.deploy import predict as deployed
from samples.deployed.file import find

rapidocr = pytest.importorskip("rapidocr_onnxruntime")

FILE = "rapidocr_onnxruntime/ch_PP-OCRv4_rec_infer.onnx"
WORDS, CLASSES = ("Straße", "Öfenöl", "Käse", "Ähre"), 6629
STEPS, RATE = 3, 1e-5  # one scale for all of a layer has a large gradient


class Start(lightning.Callback):
    """Keeps the weights that training begins with."""

    def on_fit_start(self, trainer: Any, task: Any) -> None:
        self.state = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, a list of lines, and a run of a few steps."""
    sample = pytest.importorskip("samples.deployed.textlines.sample")  # it draws with matplotlib's fonts

    folder = tmp_path_factory.mktemp("lines")
    generate(find(FILE), folder / "reader.py")
    rng = random.Random(0)
    for place, word in enumerate(WORDS):
        sample.line(word, rng).save(folder / f"{place}.png")
    (folder / "labels.txt").write_text("".join(f"{i}.png\t{w}\n" for i, w in enumerate(WORDS)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def start(place: Path) -> Start:
    """What the run began with."""
    begun = Start()
    fit(
        place / "reader.py", place / "labels.txt", out=place / "run", callbacks=[begun], replace_head=CLASSES,
        keep=True, epochs=STEPS, batch_size=4, optimizer="sgd", lr=RATE, val=0.0, device="cpu", workers=0,
        show="nothing",
    )  # fmt: skip
    return begun


def pixels(path: Path) -> Tensor:
    """A line as PaddleOCR feeds it, with a gray of 127 beside it for its 127.5."""
    x = np.full((48, 320, 3), 127, np.float32)
    picture = np.asarray(Image.open(path))[..., ::-1]
    x[:, : picture.shape[1]] = picture
    return torch.from_numpy((x / 255 - 0.5) / 0.5).permute(2, 0, 1)


def test_the_run_is_a_loop_by_hand(place: Path, start: Start) -> None:
    model = replace_head(open_model(place / "reader.py"), CLASSES)
    model.load_state_dict(start.state)
    characters = load(place / "run").record.targets[0].names
    assert {*"ÄÖßö"} <= {*characters} and len(characters) == CLASSES - 1
    targets = [torch.tensor([characters.index(c) + 1 for c in word]) for word in WORDS]
    lengths = torch.tensor([len(target) for target in targets])
    x = torch.stack([pixels(place / f"{i}.png") for i in range(len(WORDS))])
    optimizer = torch.optim.SGD(model.train().parameters(), RATE)
    for _ in range(STEPS):
        logs = model(x).log().transpose(0, 1)
        F.ctc_loss(logs, torch.cat(targets), torch.full((len(WORDS),), len(logs)), lengths).backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = dict(model.named_parameters())
    assert any((tensor - start.state[name]).abs().max() > 1e-4 for name, tensor in trained.items())
    own = load(place / "run", weights=place / "run" / "last.safetensors").model.state_dict()
    for name, tensor in trained.items():  # means of BatchNorms are in the hundreds, and apart by 3e-4 of that
        torch.testing.assert_close(own[name], tensor, atol=1e-5, rtol=1e-4, msg=name)
        assert tensor.isfinite().all()


def test_the_exported_file_is_dropped_in(place: Path, start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts and scores of the package, of the run, of `predict` with the file, and of the program without onnxgen."""
    file = place / "tuned.onnx"
    assert cli(["export", str(place / "run"), "--onnx", str(find(FILE)), "-o", str(file), "--quiet"]) == 0
    reader = rapidocr.RapidOCR(rec_model_path=str(file)).text_rec
    lines = sorted(place.glob("?.png"))
    theirs, _ = reader([np.asarray(Image.open(line))[..., ::-1] for line in lines])
    session = onnxruntime.InferenceSession(file)
    for line, (text, score), one in zip(lines, theirs, load(place / "run").predict(lines), strict=True):
        assert one.label == text and one.answer.score == pytest.approx(score, abs=1e-4)
        assert [*next(iter(deployed.predict(session, str(line), 0.25))).values()] == [text]
    assert cli(["predict", str(file), *map(str, lines), "--json"]) == 0
    asked = [one["outputs"]["softmax_11.tmp_0"]["label"] for one in json.loads(capsys.readouterr().out)]
    assert asked == [text for text, _ in theirs]
    listed = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    assert listed[-5:] == [" ", "Ä", "Ö", "ß", "ö"] and len(listed) == CLASSES - 1


def test_the_file_is_read_as_it_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By `predict`, without a training, and as the package reads it."""

    lines = sorted(map(str, place.glob("?.png")))
    assert cli(["predict", str(place / "reader.py"), *lines, "--json"]) == 0
    found = [one["outputs"]["softmax_11.tmp_0"] for one in json.loads(capsys.readouterr().out)]
    theirs, _ = rapidocr.RapidOCR().text_rec([np.asarray(Image.open(line))[..., ::-1] for line in lines])
    for own, (text, score) in zip(found, theirs, strict=True):
        assert own["label"] == text and own["score"] == pytest.approx(score, abs=1e-4)
