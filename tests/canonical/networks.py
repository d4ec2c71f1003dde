"""Small networks of many families, as their first authors wrote them. `rewritten` has each in the words of others."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(6 * 16, 10), nn.ReLU(), nn.Linear(10, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """With batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.stem(x)))
        x = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(20, 8), nn.Embedding(9, 8), nn.LayerNorm(8, 1e-12)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(8, 1e-12), nn.LayerNorm(8, 1e-12)
        self.up, self.down, self.pooler = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        q, k, v = (f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = (F.softmax(q @ k.transpose(-1, -2) / math.sqrt(4), -1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(a))
        x = self.norm2(x + self.down(F.gelu(self.up(x))))
        return torch.tanh(self.pooler(x[:, 0]))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(12, 6), nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.rnn(self.embedding(ids))
        return F.log_softmax(self.head(states[:, -1]), -1)


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up, self.merge, self.out = (
            nn.ConvTranspose2d(8, 4, 2, 2),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.Conv2d(4, 1, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        return torch.sigmoid(self.out(F.relu(self.merge(torch.cat([self.up(two), one], 1)))))


class Detector(nn.Module):
    """A head with two levels: boxes and classes of each place."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.next = nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)
        self.boxes, self.classes = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        p3 = F.silu(self.stem(x))
        p4 = F.silu(self.next(p3))
        boxes = [self.boxes(p).flatten(2).transpose(1, 2) for p in (p3, p4)]
        classes = [self.classes(p).flatten(2).transpose(1, 2) for p in (p3, p4)]
        return torch.cat(boxes, 1).exp(), torch.cat(classes, 1).sigmoid()


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(16, 8), nn.Embedding(10, 8)
        self.ln1, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.ln2, self.fc, self.back, self.ln = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 16, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).flatten(2))
        x = x + self.back(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))
        return self.head(self.ln(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Transposed convolutions, from a code to an image."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 32)
        self.up1, self.up2 = nn.ConvTranspose2d(8, 4, 4, 2, 1), nn.ConvTranspose2d(4, 1, 4, 2, 1)

    def forward(self, z: Tensor) -> Tensor:
        x = self.fc(z).reshape(-1, 8, 2, 2)
        return torch.tanh(self.up2(F.leaky_relu(self.up1(x), 0.2)))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.places, self.norm1, self.norm2 = nn.Parameter(torch.randn(1, 5, 8)), nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.proj = nn.Linear(8, 24, bias=False), nn.Linear(8, 8)
        self.fc1, self.fc2, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) * (c // 2) ** -0.5).softmax(-1) @ v
        x = x + self.proj(a.transpose(1, 2).reshape(b, n, c))
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return self.head(x[:, 0])  # type: ignore[no-any-return]


class Mobile(nn.Module):
    """An inverted residual that squeezes and excites."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depth = nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite, self.project = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.depth(F.hardswish(self.expand(x))))
        s = F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.project(y * s)  # type: ignore[no-any-return]


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.tokens1, self.tokens2 = nn.LayerNorm(6), nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm2, self.channels1, self.channels2 = nn.LayerNorm(6), nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x).transpose(1, 2)
        x = x + self.tokens2(F.gelu(self.tokens1(y))).transpose(1, 2)
        return x + self.channels2(F.gelu(self.channels1(self.norm2(x))))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """A gated block with a norm of the root of the mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))
        self.gate, self.up, self.down = (nn.Linear(i, o, bias=False) for i, o in ((8, 12), (8, 12), (12, 8)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return x + self.down(F.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class TextCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(15, 6)
        self.convs = nn.ModuleList(nn.Conv1d(6, 3, k) for k in (2, 3))
        self.fc = nn.Linear(6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids).transpose(1, 2)
        return self.fc(torch.cat([F.relu(c(x)).amax(-1) for c in self.convs], -1))  # type: ignore[no-any-return]


class Tower(nn.Module):
    """Two towers, and how alike what they make is."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.scale = nn.Linear(5, 4), nn.Linear(3, 4), nn.Parameter(torch.tensor(2.5))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.one(a), self.other(b)
        a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
        return self.scale.exp() * a @ b.t()


@dataclass
class Network:
    make: Callable[[], nn.Module]
    inputs: Callable[[], list[Tensor]]
    case: str = "legacy-17"
    axes: dict[int, str] | None = None


def ids(count: int, length: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randint(count, (2, length))]


def drawn(*shapes: tuple[int, ...]) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(shape) for shape in shapes]


BATCH = {0: "batch"}
NETWORKS = {
    "cnn": Network(Cnn, drawn((2, 3, 8, 8)), axes=BATCH),
    "residual": Network(Residual, drawn((2, 3, 8, 8)), "legacy-17-train", BATCH),
    "bert": Network(Bert, ids(20, 6), axes={0: "batch", 1: "length"}),
    "lstm": Network(Lstm, ids(12, 4)),
    "unet": Network(Unet, drawn((2, 1, 8, 8)), axes=BATCH),
    "detector": Network(Detector, drawn((2, 3, 16, 16)), axes=BATCH),
    "gpt": Network(Gpt, ids(16, 6), axes=BATCH),
    "decoder": Network(Decoder, drawn((2, 5)), axes=BATCH),
    "vit": Network(Vit, drawn((2, 3, 8, 8)), axes=BATCH),
    "mobile": Network(Mobile, drawn((2, 4, 8, 8)), axes=BATCH),
    "mixer": Network(Mixer, drawn((2, 4, 6)), axes=BATCH),
    "llama": Network(Llama, drawn((2, 3, 8)), axes={0: "batch", 1: "length"}),
    "text_cnn": Network(TextCnn, ids(15, 7), axes=BATCH),
    "tower": Network(Tower, drawn((2, 5), (3, 3))),
}
