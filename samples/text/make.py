"""Networks, texts and tokenizers of the sample, all made here: what Python brings is the text."""

from __future__ import annotations

import io
import json
import keyword
import tokenize
import warnings
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn

LENGTH, SIZE, WIDTH = 64, 400, 64  # tokens of a block, tokens of the vocabulary, features
MODULES = ("calendar", "configparser", "csv", "shlex")
TAGS = ("attribute", "call", "keyword", "name", "number", "operator", "string")
_KINDS = {tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.OP: "operator"}


class Block(nn.Module):
    """Attention and two linear layers, with the norms before them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (4, WIDTH // 4)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        scores = (q @ k.transpose(2, 3)) / (WIDTH // 4) ** 0.5 + (1 - allowed) * -10000.0
        x = x + self.out((scores.softmax(3) @ v).transpose(1, 2).flatten(2))
        return x + self.fc2(nn.functional.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """Token ids and their mask [batch, 64] -> scores [batch, 64, classes] of each token.

    A causal one sees only the tokens before.
    """

    past: Tensor

    def __init__(self, classes: int, causal: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(SIZE, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)
        ones = torch.ones(LENGTH, LENGTH)
        self.register_buffer("past", ones.tril() if causal else ones)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.positions.weight
        allowed = attention_mask[:, None, None].float() * self.past
        for block in self.blocks:
            x = block(x, allowed)
        return self.head(self.norm(x))


def language(folder: Path, characters: int = 120_000, special: Sequence[str] = ()) -> None:
    """Write `topics.txt`, Python's own documentation, and a tokenizer of pieces of words (byte-level BPE).

    `special` are tokens that are no text.
    """
    text = "\n".join(topics[name] for name in sorted(topics))[:characters]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "topics.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, initial_alphabet=letters, special_tokens=[*special])
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def code(folder: Path) -> None:
    """Write `code.jsonl`, lines of Python's library with a tag for each token, and a tokenizer of letters.

    The tokens are pieces of a few letters: the network must read names and their neighbours.
    """
    rows = []
    for name in MODULES:
        source = Path(__import__(name).__file__ or "").read_text(encoding="utf-8")
        rows += _tagged(source)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=["[PAD]", "[UNK]"])
    tokenizer.train_from_iterator((" ".join(row["tokens"]) for row in rows), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def _tagged(source: str) -> list[dict[str, list[str]]]:
    """Return the tokens of each logical line of 4 to 30 tokens, and their tags."""
    rows, tokens = [], []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, *_KINDS) and " " not in token.string and "\n" not in token.string:
            tokens.append(token)
        elif token.type == tokenize.NEWLINE:
            words = [one.string for one in tokens]
            if 4 <= len(words) <= 30:
                around = zip(["", *words], tokens, [*words[1:], ""])
                rows.append({"tokens": words, "tags": [_tag(before, one, after) for before, one, after in around]})
            tokens = []
    return rows


def _tag(before: str, token: tokenize.TokenInfo, after: str) -> str:
    if token.type != tokenize.NAME:
        return _KINDS[token.type]
    if keyword.iskeyword(token.string):
        return "keyword"
    return "call" if after == "(" else "attribute" if before == "." else "name"


def network(folder: Path, classes: int, causal: bool) -> Transformer:
    """Export a new network to `network.onnx`, and return it."""
    torch.manual_seed(0)
    made = Transformer(classes, causal)
    export(made, folder / "network.onnx", input_ids=LENGTH, attention_mask=LENGTH)
    return made


def export(net: nn.Module, path: Path, **lengths: int) -> None:
    """Export a network whose inputs have a number for each token. `lengths` are those of the inputs, by name."""
    ones = tuple(torch.ones(2, length, dtype=torch.int64) for length in lengths.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the legacy exporter says that it is the legacy exporter
        torch.onnx.export(
            net.eval(), ones, path, dynamo=False, opset_version=17, input_names=[*lengths], output_names=["logits"],
            dynamic_axes={name: {0: "batch"} for name in (*lengths, "logits")},
        )  # fmt: skip
