"""optimum-onnx: small models of transformers for several tasks, and its optimiser and quantiser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exporters.sources import scratch

REQUIREMENTS = ["torch==2.13.0", "optimum-onnx[onnxruntime]", "onnxruntime", "onnxscript"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
ROWS = {"vocab_size": 50, "max_position_embeddings": 64}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64}
SEEN = {"image_size": 16, "patch_size": 4}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8, "vocab_size": 50}
# by a file's name: the model, its configuration, and the task
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertForSequenceClassification", SMALL | ROWS, "text-classification"),
    "bert_tokens": ("BertForTokenClassification", SMALL | ROWS, "token-classification"),
    "roberta": ("RobertaForMaskedLM", SMALL | ROWS, "fill-mask"),
    "distilbert": (
        "DistilBertForQuestionAnswering",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64} | ROWS,
        "question-answering",
    ),
    "electra": ("ElectraModel", SMALL | ROWS | {"embedding_size": 16}, "feature-extraction"),
    "gpt2": ("GPT2LMHeadModel", GPT, "text-generation"),
    "gpt2_past": ("GPT2LMHeadModel", GPT, "text-generation-with-past"),
    "llama_past": ("LlamaForCausalLM", SMALL | ROWS | {"num_key_value_heads": 2}, "text-generation-with-past"),
    "qwen2_past": ("Qwen2ForCausalLM", SMALL | ROWS | {"num_key_value_heads": 2}, "text-generation-with-past"),
    "t5": ("T5ForConditionalGeneration", T5, "text2text-generation"),
    "bart_past": ("BartForConditionalGeneration", BART | ROWS, "text2text-generation-with-past"),
    "vit": ("ViTForImageClassification", SMALL | SEEN, "image-classification"),
    "clip": (
        "CLIPModel",
        {"text_config": SMALL | ROWS, "vision_config": SMALL | SEEN, "projection_dim": 16},
        "zero-shot-image-classification",
    ),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
        "image-classification",
    ),
}


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each as its task asks (of some, several files); three optimised, and two quantised."""
    for name in MODELS:
        yield name, partial(_export, name)
    for name in ("bert", "roberta", "vit"):
        yield f"{name}_optimized", partial(_changed, name, "optimized")
    for name in ("bert", "vit"):
        yield f"{name}_quantized", partial(_changed, name, "quantized")


def _saved(name: str, folder: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    made, config, _ = MODELS[name]
    cls = getattr(transformers, made)
    cls(cls.config_class(**config)).save_pretrained(folder)


def _exported(name: str, source: Path, target: Path) -> None:
    from optimum.exporters.onnx import main_export

    _saved(name, source)
    main_export(str(source), str(target), task=MODELS[name][2], do_validation=False, no_post_process=False)


def _export(name: str, path: Path) -> None:
    with scratch() as folder:
        _exported(name, folder / "source", folder / "made")
        _keep(folder / "made", path)


def _changed(name: str, how: str, path: Path) -> None:
    from optimum.onnxruntime import AutoQuantizationConfig, ORTOptimizer, ORTQuantizer
    from optimum.onnxruntime.configuration import OptimizationConfig

    with scratch() as folder:
        _exported(name, folder / "source", folder / "made")
        if how == "optimized":
            config = OptimizationConfig(optimization_level=2)
            ORTOptimizer.from_pretrained(folder / "made").optimize(config, folder / "changed")
        else:
            options = AutoQuantizationConfig.avx512_vnni(is_static=False, per_channel=True)
            ORTQuantizer.from_pretrained(folder / "made").quantize(options, folder / "changed")
        _keep(folder / "changed", path)


def _keep(made: Path, path: Path) -> None:
    """One file as itself, several in a folder of its name."""
    found = sorted(made.glob("*.onnx"))
    if len(found) == 1:
        shutil.copy(found[0], path)
    else:
        path.with_suffix("").mkdir(exist_ok=True)
        for each in found:
            shutil.copy(each, path.with_suffix("") / each.name)
