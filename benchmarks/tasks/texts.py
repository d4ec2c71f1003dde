"""Rows of networks that read text. By hand, the library `tokenizers` makes the token ids."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.tasks.images import EACH, accuracy, cross_entropy, parted
from benchmarks.tasks.row import Batch, Given, Loss, Row
from onnxgen.training import open_model
from onnxgen.training.data import open_data
from onnxgen.training.settings import Settings
from samples.text import make, tasks

NONE = -100  # no token is predicted here
INPUTS = ("input_ids", "attention_mask")
CHARACTERS = 80_000
MASK, SPECIAL = tasks.SPECIAL.index("[MASK]"), len(tasks.SPECIAL)


def padded(rows: Sequence[Sequence[int]], length: int, value: int = 0) -> Tensor:
    return torch.tensor([[*row[:length], *[value] * (length - len(row))] for row in rows])


def of_tokens(rows: Sequence[Sequence[int]], y: Tensor, length: int = make.LENGTH) -> Batch:
    return {
        "input_ids": padded(rows, length),
        "attention_mask": padded([[1] * len(row) for row in rows], length),
        "y": y,
    }


def given(folder: Path, data: Path, parts: Sequence[Batch], inputs: tuple[str, ...] = INPUTS, **options: Any) -> Given:
    options["tokenizer"] = folder / "tokenizer.json"
    return Given(folder / "network.onnx", data, *parts, inputs, options)


def lines(folder: Path) -> Given:
    """Two columns of text, read as a pair."""
    tasks.make_lines(folder)
    with open(folder / "lines.csv", newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(make.LENGTH)
    kinds, parts = sorted({row[2] for row in rows}), []
    for part in parted(folder, names, rows):
        ids = [found.ids for found in tokenizer.encode_batch([(row[0], row[1]) for row in part])]
        parts.append(of_tokens(ids, torch.tensor([kinds.index(row[2]) for row in part])))
    return given(folder, folder / "parts", parts, target="module")


def tags(folder: Path) -> Given:
    """Words and a tag for each; the first token of a word has its tag."""
    make.code(folder)
    make.network(folder, len(make.TAGS), causal=False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = (folder / "code.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "parts").mkdir()
    parts = []
    for name, held in (("train", False), ("val", True)):
        some = [row for i, row in enumerate(rows) if (i % EACH == 0) == held]
        (folder / "parts" / f"{name}.jsonl").write_text("\n".join(some), encoding="utf-8")
        read = [json.loads(row) for row in some]
        found = tokenizer.encode_batch([row["tokens"] for row in read], is_pretokenized=True)
        labels = [
            [
                NONE if i and one.word_ids[i - 1] == word else make.TAGS.index(row["tags"][word])
                for i, word in enumerate(one.word_ids)
            ]
            for one, row in zip(found, read)
        ]
        parts.append(of_tokens([one.ids for one in found], padded(labels, make.LENGTH, NONE)))
    return given(folder, folder / "parts", parts)


def topics(folder: Path, special: Sequence[str] = ()) -> list[Batch]:
    """Write a text in two parts. Return their tokens, in blocks."""
    make.language(folder, CHARACTERS, special)
    text = (folder / "topics.txt").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (folder / "parts").mkdir()
    parts, cut = [], len(text) * 4 // 5
    for name, part in (("train", text[:cut]), ("val", text[cut:])):
        (folder / "parts" / f"{name}.txt").write_text(part, encoding="utf-8")
        ids = tokenizer.encode(part, add_special_tokens=False).ids
        rows = [ids[i : i + make.LENGTH] for i in range(0, len(ids), make.LENGTH)]
        parts.append(of_tokens(rows, padded(rows, make.LENGTH, NONE)))
    return parts


def language(folder: Path) -> Given:
    parts = topics(folder)
    make.network(folder, make.SIZE, causal=True)
    return given(folder, folder / "parts", parts)


def masked(folder: Path) -> Given:
    """The loop by hand masks on its own in training. In the validation, the tokens that `fit` masks are predicted."""
    parts = topics(folder, tasks.SPECIAL)
    make.network(folder, make.SIZE, causal=False)
    made = given(folder, folder / "parts", parts)
    settings = Settings(task="masked-language-model", tokenizer=folder / "tokenizer.json")
    held = open_data(made.data, open_model(made.module), settings).val
    assert held is not None
    found = held.take(range(len(held)), 0)
    known, real = found["labels"] != NONE, parts[1]["y"]
    assert torch.equal(found["labels"][known], real[known]) and abs(known.double().mean() - 0.15) < 0.02
    made.val.update(input_ids=found["input_ids"], y=found["labels"])
    return made


def hidden(batch: Batch) -> Batch:
    """Mask 15 % of the tokens: 80 % of these are hidden, 10 % are any token, 10 % stay (Devlin et al. 1810.04805)."""
    ids, chosen = batch["input_ids"], torch.rand(batch["input_ids"].shape) < 0.15
    chosen &= ids >= SPECIAL
    how = torch.rand(ids.shape)
    new = torch.where(how < 0.8, MASK, torch.where(how < 0.9, torch.randint(make.SIZE, ids.shape), ids))
    return {**batch, "input_ids": torch.where(chosen, new, ids), "y": batch["y"].masked_fill(~chosen, NONE)}


def dates(folder: Path) -> Given:
    """Text to text. The decoder starts with [START]; the tokenizer ends each text with [END]."""
    tasks.make_dates(folder)
    with open(folder / "dates.csv", newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file)
    tokenizer, parts = Tokenizer.from_file(str(folder / "tokenizer.json")), []
    for part in parted(folder, names, rows):
        spoken, iso = ([tokenizer.encode(row[i]).ids for row in part] for i in (0, 1))
        batch = of_tokens(spoken, padded(iso, tasks.ISO, NONE), tasks.SPOKEN)
        start = tasks.SPECIAL.index("[START]")
        parts.append({**batch, "decoder_input_ids": padded([[start, *ids[:-1]] for ids in iso], tasks.ISO)})
    named = {"target": "iso", "decoder_start": "[START]"}
    return given(folder, folder / "parts", parts, (*INPUTS, "decoder_input_ids"), **named)


def next_token(made: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(made[:, :-1].flatten(0, 1), batch["y"][:, 1:].flatten())


def each_token(made: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(made.flatten(0, 1), batch["y"].flatten())


def perplexity(loss: Loss) -> Any:
    return lambda made, batch: math.exp(loss(made.double(), batch))


def tag_accuracy(made: Tensor, batch: Batch) -> float:
    known = batch["y"] != NONE
    return float(accuracy_score(batch["y"][known], made.argmax(2)[known]))


def _plain(loss: Loss) -> Any:
    return lambda: loss


ROWS: Sequence[Row] = (
    Row("pairs", "auto", "accuracy", 6, 0.002, tasks.Classifier, lines, cross_entropy, accuracy),
    Row(
        "tags", "auto", "accuracy", 2, 0.002, lambda: make.Transformer(len(make.TAGS), causal=False), tags,
        _plain(each_token), tag_accuracy,
    ),
    Row(
        "language", "language-model", "perplexity", 3, 0.002, lambda: make.Transformer(make.SIZE, causal=True),
        language, _plain(next_token), perplexity(next_token),
    ),
    Row(
        "masked", "masked-language-model", "perplexity", 3, 0.002, lambda: make.Transformer(make.SIZE, causal=False),
        masked, _plain(each_token), perplexity(each_token), drawn=hidden,
    ),
    Row(
        "dates", "seq2seq", "perplexity", 5, 0.003, tasks.Dates, dates, _plain(each_token), perplexity(each_token),
    ),
)  # fmt: skip
