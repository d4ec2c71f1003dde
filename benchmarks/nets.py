"""The networks of the benchmarks, in the sizes of their papers: random weights, exported here.

They are the zoo's own classes, so that the original stands beside what is made of its file. Exported in eval mode with
PyTorch's TorchScript exporter, opset 17, constants folded; BatchNorm is kept, since without it the file would be
another network than the original.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.common import ROOT
from tests.zoo import ZOO, Entry, bert, densenet, gpt2, mobile, resnet, rnn, vit
from tests.zoo.export import quiet


def export(entry: Entry, path: Path) -> nn.Module:
    """Write the network's ONNX file; returns the network that is in it, in eval mode."""
    model = entry.make().eval()
    with quiet():
        torch.onnx.export(
            model,
            entry.inputs(),
            path,
            dynamo=False,
            opset_version=17,
            training=torch.onnx.TrainingMode.PRESERVE,  # EVAL would fold BatchNorm into the convolution before it
            do_constant_folding=True,
            input_names=list(entry.input_names),
            output_names=list(entry.output_names),
            dynamic_axes={name: dict(axes) for name, axes in entry.dynamic.items()},
        )
    return model


def _image(build: Callable[[], nn.Module], *shape: int) -> Entry:
    """A network over images; one input of this shape, whose batch is dynamic in the file."""
    return replace(
        ZOO["resnet50"],
        build=build,
        inputs=lambda: (torch.randn(shape, generator=torch.Generator().manual_seed(1)),),
    )


def _ids(batch: int, length: int, vocabulary: int) -> tuple[Tensor, ...]:
    return (torch.randint(1, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1)),)


def _bert_inputs() -> tuple[Tensor, ...]:
    (ids,) = _ids(1, 128, 30522)
    mask = torch.ones_like(ids)
    mask[:, 100:] = 0
    return ids, mask, torch.zeros_like(ids)


def _mnist() -> nn.Module:
    spec = importlib.util.spec_from_file_location("make_onnx", ROOT / "samples/mnist/make_onnx.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: nn.Module = module.Mnist()
    return model


class MobileNetV3Large(mobile.MobileNetV3):
    settings = (
        (16, 3, 16, 16, False, "RE", 1),
        (16, 3, 64, 24, False, "RE", 2),
        (24, 3, 72, 24, False, "RE", 1),
        (24, 5, 72, 40, True, "RE", 2),
        (40, 5, 120, 40, True, "RE", 1),
        (40, 5, 120, 40, True, "RE", 1),
        (40, 3, 240, 80, False, "HS", 2),
        (80, 3, 200, 80, False, "HS", 1),
        (80, 3, 184, 80, False, "HS", 1),
        (80, 3, 184, 80, False, "HS", 1),
        (80, 3, 480, 112, True, "HS", 1),
        (112, 3, 672, 112, True, "HS", 1),
        (112, 5, 672, 160, True, "HS", 2),
        (160, 5, 960, 160, True, "HS", 1),
        (160, 5, 960, 160, True, "HS", 1),
    )


NETS: dict[str, Entry] = {
    "mnist": _image(_mnist, 8, 1, 28, 28),
    "resnet50": _image(lambda: resnet.ResNet(resnet.Bottleneck, (3, 4, 6, 3)), 1, 3, 224, 224),
    "mobilenet_v3": _image(lambda: MobileNetV3Large(classes=1000), 1, 3, 224, 224),
    "densenet121": _image(
        lambda: densenet.DenseNet(32, (6, 12, 24, 16), num_init_features=64, bn_size=4, classes=1000), 1, 3, 224, 224
    ),
    "vit": _image(lambda: vit.VisionTransformer(image=224, patch=16, dim=768, depth=12, heads=12), 1, 3, 224, 224),
    "bert_base": replace(ZOO["bert"], build=lambda: bert.BertModel(30522, 768, 12, 12, 512), inputs=_bert_inputs),
    "gpt2": replace(
        ZOO["gpt2"],
        build=lambda: gpt2.GPT2LMHeadModel(50257, 768, 12, 12, 1024),
        inputs=lambda: _ids(1, 64, 50257),
    ),
    "lstm_tagger": replace(
        ZOO["lstm_tagger"],
        build=lambda: rnn.Tagger("LSTM", vocabulary=20000, embedding=100, hidden=128, tags=17),
        inputs=lambda: _ids(8, 40, 20000),
    ),
}
