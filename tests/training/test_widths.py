"""Lines of text that are longer than the width of the training: read at the width that they need, or told of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.errors import OnnxgenError
from onnxgen.training import load
from onnxgen.training.prepare import prepare
from onnxgen.training.settings import Settings
from tests.training.shipping import entries, need_same, session_of, shipped
from tests.zoo.export import quiet

RNG = np.random.default_rng(0)
LETTERS = "abcd"
SHORT, LONG = (16, 30), (16, 200)
GIVEN = {"task": "ctc", "size": "16x64", "normalize": "0,1", "lr": 1e-9}


class Reader(nn.Module):
    """Lines [n, 3, 16, W] -> scores [n, W / 4, 5], each of which sees 12 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, (16, 4), (16, 4)), nn.Conv1d(8, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x - 0.5).squeeze(2) * 20).transpose(1, 2)


def reader(folder: Path, free: bool = True) -> Path:
    """Return the module of a reader of lines of any width, or of 64 pixels."""
    torch.manual_seed(0)
    axes = {"x": {0: "n", **({3: "w"} if free else {})}, "y": {0: "n", **({1: "t"} if free else {})}}
    given = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": axes, "opset_version": 17, "dynamo": False}
    with quiet():
        torch.onnx.export(Reader().eval(), torch.zeros(2, 3, 16, 64), folder / "net.onnx", **given)
    generate(folder / "net.onnx", folder / "net.py")
    return folder / "net.py"


def line(path: Path, size: tuple[int, int]) -> Path:
    blocks = np.kron(RNG.integers(0, 256, (2, -(-size[1] // 10), 3), np.uint8), np.ones((8, 10, 1), np.uint8))
    Image.fromarray(blocks[:, : size[1]]).save(path)
    return path


def lines(folder: Path, *sizes: tuple[int, int]) -> Path:
    folder.mkdir()
    rows = [f"{line(folder / f'{n}.png', size).name},{LETTERS[n % 4]}" for n, size in enumerate(sizes)]
    (folder / "labels.csv").write_text("\n".join(["image,text", *rows]) + "\n")
    return folder


def by_hand(run: Path, path: Path, width: int) -> str:
    """The text of a line that lies at the left of gray, by onnxruntime."""
    whole = np.full((16, width, 3), 114, np.uint8)
    image = np.asarray(Image.open(path))
    whole[:, : image.shape[1]] = image
    (y,) = session_of(run).run(None, {"x": (whole.transpose(2, 0, 1)[None] / 255).astype(np.float32)})
    best = y[0].argmax(1)
    kept = [b for before, b in zip([0, *best[:-1]], best) if b and b != before]
    return "".join(LETTERS[b - 1] for b in kept)


def distance(one: str, other: str) -> int:
    """The edit distance."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on lines of up to 64 pixels, and its exported file."""
    folder = tmp_path_factory.mktemp("reader")
    return shipped(reader(folder), lines(folder / "data", *[SHORT] * 4), folder / "run", **GIVEN)


def test_a_long_line_is_read_at_the_width_that_it_needs(run: Path, tmp_path: Path) -> None:
    """Whatever is read beside it: 200 pixels are fed as 224, the next multiple of 32, and the others as 64."""
    paths = [line(tmp_path / f"{n}.png", size) for n, size in enumerate([LONG, SHORT, LONG, (16, 64), (16, 70)])]
    widths = [224, 64, 224, 64, 96]
    wanted = [by_hand(run, path, width) for path, width in zip(paths, widths)]
    learner = load(run, device="cpu")
    found = learner.predict(paths)
    assert [one.label for one in found] == wanted and len(wanted[0]) > 8
    assert [one.source for one in found] == list(map(str, paths)) and not learner.notes
    assert [load(run, device="cpu").predict(path)[0].label for path in paths] == wanted
    assert load(run, device="cpu").predict([Image.open(path) for path in paths])[0].label == wanted[0]
    whole = np.asarray(Image.open(paths[0]))
    assert load(run, device="cpu").predict(whole)[0].label == wanted[0], "an array"


def test_the_exported_file_says_it(run: Path, tmp_path: Path) -> None:
    path = line(tmp_path / "long.png", LONG)
    (found,) = need_same(run, path)
    assert found["y"] == by_hand(run, path, 224)
    (how,) = json.loads(entries(run)["onnxgen.preprocessing"])["inputs"]
    assert (how["width"], how["width_step"]) == (64, 32)


def test_an_evaluation_reads_them_so(run: Path, tmp_path: Path) -> None:
    data = lines(tmp_path / "data", LONG, SHORT, (16, 70), LONG, SHORT)
    read = [by_hand(run, data / f"{n}.png", width) for n, width in enumerate([224, 64, 96, 224, 64])]
    found = load(run, device="cpu").evaluate(data)
    assert found["character_error"] == pytest.approx(sum(map(distance, read, "abcda")) / 5)
    with pytest.raises(OnnxgenError, match="has no samples to test"):
        load(run, device="cpu").evaluate(data, part="test")
    long = lines(tmp_path / "long", LONG)  # of more characters than 64 pixels have steps for
    (long / "labels.csv").write_text(f"image,text\n0.png,{LETTERS * 5}\n")
    assert load(run, device="cpu").evaluate(long)["loss"] > 0


def test_lines_that_a_fixed_width_squeezes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = lines(tmp_path / "data", SHORT, LONG, SHORT, LONG)
    told = "2 lines longer than 16x64 squeezed to it, since the network takes that width alone -> cut long lines"
    plan = prepare(reader(tmp_path, free=False), data, Settings(**{**GIVEN, "val": 0, "device": "cpu"}))
    assert f"train: {told}" in "\n".join(plan.notes)
    out = shipped(tmp_path / "net.py", data, tmp_path / "run", **GIVEN)
    need_same(out, data / "1.png")
    capsys.readouterr()
    assert cli(["predict", str(out), *(str(data / f"{n}.png") for n in range(4))]) == 0
    assert f"note: {told}" in capsys.readouterr().err
    assert cli(["evaluate", str(out), "--part", "train"]) == 0
    assert f"note: {told}" in capsys.readouterr().err


def test_lines_that_only_the_training_squeezes_are_told(tmp_path: Path) -> None:
    data = lines(tmp_path / "data", SHORT, LONG, SHORT, LONG)
    plan = prepare(reader(tmp_path), data, Settings(**{**GIVEN, "val": 0, "device": "cpu"}))
    told = "train: 2 lines longer than 16x64 squeezed to it; predict gives each its own width -> --size 16x224"
    assert told in "\n".join(plan.notes)
