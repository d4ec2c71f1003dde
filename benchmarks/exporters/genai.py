"""onnxruntime-genai's builder: small decoders with random weights, in float32, float16 and 4 bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exporters.sources import scratch

REQUIREMENTS = ["torch==2.13.0", "onnxruntime-genai", "onnxruntime", "transformers", "onnx", "onnx-ir", "onnxscript"]
SMALL = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 80, "max_position_embeddings": 128, "head_dim": 16,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"eos_token_id": 1},
    "Phi3ForCausalLM": {"pad_token_id": 0, "original_max_position_embeddings": 128},
    "MistralForCausalLM": {"sliding_window": 16},
    "GemmaForCausalLM": {},
    "Gemma2ForCausalLM": {"query_pre_attn_scalar": 16, "sliding_window": 16},
    "Gemma3ForCausalLM": {"query_pre_attn_scalar": 16, "sliding_window": 16},
}


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each in float32 and in 4 bits; some for GPUs in float16, with 8-bit heads, and by other kernels."""
    for name in MODELS:
        short = name.removesuffix("ForCausalLM").lower()
        yield f"{short}_fp32", partial(_build, name, "fp32", "cpu", {})
        yield f"{short}_int4", partial(_build, name, "int4", "cpu", {"int4_block_size": 16})
    for name in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
        short = name.removesuffix("ForCausalLM").lower()
        yield f"{short}_fp16", partial(_build, name, "fp16", "cuda", {})
        yield f"{short}_int4_level4", partial(_build, name, "int4", "cpu", {"int4_accuracy_level": 4})
        yield f"{short}_int4_qdq", partial(_build, name, "int4", "cpu", {"use_qdq": 1})


def _build(name: str, precision: str, provider: str, options: dict[str, Any], path: Path) -> None:
    import torch
    import transformers
    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    torch.manual_seed(0)
    cls = getattr(transformers, name)
    with scratch() as folder:
        cls(cls.config_class(**SMALL, **MODELS[name])).save_pretrained(folder / "source")
        _tokenizer(folder / "source")
        where = "", str(folder / "source"), str(folder / "made"), precision, provider, str(folder / "cache")
        create_model(*where, **parse_extra_options(*where, [f"{key}={value}" for key, value in options.items()]))
        target = path.with_suffix("")
        target.mkdir(exist_ok=True)
        for each in (folder / "made").glob("model.onnx*"):
            shutil.copy(each, target / each.name)


def _tokenizer(folder: Path) -> None:
    """Of 64 letters; the builder copies it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {chr(48 + i): i for i in range(64)}
    made = Tokenizer(models.WordLevel(words, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="0").save_pretrained(folder)
