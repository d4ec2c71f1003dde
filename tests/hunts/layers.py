"""Drawn layers and functional calls of PyTorch, with odd arguments: each fits a value of a given shape, most often."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Recipe = Callable[[], Any]  # makes a module, or is made of a function that needs none
Draw = random.Random


class Call:
    """A function that a module's own `forward` calls."""

    def __init__(self, function: Callable[[Tensor], Any], shown: str) -> None:
        self.function, self.shown = function, shown

    def __call__(self, x: Tensor) -> Any:
        return self.function(x)

    def __repr__(self) -> str:
        return self.shown


def _module(make: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> Recipe:
    return lambda: make(*args, **kwargs)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Recipe:
    shown = f"{getattr(function, '__name__', function)}(x, {args}, {kwargs})"
    return lambda: Call(lambda x: function(x, *args, **kwargs), shown)


def convolution(d: Draw, shape: tuple[int, ...]) -> Recipe:
    """Of one or two dims: groups, dilation, kernels of even sizes, padding by name and by mode."""
    n, c = len(shape) - 2, shape[1]
    group = d.choice([g for g in (1, 1, 2, c) if c % g == 0])
    kernel = tuple(d.randint(1, 4) for _ in range(n))
    stride = d.choice((1, 1, 2))
    padding = d.choice((0, 1, "same", "valid", tuple(d.randint(0, 2) for _ in range(n))))
    stride = 1 if padding == "same" else stride
    return _module(
        (nn.Conv1d, nn.Conv2d)[n - 1], c, d.choice((c, c, 2 * group)), kernel, stride=stride, padding=padding,
        dilation=d.choice((1, 1, 2)), groups=group, bias=d.random() < 0.7,
        padding_mode=d.choice(("zeros", "zeros", "zeros", "reflect", "replicate", "circular")),
    )  # fmt: skip


def transposed(d: Draw, shape: tuple[int, ...]) -> Recipe:
    n, c, stride = len(shape) - 2, shape[1], d.choice((1, 2, 3))
    return _module(
        (nn.ConvTranspose1d, nn.ConvTranspose2d)[n - 1], c, c, tuple(d.randint(1, 4) for _ in range(n)), stride,
        d.choice((0, 1)), output_padding=d.randrange(stride), groups=d.choice((1, c)), dilation=d.choice((1, 1, 2)),
        bias=d.random() < 0.5,
    )  # fmt: skip


def pooling(d: Draw, shape: tuple[int, ...]) -> Recipe:
    n, kernel, ceil = len(shape) - 2, d.randint(1, 4), d.random() < 0.5
    stride, padding = d.choice((None, 1, 2, 3)), d.randint(0, kernel // 2)
    if d.random() < 0.4:
        kind = (nn.AvgPool1d, nn.AvgPool2d)[n - 1]
        call = (F.avg_pool1d, F.avg_pool2d)[n - 1]
        extra: dict[str, Any] = {"count_include_pad": d.random() < 0.5}
    elif d.random() < 0.2:
        out = d.randint(1, 3)
        return _module((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)[n - 1], out)
    else:
        kind, call = (nn.MaxPool1d, nn.MaxPool2d)[n - 1], (F.max_pool1d, F.max_pool2d)[n - 1]
        extra = {"dilation": d.choice((1, 1, 2))}
    arguments = {"kernel_size": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil, **extra}
    return _module(kind, **arguments) if d.random() < 0.6 else _call(call, **arguments)


def normalisation(d: Draw, shape: tuple[int, ...]) -> Recipe:
    c, kind = shape[1], d.randrange(6)
    if kind == 0 and len(shape) > 2:
        return _module(
            (nn.BatchNorm1d, nn.BatchNorm2d)[len(shape) - 3], c, affine=d.random() < 0.8, eps=d.choice((1e-5, 0.1))
        )
    if kind == 1:
        return _module(nn.GroupNorm, d.choice([g for g in (1, 2, c) if c % g == 0]), c, affine=d.random() < 0.7)
    if kind == 2 and len(shape) > 2:
        return _module((nn.InstanceNorm1d, nn.InstanceNorm2d)[len(shape) - 3], c, affine=d.random() < 0.5)
    if kind == 3:
        return _call(F.normalize, dim=d.randint(-len(shape) + 1, -1), p=d.choice((1.0, 2.0)))
    dims = shape[d.randint(1, len(shape) - 1) :]
    return _module(nn.LayerNorm, dims, elementwise_affine=d.random() < 0.8, bias=d.random() < 0.7)


def activation(d: Draw, shape: tuple[int, ...]) -> Recipe:
    dim = d.randint(-len(shape) + 1, -1)
    return d.choice(
        (
            _module(nn.ReLU), _module(nn.ReLU6), _module(nn.LeakyReLU, 0.2), _module(nn.ELU, 0.5), _module(nn.GELU),
            _module(nn.GELU, approximate="tanh"), _module(nn.SiLU), _module(nn.Hardswish), _module(nn.Hardsigmoid),
            _module(nn.Softplus, beta=2.0), _module(nn.PReLU, shape[1]), _module(nn.Mish),
            _module(nn.Hardtanh, -0.5, 2.0),
            _module(nn.Softmax, dim=dim), _module(nn.LogSoftmax, dim=dim), _module(nn.Dropout, 0.3),
            _module(nn.CELU, 0.3),
            _module(nn.Softsign), _module(nn.Tanhshrink), _module(nn.Threshold, 0.1, -1.0), _module(nn.Identity),
            _call(F.relu), _call(F.leaky_relu, negative_slope=0.3), _call(torch.tanh), _call(F.softmax, dim=dim),
            _call(torch.clamp, min=-0.5), _call(torch.clamp, max=0.7), _call(torch.abs), _call(F.hardshrink, lambd=0.3),
        )
    )  # fmt: skip


def padding(d: Draw, shape: tuple[int, ...]) -> Recipe:
    """Asymmetric, and negative now and then."""
    n = len(shape) - 2
    if d.random() < 0.6 or n == 0:
        pads = [d.randint(-1 if d.random() < 0.3 else 0, 2) for _ in range(2 * d.randint(1, len(shape) - 1))]
        return _call(F.pad, pads, value=d.choice((0.0, 0.0, 1.5)))
    mode = d.choice(("reflect", "replicate", "circular"))
    return _call(F.pad, [d.randint(0, 2) for _ in range(2 * n)], mode=mode)


def resizing(d: Draw, shape: tuple[int, ...]) -> Recipe:
    n = len(shape) - 2
    mode = d.choice(("nearest", "linear" if n == 1 else "bilinear", "nearest", "linear" if n == 1 else "bicubic"))
    extra: dict[str, Any] = {} if mode == "nearest" else {"align_corners": d.random() < 0.5}
    if d.random() < 0.5:
        extra["size"] = [d.randint(1, 8) for _ in range(n)]
    else:
        extra["scale_factor"] = d.choice((2, 2.0, 0.5, 1.5))
    return _module(nn.Upsample, mode=mode, **extra) if d.random() < 0.5 else _call(F.interpolate, mode=mode, **extra)


def moving(d: Draw, shape: tuple[int, ...]) -> Recipe:
    """What only moves, cuts or joins elements, by negative dims as often as not."""
    r = len(shape)
    a, b = d.randint(1, r - 1), d.randint(1, r - 1)
    na, nb = (a - r if d.random() < 0.5 else a), (b - r if d.random() < 0.5 else b)
    order = [0, *d.sample(range(1, r), r - 1)]
    half = shape[a] // 2
    return d.choice(
        (
            _call(torch.transpose, na, nb), _call(torch.permute, order), _call(torch.flip, [na]),
            _call(torch.roll, d.randint(-2, 2), na), _call(lambda x: torch.cat([x, -x], na)),
            _call(lambda x: torch.cat(x.chunk(2, na)[::-1], na)), _call(lambda x: x.narrow(na, half, shape[a] - half)),
            _call(lambda x: x[..., ::2]), _call(lambda x: x[:, -1:]), _call(lambda x: x + x.mean(na, keepdim=True)),
            _call(lambda x: x - x.amax(na, keepdim=True)), _call(lambda x: torch.stack([x, x * 2], na).sum(na)),
            _call(lambda x: x.unsqueeze(nb).squeeze(nb)), _call(torch.cumsum, na), _call(F.glu, na),
            _call(lambda x: x.reshape(x.shape[0], -1).reshape(x.shape)), _call(lambda x: x.std(na, keepdim=True) + x),
            _call(lambda x: x / (1 + x.norm(dim=na, keepdim=True))), _call(lambda x: x.repeat_interleave(2, na)),
            _call(lambda x: torch.where(x > 0, x, x.exp())),
            _call(lambda x: x.unflatten(na, (-1, 1)).flatten(a, a + 1)),
            _call(lambda x: x.masked_fill(x < 0, 0.25)), _call(lambda x: x.tril() if x.ndim > 2 else x),
            _call(lambda x: x.logsumexp(na, keepdim=True) + x),
            _call(lambda x: torch.einsum("n...d,n...d->n...d", x, x)),
        )
    )  # fmt: skip


def dense(d: Draw, shape: tuple[int, ...]) -> Recipe:
    size = shape[-1]
    return _module(nn.Linear, size, d.choice((size, size, 3, 1)), bias=d.random() < 0.7)


def recurrent(d: Draw, shape: tuple[int, ...]) -> Recipe:
    kind = d.choice((nn.LSTM, nn.GRU, nn.RNN))
    extra = {"nonlinearity": d.choice(("tanh", "relu"))} if kind is nn.RNN else {}
    return _module(
        kind, shape[-1], d.choice((2, shape[-1])), num_layers=d.choice((1, 1, 2)), batch_first=d.random() < 0.8,
        bidirectional=d.random() < 0.4, bias=d.random() < 0.8, **extra,
    )  # fmt: skip


class SelfAttention(nn.Module):
    def __init__(self, size: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(size, heads, **options)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attn(x, x, x, need_weights=False)[0]
        return made


def attention(d: Draw, shape: tuple[int, ...]) -> Recipe:
    size = shape[-1]
    heads = d.choice([h for h in (1, 2, 3) if size % h == 0])
    kind = d.randrange(3)
    if kind == 0:
        return _call(lambda x: F.scaled_dot_product_attention(x, x.flip(1), x, is_causal=heads == 1))
    if kind == 1:
        return _module(
            nn.TransformerEncoderLayer, size, heads, 5, 0.0, d.choice(("relu", "gelu")), batch_first=True,
            norm_first=d.random() < 0.5,
        )  # fmt: skip
    return _module(
        SelfAttention, size, heads, batch_first=d.random() < 0.8, bias=d.random() < 0.7,
        add_bias_kv=d.random() < 0.2, add_zero_attn=d.random() < 0.2,
    )  # fmt: skip


def recipe(d: Draw, shape: tuple[int, ...]) -> Recipe:
    """A layer or a call for a value of that shape; it may refuse it."""
    kinds = [activation, activation, moving, normalisation, padding, dense]
    if len(shape) > 2:
        kinds += [convolution, convolution, pooling, transposed, resizing]
    if len(shape) == 3:
        kinds += [attention, recurrent, dense]
    return d.choice(kinds)(d, shape)
