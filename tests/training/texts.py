"""A tokenizer that is trained here, and tiny networks of transformers that read its tokens."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnxgen import generate

SENTENCES = (
    "the cat sat on the mat",
    "a dog ran in the park",
    "the film was good",
    "the film was bad and long",
    "a good dog",
    "Anna met Tom in Bern",
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def hf() -> Any:
    return pytest.importorskip("transformers")


def tokenizer(folder: Path, template: bool = True, pieces: bool = False) -> Path:
    """Write `tokenizer.json`: of whole words, or of pieces of words; with [CLS] and [SEP], or without."""
    library = pytest.importorskip("tokenizers")
    models, trainers = library.models, library.trainers
    made = library.Tokenizer(models.WordPiece(unk_token="[UNK]") if pieces else models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    if pieces:
        letters = sorted({letter for text in SENTENCES for letter in text if letter != " "})
        names = [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), "the", "##at"]
        made.model = models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]")
    else:
        made.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=SPECIAL))
    made.add_special_tokens(SPECIAL)
    if template:
        made.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def theirs(file: Path, texts: Sequence[Any], pairs: Sequence[str] | None = None, **given: Any) -> Any:
    """Return what transformers makes of texts, padded."""
    fast = hf().PreTrainedTokenizerFast(tokenizer_file=str(file), pad_token="[PAD]", mask_token="[MASK]")
    return fast(list(texts), pairs, padding=True, return_tensors="pt", return_token_type_ids=True, **given)


def size(file: Path) -> int:
    library = pytest.importorskip("tokenizers")
    return int(library.Tokenizer.from_file(str(file)).get_vocab_size())


class Net(nn.Module):
    """A network of transformers that returns its scores; the arguments of `forward` are the inputs."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net


class WithMask(Net):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.net(input_ids=input_ids, attention_mask=attention_mask).logits


class WithTypes(Net):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.net(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


class WithPositions(Net):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        given = {"attention_mask": attention_mask, "position_ids": position_ids}
        return self.net(input_ids=input_ids, use_cache=False, **given).logits


class WithDecoder(Net):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        given = {"attention_mask": attention_mask, "decoder_input_ids": decoder_input_ids}
        return self.net(input_ids=input_ids, use_cache=False, **given).logits


class Pooled(nn.Module):
    """Token ids and a mask to the mean of the tokens' vectors, which see each other."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.query, self.out = nn.Embedding(vocabulary, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, real = self.embed(input_ids), attention_mask[:, :, None].float()
        seen = (self.query(x) @ x.transpose(1, 2)).masked_fill(attention_mask[:, None] == 0, -1e9).softmax(-1)
        x = self.out(x + seen @ x)
        return (x * real).sum(1) / real.sum(1)


def bert(kind: str, vocabulary: int, labels: int = 2) -> Any:
    """Return `BertFor{kind}` with random weights, larger than usual so that every token matters."""
    torch.manual_seed(0)
    names = "hidden_dropout_prob", "attention_probs_dropout_prob"
    config = hf().BertConfig(
        vocab_size=vocabulary, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=24, num_labels=labels, initializer_range=0.3, **dict.fromkeys(names, 0.0),
    )  # fmt: skip
    return getattr(hf(), f"BertFor{kind}")(config).eval()


def gpt2(vocabulary: int) -> Any:
    torch.manual_seed(0)
    names = "resid_pdrop", "embd_pdrop", "attn_pdrop"
    config = hf().GPT2Config(
        vocab_size=vocabulary, n_positions=24, n_embd=16, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=3,
        initializer_range=0.3, **dict.fromkeys(names, 0.0),
    )  # fmt: skip
    return hf().GPT2LMHeadModel(config).eval()


def bart(vocabulary: int) -> Any:
    torch.manual_seed(0)
    config = hf().BartConfig(
        vocab_size=vocabulary, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=24, dropout=0.0,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, init_std=0.3,
    )  # fmt: skip
    return hf().BartForConditionalGeneration(config).eval()


def generated(net: nn.Module, path: Path, inputs: Sequence[str], dims: str = "length") -> Path:
    """Export a network whose inputs are token ids, masks and segments [batch, length], and generate its module."""
    ones = torch.ones(2, 5, dtype=torch.int64)
    given = tuple(torch.zeros_like(ones) if name == "token_type_ids" else ones for name in inputs)
    rank = net(*given).ndim
    axes = {name: {0: "batch"} | ({1: "length"} if dims else {}) for name in inputs}
    axes["logits"] = {0: "batch"} | ({1: "length"} if dims and rank == 3 else {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, given, path.with_suffix(".onnx"), dynamo=False, opset_version=17, input_names=list(inputs),
            output_names=["logits"], dynamic_axes=axes,
        )  # fmt: skip
    generate(path.with_suffix(".onnx"), path, force=True)
    return path


def table(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def objects(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
