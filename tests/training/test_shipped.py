"""An exported file says all that a program needs: one that never imports onnxgen predicts as `onnxgen predict` does."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from onnxgen import generate
from onnxgen.training import load
from samples.deploy import predict as deployed
from samples.tasks import goals, make
from tests.training import causal, texts
from tests.training.shipping import RNG, entries, need_same, network, rows, session_of, shipped, shot, with_entry
from tests.zoo.export import quiet


def folders(folder: Path, size: tuple[int, int] = (30, 22)) -> Path:
    """Colour images of two classes."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / name / f"{number}.png")
    return folder


class Conv(nn.Module):
    """Images [n, C, H, W], or [n, H, W, C] with `last`, to scores of two classes."""

    def __init__(self, channels: int = 3, last: bool = False) -> None:
        super().__init__()
        self.conv, self.fc, self.last = nn.Conv2d(channels, 4, 3), nn.Linear(4, 2), last

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 3, 1, 2) if self.last else x
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


ALONE = """
import runpy
import sys
for name in ("onnxgen", "torch", "lightning", "onnx"):
    sys.modules[name] = None
sys.argv[1:] = ["tuned.onnx", "new.png"]
runpy.run_path("predict.py", run_name="__main__")
assert not {"scipy", "tokenizers"} & sys.modules.keys()
"""


def test_the_program_needs_little(tmp_path: Path) -> None:
    """It runs where neither onnxgen nor PyTorch is, and prints what `predict` says."""
    module = network(tmp_path, Conv(), torch.zeros(2, 3, 16, 20), names="image", output="scores")
    run = shipped(module, folders(tmp_path / "data"), tmp_path / "run")
    shutil.copy(deployed.__file__, run)
    shutil.copy(tmp_path / "data" / "dog" / "0.png", run / "new.png")
    made = subprocess.run([sys.executable, "-c", ALONE], cwd=run, capture_output=True, text=True, check=True)
    label, probabilities = ast.literal_eval(made.stdout)["scores"]
    (wanted,) = load(run, device="cpu").predict(run / "new.png")
    assert label == wanted.label and probabilities == pytest.approx(wanted.probabilities, rel=1e-5)


def test_the_program_says_how_it_is_called() -> None:
    made = subprocess.run([sys.executable, deployed.__file__], capture_output=True, text=True)
    assert made.returncode == 2 and made.stderr.startswith("usage: predict.py") and "Traceback" not in made.stderr


# ---- images ----------------------------------------------------------------------------------------------------------


def photos(folder: Path) -> list[Path]:
    """Pictures as they come: gray, with alpha, of 16 bits, a palette with a hole, turned by EXIF, and a large JPEG."""
    rgb = Image.fromarray(RNG.integers(0, 256, (41, 67, 3), dtype=np.uint8))
    smooth = rgb.resize((400, 260), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    hole = rgb.quantize(16)
    deep = Image.fromarray(RNG.integers(0, 65536, (20, 33), dtype=np.uint16))
    rgb.convert("L").save(folder / "gray.png")
    rgb.convert("RGBA").save(folder / "alpha.png")
    deep.save(folder / "deep.png")
    hole.save(folder / "hole.png", transparency=3)
    rgb.save(folder / "turned.png", exif=exif)
    smooth.save(folder / "large.jpg", quality=95)
    return sorted(folder.glob("*.*"))


@pytest.mark.parametrize(
    ("channels", "last", "settings"),
    [
        (3, False, {}),
        (3, True, {"normalize": "0.5/0.4/0.3,0.2/0.3/0.4"}),
        (1, False, {"resize": "letterbox", "normalize": "0,1"}),
        (4, False, {"resize": "letterbox", "normalize": "none"}),
        (3, True, {"resize": "corner", "normalize": "0.5/0.4/0.3,0.2/0.3/0.4", "channel_order": "bgr"}),
        (4, False, {"resize": "line", "beside": 127, "channel_order": "bgr"}),
    ],
)
def test_pictures(channels: int, last: bool, settings: dict[str, Any], tmp_path: Path) -> None:
    shape = (2, 16, 20, channels) if last else (2, channels, 16, 20)
    module = network(tmp_path, Conv(channels, last), torch.zeros(shape), names="image", output="scores")
    run = shipped(module, folders(tmp_path / "data"), tmp_path / "run", **settings)
    (tmp_path / "new").mkdir()
    for path in photos(tmp_path / "new"):
        need_same(run, path)


def test_digits_whose_white_is_16(tmp_path: Path) -> None:
    """The data had values from 0 to 16 and is fed as stored: so are the bytes of a picture, from 0 to 16."""
    module = network(tmp_path, Conv(1), torch.zeros(2, 1, 8, 8), names="image", output="scores")
    text = {"replace_head": 10, "normalize": "none"}
    run = shipped(module, "digits", tmp_path / "run", **text)
    Image.fromarray(RNG.integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / "new.png")
    need_same(run, tmp_path / "new.png")


class Bytes(nn.Module):
    """Takes bytes [n, 8, 8] and scales them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.float().flatten(1) / 255)


def test_an_input_of_bytes(tmp_path: Path) -> None:
    module = network(tmp_path, Bytes(), torch.zeros(2, 8, 8, dtype=torch.uint8), names="image", output="scores")
    run = shipped(module, folders(tmp_path / "data"), tmp_path / "run")
    need_same(run, folders(tmp_path / "new") / "cat" / "0.png")


# ---- tables ----------------------------------------------------------------------------------------------------------


CITIES = ("Bern", "Basel", "Z\u00fcrich", "")


def people(count: int, number: bool = False) -> list[str]:
    """age, city, floor, married, label: with empty cells."""
    lines = []
    for i in range(count):
        age = "" if i == 5 else f"{20 + i * 1.5:g}"
        last = f"{i * 100}" if number else ("yes", "no")[i % 2]
        lines.append(f"{age},{CITIES[i % 4]},{i % 3},{'true' if i % 4 else 'false'},{last}")
    return lines


NAMES = "age,city,floor,married,label"


@pytest.mark.parametrize("way", ["auto", {"age": "median+scale", "city": "frequent+ordinal", "floor": "onehot"}])
def test_a_table_with_empty_cells_and_text(way: Any, tmp_path: Path) -> None:
    net = nn.Linear(6, 2)
    run = shipped(
        network(tmp_path, net, torch.zeros(2, 6), output="scores"), rows(tmp_path / "people.csv", NAMES, people(40)),
        tmp_path / "run", table=way,
    )  # fmt: skip
    new = ["33,Bern,1,true,yes", ",,2,false,no", "NA,Basel,0,TRUE,yes"]
    need_same(run, rows(tmp_path / "new.csv", NAMES, new))
    for number, line in enumerate(new):
        need_same(run, rows(tmp_path / f"{number}.csv", NAMES, [line]))


def test_a_category_that_is_not_known_becomes_zeros(tmp_path: Path) -> None:
    run = shipped(
        network(tmp_path, nn.Linear(3, 2), torch.zeros(2, 3), output="scores"),
        rows(tmp_path / "people.csv", NAMES, people(40)), tmp_path / "run",
        table={"city": "onehot+zeros"}, inputs={"x": "city"},
    )  # fmt: skip
    need_same(run, rows(tmp_path / "new.csv", "city", ["Zug", "Bern", ""]))


def test_text_that_looks_like_numbers(tmp_path: Path) -> None:
    """A column was text in training, so a cell is text in a file where all of its cells look like numbers, too."""
    lines = [f"{('08001', 'A1', '7', 'NA')[i % 4]},{i % 2}" for i in range(40)]
    run = shipped(
        network(tmp_path, nn.Linear(4, 2), torch.zeros(2, 4), output="scores"),
        rows(tmp_path / "codes.csv", "code,label", lines), tmp_path / "run", table="auto",
    )  # fmt: skip
    for code in ("08001", "7", "NA"):
        need_same(run, rows(tmp_path / "new.csv", "code", [code]))


def test_a_regression(tmp_path: Path) -> None:
    run = shipped(
        network(tmp_path, nn.Linear(6, 1), torch.zeros(2, 6), output="price"),
        rows(tmp_path / "people.csv", NAMES, people(40, number=True)), tmp_path / "run", table="auto",
    )  # fmt: skip
    need_same(run, rows(tmp_path / "new.csv", NAMES, ["33,Bern,1,true,", ",,2,false,"]))


def test_columns_that_are_fed_as_they_are(tmp_path: Path) -> None:
    """Two inputs of columns; the order of the file's columns is another, and one is not used."""
    module = network(tmp_path, Two(), torch.zeros(2, 2), torch.zeros(2, 1), names="a b", output="scores")
    lines = [f"{i},{i % 5},{i / 7:.3f},{i % 2}" for i in range(40)]
    data = rows(tmp_path / "plain.csv", "one,two,three,label", lines)
    run = shipped(module, data, tmp_path / "run", inputs={"a": "one+three", "b": "two"})
    need_same(run, rows(tmp_path / "new.csv", "two,more,three,one", ["3,9,0.5,7", "1,9,0.25,2"]))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.fc(torch.cat((a, b), 1))


class Both(nn.Module):
    """x [n, 3] to scores of 4 classes, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.size = nn.Linear(3, 4), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.kind(x), self.size(x)


@pytest.mark.parametrize("target", [{"kind": "kind", "size": "size"}, {"size": "size"}])
def test_outputs_that_were_trained(target: dict[str, str], tmp_path: Path) -> None:
    module = network(tmp_path, Both(), torch.zeros(2, 3), output="kind size")
    x = RNG.standard_normal((40, 3)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, kind=np.arange(40) % 4, size=x.sum(1))
    np.savez(tmp_path / "new.npz", x=x[:4] * 2)
    run = shipped(module, tmp_path / "data.npz", tmp_path / "run", target=target)
    assert need_same(run, tmp_path / "new.npz")[0].keys() == target.keys()


class Turned(nn.Module):
    """x [length, n, 4], its batch axis second, and a rate [1] that no data gives."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.fc = nn.GRU(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor, rate: Tensor) -> Tensor:
        return self.fc(self.gru(x)[0][-1]) * rate


def test_a_batch_axis_elsewhere_and_a_constant(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with quiet():
        torch.onnx.export(
            Turned().eval(), (torch.zeros(5, 2, 4), torch.ones(1)), tmp_path / "net.onnx", dynamo=False,
            input_names=["x", "rate"], output_names=["scores"],
            dynamic_axes={"x": {1: "batch"}, "scores": {0: "batch"}},
        )  # fmt: skip
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    x = RNG.standard_normal((24, 5, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, label=np.arange(24) % 2)
    np.savez(tmp_path / "new.npz", x=x[:3] + 1)
    run = shipped(tmp_path / "net.py", tmp_path / "data.npz", tmp_path / "run", const={"rate": 3.0})
    need_same(run, tmp_path / "new.npz")


# ---- several labels, maps, tasks -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small networks of the samples, and their data."""
    folder = tmp_path_factory.mktemp("deployed")
    make.make_arrays(folder, np.random.default_rng(0))
    make.export(folder, ["masks", "labels", "words"])
    rng = np.random.default_rng(0)
    for name, count in (("lines", 40), ("corners", 20)):
        images, targets = getattr(goals, name)(count, rng)
        np.savez(folder / f"{name}.npz", image=images, **{"text" if name == "lines" else "keypoints": targets})
    goals.noisy(folder / "scans", 12, rng)
    goals.export(folder)
    for name in ("masks", "labels", "words", *goals.INPUTS):
        generate(folder / f"{name}.onnx", folder / f"{name}.py")
    return folder


GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "labels": ("labels.npz", {"classes": ("circle", "cross", "square")}),
    "masks": ("masks.npz", {}),
    "lines": ("lines.npz", {"task": "ctc", "lr": 1e-6}),
    "vectors": ("digits", {"task": "embedding"}),
    "corners": ("corners.npz", {"task": "keypoints", "lr": 0.01, "max_steps": 20}),
    "denoiser": ("scans", {"task": "image-to-image", "normalize": "0.1,0.5"}),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_picture_for_each_task(name: str, place: Path, tmp_path: Path) -> None:
    data, settings = GIVEN[name]
    where = data if data == "digits" else place / data
    run = shipped(place / f"{name}.py", where, tmp_path / "run", **settings)
    (found,) = need_same(run, shot(tmp_path / "new.png"))
    if name == "lines":
        assert next(iter(found.values())), "a text that is read"


def test_characters_that_another_training_read(place: Path, tmp_path: Path) -> None:
    """The file's own list has the characters that the outputs now stand for, in its own form."""
    shutil.copy(place / "lines.onnx", tmp_path)
    generate(with_entry(tmp_path / "lines.onnx", "character", "a\nb\nc"), tmp_path / "lines.py")
    run = shipped(tmp_path / "lines.py", place / "lines.npz", tmp_path / "run", task="ctc")
    kept = entries(run)
    assert kept["character"] == "\n".join("0123456789")
    assert json.loads(kept["onnxgen.classes"]) == list("0123456789")


def test_numbers_of_words(place: Path, tmp_path: Path) -> None:
    run = shipped(place / "words.py", place / "words.npz", tmp_path / "run")
    need_same(run, place / "new_words.npz")


class Pixels(nn.Module):
    """Images [n, 3, 8, 8] -> images [n, 8, 8, 3] of values from -1 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        return torch.tanh(self.conv(image)).permute(0, 2, 3, 1)


def test_images_with_their_colours_last(tmp_path: Path) -> None:
    module = network(tmp_path, Pixels(), torch.zeros(2, 3, 8, 8), names="image", output="picture")
    for name in ("input", "target"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(6):
            shot(tmp_path / "data" / name / f"{number}.png", (8, 8))
    run = shipped(module, tmp_path / "data", tmp_path / "run", task="image-to-image")
    need_same(run, shot(tmp_path / "new.png"))


class Points(nn.Module):
    """Images [n, 1, 24, 24] -> x and y of three points."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(24 * 24, 6)

    def forward(self, image: Tensor) -> Tensor:
        return self.fc(image.flatten(1)).reshape(-1, 3, 2)


def test_keypoints_as_numbers(place: Path, tmp_path: Path) -> None:
    module = network(tmp_path, Points(), torch.zeros(2, 1, 24, 24), names="image", output="points")
    run = shipped(module, place / "corners.npz", tmp_path / "run", task="keypoints")
    need_same(run, shot(tmp_path / "new.png"))


@pytest.mark.parametrize("ending", ["softmax", "log_softmax", "sigmoid", "one number", "margin"])
def test_what_an_output_ends_in(ending: str, tmp_path: Path) -> None:
    net: nn.Module = nn.Linear(2, 1 if ending in ("one number", "sigmoid") else 3)
    more = {"softmax": nn.Softmax(1), "log_softmax": nn.LogSoftmax(1), "sigmoid": nn.Sigmoid()}
    net = nn.Sequential(net, *([more[ending]] if ending in more else []))
    count = 2 if ending in ("one number", "sigmoid") else 3
    data = rows(tmp_path / "data.csv", "a,b,label", [f"{i},{i * i % 7},{'xyz'[i % count]}" for i in range(30)])
    module = network(tmp_path, net, torch.zeros(2, 2), output="scores")
    run = shipped(module, data, tmp_path / "run", **({"loss": "multi_margin_loss"} if ending == "margin" else {}))
    need_same(run, rows(tmp_path / "new.csv", "a,b", ["3,5", "17,1"]))


# ---- sounds ----------------------------------------------------------------------------------------------------------


class Listener(nn.Module):
    """Sounds [n, 1, 96] or [n, 96] to scores of 2 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.reshape(-1, 1, 96)).mean(2)


def tone(path: Path, length: int, rate: int = 800, channels: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(RNG.integers(-30000, 30000, (length, channels), dtype=np.int16).tobytes())
    return path


@pytest.mark.parametrize("shape", [(2, 1, 96), (2, 96)])
def test_sounds(shape: tuple[int, ...], tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for number in range(12):
        tone(tmp_path / "data" / "ab"[number % 2] / f"{number}.wav", 90 + number)
    module = network(tmp_path, Listener(), torch.zeros(shape), output="scores")
    run = shipped(module, tmp_path / "data", tmp_path / "run")
    for length, rate, channels in ((50, 800, 1), (300, 800, 2), (77, 800, 1), (200, 1200, 1), (70, 441, 2)):
        need_same(run, tone(tmp_path / "new.wav", length, rate, channels))


# ---- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["WithMask", "WithTypes"])
def test_classes_of_texts_and_of_pairs(kind: str, tmp_path: Path) -> None:
    size = texts.size(texts.tokenizer(tmp_path))
    names = ["input_ids", "attention_mask", "token_type_ids"][: 2 + (kind == "WithTypes")]
    net = getattr(texts, kind)(texts.bert("SequenceClassification", size))
    module = texts.generated(net, tmp_path / "net.py", names)
    lines = [(*texts.SENTENCES[i % 6 : i % 6 + 1], texts.SENTENCES[i % 5], "yn"[i % 2]) for i in range(12)]
    texts.table(tmp_path / "data.csv", ["one", "two", "label"], lines)
    more = {"inputs": {"input_ids": "one+two"}} if kind == "WithTypes" else {"inputs": {"input_ids": "one"}}
    run = shipped(module, tmp_path / "data.csv", tmp_path / "run", target="label", max_length=12, **more)
    for line in (("a cat", "the dog ran"), ("the film was good " * 4, "a mat"), ("12", "true")):
        texts.table(tmp_path / "new.csv", ["one", "two"], [line])
        need_same(run, tmp_path / "new.csv")


class Seven(nn.Module):
    """Seven tokens and their positions to scores of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(60, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return self.fc((self.embedding(input_ids) * (1 + position_ids[..., None])).mean(1))


def test_texts_of_a_fixed_length(tmp_path: Path) -> None:
    """Short ones are filled with padding, which counts: the network takes no mask."""
    texts.tokenizer(tmp_path)
    example = torch.ones(2, 7, dtype=torch.int64)
    module = network(tmp_path, Seven(), example, example, names="input_ids position_ids", output="scores")
    texts.table(tmp_path / "data.csv", ["text", "label"], [(texts.SENTENCES[i % 6], "yn"[i % 2]) for i in range(12)])
    run = shipped(module, tmp_path / "data.csv", tmp_path / "run")
    need_same(run, texts.table(tmp_path / "new.csv", ["text"], [("a dog",), ("the film was good and long and bad",)]))


def test_the_next_token_of_a_language_model_with_a_cache(tmp_path: Path) -> None:
    """A program goes on from there as it likes: how text is generated is no fact of the network."""
    texts.tokenizer(tmp_path, template=False)
    causal.export(causal.gpt2(texts.size(tmp_path / "tokenizer.json")), tmp_path / "net.onnx")
    generate(tmp_path / "net.onnx", tmp_path / "net.py")
    (tmp_path / "book.txt").write_text("\n".join(texts.SENTENCES * 4))
    run = shipped(tmp_path / "net.py", tmp_path / "book.txt", tmp_path / "run", task="language-model", max_length=10)
    (tmp_path / "new.txt").write_text("the film was\na dog\n")
    found = list(deployed.predict(session_of(run), str(tmp_path / "new.txt")))
    wanted = load(run, device="cpu").predict(tmp_path / "new.txt", max_new_tokens=1)
    assert [int(one["logits"][-1].argmax()) for one in found] == [int(one.answer.value[0]) for one in wanted]


def test_text_to_text(tmp_path: Path) -> None:
    """The scores of the first token of the other text."""
    size = texts.size(texts.tokenizer(tmp_path))
    inputs = ["input_ids", "attention_mask", "decoder_input_ids"]
    axes = {name: {0: "batch", 1: "other" if "decoder" in name else "length"} for name in inputs}
    with quiet():
        torch.onnx.export(
            texts.WithDecoder(texts.bart(size)), (torch.ones(2, 5, dtype=torch.int64),) * 3, tmp_path / "net.onnx",
            input_names=inputs, output_names=["logits"], dynamic_axes={**axes, "logits": {0: "batch", 1: "other"}},
            opset_version=17, dynamo=False,
        )  # fmt: skip
    generate(tmp_path / "net.onnx", module := tmp_path / "net.py")
    texts.table(tmp_path / "data.csv", ["one", "two"], [(s, s[::-1]) for s in texts.SENTENCES] * 2)
    settings = {"inputs": {"input_ids": "one"}, "target": "two", "decoder_start": "[SEP]"}
    run = shipped(module, tmp_path / "data.csv", tmp_path / "run", task="seq2seq", **settings)
    texts.table(tmp_path / "new.csv", ["one"], [("the cat sat",)])
    need_same(run, tmp_path / "new.csv")
