"""Twenty classifiers of many kinds, with the path of the head in the original network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo import ZOO, Entry, _image, _sequence, _simple, _tokens


@dataclass(frozen=True)
class Classifier:
    """One network.

    Attributes:
        entry: builds and exports it.
        head: the path of the last layer in the original; its rows are the classes.
        axis: the axis of the classes in the output.
        exporter: "legacy" or "dynamo".
        also: paths of norms over the classes.
    """

    entry: Entry
    head: str
    axis: int = 1
    exporter: str = "legacy"
    also: tuple[str, ...] = ()


class SqueezeNet(nn.Module):
    """Its head is a convolution, with a ReLU and pooling behind it (Iandola et al. 2016, arXiv 1602.07360)."""

    class Fire(nn.Module):
        def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
            super().__init__()
            self.squeeze = nn.Conv2d(inputs, squeezed, 1)
            self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
            self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.squeeze(x))
            return torch.cat([torch.relu(self.expand1x1(x)), torch.relu(self.expand3x3(x))], 1)

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
            self.Fire(8, 4, 6), self.Fire(12, 4, 8),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Conv2d(16, 10, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class VGG(nn.Module):
    """Three fully connected layers with Dropout between them (Simonyan & Zisserman 2014, arXiv 1409.1556)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 6), (6, 8)):
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(True),
                nn.MaxPool2d(2),
            ]
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(32, 24), nn.ReLU(True), nn.Dropout(),
            nn.Linear(24, 24), nn.ReLU(True), nn.Dropout(),
            nn.Linear(24, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class NormedMLP(nn.Module):
    """A BatchNorm over the classes and a softmax behind the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out, self.norm = nn.Linear(12, 10), nn.Linear(10, 10), nn.BatchNorm1d(10)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.norm(self.out(torch.tanh(self.hidden(x)))), dim=-1)


class Inception(nn.Module):
    """Parallel branches, and a head without auxiliary outputs (Szegedy et al. 2014, arXiv 1409.4842)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.branch1 = nn.Conv2d(8, 4, 1)
        self.branch2 = nn.Sequential(nn.Conv2d(8, 4, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1))
        self.branch3 = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(8, 4, 1))
        self.fc = nn.Linear(14, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.bn(self.stem(x)))
        x = F.relu(torch.cat([self.branch1(x), self.branch2(x), self.branch3(x)], 1))
        return self.fc(F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.4, self.training))


class TextCNN(nn.Module):
    """Convolutions of several widths over words, with a maximum over time (Kim 2014, arXiv 1408.5882)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 12)
        self.convs = nn.ModuleList(nn.Conv1d(12, 5, width) for width in (2, 3, 4))
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(15, 4)

    def forward(self, input_ids: Tensor) -> Any:
        x = self.embedding(input_ids).transpose(1, 2)
        x = torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)
        return self.output(self.dropout(x))


class FullyConvolutional(nn.Module):
    """LeNet (LeCun et al. 1998) with convolutions all the way: the last is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c3, self.c5, self.f7 = (
            nn.Conv2d(3, 6, 5),
            nn.Conv2d(6, 8, 3),
            nn.Conv2d(8, 12, 2),
            nn.Conv2d(12, 10, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.avg_pool2d(torch.tanh(self.c1(x)), 2)
        x = F.avg_pool2d(torch.tanh(self.c3(x)), 2)
        return F.softmax(self.f7(torch.tanh(self.c5(x))).squeeze(3).squeeze(2), dim=1)


class Transformers(nn.Module):
    """A classifier of transformers, in its usual form for export."""

    def __init__(self, kind: str, config: str, **options: Any) -> None:
        super().__init__()
        hf = pytest.importorskip("transformers")
        self.model = getattr(hf, kind)(getattr(hf, config)(**options))

    def forward(self, *inputs: Tensor) -> Any:
        return self.model(*inputs, return_dict=False)[0]


SMALL = {"vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_labels": 5}
SMALL |= {"intermediate_size": 48, "max_position_embeddings": 40, "type_vocab_size": 2}
DISTIL = {"vocab_size": 60, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "num_labels": 5}
DISTIL |= {"max_position_embeddings": 40}
VIT: dict[str, Any] = {**SMALL, "image_size": 16, "patch_size": 4}


def _text(kind: str, config: str, options: Mapping[str, Any], tokens: bool = False) -> Entry:
    """Ids and their mask [batch, length] -> scores of the text, or of each token."""
    both = {0: "batch", 1: "length"}
    names = ("input_ids", "attention_mask")

    def inputs(batch: int = 2) -> tuple[Tensor, ...]:
        (ids,) = _tokens(9, 60)(batch)
        return ids.clamp(min=3), torch.ones_like(ids)

    dynamic = {**dict.fromkeys(names, both), "logits": both if tokens else {0: "batch"}}
    return Entry(lambda: Transformers(kind, config, **options), inputs, names, ("logits",), dynamic)


_vit: Callable[[], nn.Module] = lambda: Transformers("ViTForImageClassification", "ViTConfig", **VIT)  # noqa: E731

CLASSIFIERS: dict[str, Classifier] = {
    "resnet18": Classifier(ZOO["resnet18"], "fc"),
    "mobilenet_v3": Classifier(ZOO["mobilenet_v3"], "classifier.3"),
    "efficientnet": Classifier(ZOO["efficientnet"], "classifier.1"),
    "densenet": Classifier(ZOO["densenet"], "classifier"),
    "convnext": Classifier(ZOO["convnext"], "head"),
    "vit": Classifier(ZOO["vit"], "head"),
    "swin": Classifier(ZOO["swin"], "head"),
    "audio_cnn": Classifier(ZOO["audio_cnn"], "head"),
    "video_cnn": Classifier(ZOO["video_cnn"], "fc", exporter="dynamo"),
    "gru_tagger": Classifier(ZOO["gru_tagger"], "tags", axis=2),
    "gru_last": Classifier(ZOO["gru_last"], "fc"),
    "encoder_prenorm": Classifier(ZOO["encoder_prenorm"], "output"),
    "squeezenet": Classifier(_image(SqueezeNet, 24), "classifier.1"),
    "vgg": Classifier(_image(VGG, 16), "classifier.6", exporter="dynamo"),
    "normed_mlp": Classifier(_simple(NormedMLP, "x", 12), "out", also=("norm",)),
    "inception": Classifier(_image(Inception, 12), "fc"),
    "text_cnn": Classifier(_sequence(TextCNN, 40), "output"),
    "fully_convolutional": Classifier(_image(FullyConvolutional, 18), "f7", exporter="dynamo"),
    "hf_distilbert": Classifier(
        _text("DistilBertForSequenceClassification", "DistilBertConfig", DISTIL), "model.classifier"
    ),
    "hf_roberta": Classifier(
        _text("RobertaForSequenceClassification", "RobertaConfig", SMALL), "model.classifier.out_proj"
    ),
}

MORE: dict[str, Classifier] = {
    "resnet50": Classifier(ZOO["resnet50"], "fc"),
    "cnn": Classifier(ZOO["cnn"], "fc2", exporter="dynamo"),
    "lstm_tagger": Classifier(ZOO["lstm_tagger"], "tags", axis=2),
    "hf_bert": Classifier(_text("BertForSequenceClassification", "BertConfig", SMALL), "model.classifier"),
    "hf_bert_tokens": Classifier(
        _text("BertForTokenClassification", "BertConfig", SMALL, tokens=True), "model.classifier", axis=2
    ),
    "hf_vit": Classifier(_image(_vit), "model.classifier"),
}
