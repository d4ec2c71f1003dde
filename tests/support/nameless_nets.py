"""Networks beside the zoo's, of further families, to be found again in files without names."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fire(nn.Module):
    """SqueezeNet's block: a narrow layer, then two wide ones side by side."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Sequential):
    def __init__(self) -> None:
        stem = (nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2))
        first = (Fire(8, 4, 6), Fire(12, 4, 6), nn.MaxPool2d(3, 2))
        super().__init__(*stem, *first, Fire(12, 4, 8), Fire(16, 4, 8), Fire(16, 4, 8), nn.Conv2d(16, 10, 1))


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(h))))


class Separable(nn.Sequential):
    """PP-LCNet's block: of its last ones there is a gate in each."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1, gated: bool = False) -> None:
        depth = nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs)
        gate = [Gate(inputs)] if gated else []
        super().__init__(depth, nn.Hardswish(), *gate, nn.Conv2d(inputs, outputs, 1), nn.Hardswish())


class LCNet(nn.Sequential):
    def __init__(self) -> None:
        wider = (Separable(8, 16), Separable(16, 16, stride=2), *(Separable(16, 16, 5) for _ in range(5)))
        gated = (Separable(16, 24, 5, 2, True), Separable(24, 24, 5, gated=True), Separable(24, 24, 5, 2))
        super().__init__(nn.Conv2d(3, 8, 3, 2, 1), *wider, *gated, Separable(24, 24, 5), nn.Flatten())


class VGG(nn.Sequential):
    def __init__(self) -> None:
        parts: list[nn.Module] = []
        inputs = 3
        for width, layers in ((4, 2), (6, 2), (8, 3), (8, 3)):
            for _ in range(layers):
                parts += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            parts.append(nn.MaxPool2d(2))
        super().__init__(*parts, nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5))


class Denoiser(nn.Module):
    """DnCNN: a plain chain of equal layers."""

    def __init__(self) -> None:
        super().__init__()
        middle = [(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()) for _ in range(8)]
        layers = [layer for triple in middle for layer in triple]
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), *layers, nn.Conv2d(6, 3, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.net(x)


class SuperResolution(nn.Module):
    """EDSR: residual blocks inside one long residual."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 6, 3, padding=1)
        self.bodies = nn.ModuleList(
            nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1)) for _ in range(5)
        )
        self.last = nn.Conv2d(6, 6, 3, padding=1)
        self.up = nn.Conv2d(6, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = y = self.head(x)
        for body in self.bodies:
            y = y + body(y) * 0.1
        return F.pixel_shuffle(self.up(x + self.last(y)), 2)


class ConvSiLU(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.SiLU()
        )


class Shortcut(nn.Module):
    def __init__(self, channels: int, adds: bool) -> None:
        super().__init__()
        self.adds = adds
        self.conv1, self.conv2 = ConvSiLU(channels, channels, 3), ConvSiLU(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv2(self.conv1(x))
        return x + h if self.adds else h


class CSP(nn.Module):
    """YOLO's block: blocks in one of two branches, residual ones in the backbone."""

    def __init__(self, inputs: int, outputs: int, blocks: int, adds: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.conv1, self.conv2 = ConvSiLU(inputs, half), ConvSiLU(inputs, half)
        self.blocks = nn.Sequential(*(Shortcut(half, adds) for _ in range(blocks)))
        self.conv3 = ConvSiLU(2 * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(torch.cat((self.blocks(self.conv1(x)), self.conv2(x)), 1))


class Detector(nn.Module):
    """A backbone, a way up with skips, and heads on two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvSiLU(3, 6, 3, 2)
        sizes = ((6, 8, 1), (8, 12, 2), (12, 16, 2))
        self.stages = nn.ModuleList(nn.Sequential(ConvSiLU(i, o, 3, 2), CSP(o, o, n)) for i, o, n in sizes)
        self.neck = CSP(28, 12, 1, adds=False)
        self.heads = nn.ModuleList(
            nn.Sequential(ConvSiLU(c, 8, 3), ConvSiLU(8, 8, 3), nn.Conv2d(8, 7, 1)) for c in (12, 16)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        merged = self.neck(torch.cat([F.interpolate(features[3], scale_factor=2.0), features[2]], 1))
        return torch.cat([h(y).flatten(2) for h, y in zip(self.heads, (merged, features[3]))], 2)


class CachedLayer(nn.Module):
    """A decoder layer that is given the keys and values of earlier tokens, and returns them with its own."""

    def __init__(self, width: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 20), nn.Linear(20, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.norm1(x)
        q, k, v = (p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)))), k, v


class CachedDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 12)
        self.layers = nn.ModuleList(CachedLayer() for _ in range(3))
        self.head = nn.Linear(12, 31)

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        x, made = self.embed(ids), []
        for i, layer in enumerate(self.layers):
            x, k, v = layer(x, keys[i], values[i])
            made += [k, v]
        return self.head(x), *made


class Translator(nn.Module):
    """An encoder, and a decoder with cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.transformer = nn.Transformer(12, 2, 3, 3, 20, dropout=0.0, batch_first=True)
        self.out = nn.Linear(12, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.out(self.transformer(self.embed(source), self.embed(target)))


def _image(side: int) -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1)),)


def _ids(*lengths: int) -> tuple[Tensor, ...]:
    return tuple(torch.randint(20, (2, n), generator=torch.Generator().manual_seed(n)) for n in lengths)


def _cache() -> tuple[Tensor, ...]:
    return tuple(torch.randn(3, 2, 2, 5, 6, generator=torch.Generator().manual_seed(n)) for n in (1, 2))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "squeezenet": (SqueezeNet, _image(40)),
    "lcnet": (LCNet, _image(32)),
    "vgg": (VGG, _image(16)),
    "denoiser": (Denoiser, _image(12)),
    "super_resolution": (SuperResolution, _image(12)),
    "detector": (Detector, _image(32)),
    "cached_decoder": (CachedDecoder, (*_ids(4), *_cache())),
    "translator": (Translator, _ids(7, 5)),
}
