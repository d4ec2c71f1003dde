"""Small networks for each purpose, and networks that look like another purpose than they have.

`HEADS` names the kind that must be told, from the graph alone: the exported files have names such as `i0` and `17`.
`TRAPS` names kinds that are right for the network, or none; everything else is wrong, and unsure is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Axes = dict[int, dict[int, str]]


class Of(nn.Module):
    """A network from layers and a function of its layers and inputs."""

    def __init__(self, compute: Callable[..., object], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.compute = compute

    def forward(self, x: Tensor, y: Tensor | None = None) -> object:
        return self.compute(self.layers, x) if y is None else self.compute(self.layers, x, y)


@dataclass(frozen=True)
class Head:
    """A network: what makes it, example inputs, its kinds ((): none of them), dynamic axes, facts that must be told."""

    make: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    kinds: tuple[str, ...] = ()
    axes: Axes = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


def image(size: int = 64, channels: int = 3, width: int = 0) -> tuple[Tensor, ...]:
    return (torch.zeros(2, channels, size, width or size),)


def ids(*lengths: int) -> tuple[Tensor, ...]:
    return tuple(torch.ones(2, length, dtype=torch.int64) for length in lengths)


def trunk(stride: int = 8, width: int = 16, channels: int = 3) -> nn.Sequential:
    """Convolutions that make maps of 1 / stride of the size."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    while stride > 1:
        layers += [nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU()]
        stride //= 2
    return nn.Sequential(*layers)


def pooled(out: int, *end: nn.Module) -> nn.Sequential:
    """Images to [N, out]."""
    return nn.Sequential(trunk(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, out), *end)


def mapped(out: int, *end: nn.Module, channels: int = 3, down: int = 1) -> nn.Sequential:
    """Images to maps of `out` channels, 1 / down of the size."""
    up = nn.Upsample(scale_factor=8 // down) if down < 8 else nn.Identity()
    body = nn.Sequential(trunk(8, channels=channels), up, nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    return nn.Sequential(body, nn.Conv2d(16, out, 1), *end)


def read(width: int = 16, rows: int = 40) -> dict[str, nn.Module]:
    """Layers that read tokens."""
    layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True)
    return {"table": nn.Embedding(rows, width), "body": nn.TransformerEncoder(layer, 1), "norm": nn.LayerNorm(width)}


def hidden(layers: nn.ModuleDict, tokens: Tensor) -> Tensor:
    return layers["norm"](layers["body"](layers["table"](tokens)))


# ---- detectors ----


class Pyramid(nn.Module):
    """Maps of strides 8, 16 and 32, with heads of `outs` channels each."""

    def __init__(self, *outs: int, kernel: int = 1) -> None:
        super().__init__()
        self.stem = trunk(8)
        self.down = nn.ModuleList(nn.Conv2d(16, 16, 3, stride=2, padding=1) for _ in range(2))
        self.heads = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(16, out, kernel, padding=kernel // 2) for out in outs) for _ in range(3)
        )

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        maps = [self.stem(x)]
        for layer in self.down:
            maps.append(F.relu(layer(maps[-1])))
        return [[head(h) for head in heads] for h, heads in zip(maps, self.heads)]


class Focused(Pyramid):
    """The same, of every second pixel of rows and columns in channels of their own, as YOLOX begins."""

    def __init__(self, *outs: int) -> None:
        super().__init__(*outs)
        self.stem = trunk(4, channels=12)

    def forward(self, x: Tensor) -> list[list[Tensor]]:
        return super().forward(torch.cat([x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)], 1))


class Distributions(nn.Module):
    """Boxes as distributions of distances from each cell, decoded: [N, 4 + classes, boxes]."""

    def __init__(self, classes: int = 6, bins: int = 8) -> None:
        super().__init__()
        self.maps, self.bins = Pyramid(4 * bins, classes), bins
        self.expectation = nn.Conv2d(bins, 1, 1, bias=False).requires_grad_(False)
        self.expectation.weight.data = torch.arange(bins, dtype=torch.float32).reshape(1, bins, 1, 1)
        cells = [torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="xy"), 0) for n in (8, 4, 2)]
        self.register_buffer("cells", torch.cat([c.flatten(1) for c in cells], 1).float() + 0.5)
        self.register_buffer("strides", torch.cat([torch.full((1, n * n), 64.0 / n) for n in (8, 4, 2)], 1))

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([torch.cat(maps, 1).flatten(2) for maps in self.maps(x)], 2)
        box, scores = joined.split([4 * self.bins, joined.shape[1] - 4 * self.bins], 1)
        box = box.reshape(box.shape[0], 4, self.bins, -1).transpose(1, 2).softmax(1)
        near, far = self.expectation(box).squeeze(1).chunk(2, 1)
        low, high = self.cells - near, self.cells + far
        return torch.cat([torch.cat([(low + high) / 2, high - low], 1) * self.strides, scores.sigmoid()], 1)


class Anchored(nn.Module):
    """Three anchors in each cell: decoded [N, boxes, 5 + classes], or else [N, 3, H, W, 5 + classes] for each map."""

    def __init__(self, decoded: bool) -> None:
        super().__init__()
        self.maps, self.decoded = Pyramid(3 * 9), decoded
        self.register_buffer("anchors", torch.arange(6.0).reshape(1, 3, 1, 1, 2) + 3)

    def forward(self, x: Tensor) -> object:
        found = []
        for ((y,),) in zip(self.maps(x)):
            y = y.reshape(y.shape[0], 3, 9, y.shape[2], y.shape[3]).permute(0, 1, 3, 4, 2)
            if self.decoded:
                n = y.shape[3]
                cells = torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="xy"), -1).float()
                xy, wh, rest = y.sigmoid().split([2, 2, 5], -1)
                y = torch.cat([(xy * 2 + cells) * (64 / n), (wh * 2) ** 2 * self.anchors, rest], -1)
                y = y.reshape(y.shape[0], -1, 9)
            found.append(y)
        return torch.cat(found, 1) if self.decoded else tuple(found)


def _rows(maps: list[list[Tensor]], which: int, width: int) -> Tensor:
    rows = [m[which].permute(0, 2, 3, 1).reshape(m[which].shape[0], -1, width) for m in maps]
    return torch.cat(rows, 1)


def _ssd(layers: nn.ModuleDict, x: Tensor) -> tuple[Tensor, Tensor]:
    maps = layers["maps"](x)
    return _rows(maps, 0, 4), _rows(maps, 1, 7).softmax(-1)


def _queries(layers: nn.ModuleDict, x: Tensor) -> tuple[Tensor, Tensor]:
    h = layers["trunk"](x).flatten(2).transpose(1, 2)
    h = layers["decoder"](layers["queries"].weight.expand(x.shape[0], -1, -1), h)
    return layers["classes"](h), layers["boxes"](h).sigmoid()


# ---- lines, speech, text ----


def _line(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    """Images of lines [N, 1, 32, W] -> [W / 4, N, letters], as in CRNN (arXiv 1507.05717)."""
    h = layers["trunk"](x).mean(2).permute(2, 0, 1)
    return layers["letters"](layers["lstm"](h)[0]).log_softmax(-1)


def _letters(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    return layers["letters"](layers["trunk"](x).mean(2).transpose(1, 2)).softmax(-1)


def _speech(layers: nn.ModuleDict, x: Tensor) -> Tensor:
    return layers["letters"](layers["trunk"](x).transpose(1, 2)).log_softmax(-1)


def _translate(layers: nn.ModuleDict, source: Tensor, target: Tensor) -> Tensor:
    table = layers["table"]
    return layers["letters"](layers["body"](table(source), table(target)))


def _caption(layers: nn.ModuleDict, x: Tensor, target: Tensor) -> Tensor:
    memory = layers["trunk"](x).flatten(2).transpose(1, 2)
    return layers["letters"](layers["body"](layers["table"](target), memory))


def _masked_mean(layers: nn.ModuleDict, tokens: Tensor, mask: Tensor) -> Tensor:
    weight = mask.unsqueeze(-1).float()
    return (hidden(layers, tokens) * weight).sum(1) / weight.sum(1).clamp(min=1e-9)


def _step(layers: nn.ModuleDict, x: Tensor, t: Tensor) -> Tensor:
    return layers["body"](x + layers["time"](t.reshape(-1, 1)).reshape(-1, 3, 1, 1))


def _axes(layers: nn.ModuleDict, x: Tensor) -> tuple[Tensor, Tensor]:
    h = layers["trunk"](x).flatten(2)
    return layers["columns"](h), layers["lines"](h)


def _decoder(memory: int = 16) -> nn.TransformerDecoder:
    return nn.TransformerDecoder(nn.TransformerDecoderLayer(memory, 2, 32, batch_first=True), 1)


FREE_IMAGE: Axes = {0: {0: "batch", 2: "height", 3: "width"}}
SOUND = (torch.zeros(2, 20, 48),)
STRIDES = {"strides": [8, 16, 32]}

HEADS: dict[str, Head] = {
    "classes": Head(lambda: pooled(5, nn.Softmax(1)), image(), ("classification",), {}, {"classes": 5, "axis": 1}),
    "classes_log": Head(lambda: pooled(5, nn.LogSoftmax(-1)), image(), ("classification",), FREE_IMAGE),
    "classes_argmax": Head(lambda: Of(lambda m, x: m["f"](x).argmax(1), f=pooled(5)), image(), ("classification",)),
    "classes_imagenet": Head(lambda: pooled(1000), image(), ("classification",), {}, {"classes": 1000}),
    "classes_map": Head(
        lambda: nn.Sequential(trunk(), nn.Conv2d(16, 12, 1), nn.AdaptiveAvgPool2d(1), nn.Softmax(1)),
        image(),
        ("classification",),
        {},
        {"axis": 1, "classes": 12},
    ),
    "classes_of_text": Head(
        lambda: Of(lambda m, t: m["out"](hidden(m, t).mean(1)).softmax(-1), **read(), out=nn.Linear(16, 3)),
        ids(7),
        ("classification",),
        {0: {0: "batch", 1: "length"}},
    ),
    "classes_twice": Head(
        lambda: Of(lambda m, x: (m["a"](x), m["b"](x)), a=pooled(3, nn.Softmax(1)), b=pooled(4, nn.Softmax(1))),
        image(),
        ("classification",),
    ),
    "labels": Head(lambda: pooled(14, nn.Sigmoid()), image(), ("multilabel",), {}, {"classes": 14}),
    "value_scaled": Head(lambda: Of(lambda m, x: m["f"](x).sigmoid() * 90 + 5, f=pooled(1)), image(), ("regression",)),
    "pixels": Head(lambda: mapped(4, nn.Softmax(1)), image(), ("segmentation",), {}, {"classes": 4, "axis": 1}),
    "pixels_free": Head(lambda: mapped(4, nn.Softmax(1)), image(), ("segmentation",), FREE_IMAGE, {"stride": 1}),
    "pixels_argmax": Head(lambda: Of(lambda m, x: m["f"](x).argmax(1), f=mapped(4)), image(), ("segmentation",)),
    "pixels_resized": Head(
        lambda: nn.Sequential(mapped(5, down=8), nn.Upsample(scale_factor=8, mode="bilinear")),
        image(),
        ("segmentation",),
        FREE_IMAGE,
        {"classes": 5},
    ),
    "boxes_distributions": Head(Distributions, image(), ("detection",), {}, STRIDES | {"decoded": True}),
    "boxes_anchored": Head(lambda: Anchored(True), image(), ("detection",), {}, STRIDES | {"anchors": [3, 3, 3]}),
    "boxes_anchored_raw": Head(lambda: Anchored(False), image(), ("detection",), {}, {"decoded": False}),
    "boxes_maps": Head(
        lambda: Of(lambda m, x: sum(m["p"](x), []), p=Pyramid(27)), image(), ("detection",), {}, STRIDES
    ),
    "boxes_groups": Head(
        lambda: Of(lambda m, x: sum(m["p"](x), []), p=Pyramid(7, 4, 1, kernel=3)), image(), ("detection",), {}, STRIDES
    ),
    "boxes_joined": Head(
        lambda: Of(_ssd, maps=Pyramid(3 * 4, 3 * 7)), image(), ("detection",), {}, STRIDES | {"classes": 7}
    ),
    "boxes_focused": Head(
        lambda: Of(lambda m, x: _rows(m["p"](x), 0, 7), p=Focused(7)), image(), ("detection",), {}, STRIDES
    ),
    "boxes_free": Head(lambda: Of(_ssd, maps=Pyramid(3 * 4, 3 * 7)), image(), ("detection",), FREE_IMAGE, STRIDES),
    "boxes_queries": Head(
        lambda: Of(
            _queries,
            trunk=trunk(),
            decoder=_decoder(),
            queries=nn.Embedding(9, 16),
            classes=nn.Linear(16, 6),
            boxes=nn.Linear(16, 4),
        ),
        image(),
        ("detection",),
        {},
        {"classes": 6},
    ),
    "points_axes": Head(
        lambda: Of(
            _axes,
            trunk=nn.Sequential(trunk(), nn.Conv2d(16, 17, 1)),
            columns=nn.Linear(48, 96),
            lines=nn.Linear(48, 128),
        ),
        image(64, 3, 48),
        ("keypoints",),
        {},
        {"points": 17},
    ),
    "vectors": Head(
        lambda: Of(lambda m, x: F.normalize(m["f"](x)), f=pooled(24)),
        image(),
        ("embedding",),
        {},
        {"width": 24, "normalised": True},
    ),
    "vectors_divided": Head(
        lambda: Of(lambda m, x: m["f"](x) / m["f"](x).norm(dim=-1, keepdim=True), f=pooled(24)), image(), ("embedding",)
    ),
    "vectors_of_faces": Head(lambda: pooled(64, nn.BatchNorm1d(64)), image(), ("embedding",), {}, {"width": 64}),
    "vectors_of_text": Head(
        lambda: Of(_masked_mean, **read()),
        ids(7, 7),
        ("embedding",),
        {n: {0: "batch", 1: "length"} for n in (0, 1)},
        {"width": 16, "positions": False},
    ),
    "vectors_of_tokens": Head(lambda: Of(hidden, **read()), ids(7), ("embedding",), {}, {"positions": True}),
    "letters_of_lines": Head(
        lambda: Of(
            _line, trunk=trunk(4, channels=1), lstm=nn.LSTM(16, 12, bidirectional=True), letters=nn.Linear(24, 37)
        ),
        image(32, 1, 128),
        ("ctc",),
        {0: {0: "batch"}},
        {"time": 0, "batch": 1, "axis": 2, "classes": 37},
    ),
    "letters_of_any_lines": Head(
        lambda: Of(_letters, trunk=trunk(8), letters=nn.Linear(16, 97)),
        image(48, 3, 160),
        ("ctc",),
        {0: {0: "batch", 3: "width"}},
        {"time": 1, "batch": 0},
    ),
    "letters_of_speech": Head(
        lambda: Of(
            _speech,
            trunk=nn.Sequential(nn.Conv1d(20, 16, 3, 2, 1), nn.ReLU(), nn.Conv1d(16, 16, 3, 2, 1)),
            letters=nn.Linear(16, 29),
        ),
        SOUND,
        ("ctc",),
        {0: {0: "batch", 2: "frames"}},
        {"time": 1},
    ),
    "tags": Head(
        lambda: Of(lambda m, t: m["out"](hidden(m, t)), **read(), out=nn.Linear(16, 9)),
        ids(7),
        ("token-classification",),
        {0: {0: "batch", 1: "length"}},
        {"classes": 9, "axis": 2},
    ),
    "words_masked": Head(
        lambda: Of(lambda m, t: hidden(m, t) @ m["table"].weight.T, **read()),
        ids(7),
        ("language-model",),
        {},
        {"vocabulary": 40, "causal": False},
    ),
    "words_between": Head(
        lambda: Of(
            lambda m, t: m["out"](m["rnn"](m["table"](t))[0]),
            table=nn.Embedding(30, 8),
            rnn=nn.GRU(8, 8, batch_first=True, bidirectional=True),
            out=nn.Linear(16, 30),
        ),
        ids(7),
        ("language-model",),
        {},
        {"vocabulary": 30, "axis": 2, "causal": False},
    ),
    "words_next": Head(
        lambda: Of(
            lambda m, t: m["out"](m["rnn"](m["table"](t))[0][:, -1]),
            table=nn.Embedding(30, 8),
            rnn=nn.GRU(8, 8, batch_first=True),
            out=nn.Linear(8, 30),
        ),
        ids(7),
        ("language-model",),
        {},
        {"vocabulary": 30, "axis": 1, "causal": True},
    ),
    "words_translated": Head(
        lambda: Of(
            _translate,
            table=nn.Embedding(40, 16),
            body=nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
            letters=nn.Linear(16, 40),
        ),
        ids(7, 5),
        ("seq2seq",),
        {0: {1: "source"}, 1: {1: "target"}},
        {"source": "i0", "target": "i1"},
    ),
    "words_of_images": Head(
        lambda: Of(_caption, table=nn.Embedding(40, 16), body=_decoder(), letters=nn.Linear(16, 40), trunk=trunk()),
        (*image(), *ids(5)),
        ("seq2seq",),
        {},
        {"source": "i0", "target": "i1"},
    ),
    "larger": Head(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 12, 3, padding=1), nn.PixelShuffle(2)
        ),
        image(16),
        ("image-to-image",),
        FREE_IMAGE,
        {"scale": 2},
    ),
    "without_noise": Head(lambda: Of(lambda m, x: x - m["f"](x), f=mapped(3)), image(), ("image-to-image",)),
    "brightened": Head(lambda: Of(lambda m, x: m["f"](x).clamp(0, 1), f=mapped(3)), image(), ("image-to-image",)),
    "styled": Head(lambda: mapped(3, nn.Tanh()), image(), ("image-to-image",), FREE_IMAGE),
    "spectrum": Head(
        lambda: Of(
            lambda m, x: x * m["out"](m["rnn"](x)[0]).sigmoid(),
            rnn=nn.LSTM(20, 8, batch_first=True),
            out=nn.Linear(8, 20),
        ),
        (torch.zeros(2, 9, 20),),
        ("denoising",),
        {0: {0: "batch", 1: "frames"}},
    ),
}

TRAPS: dict[str, Head] = {
    "one_score": Head(lambda: pooled(1, nn.Sigmoid()), image()),
    "one_number": Head(lambda: pooled(1), image()),
    "values_or_scores": Head(lambda: pooled(6), image()),
    "decoded_digit": Head(
        lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 784), nn.Sigmoid()), (torch.zeros(2, 20),)
    ),
    "same_digit": Head(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 256), nn.Sigmoid()),
        image(16, 1),
    ),
    "landmarks_sigmoid": Head(lambda: pooled(136, nn.Sigmoid()), image(), ("keypoints", "regression")),
    "landmarks": Head(
        lambda: nn.Sequential(pooled(136), nn.Unflatten(1, (68, 2))), image(), ("keypoints", "regression")
    ),
    "box_of_face": Head(
        lambda: Of(lambda m, x: (m["a"](x), m["b"](x)), a=pooled(2, nn.Softmax(1)), b=pooled(4)),
        image(24),
        ("detection",),
    ),
    "actor_and_critic": Head(
        lambda: Of(lambda m, x: (m["a"](x), m["b"](x)), a=pooled(6, nn.Softmax(1)), b=pooled(1)), image()
    ),
    "depth": Head(lambda: mapped(1, nn.Sigmoid()), image(), ("image-to-image",)),
    "depth_positive": Head(lambda: mapped(1, nn.ReLU()), image(), ("image-to-image",)),
    "same_image": Head(lambda: mapped(3, nn.Sigmoid()), image(), ("image-to-image",)),
    "flow": Head(lambda: mapped(2, channels=6), image(channels=6)),
    "colours": Head(lambda: mapped(2, nn.Tanh(), channels=1), image(channels=1), ("image-to-image",)),
    "heatmaps": Head(lambda: mapped(17, down=4), image(), ("keypoints",)),
    "heatmaps_sigmoid": Head(lambda: mapped(17, nn.Sigmoid(), down=4), image(), ("keypoints",)),
    "features_of_scales": Head(
        lambda: Of(lambda m, x: sum(m["p"](x), []), p=Pyramid(16, kernel=3)), image(), ("embedding",)
    ),
    "features_joined": Head(lambda: Of(lambda m, x: _rows(m["p"](x), 0, 64), p=Pyramid(64)), image(), ("embedding",)),
    "supervised_deeply": Head(
        lambda: Of(
            lambda m, x: (m["a"](x), m["b"](x), m["c"](x)), a=mapped(21), b=mapped(21, down=2), c=mapped(21, down=4)
        ),
        image(),
        ("segmentation",),
    ),
    "words_of_a_line": Head(
        lambda: Of(
            lambda m, x: m["out"](
                m["body"](m["q"].weight.expand(x.shape[0], -1, -1), m["trunk"](x).flatten(2).transpose(1, 2))
            ).softmax(-1),
            trunk=trunk(8),
            q=nn.Embedding(26, 16),
            body=_decoder(),
            out=nn.Linear(16, 95),
        ),
        image(32, 3, 128),
    ),
    "phonemes": Head(
        lambda: Of(
            lambda m, x: m["out"](m["rnn"](x)[0]).softmax(-1), rnn=nn.GRU(20, 8, batch_first=True), out=nn.Linear(8, 40)
        ),
        (torch.zeros(2, 9, 20),),
    ),
    "speakers": Head(
        lambda: Of(
            lambda m, x: m["out"](m["trunk"](x).transpose(1, 2)).log_softmax(-1),
            trunk=nn.Conv1d(20, 16, 3, 4, 1),
            out=nn.Linear(16, 7),
        ),
        SOUND,
    ),
    "events": Head(
        lambda: Of(
            lambda m, x: m["out"](m["rnn"](x)[0]).sigmoid(), rnn=nn.GRU(20, 8, batch_first=True), out=nn.Linear(8, 10)
        ),
        (torch.zeros(2, 9, 20),),
        ("multilabel",),
    ),
    "voice": Head(
        lambda: Of(lambda m, x: m["bn"](m["f"](x).mean(2)), f=nn.Conv1d(20, 192, 3), bn=nn.BatchNorm1d(192)),
        SOUND,
        ("embedding",),
    ),
    "rotation": Head(lambda: Of(lambda m, x: F.normalize(m["f"](x)), f=pooled(4)), image(), ("regression",)),
    "forecast": Head(
        lambda: Of(lambda m, x: m["f"](x.transpose(1, 2)).transpose(1, 2), f=nn.Linear(24, 12)),
        (torch.zeros(2, 24, 7),),
        ("regression",),
    ),
    "forecast_gates": Head(lambda: nn.Sequential(nn.Linear(12, 5), nn.Tanh()), (torch.zeros(2, 12),), ("regression",)),
    "answer": Head(
        lambda: Of(lambda m, t: m["out"](hidden(m, t)).unbind(-1), **read(), out=nn.Linear(16, 2)),
        ids(7),
        ("token-classification",),
        {0: {0: "batch", 1: "length"}},
    ),
    "answer_fixed": Head(
        lambda: Of(
            lambda m, t: tuple(s.softmax(-1) for s in m["out"](hidden(m, t)).unbind(-1)), **read(), out=nn.Linear(16, 2)
        ),
        ids(7),
        ("token-classification",),
    ),
    "relevance": Head(
        lambda: Of(lambda m, t: m["out"](hidden(m, t)[:, 0]), **read(), out=nn.Linear(16, 1)), ids(7), ("regression",)
    ),
    "late_vectors": Head(
        lambda: Of(lambda m, t: m["out"](hidden(m, t)), **read(), out=nn.Linear(16, 96, bias=False)),
        ids(7),
        ("embedding",),
    ),
    "spoken": Head(
        lambda: Of(lambda m, t: m["out"](hidden(m, t).repeat_interleave(3, 1)), **read(), out=nn.Linear(16, 80)), ids(7)
    ),
    "classes_and_attention": Head(
        lambda: Of(lambda m, x: (m["f"](x), m["a"](x).softmax(-1)), f=pooled(5, nn.Softmax(1)), a=pooled(9)),
        image(),
        ("classification",),
    ),
    "softmax_alone": Head(lambda: nn.Softmax(-1), (torch.zeros(2, 5),)),
}
