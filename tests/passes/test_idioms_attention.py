"""Attention as people and exporters spell it: `F.scaled_dot_product_attention` in one form, or left as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.ops.harness import tensor_proto
from tests.support.exported import held, held_graph

INF = -math.inf
LEAST = torch.finfo(torch.float32).min
DYNAMIC = {0: {0: "batch", 1: "length"}, 1: {0: "batch", 3: "length"}}
Attend = Callable[..., Any]


class Attention(nn.Module):
    """Two heads of size 4; `attend` is told the module, q, k, v as [batch, heads, length, size], and the masks."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.dropout, self.attend = nn.Dropout(0.1), attend

    def forward(self, x: Tensor, *masks: Tensor) -> Any:
        b, n, _ = x.shape
        q, k, v = (layer(x).reshape(b, n, 2, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        made = self.attend(self, q, k, v, *masks)
        return made if isinstance(made, tuple) else made.transpose(1, 2).flatten(2)


def run(attend: Attend, case: str, *masks: Tensor) -> str:
    """What the generated `forward` says, on one line."""
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
    axes = {k: v for k, v in DYNAMIC.items() if k <= len(masks)}
    return " ".join(held(Attention(attend), [x, *masks], case, axes).forward.split())


def flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[2], x.shape[3])


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) / 2


def merged(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Batch and heads as one axis, and as two while the mask is added, as Hugging Face's BART and OPT had it."""
    h = flat(q) @ flat(k).transpose(1, 2) / 2
    h = flat(h.reshape(-1, 2, q.shape[2], q.shape[2]) + mask)
    return (h.softmax(-1) @ flat(v)).reshape(-1, 2, q.shape[2], 4)


PLAIN: dict[str, tuple[Attend, str]] = {
    "div": (lambda m, q, k, v: scores(q, k).softmax(-1) @ v, ""),
    "mul": (lambda m, q, k, v: (q @ k.transpose(-2, -1) * 0.5).softmax(-1) @ v, ""),
    "on q": (lambda m, q, k, v: ((q * 0.5) @ k.transpose(-2, -1)).softmax(-1) @ v, ""),
    "on q, as Paddle exports it": (
        lambda m, q, k, v: ((q * 0.5).reshape(q.shape) @ k.transpose(-2, -1)).softmax(-1) @ v,
        "",
    ),
    "on k": (lambda m, q, k, v: (q @ (k / 2).transpose(-2, -1)).softmax(-1) @ v, ""),
    "on both": (lambda m, q, k, v: ((q * 0.5**0.5) @ (k.transpose(-2, -1) * 0.5**0.5)).softmax(-1) @ v, ""),
    "other scale": (lambda m, q, k, v: ((q * 0.3) @ k.transpose(-2, -1)).softmax(-1) @ v, ", scale=0.3"),
    "no scale": (lambda m, q, k, v: (q @ k.transpose(-2, -1)).softmax(-1) @ v, ", scale=1.0"),
    "permuted": (lambda m, q, k, v: (q @ k.permute(0, 1, 3, 2) / 2).softmax(-1) @ v, ""),
    "permuted from heads": (lambda m, q, k, v: (q @ k.transpose(1, 2).permute(0, 2, 3, 1) / 2).softmax(-1) @ v, ""),
    "float": (lambda m, q, k, v: scores(q, k).softmax(-1, dtype=torch.float32).to(q.dtype) @ v, ""),
    "bmm": (
        lambda m, q, k, v: torch.bmm((flat(q) @ flat(k).transpose(1, 2) / 2).softmax(-1), flat(v)).reshape(
            -1, 2, q.shape[2], 4
        ),
        "",
    ),
    "baddbmm": (
        lambda m, q, k, v: (
            torch.baddbmm(torch.zeros(1, 1, 1), flat(q), flat(k).transpose(1, 2), beta=0, alpha=0.5).softmax(-1)
            @ flat(v)
        ).reshape(-1, 2, q.shape[2], 4),
        "",
    ),
    "einsum": (
        lambda m, q, k, v: torch.einsum("bhqk,bhkd->bhqd", (torch.einsum("bhqd,bhkd->bhqk", q, k) / 2).softmax(-1), v),
        "",
    ),
    "einsum, heads last": (
        lambda m, q, k, v: torch.einsum(
            "bhij,bjhd->bihd",
            (torch.einsum("bihd,bjhd->bhij", q.transpose(1, 2), k.transpose(1, 2)) / 2).softmax(-1),
            v.transpose(1, 2),
        ).transpose(1, 2),
        "",
    ),
    "einsum, k first": (
        lambda m, q, k, v: (torch.einsum("bhkd,bhqd->bhqk", k, q) / 2).softmax(-1) @ v,
        "",
    ),
    "torch": (lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v), ""),
    "torch, scale": (lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), ", scale=0.3"),
    "torch, causal": (lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ", is_causal=True"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_spellings(name: str) -> None:
    attend, more = PLAIN[name]
    text = run(attend, "legacy-17")
    assert f"F.scaled_dot_product_attention(q, k, v{more})" in text and "softmax" not in text and "einsum" not in text


@pytest.mark.parametrize("case", ["legacy-13", "legacy-17-train"])
@pytest.mark.parametrize("name", ["div", "on both", "permuted from heads", "bmm"])
def test_spellings_of_other_opsets(name: str, case: str) -> None:
    assert "F.scaled_dot_product_attention(q, k, v)" in run(PLAIN[name][0], case)


@pytest.mark.parametrize("name", ["div", "einsum, heads last", "bmm", "torch", "torch, causal"])
def test_spellings_of_the_dynamo_exporter(name: str) -> None:
    attend, more = PLAIN[name]
    assert f"F.scaled_dot_product_attention(q, k, v{more})" in run(attend, "dynamo-18")


# ------------------------------------------------------------------------------------------------------- causal masks


def below(q: Tensor, dtype: torch.dtype = torch.bool) -> Tensor:
    return torch.ones(q.shape[2], q.shape[2], dtype=dtype, device=q.device).tril()


def above(q: Tensor, number: float, diagonal: int = 1) -> Tensor:
    return torch.full((q.shape[2], q.shape[2]), number, device=q.device).triu(diagonal)


def at(q: Tensor) -> Tensor:
    return torch.arange(q.shape[2], device=q.device)


CAUSAL: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fill tril": lambda q, k, x: scores(q, k).masked_fill(~below(q), x),
    "fill tril == 0": lambda q, k, x: scores(q, k).masked_fill(below(q, torch.float32) == 0, x),
    "fill triu": lambda q, k, x: scores(q, k).masked_fill(above(q, 1.0).bool(), x),
    "where tril": lambda q, k, x: torch.where(below(q)[None, None], scores(q, k), x),
    "where positions": lambda q, k, x: torch.where(at(q)[:, None] >= at(q), scores(q, k), x),
    "where positions <": lambda q, k, x: torch.where(at(q)[:, None] < at(q)[None, :], x, scores(q, k)),
    "add triu": lambda q, k, x: scores(q, k) + above(q, x),
    "add where": lambda q, k, x: scores(q, k) + torch.zeros_like(above(q, 1.0)).masked_fill(above(q, 1.0) > 0, x),
    "add expanded": lambda q, k, x: scores(q, k) + above(q, x)[None, None].expand(q.shape[0], 1, -1, -1),
}


@pytest.mark.parametrize("hiding", [INF, LEAST])
@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks(name: str, hiding: float) -> None:
    text = run(lambda m, q, k, v: CAUSAL[name](q, k, hiding).softmax(-1) @ v, "legacy-17")
    assert "F.scaled_dot_product_attention(q, k, v, is_causal=True)" in text and "mask" not in text


def test_a_causal_mask_where_heads_are_an_axis() -> None:
    text = run(lambda m, q, k, v: merged(q, k, v, above(q, LEAST)), "legacy-17")
    assert "F.scaled_dot_product_attention(q, k, v, is_causal=True)" in text and "mask" not in text


@pytest.mark.parametrize("name", ["fill tril", "where positions", "add triu"])
def test_causal_masks_of_the_dynamo_exporter(name: str) -> None:
    text = run(lambda m, q, k, v: CAUSAL[name](q, k, INF).softmax(-1) @ v, "dynamo-18")
    assert "F.scaled_dot_product_attention(q, k, v, is_causal=True)" in text


NOT_CAUSAL: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "another diagonal": lambda q, k: scores(q, k) + above(q, LEAST, 2),
    "the diagonal, too": lambda q, k: torch.where(at(q)[:, None] >= at(q) - 1, scores(q, k), LEAST),
    "the other triangle": lambda q, k: scores(q, k).masked_fill(below(q).T.logical_not(), LEAST),
    "hidden by little": lambda q, k: scores(q, k) + above(q, -1e4),
    "of the past": lambda q, k: torch.where(at(q)[:, None] <= at(q), scores(q, k), LEAST),
}


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_near_misses_of_causal_masks(name: str) -> None:
    assert "is_causal" not in run(lambda m, q, k, v: NOT_CAUSAL[name](q, k).softmax(-1) @ v, "legacy-17")


class Stored(Attention):
    """A triangle for 7 positions, cut to the length; its owner may keep it in the state dict."""

    def __init__(self, persistent: bool, rows: int = 7) -> None:
        super().__init__(lambda m, q, k, v: v)
        self.register_buffer("bias", torch.ones(1, 1, rows, rows).tril(), persistent=persistent)
        self.attend = self.stored

    def stored(self, _: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[2]
        bias = self.get_buffer("bias")[:, :, :n, :n]
        return scores(q, k).masked_fill(bias == 0, INF).softmax(-1) @ v


@pytest.mark.parametrize("case", ["legacy-11", "legacy-17", "dynamo-18"])
@pytest.mark.parametrize("persistent", [False, True])
def test_stored_triangles(persistent: bool, case: str) -> None:
    """What the state dict holds stays in it."""
    net = nn.Sequential(Stored(persistent))
    ran = held(net, [torch.randn(2, 5, 8)], case, {0: {0: "batch", 1: "length"}})
    assert ("is_causal=True" in ran.source) == (not persistent)
    assert "F.scaled_dot_product_attention(" in ran.source
    assert ("self.bias[" in ran.source) == persistent


def test_a_stored_triangle_for_another_length_is_no_causal_mask() -> None:
    graph = """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[2, 3, 5, 4] q, float[2, 3, 5, 4] k, float[2, 3, 5, 4] v) => (float[2, 3, 5, 4] y) {
            t = Transpose<perm=[0, 1, 3, 2]>(k)  s = MatMul(q, t)  z = Add(s, mask)
            p = Softmax<axis=-1>(z)  y = MatMul(p, v)
        }"""
    model = onnx.parser.parse_model(graph)
    triangle = torch.full((5, 5), LEAST).triu(1)
    for mask, causal in (
        (triangle, True),
        (triangle[:1], False),
        (triangle.T.contiguous(), False),
        (triangle[None], True),
    ):
        made = onnx.ModelProto()
        made.CopyFrom(model)
        made.graph.initializer.append(tensor_proto(mask.numpy(), "mask"))
        feeds = {n: torch.randn(2, 3, 5, 4).numpy() for n in "qkv"}
        assert ("is_causal=True" in held_graph(made, feeds).forward) == causal


# -------------------------------------------------------------------------------------------------------- other masks

MASK = torch.randn(2, 1, 1, 5, generator=torch.Generator().manual_seed(2))
MASKED: dict[str, tuple[Attend, str]] = {
    "added": (lambda m, q, k, v, x: (scores(q, k) + x).softmax(-1) @ v, "attn_mask=i1)"),
    "added first": (lambda m, q, k, v, x: (x + scores(q, k)).softmax(-1) @ v, "attn_mask=i1)"),
    "two added": (lambda m, q, k, v, x: (scores(q, k) + x + x.tanh()).softmax(-1) @ v, "attn_mask="),
    "added, causal": (lambda m, q, k, v, x: (scores(q, k) + above(q, INF) + x).softmax(-1) @ v, "attn_mask="),
    "torch's": (lambda m, q, k, v, x: F.scaled_dot_product_attention(q, k, v, attn_mask=x), "attn_mask=i1)"),
    "torch's condition": (
        lambda m, q, k, v, x: F.scaled_dot_product_attention(q, k, v, attn_mask=x > 0),
        "attn_mask=i1 > 0)",
    ),
    "added where heads are an axis": (lambda m, q, k, v, x: merged(q, k, v, x), "attn_mask=i1)"),
    "condition, in two": (
        lambda m, q, k, v, x: (scores(q, k) + (1.0 - (x > 0).float()) * LEAST).softmax(-1) @ v,
        "attn_mask=",
    ),
}


@pytest.mark.parametrize("name", MASKED)
def test_masks(name: str) -> None:
    attend, more = MASKED[name]
    text = run(attend, "legacy-17", MASK)
    assert "F.scaled_dot_product_attention(" in text and more in text and "softmax" not in text


LEFT: dict[str, Attend] = {
    # a row without any key is NaN here, and zeros in torch's function
    "filled with -inf": lambda m, q, k, v, x: scores(q, k).masked_fill(x > 0, INF).softmax(-1) @ v,
    # such a row is the mean of all values here
    "filled with the least": lambda m, q, k, v, x: scores(q, k).masked_fill(x > 0, LEAST).softmax(-1) @ v,
    "added after the softmax": lambda m, q, k, v, x: (scores(q, k).softmax(-1) + x) @ v,
    "of other heads": lambda m, q, k, v, x: (
        flat((flat(q) @ flat(k).transpose(1, 2)).reshape(2, -1, 5, 5) + x).softmax(-1) @ flat(v)
    ).reshape(-1, 2, 5, 4),
    "over the queries": lambda m, q, k, v, x: (scores(q, k) + x).softmax(-2) @ v,
    "weights are returned": lambda m, q, k, v, x: (lambda p: (p @ v, p))((scores(q, k) + x).softmax(-1)),
    "scores are returned": lambda m, q, k, v, x: (lambda s: (s.softmax(-1) @ v, s))(scores(q, k) + x),
    "divided by a tensor": lambda m, q, k, v, x: (scores(q, k) / (x + 9)).softmax(-1) @ v,
    "a negative scale": lambda m, q, k, v, x: ((scores(q, k) + x) * -0.5).softmax(-1) @ v,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    assert "scaled_dot_product" not in run(LEFT[name], "legacy-17", MASK)


def test_a_cached_key_and_a_penalty_are_called_what_they_are() -> None:
    """As GPT-2 was written first: keys are handed on, too, and what may not be seen loses 10,000."""

    def attend(m: Any, q: Tensor, k: Tensor, v: Tensor, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        k, v = torch.cat([past, k], 2), torch.cat([past + 1, v], 2)
        s = q @ (k.transpose(2, 3) / 2.5)
        s = s * x[..., :1] - (1.0 - x[..., :1]) * 1e4
        return s.softmax(-1) @ v, torch.stack([k, v])

    text = run(attend, "legacy-17", MASK, torch.randn(2, 2, 3, 4))
    for said in (
        "k = torch.cat([",
        "v = torch.cat([",
        "mask = i1[",
        "torch.stack([k, v])",
        "* mask - 10000 * (1 - mask)",
    ):
        assert said in text, (said, text)


@pytest.mark.parametrize(
    "attend",
    [
        lambda m, q, k, v: m.dropout(scores(q, k).softmax(-1)) @ v,
        lambda m, q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if m.training else 0.0),
    ],
)
def test_dropout(attend: Attend) -> None:
    assert "(q, k, v, dropout_p=self.dropout.p if self.training else 0.0)" in run(attend, "legacy-17-train")


def test_dropout_is_at_work_while_training() -> None:
    x = torch.randn(2, 5, 8)
    made = held(Attention(lambda m, q, k, v: m.dropout(scores(q, k).softmax(-1)) @ v), [x], "legacy-17-train").model
    assert torch.equal(made.eval()(x), made(x))
    assert not torch.equal(made.train()(x), made(x))
