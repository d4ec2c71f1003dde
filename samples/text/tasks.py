"""Make three networks that read text, untrained, and texts for them: python -m samples.text.tasks [FOLDER]

`lines/`: which module two lines of Python are from; `masked/`: tokens that are hidden; `dates/`: dates as numbers.
"""

from __future__ import annotations

import csv
import datetime
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn

from samples.text.make import LENGTH, MODULES, SIZE, WIDTH, Block, export, language, network

SPECIAL = ("[PAD]", "[UNK]", "[START]", "[END]", "[MASK]")
SPOKEN, ISO = 20, 11  # tokens of a date in words, and of a date in numbers with its end
LETTERS = 64  # tokens of the vocabulary of dates, at most
FORMS = ("{day} {month} {year}", "{month} {day}, {year}", "{day}. {short} {year}")


class Classifier(nn.Module):
    """Token ids and their mask [batch, 64] -> scores of a class for each module [batch, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SIZE, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.block, self.norm, self.head = Block(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(MODULES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.float()
        x = self.block(self.tokens(input_ids) + self.positions.weight, mask[:, None, None])
        x = (self.norm(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(x)


class Reading(nn.Module):
    """Attention to another sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.q, self.kv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, read: Tensor, allowed: Tensor) -> Tensor:
        parts = (self.q(self.norm(x)), *self.kv(read).chunk(2, 2))
        q, k, v = (part.unflatten(2, (4, WIDTH // 4)).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(2, 3)) / (WIDTH // 4) ** 0.5 + (1 - allowed) * -10000.0
        return x + self.out((scores.softmax(3) @ v).transpose(1, 2).flatten(2))


class Dates(nn.Module):
    """Letters of a date [batch, 20], their mask, and the decoder's letters [batch, 11] -> scores of the next ones."""

    past: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(LETTERS, WIDTH)
        self.spoken, self.written = nn.Embedding(SPOKEN, WIDTH), nn.Embedding(ISO, WIDTH)
        self.encoder, self.decoder, self.reading, self.last = Block(), Block(), Reading(), Block()
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)
        self.register_buffer("past", torch.ones(ISO, ISO).tril())

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        allowed = attention_mask[:, None, None].float()
        read = self.encoder(self.tokens(input_ids) + self.spoken.weight, allowed)
        x = self.decoder(self.tokens(decoder_input_ids) + self.written.weight, self.past)
        x = self.last(self.reading(x, read, allowed), self.past)
        return self.head(self.norm(x))


def lines(folder: Path) -> None:
    """Write `lines.csv`, each line of code of four modules of Python with the next one, and a tokenizer."""
    rows: list[tuple[str, str, str]] = []
    for name in MODULES:
        text = Path(__import__(name).__file__ or "").read_text(encoding="utf-8")
        found = [line.strip() for line in text.splitlines() if len(line.strip()) > 12]
        rows += [(line, after, name) for line, after in zip(found[::2], found[1::2])]
    _write(folder / "lines.csv", ("line", "next", "module"), rows)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=[*SPECIAL])
    tokenizer.train_from_iterator((text for row in rows for text in row[:2]), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[START] $A [END]", pair="[START] $A [END] $B:1 [END]:1", special_tokens=[("[START]", 2), ("[END]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def dates(folder: Path, count: int = 3000) -> None:
    """Write `dates.csv`, drawn dates in words and as numbers, and a tokenizer of letters."""
    draw = random.Random(0)
    days = [datetime.date.fromordinal(draw.randrange(693_596, 767_009)) for _ in range(count)]  # of 1900 to 2100
    rows = [(_spoken(day, draw.choice(FORMS)), day.isoformat()) for day in days]
    _write(folder / "dates.csv", ("spoken", "iso"), rows)
    _write(folder / "new_dates.csv", ("spoken",), [("3 May 1999",), ("December 24, 2031",)])
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    trainer = trainers.WordLevelTrainer(vocab_size=LETTERS, special_tokens=[*SPECIAL])
    tokenizer.train_from_iterator((text for row in rows for text in row), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))


def _spoken(day: datetime.date, form: str) -> str:
    month = MONTHS[day.month - 1]
    return form.format(day=day.day, month=month, short=month[:3], year=day.year)


MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


def _write(path: Path, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


def make_lines(folder: Path) -> None:
    """Write the network of lines of code, untrained, and its data."""
    lines(folder)
    torch.manual_seed(0)
    export(Classifier(), folder / "network.onnx", input_ids=LENGTH, attention_mask=LENGTH)


def make_masked(folder: Path) -> None:
    """Write a network that reads hidden tokens, untrained, and Python's documentation."""
    language(folder, special=SPECIAL)
    network(folder, SIZE, causal=False)


def make_dates(folder: Path) -> None:
    """Write the network of dates, untrained, and its data."""
    dates(folder)
    torch.manual_seed(0)
    lengths = {"input_ids": SPOKEN, "attention_mask": SPOKEN, "decoder_input_ids": ISO}
    export(Dates(), folder / "network.onnx", **lengths)


def make(folder: Path) -> None:
    """Write networks and data to `folder/lines`, `folder/masked` and `folder/dates`."""
    for write in (make_lines, make_masked, make_dates):
        write(folder / write.__name__.removeprefix("make_"))


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
