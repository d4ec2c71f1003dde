"""The networks of `benchmarks.transplants`, and instances of the same classes that are other networks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """How a network is made, and what it takes."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Wrong:
    """An instance that is another network.

    Attributes:
        what: differs.
        where: a pattern of the paths of modules that differ.
        form: of the file.
    """

    what: str
    make: Callable[[], nn.Module]
    where: str
    form: str = "torchscript"


def _image(size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(2, 3, size, size),)


def _tokens() -> tuple[Tensor, ...]:
    return (torch.randint(3, 100, (2, 9)),)


def _masked() -> tuple[Tensor, ...]:
    return torch.randint(3, 100, (2, 9)), torch.ones(2, 9, dtype=torch.long)


def vision(name: str, **more: Any) -> Callable[[], nn.Module]:
    """A network of torchvision."""
    return lambda: getattr(importlib.import_module("torchvision.models"), name)(weights=None, num_classes=10, **more)


def segmented(name: str) -> Callable[[], nn.Module]:
    models = "torchvision.models.segmentation"
    return lambda: getattr(importlib.import_module(models), name)(weights=None, weights_backbone=None, num_classes=5)


def timm(name: str, **more: Any) -> Callable[[], nn.Module]:
    """A network of timm."""
    return lambda: importlib.import_module("timm").create_model(
        name, **{"pretrained": False, "num_classes": 10, **more}
    )


SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}


def face(model: str, config: str, small: dict[str, Any] | None = None, **more: Any) -> Callable[[], nn.Module]:
    """A network of transformers."""

    def make() -> nn.Module:
        library = importlib.import_module("transformers")
        settings = getattr(library, config)(**{**(SMALL if small is None else small), **more})
        return getattr(library, model)(settings)  # type: ignore[no-any-return]

    return make


GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "use_cache": False}
T5 = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64, "vocab_size": 100}
DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100}
VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SEGFORMER = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}
WAV2VEC2 = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16,) * 3,
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
VITS = {"img_size": 64, "depth": 2}
SWIN = {"img_size": 56, "depths": (1, 1, 1, 1)}

NETWORKS: dict[str, Network] = {
    "tv.resnet18": Network(vision("resnet18"), _image(64)),
    "tv.mobilenet_v2": Network(vision("mobilenet_v2"), _image(64)),
    "tv.mobilenet_v3_small": Network(vision("mobilenet_v3_small"), _image(64)),
    "tv.squeezenet1_1": Network(vision("squeezenet1_1"), _image(64)),
    "tv.densenet121": Network(vision("densenet121"), _image(64)),
    "tv.shufflenet": Network(vision("shufflenet_v2_x0_5"), _image(64)),
    "tv.efficientnet_b0": Network(vision("efficientnet_b0"), _image(64)),
    "tv.googlenet": Network(vision("googlenet", init_weights=False, aux_logits=False), _image(64)),
    "tv.mnasnet0_5": Network(vision("mnasnet0_5"), _image(64)),
    "tv.regnet_y_400mf": Network(vision("regnet_y_400mf"), _image(64)),
    "tv.convnext_tiny": Network(vision("convnext_tiny"), _image(64)),
    "tv.lraspp": Network(segmented("lraspp_mobilenet_v3_large"), _image(64)),
    "tm.vit": Network(timm("vit_tiny_patch16_224", **VITS), _image(64)),
    "tm.deit": Network(timm("deit_tiny_distilled_patch16_224", **VITS), _image(64)),
    "tm.resnet10t": Network(timm("resnet10t"), _image(64)),
    "tm.mobilenetv3": Network(timm("mobilenetv3_small_050"), _image(64)),
    "tm.ghostnet": Network(timm("ghostnet_050"), _image(64)),
    "tm.gmlp": Network(timm("gmlp_ti16_224", img_size=64), _image(64)),
    "tm.mixer": Network(timm("mixer_s32_224", img_size=64), _image(64)),
    "tm.resmlp": Network(timm("resmlp_12_224", img_size=64), _image(64)),
    "tm.poolformer": Network(timm("poolformer_s12"), _image(64)),
    "tm.swin": Network(timm("swin_tiny_patch4_window7_224", **SWIN), _image(56)),
    "tm.levit": Network(timm("levit_128s"), _image(224)),
    "tm.edgenext": Network(timm("edgenext_xx_small"), _image(64)),
    "tm.rexnet": Network(timm("rexnet_100"), _image(64)),
    "tm.hrnet": Network(timm("hrnet_w18_small"), _image(64)),
    "tm.mobilevit": Network(timm("mobilevit_xxs"), _image(64)),
    "hf.bert": Network(face("BertModel", "BertConfig"), _tokens),
    "hf.bert_masked": Network(face("BertModel", "BertConfig"), _masked),
    "hf.bert_classes": Network(face("BertForSequenceClassification", "BertConfig"), _tokens),
    "hf.bert_words": Network(face("BertForMaskedLM", "BertConfig"), _tokens),
    "hf.roberta": Network(face("RobertaModel", "RobertaConfig", pad_token_id=1), _tokens),
    "hf.distilbert": Network(face("DistilBertModel", "DistilBertConfig", DISTIL), _tokens),
    "hf.electra": Network(face("ElectraModel", "ElectraConfig", embedding_size=16), _tokens),
    "hf.albert": Network(face("AlbertModel", "AlbertConfig", embedding_size=16), _tokens),
    "hf.mobilebert": Network(
        face(
            "MobileBertModel",
            "MobileBertConfig",
            embedding_size=16,
            intra_bottleneck_size=16,
            true_hidden_size=16,
        ),
        _tokens,
    ),
    "hf.gpt2": Network(face("GPT2LMHeadModel", "GPT2Config", GPT2), _masked),
    "hf.llama": Network(face("LlamaModel", "LlamaConfig", num_key_value_heads=2, use_cache=False), _masked),
    "hf.t5": Network(face("T5EncoderModel", "T5Config", T5), _tokens),
    "hf.vit": Network(face("ViTModel", "ViTConfig", VIT), _image(32)),
    "hf.segformer": Network(face("SegformerModel", "SegformerConfig", SEGFORMER), _image(64)),
    "hf.wav2vec2": Network(face("Wav2Vec2Model", "Wav2Vec2Config", WAV2VEC2), lambda: (torch.randn(2, 2000),)),
}

# ---- other networks --------------------------------------------------------------------------------------------------


def edited(make: Callable[[], nn.Module], **parts: Any) -> Callable[[], nn.Module]:
    """A network with other modules in some places. A name has __ for a dot; a module is made by a function."""

    def made() -> nn.Module:
        module = make()
        for path, part in parts.items():
            owner, _, name = path.replace("__", ".").rpartition(".")
            setattr(module.get_submodule(owner), name, part())
        return module

    return made


class RectifiedFirst(nn.Module):
    """A block of a ResNet whose activation comes before the sum."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = block.conv1, block.bn1, block.relu
        self.conv2, self.bn2 = block.conv2, block.bn2

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))  # type: ignore[no-any-return]


def _reordered(make: Callable[[], nn.Module], path: str) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        module = make()
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, RectifiedFirst(module.get_submodule(path)))
        return module

    return made


def _wide_norm(size: int) -> nn.Module:
    return nn.BatchNorm2d(size, eps=1e-3)


def _others(where: str, make: Callable[..., Callable[[], nn.Module]], **cases: Any) -> list[Wrong]:
    """Instances with one other argument each: NAME=VALUE, or NAME=(VALUE, PLACE) where the place is another one."""
    found = []
    for name, value in cases.items():
        value, place = value if isinstance(value, tuple) else (value, where)
        found.append(Wrong(f"{name}={value}", make(**{name: value}), place))
    return found


def _of_face(model: str, config: str, small: dict[str, Any] | None = None, **own: Any) -> Any:
    return lambda **more: face(model, config, small, **{**own, **more})


def _convolutions() -> dict[str, list[Wrong]]:
    resnet, mobile, squeeze = vision("resnet18"), vision("mobilenet_v2"), vision("squeezenet1_1")
    return {
        "tv.resnet18": [
            Wrong("resnet34", vision("resnet34"), "layer1"),
            Wrong("resnet50", vision("resnet50"), "layer1"),
            Wrong("12 classes", lambda: vision_of(12), "fc"),
            Wrong("eps=1e-3", vision("resnet18", norm_layer=_wide_norm), "bn1", "training"),
            Wrong("SiLU", edited(resnet, layer2__0__relu=nn.SiLU), r"layer2\.0"),
            Wrong("average pool", edited(resnet, maxpool=lambda: nn.AvgPool2d(3, 2, 1)), "maxpool"),
            Wrong("maximum at the end", edited(resnet, avgpool=lambda: nn.AdaptiveMaxPool2d(1)), "avgpool"),
            Wrong("padding", edited(resnet, conv1=lambda: nn.Conv2d(3, 64, 7, 2, 2, bias=False)), "conv1"),
            Wrong("kernel", edited(resnet, conv1=lambda: nn.Conv2d(3, 64, 5, 2, 2, bias=False)), "conv1"),
            Wrong(
                "groups",
                edited(resnet, layer1__0__conv2=lambda: nn.Conv2d(64, 64, 3, 1, 1, groups=2, bias=False)),
                r"layer1\.0\.conv2",
            ),
            Wrong("order of a residual", _reordered(resnet, "layer1.1"), r"layer1\.1"),
        ],
        "tv.mobilenet_v2": [
            Wrong("width", vision("mobilenet_v2", width_mult=0.75), r"features\.[01]"),
            Wrong("ReLU", edited(mobile, features__1__conv__0__2=nn.ReLU), r"features\.1"),
            Wrong("a block less", edited(mobile, features__3=nn.Identity), r"features\.[2-5]"),
            Wrong("dilation", edited(mobile, features__18__0=lambda: nn.Conv2d(320, 1280, 3, 1, 1)), r"features\.18"),
        ],
        "tv.squeezenet1_1": [
            Wrong("SiLU", edited(squeeze, features__4__expand3x3_activation=nn.SiLU), r"features\.4"),
            Wrong("squeezenet1_0", vision("squeezenet1_0"), r"features\.0"),
            Wrong("average pool", edited(squeeze, features__2=lambda: nn.AvgPool2d(3, 2)), r"features\.2"),
        ],
    }


def vision_of(classes: int) -> nn.Module:
    return importlib.import_module("torchvision.models").resnet18(weights=None, num_classes=classes)  # type: ignore


def _transformers() -> dict[str, list[Wrong]]:
    bert = _of_face("BertModel", "BertConfig")
    distil, t5 = _of_face("DistilBertModel", "DistilBertConfig", DISTIL), _of_face("T5EncoderModel", "T5Config", T5)
    gpt2, vit = _of_face("GPT2LMHeadModel", "GPT2Config", GPT2), _of_face("ViTModel", "ViTConfig", VIT)
    llama = _of_face("LlamaModel", "LlamaConfig", num_key_value_heads=2, use_cache=False)
    albert = _of_face("AlbertModel", "AlbertConfig", embedding_size=16)
    electra = _of_face("ElectraModel", "ElectraConfig", embedding_size=16)
    timms: Any = lambda **more: timm("vit_tiny_patch16_224", **{**VITS, **more})  # noqa: E731
    attention, middle = r"attention|attn", r"intermediate|mlp|ffn|DenseReluDense"
    return {
        "hf.bert": _others(
            attention,
            bert,
            num_hidden_layers=(3, r"layer\.[0-2]"),
            hidden_size=(48, "embeddings"),
            num_attention_heads=2,
            intermediate_size=(96, middle),
            hidden_act=("relu", middle),
            layer_norm_eps=(1e-5, "LayerNorm"),
            vocab_size=(120, "embeddings"),
        )
        + _others(attention, bert, num_attention_heads=8, hidden_act=("gelu_new", middle)),
        "hf.bert_classes": _others("classifier", _of_face("BertForSequenceClassification", "BertConfig"), num_labels=3),
        "hf.distilbert": _others(
            attention,
            distil,
            n_layers=(3, r"layer\.[0-2]"),
            n_heads=2,
            dim=(48, "embeddings"),
            hidden_dim=(96, middle),
            activation=("relu", middle),
        ),
        "hf.vit": _others(
            attention,
            vit,
            num_hidden_layers=(3, r"layers?\.[0-2]"),
            num_attention_heads=2,
            hidden_size=(48, "embeddings"),
            intermediate_size=(96, middle),
            hidden_act=("relu", middle),
            layer_norm_eps=(1e-5, "norm"),
            qkv_bias=False,
        ),
        "hf.t5": _others(
            "SelfAttention",
            t5,
            num_layers=(3, r"block\.[0-2]"),
            num_heads=2,
            d_ff=(96, "DenseReluDense"),
            feed_forward_proj=("gated-gelu", "DenseReluDense|layer.1"),
            relative_attention_num_buckets=16,
            layer_norm_epsilon=(1e-3, "layer_norm"),
        ),
        "hf.gpt2": _others(
            attention,
            gpt2,
            n_layer=(3, r"h\.[0-2]"),
            n_head=2,
            activation_function=("relu", "mlp"),
            layer_norm_epsilon=(1e-3, "ln_"),
            scale_attn_by_inverse_layer_idx=True,
        ),
        "hf.llama": _others(
            attention,
            llama,
            num_hidden_layers=(3, r"layers\.[0-2]"),
            num_key_value_heads=4,
            hidden_act=("relu", "mlp|act"),
            rms_norm_eps=(1e-3, "norm"),
            rope_parameters=({"rope_type": "default", "rope_theta": 100.0}, "rotary|attn"),
        ),
        "hf.albert": _others(
            attention,
            albert,
            num_hidden_layers=(3, "albert_layer"),
            num_attention_heads=2,
            hidden_act=("relu", "albert"),
        ),
        "hf.electra": _others(attention, electra, num_attention_heads=2, embedding_size=(24, "embeddings")),
        "tm.vit": _others(
            "attn",
            timms,
            depth=(3, r"blocks\.[0-2]"),
            num_heads=6,
            qk_norm=True,
            act_layer=("relu", "mlp"),
            global_pool=("avg", r"^net$"),
            patch_size=(8, "patch_embed"),
            embed_dim=(96, "patch_embed"),
        ),
    }


WRONG: dict[str, list[Wrong]] = {**_convolutions(), **_transformers()}
