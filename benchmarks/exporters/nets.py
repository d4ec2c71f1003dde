"""Small networks in PyTorch, written as their authors would write them: what the tools on torch export."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Residual(nn.Module):
    def __init__(self, width: int, stride: int = 1) -> None:
        super().__init__()
        out = width * stride
        self.first = nn.Sequential(nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out))
        self.down = (
            nn.Sequential(nn.Conv2d(width, out, 1, stride), nn.BatchNorm2d(out)) if stride > 1 else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.down(x))


class Excite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.leaky_relu(self.inner(x), 0.1)
        b = F.silu(self.outer(F.max_pool2d(a, 2)))
        return self.last(torch.cat([a, self.up(b)], 1))


class Rms(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Causal(nn.Module):
    """A decoder with rotary positions, grouped heads, RMSNorm and a gated feed-forward."""

    def __init__(self, heads: int = 4, groups: int = 2, size: int = 8) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, size
        width = heads * size
        self.embed, self.norm = nn.Embedding(50, width), Rms(width)
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, groups * size, bias=False)
        self.v, self.o = nn.Linear(width, groups * size, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)
        self.register_buffer("rates", 1 / 100 ** (torch.arange(0, size, 2) / size))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        angles = torch.arange(tokens.shape[1], dtype=torch.float32)[:, None] * self.rates
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        h = self.norm(x)
        q, k, v = self._split(self.q(h), self.heads), self._split(self.k(h), self.groups), self.v(h)
        q, k = q * cos + self._half(q) * sin, k * cos + self._half(k) * sin
        k, v = (t.repeat_interleave(self.heads // self.groups, 1) for t in (k, self._split(v, self.groups)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(2, (heads, self.size)).transpose(1, 2)

    def _half(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([-b, a], -1)


class Window(nn.Module):
    """Attention in shifted windows."""

    def __init__(self, window: int = 4, width: int = 16) -> None:
        super().__init__()
        self.window, self.qkv, self.out = window, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(2, window**2, window**2) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        n = self.window
        y = torch.roll(x, (-2, -2), (1, 2)).view(b, h // n, n, w // n, n, c).permute(0, 1, 3, 2, 4, 5)
        q, k, v = self.qkv(y.reshape(-1, n * n, c)).view(-1, n * n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        y = ((q * (c // 2) ** -0.5) @ k.transpose(-2, -1) + self.bias).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(-1, n * n, c)).view(b, h // n, w // n, n, n, c)
        return x + torch.roll(y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c), (2, 2), (1, 2))


class Experts(nn.Module):
    """The two best of four experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.inner, self.outer = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.randn(4, 32, 16) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, -1)
        gates = torch.zeros_like(self.router(x)).scatter(-1, chosen, weights)
        every = torch.einsum("bteh,ehd->bted", F.gelu(torch.einsum("btd,edh->bteh", x, self.inner)), self.outer)
        return (every * gates[..., None]).sum(2)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **more: object) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(30, 12), kind(12, 10, batch_first=True, **more)
        self.head = nn.LazyLinear(5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(tokens))[0])


class Diffuse(nn.Module):
    """A block of a diffusion network: GroupNorm, a time embedding, attention over pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.time = nn.GroupNorm(4, 16), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 16)
        self.attention, self.up = nn.MultiheadAttention(16, 2, batch_first=True), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(8) * -0.5)
        angles = step[:, None] * rates
        h = self.conv(F.silu(self.norm(x))) + self.time(torch.cat([angles.sin(), angles.cos()], -1))[..., None, None]
        flat = h.flatten(2).transpose(1, 2)
        h = h + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(h.shape)
        return self.up(F.interpolate(h, scale_factor=2.0, mode="nearest"))


class Warp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.theta = nn.Conv2d(3, 4, 5, stride=2), nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.theta(self.conv(x).mean((2, 3))).view(-1, 2, 3) * 0.3
        return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


class Detect(nn.Module):
    """A head with anchors on two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 4, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.heads = nn.ModuleList(nn.Conv2d(8, 14, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        a = F.mish(self.first(x))
        found = []
        for head, y, stride in zip(self.heads, (a, F.mish(self.second(a))), (4, 8)):
            b, _, h, w = y.shape
            z = head(y).view(b, 2, 7, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centre = (z[..., :2] * 2 - 0.5 + torch.stack([columns, rows], -1)) * stride
            found.append(torch.cat([centre, (z[..., 2:4] * 2) ** 2 * stride, z[..., 4:]], -1).reshape(b, -1, 7))
        return torch.cat(found, 1)


class Wave(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 8, 7, padding=3))
        self.layers = nn.ModuleList(nn.Conv1d(8, 16, 3, dilation=2**i, padding=2**i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for layer in self.layers:
            a, b = layer(x).chunk(2, 1)
            x = x + a.tanh() * b.sigmoid()
        return x.amax(-1)


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _image(size: int = 16, batch: int = 2, width: int = 3) -> Tensor:
    return torch.randn(batch, width, size, size)


def _cnn() -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 10), nn.LogSoftmax(1))
    stem = (nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, Residual(8), Residual(8, 2), *head)


def _mobile() -> nn.Module:
    deep = (nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.BatchNorm2d(8), nn.Hardswish(), Excite(8))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU6(), *deep, nn.Conv2d(8, 4, 1), nn.PReLU(4), nn.PixelShuffle(2)
    )


def _mlp() -> nn.Module:
    layers = (nn.Linear(12, 24), nn.LayerNorm(24), nn.ELU(), nn.Linear(24, 24), nn.Softplus(), nn.Linear(24, 3))
    return nn.Sequential(*layers, nn.Softmax(-1))


TOKENS = torch.arange(14).reshape(2, 7)
NETS: dict[str, Callable[[], Made]] = {
    "cnn": lambda: (_cnn(), (_image(),)),
    "mobile": lambda: (_mobile(), (_image(),)),
    "unet": lambda: (Unet(), (_image(),)),
    "mlp": lambda: (_mlp(), (torch.randn(4, 12),)),
    "encoder_post": lambda: (_encoder(False), (torch.randn(2, 5, 16),)),
    "encoder_pre": lambda: (_encoder(True), (torch.randn(2, 5, 16),)),
    "causal": lambda: (Causal(), (TOKENS,)),
    "window": lambda: (Window(), (torch.randn(2, 8, 8, 16),)),
    "experts": lambda: (Experts(), (torch.randn(2, 5, 16),)),
    "lstm": lambda: (Recurrent(nn.LSTM, bidirectional=True, num_layers=2), (TOKENS,)),
    "gru": lambda: (Recurrent(nn.GRU), (TOKENS,)),
    "rnn": lambda: (Recurrent(nn.RNN, nonlinearity="relu"), (TOKENS,)),
    "diffuse": lambda: (Diffuse(), (_image(8, width=16), torch.tensor([3.0, 7.0]))),
    "warp": lambda: (Warp(), (_image(),)),
    "detect": lambda: (Detect(), (_image(32),)),
    "wave": lambda: (Wave(), (torch.randn(2, 1, 40),)),
}


def net(name: str) -> Made:
    """A network in evaluation mode with the same weights whenever it is made; its lazy layers have their sizes."""
    torch.manual_seed(0)
    made, inputs = NETS[name]()
    with torch.no_grad():
        made.eval()(*inputs)
    return made, inputs
