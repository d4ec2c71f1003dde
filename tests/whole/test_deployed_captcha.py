"""A reader out of ddddocr is tuned to captchas: like a loop by hand, and read by the package as by onnxgen."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.options import Options
from onnxgen.training import fit, load, open_model, replace_head

pytest.importorskip("ddddocr")
pytest.importorskip("captcha")

from samples.captcha.draw import CHARACTERS
from samples.deployed.captcha.sample import FILE, known, paint, reader
from samples.deployed.file import find

# At a rate of 0.01 the loss rises, and the order of the samples alone moves parameters by 0.001.
STEPS, RATE = 3, 0.001


class Tuned(NamedTuple):
    module: Path
    run: Path
    file: Path
    pictures: list[Path]
    texts: list[str]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """The reader after three steps, each with all of eight captchas."""
    folder = tmp_path_factory.mktemp("captcha")
    paint(folder, "train", 8, 0)
    (folder / "known.json").write_text(json.dumps(known()), encoding="utf-8")
    generate(find(FILE), folder / "reader.py", Options(dynamic_batch=True))
    fit(
        folder / "reader.py", folder, out=folder / "run", task="ctc", replace_head=37, keep=True,
        own_classes=folder / "known.json", classes=tuple(CHARACTERS), preprocess="ddddocr", device="cpu", val=0.0,
        workers=0, epochs=STEPS, batch_size=8, optimizer="sgd", lr=RATE, show="nothing", loggers="none",
    )  # fmt: skip
    assert cli(["export", str(folder / "run"), "--onnx", str(find(FILE)), "-o", str(folder / "t.onnx"), "--quiet"]) == 0
    rows = list(csv.DictReader((folder / "labels.csv").open()))
    return Tuned(
        folder / "reader.py", folder / "run", folder / "t.onnx",
        [folder / row["image"] for row in rows], [row["text"] for row in rows],
    )  # fmt: skip


def fed(pictures: list[Path]) -> Tensor:
    """As ddddocr feeds pictures that are 64 high."""
    gray = [np.asarray(Image.open(path).convert("L"), np.float32) / 255 for path in pictures]
    return torch.from_numpy(np.stack(gray))[:, None]


def test_the_package_reads_with_the_tuned_file_what_onnxgen_predicts(tuned: Tuned) -> None:
    package, ours = reader(tuned.file), load(tuned.run, device="cpu")
    found = [package.classification(path.read_bytes()) for path in tuned.pictures]
    assert [one.label for path in tuned.pictures for one in ours.predict(path)] == found and any(found)
    with torch.no_grad():
        wanted = ours.model(fed(tuned.pictures)).softmax(2)
    for n, path in enumerate(tuned.pictures):
        sure = np.array(package.classification(path.read_bytes(), probability=True)["probabilities"])
        np.testing.assert_allclose(sure[:, 0], wanted[:, n], atol=1e-4)


def test_the_run_is_a_loop_by_hand(tuned: Tuned) -> None:
    characters = known()
    model = replace_head(open_model(tuned.module), 37, keep=[0, *map(characters.index, CHARACTERS)]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    x = fed(tuned.pictures)
    targets = torch.tensor([[CHARACTERS.index(c) + 1 for c in text] for text in tuned.texts])
    for _ in range(STEPS):
        scores = model(x).log_softmax(2)
        loss = F.ctc_loss(scores, targets, torch.full((8,), len(scores)), torch.full((8,), 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = load_file(tuned.run / "last.safetensors")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, atol=1e-5, rtol=1e-5)
    assert not torch.equal(found["conv.weight"], open_model(tuned.module).conv.weight)
