"""Make the patterns of families that `onnxgen identify` reads (`onnxgen/identify/families.json`).

    python -m benchmarks.families OUT

Each class of `FAMILIES` is built twice, with two sets of sizes, and its steps are traced. A number that fits one
expression of the sizes both times becomes that expression.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.tracing import steps_of_module
from onnxgen.identify.families import NUMBER, value_of
from onnxgen.identify.steps import Bag

# Two sets of sizes: no number of one fits a wrong expression in both.
FIRST = {"d": 72, "f": 202, "h": 6, "L": 3, "k": 2, "e": 38, "p": 8, "s": 60, "g": 4, "b": 46}
SECOND = {"d": 160, "f": 326, "h": 10, "L": 7, "k": 5, "e": 54, "p": 4, "s": 100, "g": 8, "b": 82}
EXPRESSIONS = [
    *"dfhLkepsgb",
    *(f"{n}*{name}" for name in "dfhLesb" for n in (2, 3, 4, 6)),
    "d+2*k*d/h",
    "d*2/h",
    "d/h",
    "k*d/h",
    "2*h*s",
    "h*s",
    "3*h*s",
]
ENCODER = {"d": "hidden_size", "f": "intermediate_size", "h": "num_attention_heads", "L": "num_hidden_layers"}
WORDS = {"words": "vocab_size", "positions": "max_position_embeddings"}


@dataclass(frozen=True)
class Made:
    """How a class is built. `part`: what of it is traced."""

    name: str
    config: str
    sizes: dict[str, str] = field(default_factory=lambda: ENCODER)
    fixed: dict[str, Any] = field(default_factory=dict)
    hidden: dict[str, Any] = field(default_factory=dict)  # arguments that change no step
    tables: dict[str, str] = field(default_factory=dict)
    positions_of_words: bool = False
    shared: bool = False
    inputs: str = "ids"
    part: str = ""


ONE = {"decoder_layers": 1, "decoder_attention_heads": 2}
MOBILE = {**ENCODER, "e": "embedding_size", "s": "intra_bottleneck_size true_hidden_size"}
BART = {"d": "d_model", "f": "encoder_ffn_dim", "h": "encoder_attention_heads", "L": "encoder_layers"}
GPT2 = {"d": "n_embd", "f": "n_inner", "h": "n_head", "L": "n_layer"}
T5 = {"d": "d_model", "f": "d_ff", "h": "num_heads", "L": "num_layers", "s": "d_kv"}
DISTIL = {"d": "dim", "f": "hidden_dim", "h": "n_heads", "L": "n_layers"}
LLAMA = {**ENCODER, "k": "num_key_value_heads"}
PATCHES = {**ENCODER, "p": "patch_size"}
SOUND = {**ENCODER, "g": "num_conv_pos_embedding_groups"}
CACHE = {"use_cache": False}
TYPES = {**WORDS, "types": "type_vocab_size"}
DINO = {name: argument for name, argument in PATCHES.items() if name != "f"}
IMAGE = {"image_size": 32}
FAMILIES = [
    Made("BertModel", "BertConfig", tables=TYPES),
    Made("RobertaModel", "RobertaConfig", tables=TYPES, positions_of_words=True),
    Made("XLMRobertaModel", "XLMRobertaConfig", tables=TYPES, positions_of_words=True),
    Made("DistilBertModel", "DistilBertConfig", DISTIL, tables=WORDS),
    Made("MPNetModel", "MPNetConfig", tables=WORDS, positions_of_words=True),
    Made("ElectraModel", "ElectraConfig", {**ENCODER, "e": "embedding_size"}, tables=TYPES),
    Made("AlbertModel", "AlbertConfig", {**ENCODER, "e": "embedding_size"}, tables=TYPES, shared=True),
    Made(
        "DebertaV2Model",
        "DebertaV2Config",
        {**ENCODER, "b": "position_buckets"},
        fixed={
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
        },
        tables={"words": "vocab_size"},
    ),
    Made("GPT2Model", "GPT2Config", GPT2, hidden=CACHE, tables={"words": "vocab_size", "positions": "n_positions"}),
    Made("LlamaModel", "LlamaConfig", LLAMA, hidden=CACHE, tables={"words": "vocab_size"}),
    Made("MistralModel", "MistralConfig", LLAMA, hidden=CACHE, tables={"words": "vocab_size"}),
    Made("Qwen2Model", "Qwen2Config", LLAMA, hidden=CACHE, tables={"words": "vocab_size"}),
    Made("T5EncoderModel", "T5Config", T5, tables={"words": "vocab_size"}),
    Made("T5EncoderModel", "T5Config", T5, fixed={"feed_forward_proj": "gated-gelu"}, tables={"words": "vocab_size"}),
    Made("ViTModel", "ViTConfig", PATCHES, hidden=IMAGE, inputs="image"),
    Made("DeiTModel", "DeiTConfig", PATCHES, hidden=IMAGE, inputs="image"),
    Made("Dinov2Model", "Dinov2Config", DINO, hidden=IMAGE, inputs="image"),
    Made("CLIPVisionModel", "CLIPVisionConfig", PATCHES, hidden=IMAGE, inputs="image"),
    Made("CLIPTextModel", "CLIPTextConfig", tables=WORDS),
    Made("SiglipVisionModel", "SiglipVisionConfig", PATCHES, hidden=IMAGE, inputs="image"),
    Made("Wav2Vec2Model", "Wav2Vec2Config", SOUND, inputs="sound"),
    Made("HubertModel", "HubertConfig", SOUND, inputs="sound"),
    Made("WhisperModel", "WhisperConfig", BART, hidden=ONE, inputs="mel", part="encoder"),
    Made("BartModel", "BartConfig", BART, hidden=ONE, tables=WORDS, part="encoder"),
    Made("MobileBertModel", "MobileBertConfig", MOBILE, tables=TYPES),
]


def traced(made: Made, sizes: dict[str, int]) -> Bag:
    """Return the steps of a class with these sizes, without a head."""
    import transformers

    given = {name: sizes[size] for size, names in made.sizes.items() for name in names.split()}
    config = getattr(transformers, made.config)(**{**made.hidden, **given, **made.fixed})
    module = getattr(transformers, made.name)(config)
    module = module.get_submodule(made.part) if made.part else module
    inputs = {
        "ids": lambda: torch.randint(5, 90, (1, 12)),
        "image": lambda: torch.zeros(1, 3, 32, 32),
        "sound": lambda: torch.zeros(1, 8000),
        "mel": lambda: torch.zeros(1, 80, 3000),
    }[made.inputs]()
    return steps_of_module(First(module), inputs).body(0)


class First(torch.nn.Module):
    """A module whose result is its first one."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.module(x)[0]
        return result


def pattern(first: Bag, second: Bag) -> list[str]:
    """Return the lines of a pattern. Raises `ValueError` if a number fits no expression."""
    left = Counter(second)
    lines = []
    for label, count in first.items():
        found = next((line for other in left if (line := _line(label, count, other, left[other]))), None)
        if found is None:
            raise ValueError(f"{count} of {label}: none of {[(o, c) for o, c in left.items()]}")
        line, other = found
        del left[other]
        lines.append(line)
    if left:
        raise ValueError(f"more: {dict(left)}")
    return sorted(lines)


def _line(label: str, count: int, other: str, there: int) -> tuple[str, str] | None:
    if NUMBER.sub("#", label) != NUMBER.sub("#", other):
        return None
    texts = [_text(a, b) for a, b in zip(*(map(int, NUMBER.findall(t)) for t in (label, other)), strict=True)]
    times = _count(count, there)
    if times is None or None in texts:
        return None
    filled = iter(texts)
    return f"{times}: " + NUMBER.sub(lambda _: "{" + str(next(filled)) + "}", label), other


def _text(first: int, second: int) -> str | None:
    for text in EXPRESSIONS:
        if value_of(text, FIRST) == first and value_of(text, SECOND) == second:
            return text
    return str(first) if first == second else None


def _count(first: int, second: int) -> str | None:
    if first == second:
        return str(first)
    times, rest = divmod(second - first, SECOND["L"] - FIRST["L"])
    more = first - times * FIRST["L"]
    return None if rest or times < 1 else (f"{times}*L" if times > 1 else "L") + (f"{more:+}" if more else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    patterns: list[list[str]] = []
    entries = []
    for made in FAMILIES:
        try:
            lines = pattern(traced(made, FIRST), traced(made, SECOND))
        except Exception as error:  # whatever a class raises with such sizes
            print(f"{made.name}: {type(error).__name__}: {str(error)[:700]}", file=sys.stderr)
            continue
        if lines not in patterns:
            patterns.append(lines)
        used = {
            name for line in lines for name in re.findall("[a-zA-Z]+", "".join(re.findall(r"\{[^}]*\}|^[^:]*", line)))
        }
        entries.append(
            {
                "name": f"{made.name}.{made.part}".rstrip("."),
                "config": made.config,
                "library": "transformers",
                "sizes": {size: name for size, name in made.sizes.items() if name and size in used},
                "fixed": made.fixed,
                "tables": made.tables,
                "positions_of_words": made.positions_of_words,
                "shared": made.shared,
                "pattern": patterns.index(lines),
            }
        )
    version = importlib.metadata.version("transformers")
    text = json.dumps({"made": f"transformers {version}", "families": entries, "patterns": patterns}, indent=1)
    given.out.write_text(text + "\n", encoding="utf-8")
    print(f"{len(entries)} families, {len(patterns)} patterns", file=sys.stderr)


if __name__ == "__main__":
    main()
