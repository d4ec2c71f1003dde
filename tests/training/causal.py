"""Causal language models of transformers with random weights, and their ONNX files as optimum exports them."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

from tests.support.merged import merged
from tests.training.texts import hf

IDS = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, "initializer_range": 0.3}
LENGTH, PAST = "sequence_length", "past_sequence_length"


def gpt2(vocabulary: int = 41) -> Any:
    torch.manual_seed(0)
    config = hf().GPT2Config(vocab_size=vocabulary, n_positions=48, n_embd=24, n_layer=2, n_head=3, **IDS)
    return hf().GPT2LMHeadModel(config).eval()


def llama(vocabulary: int = 43) -> Any:
    torch.manual_seed(1)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return hf().LlamaForCausalLM(hf().LlamaConfig(vocab_size=vocabulary, **sizes, **heads, **IDS)).eval()


class Exported(nn.Module):
    """Ids, mask, perhaps positions, and perhaps a key and a value for each layer -> scores, and the cache if any."""

    def __init__(self, net: Any, positions: bool, cache: str) -> None:
        super().__init__()
        self.net, self.positions, self.cache = net, positions, cache

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        given = {"attention_mask": attention_mask, "position_ids": rest[0] if self.positions else None}
        pasts = rest[self.positions :]
        before = hf().DynamicCache(list(zip(pasts[::2], pasts[1::2])) or None) if self.cache else None
        made = self.net(input_ids=input_ids, **given, past_key_values=before, use_cache=bool(self.cache))
        layers = made.past_key_values.layers if self.cache else ()
        return (made.logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))


def export(net: Any, path: Path, positions: bool = True, cache: str = "past") -> Path:
    """Export with a cache ("past"), without one (""), or a first step that only returns one ("first")."""
    config = net.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    size = config.hidden_size // config.num_attention_heads
    layers = [f"{i}.{part}" for i in range(config.num_hidden_layers) for part in ("key", "value")]
    past, new = (4 if cache == "past" else 0), 3
    names = ["input_ids", "attention_mask", *["position_ids"][: int(positions)]]
    given = [torch.ones(2, new, dtype=torch.int64), torch.ones(2, past + new, dtype=torch.int64)]
    given += [torch.arange(past, past + new).expand(2, -1)] if positions else []
    if past:
        names += [f"past_key_values.{layer}" for layer in layers]
        given += [torch.randn(2, heads, past, size) for _ in layers]
    outputs = ["logits", *(f"present.{layer}" for layer in layers if cache)]
    total = f"{PAST} + {LENGTH}" if past else LENGTH
    axes = {name: {0: "batch_size", 1: LENGTH} for name in (*names[:3], "logits")} | {
        name: {0: "batch_size", 2: PAST if "past" in name else total} for name in (*names, *outputs) if "." in name
    }
    axes["attention_mask"] = {0: "batch_size", 1: total}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Exported(net, positions, cache).eval(), tuple(given), path, dynamo=False, opset_version=17,
            input_names=names, output_names=outputs, dynamic_axes=axes,
        )  # fmt: skip
    return path


def export_merged(net: Any, path: Path) -> Path:
    """Export both variants, with and without a cache, as one file with `use_cache_branch`."""
    with tempfile.TemporaryDirectory() as folder:
        parts = [export(net, Path(folder) / f"{kind}.onnx", False, kind) for kind in ("past", "first")]
        onnx.save(merged(*map(onnx.load, parts)), path)
    return path


def greedy(path: Path, ids: Tensor, mask: Tensor, count: int, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the most probable tokens by a plain loop in onnxruntime, and their scores [batch, count, vocabulary].

    Args:
        layers: the shape of a past for one text, with 0 tokens.
    """
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [found.name for found in session.get_inputs()]
    cache = {name: np.zeros((len(ids), *layers), np.float32) for name in names if name.startswith("past")}
    whole, new, scores = ids, ids, []
    for step in range(count):
        positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -new.shape[1] :]
        known = {"input_ids": new, "attention_mask": mask, "position_ids": positions}
        feed = cache | {name: x.numpy() for name, x in known.items() if name in names}
        feed |= {"use_cache_branch": np.array([step > 0])} if "use_cache_branch" in names else {}
        logits, *present = session.run(None, feed)
        cache = dict(zip(cache, present))
        scores.append(torch.from_numpy(logits[:, -1]))
        following = scores[-1].argmax(1, keepdim=True)
        whole, mask = torch.cat([whole, following], 1), torch.cat([mask, torch.ones_like(following)], 1)
        new = following if cache else whole
    return whole, torch.stack(scores, 1)
