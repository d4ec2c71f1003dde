"""Each rule of the canonical form, with a pair that is equal and a pair that is not.

All pairs are outputs of one module: one capture has them all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.canonical.algebra import Algebra
from onnxgen.canonical.capture import exported, read

Pair = tuple[Callable[..., Any], Callable[..., Any]]


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return F.softmax(scores if mask is None else scores + mask, -1) @ v


def normed(x: Tensor, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + eps).sqrt()


# `m` has the parameters; `x` is [batch, 4, 6], `i` an image [batch, 4, 5, 5], `n` token ids [batch, 3]
EQUAL: dict[str, Pair] = {
    "sums": (lambda m, x, i, n: x + 2 * m.b + x, lambda m, x, i, n: 2 * (m.b + x)),
    "products": (lambda m, x, i, n: x * (m.b - x), lambda m, x, i, n: -(x * x) + m.b * x),
    "powers": (lambda m, x, i, n: 1 / (x.square() + 1).sqrt(), lambda m, x, i, n: torch.rsqrt(x**2 + 1)),
    "linear": (lambda m, x, i, n: F.linear(x, m.w, m.b), lambda m, x, i, n: m.b + torch.matmul(x, m.w.T)),
    "einsum": (lambda m, x, i, n: x @ m.w, lambda m, x, i, n: torch.einsum("bij,jk->bik", x, m.w)),
    "gelu": (lambda m, x, i, n: F.gelu(x), lambda m, x, i, n: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
    "gelu_tanh": (
        lambda m, x, i, n: F.gelu(x, approximate="tanh"),
        lambda m, x, i, n: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (lambda m, x, i, n: F.silu(x), lambda m, x, i, n: x / (1 + torch.exp(-x))),
    "relu": (lambda m, x, i, n: F.relu(x), lambda m, x, i, n: torch.maximum(x, torch.zeros_like(x))),
    "softmax": (
        lambda m, x, i, n: F.softmax(x, 1),
        lambda m, x, i, n: torch.exp(x - x.amax(1, True)) / torch.exp(x - x.amax(1, True)).sum(1, True),
    ),
    "enlarged": (
        lambda m, x, i, n: F.interpolate(i, scale_factor=2, mode="bilinear"),
        lambda m, x, i, n: F.interpolate(i, size=(10, 10), mode="bilinear", align_corners=False),
    ),
    "layer_norm": (lambda m, x, i, n: F.layer_norm(x, (6,), m.g, m.b), lambda m, x, i, n: normed(x) * m.g + m.b),
    "group_norm": (
        lambda m, x, i, n: F.group_norm(i, 2),
        lambda m, x, i, n: normed(i.reshape(i.shape[0], 2, -1)).reshape(i.shape),
    ),
    "batch_norm": (
        lambda m, x, i, n: F.batch_norm(i, m.mean, m.var),
        lambda m, x, i, n: (i - m.mean[:, None, None]) * (m.var + 1e-5).rsqrt()[:, None, None],
    ),
    "attention": (lambda m, x, i, n: F.scaled_dot_product_attention(x, x, x), lambda m, x, i, n: by_hand(x, x, x)),
    "attention_mask": (
        lambda m, x, i, n: F.scaled_dot_product_attention(x, x, x, attn_mask=m.mask),
        lambda m, x, i, n: by_hand(x, x, x, m.mask),
    ),
    "views": (
        lambda m, x, i, n: x.unflatten(-1, (2, 3)).transpose(1, 2).flatten(0, 1),
        lambda m, x, i, n: x.view(-1, 4, 2, 3).permute(0, 2, 1, 3).reshape(-1, 4, 3),
    ),
    "view_of_sum": (lambda m, x, i, n: (x * m.b).mT, lambda m, x, i, n: x.mT * m.b[:, None]),
    "slices": (lambda m, x, i, n: x.chunk(2, -1)[1], lambda m, x, i, n: x[..., 3:]),
    "slice_of_linear": (lambda m, x, i, n: F.linear(x, m.w)[..., :2], lambda m, x, i, n: F.linear(x, m.w[:2])),
    "slice_of_rows": (lambda m, x, i, n: F.linear(x, m.w)[:, 1], lambda m, x, i, n: F.linear(x[:, 1], m.w)),
    "one_row_of_rows": (
        lambda m, x, i, n: F.linear(x.exp(), m.w)[:, 1],
        lambda m, x, i, n: F.linear(x[:, 1:2].exp(), m.w)[:, 0],
    ),
    "view_of_expanded": (
        lambda m, x, i, n: m.mean[:, None].expand(4, 6).T,
        lambda m, x, i, n: m.mean.expand(6, 4),
    ),
    "part_of_rows": (lambda m, x, i, n: F.linear(x, m.w)[:, 1:3], lambda m, x, i, n: F.linear(x[:, 1:3], m.w)),
    "cat_of_each": (
        lambda m, x, i, n: torch.cat([x.exp(), (x * m.b).exp()], 1),
        lambda m, x, i, n: torch.cat([x, x * m.b], 1).exp(),
    ),
    "flipped_twice": (lambda m, x, i, n: x.flip(1, 2).flip(2), lambda m, x, i, n: x.flip(1)),
    "max_pool": (lambda m, x, i, n: F.max_pool2d(i, 2), lambda m, x, i, n: F.max_pool2d(i, (2, 2), (2, 2), 0)),
    "avg_pool": (
        lambda m, x, i, n: F.avg_pool2d(i, 2),
        lambda m, x, i, n: F.avg_pool2d(i, 2, 2, 0, False, False),
    ),
    "repeat": (lambda m, x, i, n: x[:, :1].repeat(1, 3, 1), lambda m, x, i, n: x[:, :1].expand(-1, 3, -1)),
    "arange": (lambda m, x, i, n: m.w[torch.arange(1, 4)], lambda m, x, i, n: F.embedding(m.indices, m.w)),
    "cat": (lambda m, x, i, n: torch.cat([x[:, :1], x[:, 1:]], 1), lambda m, x, i, n: x),
    "mean": (lambda m, x, i, n: i.mean((2, 3)), lambda m, x, i, n: F.adaptive_avg_pool2d(i, 1).flatten(1)),
    "convolution": (
        lambda m, x, i, n: F.conv2d(F.pad(i, (1, 1, 1, 1)), m.kernel, m.g[:2]),
        lambda m, x, i, n: F.conv2d(i, m.kernel, padding=1) + m.g[:2, None, None],
    ),
    "embedding": (lambda m, x, i, n: F.embedding(n, m.w), lambda m, x, i, n: m.w[n]),
    "where": (lambda m, x, i, n: F.leaky_relu(x, 0.1), lambda m, x, i, n: torch.where(x > 0, x, 0.1 * x)),
    "folded": (lambda m, x, i, n: x * 0.1 * 3, lambda m, x, i, n: x * 0.3),
    "as_stored": (lambda m, x, i, n: x * 0.17677669, lambda m, x, i, n: x / math.sqrt(32)),
    "in_place": (lambda m, x, i, n: (x + 1) * 2, lambda m, x, i, n: (x + 1).mul_(2)),
}

OTHER: dict[str, Pair] = {
    "swapped": (lambda m, x, i, n: x - m.b, lambda m, x, i, n: m.b - x),
    "scale": (lambda m, x, i, n: x * 0.5, lambda m, x, i, n: x * 0.5001),
    "root_of_square": (lambda m, x, i, n: x.square().sqrt(), lambda m, x, i, n: x),
    "nothing_divided": (lambda m, x, i, n: x + 0 / m.b, lambda m, x, i, n: x + 0 * m.b),
    "root_of_nothing": (lambda m, x, i, n: x + 0 * x.sqrt(), lambda m, x, i, n: x),
    "quotient_of_itself": (lambda m, x, i, n: x + 1 / m.b - 1 / m.b, lambda m, x, i, n: x),
    "corners": (
        lambda m, x, i, n: F.interpolate(i, scale_factor=2, mode="bilinear"),
        lambda m, x, i, n: F.interpolate(i, scale_factor=2, mode="bilinear", align_corners=True),
    ),
    "factors": (lambda m, x, i, n: F.interpolate(i, scale_factor=2.1), lambda m, x, i, n: F.interpolate(i, size=10)),
    "transposed": (lambda m, x, i, n: x @ m.w, lambda m, x, i, n: x @ m.w.T),
    "gelus": (lambda m, x, i, n: F.gelu(x), lambda m, x, i, n: F.gelu(x, approximate="tanh")),
    "axis": (lambda m, x, i, n: F.softmax(x, 1), lambda m, x, i, n: F.softmax(x, 2)),
    "epsilon": (lambda m, x, i, n: normed(x), lambda m, x, i, n: normed(x, 1e-6)),
    "unbiased": (lambda m, x, i, n: x.var(-1), lambda m, x, i, n: x.var(-1, unbiased=False)),
    "groups": (lambda m, x, i, n: F.group_norm(i, 2), lambda m, x, i, n: F.group_norm(i, 4)),
    "order_of_axes": (
        lambda m, x, i, n: x.reshape(-1, 6, 4),
        lambda m, x, i, n: x.transpose(1, 2),
    ),
    "half": (lambda m, x, i, n: x.half().float(), lambda m, x, i, n: x),
    "integer": (lambda m, x, i, n: x.int().float(), lambda m, x, i, n: x),
    "integer_division": (lambda m, x, i, n: n // 2 * 2, lambda m, x, i, n: n),
    "detached": (lambda m, x, i, n: F.linear(x, m.w).detach(), lambda m, x, i, n: F.linear(x, m.w)),
    "dropped_twice": (
        lambda m, x, i, n: F.dropout(x, 0.5) + F.dropout(x, 0.5),
        lambda m, x, i, n: (lambda d: d + d)(F.dropout(x, 0.5)),
    ),
    # a row without any key is 0 here, and NaN there
    "hidden_row": (
        lambda m, x, i, n: F.scaled_dot_product_attention(x, x, x, attn_mask=(m.mask > 0)),
        lambda m, x, i, n: by_hand(x, x, x, torch.zeros(4, 4).masked_fill(m.mask <= 0, -math.inf)),
    ),
    "padding_index": (lambda m, x, i, n: F.embedding(n, m.w, 0), lambda m, x, i, n: F.embedding(n, m.w)),
    "flipped": (lambda m, x, i, n: x.flip(1), lambda m, x, i, n: x.flip(2)),
    "row_of_rows": (lambda m, x, i, n: F.linear(x, m.w)[:, 1], lambda m, x, i, n: F.linear(x[:, 2], m.w)),
    "pooled_with_padding": (
        lambda m, x, i, n: F.avg_pool2d(i, 2, 2, 1),
        lambda m, x, i, n: F.avg_pool2d(i, 2, 2, 1, count_include_pad=False),
    ),
    "pooled_further": (lambda m, x, i, n: F.max_pool2d(i, 2), lambda m, x, i, n: F.max_pool2d(i, 2, 1)[:, :, ::2, ::2]),
    "repeated": (lambda m, x, i, n: x.repeat(1, 2, 1), lambda m, x, i, n: x.repeat_interleave(2, 1)),
    "slice_from_end": (lambda m, x, i, n: x[:, -2:], lambda m, x, i, n: x[:, :2]),
    "slope": (lambda m, x, i, n: F.leaky_relu(x, 0.1), lambda m, x, i, n: F.leaky_relu(x, 0.2)),
    "cat_order": (
        lambda m, x, i, n: torch.cat([x[:, :1], x[:, 1:]], 1),
        lambda m, x, i, n: torch.cat([x[:, 1:], x[:, :1]], 1),
    ),
    "next_number": (lambda m, x, i, n: x * 0.1, lambda m, x, i, n: x * 0.10000001),
    "next_argument": (lambda m, x, i, n: F.elu(x, 0.1), lambda m, x, i, n: F.elu(x, 0.10000001)),
    "large": (lambda m, x, i, n: x + 1e39, lambda m, x, i, n: x + 1e40),
    "cut_off": (lambda m, x, i, n: torch.full((6,), 2.7, dtype=torch.int64) * x, lambda m, x, i, n: x * 2.7),
    "compared_integers": (lambda m, x, i, n: n < 2.5, lambda m, x, i, n: n < 2),
    "rounded_first": (
        lambda m, x, i, n: x.double() * torch.full((6,), 0.1).double(),
        lambda m, x, i, n: x.double() * 0.1,
    ),
    "next_in_float64": (lambda m, x, i, n: x.double() * 0.1, lambda m, x, i, n: x.double() * 0.1000000000001),
    "square_of_a_part": (
        lambda m, x, i, n: (torch.cat([x[:, :2], x[:, 2:] * 3], 1) * torch.cat([x[:, :2], x[:, 2:].abs()], 1))[:, :2],
        lambda m, x, i, n: x[:, :2],
    ),
    "stacked_integers": (lambda m, x, i, n: torch.stack([n, n / 2])[1] * 2, lambda m, x, i, n: (n / 2).int() * 2.0),
    "detached_in_place": (
        lambda m, x, i, n: F.linear(x, m.w).detach().add_(1),
        lambda m, x, i, n: F.linear(x, m.w) + 1,
    ),
    "clamped": (lambda m, x, i, n: x.clamp(max=1e6), lambda m, x, i, n: x),
    "padding": (
        lambda m, x, i, n: F.conv2d(i, m.kernel),
        lambda m, x, i, n: F.conv2d(i, m.kernel, padding=1)[:, :, :3, :3],
    ),
}


class All(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 6))
        self.b, self.g = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.kernel = nn.Parameter(torch.randn(2, 4, 3, 3))
        self.mask = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("indices", torch.tensor([1, 2, 3]), persistent=False)
        self.register_buffer("mean", torch.randn(4))
        self.register_buffer("var", torch.rand(4))

    def forward(self, x: Tensor, i: Tensor, n: Tensor) -> list[Any]:
        return [function(self, x, i, n) for pair in (*EQUAL.values(), *OTHER.values()) for function in pair]


@functools.cache
def terms() -> dict[str, tuple[Any, Any]]:
    arguments = (torch.randn(3, 4, 6), torch.randn(3, 4, 5, 5), torch.randint(6, (3, 3)))
    outputs = read(Algebra(), exported(All().train(), arguments, [[0], [0], [0]]), {}).outputs
    names = [*(f"equal {name}" for name in EQUAL), *(f"other {name}" for name in OTHER)]
    return {name: (outputs[2 * k], outputs[2 * k + 1]) for k, name in enumerate(names)}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_functions_are_one_term(name: str) -> None:
    one, other = terms()[f"equal {name}"]
    assert one is other


@pytest.mark.parametrize("name", OTHER)
def test_other_functions_are_other_terms(name: str) -> None:
    one, other = terms()[f"other {name}"]
    assert one is not other
