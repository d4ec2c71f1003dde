"""PyTorch networks written for the tests, as their authors would write them, with what it takes to export each.

`ZOO` lists them, `tests.zoo.export.export` writes one as an ONNX file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from tests.zoo import bert, cnn, convnext, densenet, gpt2, hf, llama, mlp, mobile, norms, resnet, rnn, swin, unet, vit


@dataclass(frozen=True)
class Entry:
    """One network.

    Attributes:
        build: makes the network; call `make`.
        inputs: example inputs for a batch size (2 unless told), the same ones at every call.
        input_names, output_names: in the order of `forward`.
        dynamic: {input or output: {axis: name of the dim}}.
        unsupported: {case: a part of the exporter's message}, what the exporter itself refuses. A case is
            `str(tests.zoo.export.Case)`, or a pattern for it ("legacy-*-train").
        inexact: {case: why}, where the exporter writes a file that computes something else than the module.
        static_in_dynamo: names of the dims that the dynamo exporter refuses to keep dynamic.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Tensor, ...]]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic: Mapping[str, Mapping[int, str]]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    inexact: Mapping[str, str] = field(default_factory=dict)
    static_in_dynamo: frozenset[str] = frozenset()

    def make(self) -> nn.Module:
        """The network with seeded weights; norms and biases are moved off their initial zeros and ones.

        Tables that are no part of the state dict (the frequencies of a rotary embedding) stay what they are.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build()
            with torch.no_grad():
                for tensor in model.state_dict().values():
                    if tensor.is_floating_point() and tensor.ndim == 1 and tensor.numel() > 1:
                        tensor.add_(torch.rand_like(tensor) * 0.2)  # positive: a running variance stays one
        return model

    def refusal(self, case: object) -> str | None:
        """The message with which the exporter refuses this case; None where it exports."""
        return next((text for key, text in self.unsupported.items() if fnmatch(str(case), key)), None)

    def inexactness(self, case: object) -> str | None:
        """Why the exported file differs from the module in this case; None where it does not."""
        return next((text for key, text in self.inexact.items() if fnmatch(str(case), key)), None)


def _floats(*shape: int) -> Callable[..., tuple[Tensor, ...]]:
    """One float32 input [batch, *shape], normally distributed."""
    return lambda batch=2: (torch.randn(batch, *shape, generator=torch.Generator().manual_seed(1)),)


def _tokens(length: int, vocabulary: int) -> Callable[..., tuple[Tensor, ...]]:
    """One input of token ids [batch, length], int64."""
    return lambda batch=2: (torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(1)),)


def _random(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def _bert_inputs(batch: int = 2) -> tuple[Tensor, ...]:
    (ids,) = _tokens(9, 60)(batch)
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    segment = (torch.arange(9) > 4).long().expand(batch, -1).contiguous()
    return ids, mask, segment


def _clip_inputs(batch: int = 2) -> tuple[Tensor, ...]:
    """A text fewer than images; the texts end in the vocabulary's last token, where CLIP reads them."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 55, (batch + 1, 7), generator=generator)
    ids[:, 5] = 56
    mask = torch.ones_like(ids)
    mask[:, 6:] = 0
    return ids, mask, torch.randn(batch, 3, 16, 16, generator=generator)


def _image(build: Callable[[], nn.Module], side: int = 16, output: str = "logits", spatial: bool = False) -> Entry:
    """A network over images [batch, 3, side, side]; `spatial`: height and width are dynamic, too."""
    axes = {0: "batch", 2: "height", 3: "width"} if spatial else {0: "batch"}
    return Entry(build, _floats(3, side, side), ("image",), (output,), {"image": axes, output: axes})


def _simple(build: Callable[[], nn.Module], name: str, *shape: int) -> Entry:
    """One float input [batch, *shape], one output, a dynamic batch."""
    return Entry(build, _floats(*shape), (name,), ("output",), {name: {0: "batch"}, "output": {0: "batch"}})


def _sequence(build: Callable[[], nn.Module], vocabulary: int, output: str = "logits", length: int = 9) -> Entry:
    """Token ids [batch, length] to [batch, length, ...], both dims dynamic."""
    axes = {0: "batch", 1: "length"}
    return Entry(build, _tokens(length, vocabulary), ("input_ids",), (output,), {"input_ids": axes, output: axes})


def _masked(build: Callable[[], nn.Module], *outputs: str) -> Entry:
    """Token ids and their mask [batch, length] to [batch, length, ...] and perhaps [batch, ...]."""
    both = {0: "batch", 1: "length"}
    names = ("input_ids", "attention_mask")
    dynamic = {**dict.fromkeys((*names, outputs[0]), both), **dict.fromkeys(outputs[1:], {0: "batch"})}
    return Entry(build, lambda batch=2: _bert_inputs(batch)[:2], names, outputs, dynamic)


ZOO: dict[str, Entry] = {
    "mlp": _simple(mlp.MLP, "x", 16),
    "two_tower": Entry(
        mlp.TwoTower,
        lambda batch=2: _random((batch, 12), (batch, 12)),
        ("query", "document"),
        ("score", "relation"),
        {name: {0: "batch"} for name in ("query", "document", "score", "relation")},
    ),
    "cnn": _image(cnn.SmallCNN),
    "audio_cnn": _simple(cnn.AudioCNN, "waveform", 2, 40),
    "video_cnn": _simple(cnn.VideoCNN, "clip", 1, 4, 8, 8),
    "mobilenet": _image(cnn.MobileNet),
    "decoder": _simple(cnn.Decoder, "z", 8),
    "resnet18": _image(lambda: resnet.resnet18(4, 10), 32),
    "resnet_bottleneck": _image(lambda: resnet.resnet_bottleneck(4, 10), 32),
    "unet_transpose": _image(lambda: unet.UNet("transpose"), output="mask", spatial=True),
    "unet_nearest": _image(lambda: unet.UNet("nearest"), output="mask", spatial=True),
    "unet_bilinear": _image(lambda: unet.UNet("bilinear"), output="mask"),
    # The dynamo exporter traces each step of a recurrent layer: few of them show the same.
    "lstm_tagger": _sequence(lambda: rnn.Tagger("LSTM"), 50, length=4),
    "gru_tagger": _sequence(lambda: rnn.Tagger("GRU", bidirectional=False), 50, length=4),
    "rnn_tagger": _sequence(lambda: rnn.Tagger("RNN", layers=1), 50, length=4),
    "lstm_state": Entry(
        rnn.StatefulLSTM,
        lambda batch=2: _random((5, batch, 6), (2, batch, 8), (2, batch, 8)),
        ("frames", "hidden", "cell"),
        ("output", "new_hidden", "new_cell"),
        {name: {1: "batch"} for name in ("frames", "hidden", "cell", "output", "new_hidden", "new_cell")},
    ),
    "gru_last": Entry(
        rnn.SentenceGRU,
        lambda batch=2: _random((5, batch, 6)),
        ("frames",),
        ("logits",),
        {"frames": {1: "batch"}, "logits": {0: "batch"}},
    ),
    "vit": _image(vit.VisionTransformer),
    "encoder": _simple(vit.EncoderClassifier, "frames", 7, 9),
    "encoder_prenorm": _simple(lambda: vit.EncoderClassifier(activation="gelu", norm_first=True), "frames", 7, 9),
    "cross_attention": Entry(
        vit.CrossAttention,
        lambda batch=2: _random((4, batch, 12), (6, batch, 10)),
        ("query", "memory"),
        ("output",),
        {name: {1: "batch"} for name in ("query", "memory", "output")},
    ),
    "bert": Entry(
        bert.BertModel,
        _bert_inputs,
        ("input_ids", "attention_mask", "token_type_ids"),
        ("last_hidden_state", "pooled"),
        {
            **{
                n: {0: "batch", 1: "length"}
                for n in ("input_ids", "attention_mask", "token_type_ids", "last_hidden_state")
            },
            "pooled": {0: "batch"},
        },
    ),
    "gpt2": _sequence(gpt2.GPT2LMHeadModel, 61),
    "llama": _sequence(llama.LlamaForCausalLM, 59),
    "resnet50": _image(lambda: resnet.ResNet(resnet.Bottleneck, (3, 4, 6, 3), 4, 10), 64),
    "mobilenet_v3": _image(mobile.MobileNetV3, 32),
    "efficientnet": _image(lambda: mobile.EfficientNet(stochastic_depth_prob=0.0), 64),
    "densenet": _image(densenet.DenseNet, 32),
    "convnext": _image(convnext.ConvNeXt, 32),
    "swin": _image(swin.SwinTransformer, 32),
    "hf_bert": _masked(hf.Bert, "last_hidden_state", "pooled"),
    "hf_gpt2": _masked(hf.GPT2, "logits"),
    "hf_llama": _masked(hf.Llama, "logits"),
    "hf_t5": _masked(hf.T5Encoder, "last_hidden_state"),
    "hf_whisper": Entry(
        hf.WhisperEncoder,
        _floats(8, 24),
        ("input_features",),
        ("last_hidden_state",),
        {n: {0: "batch"} for n in ("input_features", "last_hidden_state")},
    ),
    "hf_clip": Entry(
        hf.CLIP,
        _clip_inputs,
        ("input_ids", "attention_mask", "pixel_values"),
        ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds"),
        {
            "input_ids": {0: "texts", 1: "length"},
            "attention_mask": {0: "texts", 1: "length"},
            "pixel_values": {0: "images"},
            "logits_per_image": {0: "images", 1: "texts"},
            "logits_per_text": {0: "texts", 1: "images"},
            "text_embeds": {0: "texts"},
            "image_embeds": {0: "images"},
        },
    ),
    "image_norms": _image(norms.ImageNorms, output="features"),
    "sequence_norms": _simple(norms.SequenceNorms, "x", 5, 12),
    "batch_norms": _simple(norms.BatchNorms, "x", 6, 10),
}


def _unsupported(names: str, reasons: Mapping[str, str]) -> None:
    for name in names.split():
        ZOO[name] = replace(ZOO[name], unsupported={**ZOO[name].unsupported, **reasons})


_unsupported("video_cnn", {"legacy-*-train": "aten::feature_dropout, training mode"})
_unsupported("lstm_tagger gru_tagger", {"legacy-*-train": "RNN/GRU/LSTM, dropout in training mode"})
_unsupported("encoder encoder_prenorm", {"legacy-9-*": "aten::unflatten", "legacy-11-*": "aten::unflatten"})
_unsupported("encoder encoder_prenorm", {"legacy-13-*": "aten::scaled_dot_product_attention"})
_unsupported("cross_attention", {f"legacy-{n}-*": "aten::scaled_dot_product_attention" for n in (9, 11, 13)})
_unsupported("bert gpt2", {"legacy-9-*": "Slice with dynamic inputs"})
_unsupported("llama", {f"legacy-{n}-*": "aten::triu" for n in (9, 11, 13)})
_unsupported("swin", {"legacy-9-*": "step!=1 is currently not supported"})
_unsupported("hf_bert hf_llama", {"legacy-9-*": "Slice with dynamic inputs"})
_unsupported("hf_gpt2 hf_whisper hf_clip", {"legacy-9-*": "aten::scaled_dot_product_attention"})
_unsupported(
    "hf_bert hf_gpt2 hf_llama hf_whisper hf_clip",
    {f"legacy-{n}-*": "aten::scaled_dot_product_attention" for n in (11, 13)},
)
# It keeps LSTM and GRU whole, and unrolls a plain RNN over time.
ZOO["rnn_tagger"] = replace(ZOO["rnn_tagger"], static_in_dynamo=frozenset({"length"}))
ZOO["unet_bilinear"] = replace(
    ZOO["unet_bilinear"],
    inexact={"legacy-9-*": "Upsample-9 has no half-pixel coordinates, and the exporter only warns"},
)
