"""onnxruntime.transformers.optimizer: small models of transformers, exported by torch and fused for each type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exporters.sources import scratch

REQUIREMENTS = ["onnxruntime", "transformers", "torch==2.13.0", "onnx", "onnxscript", "sympy"]
# by the optimiser's name of a type: the model, its configuration, and what it is given
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
ROWS = {"vocab_size": 50, "max_position_embeddings": 32}
TYPES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("BertModel", SMALL | ROWS, "masked"),
    "bert_roberta": ("RobertaModel", SMALL | ROWS, "masked"),
    "bert_electra": ("ElectraModel", SMALL | ROWS | {"embedding_size": 16}, "masked"),
    "bert_distilbert": (
        "DistilBertModel", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64} | ROWS, "masked",
    ),
    "gpt2": ("GPT2Model", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 32}, "ids"),
    "phi": ("LlamaModel", SMALL | ROWS | {"num_key_value_heads": 2}, "ids"),
    "vit": ("ViTModel", SMALL | {"image_size": 16, "patch_size": 4}, "image"),
    "swin": ("SwinModel", {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2, "image_size": 16,
                           "patch_size": 2}, "image"),
    "clip": ("CLIPVisionModel", SMALL | {"image_size": 16, "patch_size": 4, "projection_dim": 16}, "image"),
    "bart": ("BartEncoder", {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 64,
                             **ROWS}, "ids"),
    "t5": ("T5EncoderModel", {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_ff": 64, "d_kv": 8, "vocab_size": 50},
           "ids"),
}  # fmt: skip


def files(out: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each type by torch's old exporter and by its new one; some in float16, some without a few of the fusions."""
    for name in TYPES:
        for dynamo in (False, True):
            yield f"{name}_{'dynamo' if dynamo else 'script'}", partial(_optimize, name, dynamo)
    for name in ("bert", "vit", "gpt2"):
        yield f"{name}_float16", partial(_optimize, name, False, half=True)
        yield f"{name}_level2", partial(_optimize, name, False, opt_level=2)
    for option in ("enable_gelu_approximation", "disable_attention", "use_mask_index", "use_multi_head_attention"):
        yield f"bert_{option}", partial(_optimize, "bert", False, option=option)


def export(name: str, dynamo: bool, path: Path) -> None:
    """A small model with random weights."""
    import importlib

    import torch
    import transformers

    made, config, kind = TYPES[name]
    torch.manual_seed(0)
    family = "bart" if made == "BartEncoder" else ""
    cls = getattr(importlib.import_module("transformers.models.bart") if family else transformers, made, None)
    cls = cls or importlib.import_module("transformers.models.bart.modeling_bart").BartEncoder
    options = {"attn_implementation": "eager", **({"use_cache": False} if kind == "ids" else {})}
    model = cls(cls.config_class(**config, **options)).eval()
    ids = torch.randint(3, 50, (2, 7))
    inputs: dict[str, Any] = {"input_ids": ids}
    if kind == "masked":
        inputs["attention_mask"] = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    if kind == "image":
        inputs = {"pixel_values": torch.randn(2, 3, 16, 16)}
    axes = {key: {0: "batch", **({1: "length"} if kind != "image" else {})} for key in inputs}
    torch.onnx.export(
        _Only(model), tuple(inputs.values()), str(path), input_names=list(inputs), output_names=["last_hidden_state"],
        opset_version=17 if not dynamo else None, dynamo=dynamo, **({"dynamic_axes": axes} if not dynamo else {}),
    )  # fmt: skip


def _Only(model: Any) -> Any:
    """Its first output."""
    import torch

    class First(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any, mask: Any = None) -> Any:
            key = model.main_input_name
            given = {key: first} if mask is None else {key: first, "attention_mask": mask}
            return self.model(**given, return_dict=True).last_hidden_state

    return First().eval()


def _optimize(
    name: str, dynamo: bool, path: Path, *, half: bool = False, opt_level: int | None = None, option: str = ""
) -> None:
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    kind = name.partition("_")[0]
    options = FusionOptions(kind)
    if option.startswith("disable"):
        options.enable_attention = False
    elif option == "use_mask_index":
        options.use_raw_attention_mask(False)
    elif option:
        setattr(options, option, True)
    with scratch() as folder:
        export(name, dynamo, folder / "source.onnx")
        sizes = {"num_heads": 4, "hidden_size": 32} if kind not in ("swin",) else {}
        made = optimizer.optimize_model(
            str(folder / "source.onnx"), kind, optimization_options=options, opt_level=opt_level, **sizes
        )
        if half:
            made.convert_float_to_float16(keep_io_types=True)
        made.save_model_to_file(str(path))
