"""The files that pages speak of, small: one name is one file on all pages."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from torch import Tensor, nn

from onnxgen.cli import run
from samples.tasks import goals
from samples.tasks.make import make
from samples.tasks.scenes import draw_scenes, write_yolo
from tests.conftest import ROOT
from tests.docs.blocks import blocks
from tests.heads import small
from tests.training import causal, streams, texts
from tests.training.shards import png, shard

MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"
RUN = "train model.py --data digits --max-steps 2 --out runs/digits"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(16, 16)
        self.register_buffer("distances", torch.arange(8.0)[:, None])

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.output(x + self.distances))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


class Bert(nn.Module):
    """The names of a transformer's modules, and little else."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.classifier = nn.Embedding(50, 16), Encoder(), nn.Linear(16, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.encoder(self.embeddings(ids))
        return self.classifier((x * mask[:, :, None]).mean(1))  # type: ignore[no-any-return]


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.box, self.score = nn.Conv2d(3, 4, 3), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.body(image)).mean((2, 3))
        return self.box(x), self.score(x)


def export(network: nn.Module, path: Path, outputs: list[str], **inputs: Tensor) -> None:
    """Through PyTorch's exporter, with a free batch."""
    torch.manual_seed(0)
    axes = {name: {0: "batch"} for name in (*inputs, *outputs)}
    torch.onnx.export(
        network.eval(), tuple(inputs.values()), path, input_names=list(inputs), output_names=outputs,
        dynamic_axes=axes, opset_version=17, dynamo=False,
    )  # fmt: skip


def bert(path: Path) -> None:
    export(Bert(), path, ["logits"], ids=torch.zeros(2, 8, dtype=torch.int64), mask=torch.ones(2, 8))


def detector(path: Path) -> None:
    export(Detector(), path, ["boxes", "scores"], image=torch.rand(2, 3, 16, 16))


def waves(path: Path) -> None:
    export(nn.Sequential(nn.Linear(64, 2)), path, ["scores"], wave=torch.rand(2, 64))


def speech(path: Path) -> None:
    """A network that is told the rate of its input."""
    text = "net (float[n, 64] wave, int64 sr) => (float[n, 64] y) { rate = Cast<to = 1>(sr) y = Div(wave, rate) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), path)


def people(path: Path) -> None:
    export(nn.Sequential(nn.Linear(4, 2)), path, ["scores"], x=torch.rand(2, 4))


def people_csv(path: Path) -> None:
    cities = ("Bern", "Basel", "Zug", "")
    lines = [f"{'' if i == 5 else 20 + i},{cities[i % 4]},{i % 2}" for i in range(40)]
    path.write_text("\n".join(["age,city,label", *lines]) + "\n")


def shards(path: Path) -> None:
    """Digits in tar files, those of a few for each part."""
    image = np.zeros((8, 8), np.uint8)
    for part in ("train", "val"):
        shard(path / f"{part}-000.tar", ({"png": png(image + i), "cls": str(i).encode()} for i in range(10)))


def tokenizer(path: Path) -> None:
    texts.tokenizer(path.parent)


def reads_text(path: Path) -> None:
    """A network that reads the tokens of `tokenizer.json`."""
    size = texts.size(path.with_name("tokenizer.json"))
    nets = {"reader": "SequenceClassification", "tagger": "TokenClassification"}
    if path.stem == "minilm":
        net: nn.Module = texts.Pooled(size)
    else:
        net = texts.WithMask(texts.bert(nets[path.stem], size) if path.stem in nets else texts.gpt2(size))
    texts.generated(net, path, ["input_ids", "attention_mask"])


def writes_text(path: Path) -> None:
    """A causal language model with a cache."""
    causal.export(causal.gpt2(texts.size(path.with_name("tokenizer.json"))), path)


def of_text(path: Path) -> None:
    words = [sentence.split() for sentence in texts.SENTENCES] * 5
    if path.suffix == ".txt":
        path.write_text("\n".join(map(" ".join, words)))
    elif path.suffix == ".jsonl":
        texts.objects(
            path, [{"tokens": row, "tags": ["NAME" if w[0].isupper() else "O" for w in row]} for row in words]
        )
    elif path.stem == "pairs":
        rows = [(" ".join(row), row[0], i % 2) for i, row in enumerate(words)]
        texts.table(path, ["premise", "hypothesis", "label"], rows)
    elif path.stem in ("sts", "questions", "new_pairs"):
        columns = ["anchor", "positive"] if path.stem == "questions" else ["sentence1", "sentence2"]
        scores = ["score"] if path.stem == "sts" else []
        rows = [(" ".join(row), " ".join(words[i - 1]), *[i % 6] * len(scores)) for i, row in enumerate(words)]
        texts.table(path, [*columns, *scores], rows)
    else:
        texts.table(path, ["review", "label"], [(" ".join(row), i % 2) for i, row in enumerate(words)])


def text_to_text(path: Path) -> None:
    """The networks of `samples/text/tasks.py`."""
    pytest.importorskip("tokenizers")
    from samples.text import tasks

    tasks.make(path)


def yolov8n(path: Path) -> None:
    """A small detector of five classes, with its decoding."""
    small.export(small.Small((4, 1, 5), small.yolox), path)


def shapes(path: Path) -> None:
    write_yolo(path, {"train": draw_scenes(8, seed=0), "val": draw_scenes(2, seed=1)})


def acme(path: Path) -> None:
    """Two nodes of an operator that no standard has, with one stored tensor for both."""
    beta = numpy_helper.from_array(np.linspace(0.5, 1.7, 8, dtype=np.float32) ** 2, "beta")
    node = [
        helper.make_node("Swish", [x, "beta"], [y], f"/{act}/Swish", domain="com.acme", alpha=2.0)
        for x, y, act in (("x", "h", "act1"), ("h", "y", "act2"))
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8]) for name in "xy")
    graph = helper.make_graph(node, "acme", [x], [y], [beta])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)


def quantised(path: Path) -> None:
    """The sample, quantised by onnxruntime."""
    from onnxruntime import quantization as q

    class Digits(q.CalibrationDataReader):  # type: ignore[misc]
        images = iter(np.random.default_rng(0).random((4, 2, 1, 28, 28), dtype=np.float32))

        def get_next(self) -> dict[str, Any] | None:
            return next(({"image": image} for image in self.images), None)

    q.quantize_static(MNIST, path, Digits())


def photos(path: Path) -> None:
    """Twelve images of two classes."""
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True)
        for number in range(12):
            Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(path / name / f"{number}.png")


def unlabelled(path: Path) -> None:
    """Twelve images without classes."""
    path.mkdir()
    draw = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(draw.integers(0, 256, (28, 28), dtype=np.uint8)).save(path / f"{number}.png")


DIGITS = {"three.png": "3", "seven.png": "7"}


def digit(path: Path) -> None:
    shutil.copy(ROOT / "samples/mnist/digits" / f"{DIGITS[path.name]}.png", path)


def digits(path: Path) -> None:
    """Images of two digits, each in a folder."""
    for name in DIGITS.values():
        (path / name).mkdir(parents=True)
        for number in range(4):
            Image.open(ROOT / "samples/mnist/digits" / f"{name}.png").rotate(number).save(path / name / f"{number}.png")


def text(path: Path) -> None:
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, 50, (40, 8))
    np.savez(path, tokens=tokens, attention=np.ones((40, 8), np.float32), label=draw.integers(0, 2, 40))


def boxes(path: Path) -> None:
    draw = np.random.default_rng(0)
    image = draw.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    np.savez(path, image=image, where=draw.random((40, 4), dtype=np.float32), what=draw.integers(0, 3, 40))


def made(path: Path) -> None:
    """A module, of the ONNX file of its name."""
    source = path.with_name("mnist.onnx" if path.stem == "model" else f"{path.stem}.onnx")
    give(source)
    assert run([str(source), "-o", str(path), "-q"]) == 0


def trained(path: Path) -> None:
    """The folder of a run."""
    give(path.parents[1] / "model.py")
    assert run([*RUN.split(), "-q"]) == 0


def copied(path: Path) -> None:
    """What a checkout has by that name."""
    source = ROOT / path.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, path)


def mine(path: Path) -> None:
    """Weights of one's own: those of the module."""
    give(path.with_name("model.py"))
    shutil.copy(path.with_name("model.safetensors"), path)


def project(path: Path) -> None:
    """A package of its own in the current folder: the sample, and a second file beside its modules."""
    (path.parent / "models").mkdir()
    give(path.parent / "models" / "mnist.onnx")
    (path.parent / "src" / "pkg").mkdir(parents=True)
    (path.parent / "src" / "pkg" / "__init__.py").touch()
    shutil.copy(ROOT / "samples/package/models/digits.onnx", path.parent / "src" / "pkg")
    (block,) = (b for b in blocks(ROOT / "docs" / "BUILDING.md")[:1])
    (path.parent / "pyproject.toml").write_text(block.text, encoding="utf-8")
    sys.path.insert(0, str(path.parent / "src"))


MAKERS: dict[str, Callable[[Path], None]] = {
    "mnist.onnx": lambda path: path.write_bytes(MNIST.read_bytes()) and None,
    "bert.onnx": bert,
    "llm.onnx": bert,
    "detector.onnx": detector,
    "yolov8n.onnx": yolov8n,
    "shapes": shapes,
    "waves.onnx": waves,
    "speech.onnx": speech,
    "people.onnx": people,
    "listener.onnx": lambda path: streams.export(streams.Listener(), path) and None,
    "calls": streams.calls,
    "people.csv": people_csv,
    "shards": shards,
    "acme.onnx": acme,
    "mnist-int8.onnx": quantised,
    **dict.fromkeys(("model.py", "bert.py", "detector.py", "waves.py", "people.py", "listener.py"), made),
    **dict.fromkeys(("reader.py", "tagger.py", "writer.py", "minilm.py"), reads_text),
    **dict.fromkeys(("reviews.csv", "pairs.csv", "sentences.jsonl", "book.txt"), of_text),
    **dict.fromkeys(("sts.csv", "questions.csv", "new_pairs.csv"), of_text),
    "tokenizer.json": tokenizer,
    "writer.onnx": writes_text,
    "prompts.txt": lambda path: path.write_text("the film was\na dog\n") and None,
    "mine.safetensors": mine,
    "photos": photos,
    "photos2": digits,
    "unlabelled": unlabelled,
    "teacher.onnx": lambda path: path.write_bytes(MNIST.read_bytes()) and None,
    **dict.fromkeys(DIGITS, digit),
    "tasks": make,
    "goals": goals.make,
    "texts": text_to_text,
    "text.npz": text,
    "boxes.npz": boxes,
    "digits": trained,
    "samples": copied,
    "project": project,
}


def give(path: Path) -> None:
    if not path.exists():
        MAKERS[path.name](path)


def objects() -> dict[str, Any]:
    """What the code of pages takes as yours: arrays, sets of them, a loader."""
    x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    some = torch.utils.data.TensorDataset(x, y)
    return {"x": x, "y": y, "train_set": some, "val_set": some, "loader": [(x, y % 2)]}
