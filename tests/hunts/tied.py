"""Drawn networks in which a tensor or a module has several places: tied weights, layers called again, stacks that share
a part."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Draw = random.Random
WIDTH, LENGTH, BATCH, WORDS = 8, 5, 3, 11


class Block(nn.Module):
    """Two layers with a norm, and perhaps a residual."""

    def __init__(self, first: str, second: str, is_residual: bool, has_norm: bool) -> None:
        super().__init__()
        self.names, self.is_residual = (first, second), is_residual
        self.add_module(first, nn.Linear(WIDTH, WIDTH))
        self.add_module(second, nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH) if has_norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = getattr(self, self.names[1])(torch.relu(getattr(self, self.names[0])(self.norm(x))))
        return y + x if self.is_residual else y


class Again(nn.Module):
    """A body that is called several times, with something between the calls."""

    def __init__(self, body: nn.Module, name: str, calls: int, between: str) -> None:
        super().__init__()
        self.name, self.calls, self.between = name, calls, between
        self.add_module(name, body)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for k in range(self.calls):
            y = getattr(self, self.name)(x)
            x = x + y if self.between == "residual" else self.norm(y) if self.between == "norm" and not k else y
        return x


class Language(nn.Module):
    """An embedding whose table is the weight of the head, and another embedding's, perhaps."""

    def __init__(self, body: nn.Module, head: str, way: str, bias: bool, with_positions: bool) -> None:
        super().__init__()
        self.embed, self.body, self.head, self.way = nn.Embedding(WORDS, WIDTH), body, head, way
        self.positions = nn.Embedding(LENGTH, WIDTH) if with_positions else None
        if way == "layer":
            self.add_module(head, nn.Linear(WIDTH, WORDS, bias=bias))
            getattr(self, head).weight = self.embed.weight
        if way == "two":
            self.other = nn.Embedding(WORDS, WIDTH)
            self.other.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embed(words)
        if self.positions is not None:
            x = x + self.positions.weight.unsqueeze(1)
        x = self.body(x)
        x = x[0] if isinstance(x, tuple) else x
        if self.way == "layer":
            made: Tensor = getattr(self, self.head)(x)
            return made
        if self.way == "two":
            x = x + self.other(words)
        return F.linear(x, self.embed.weight) if self.way != "matmul" else x @ self.embed.weight.t()


class Stacks(nn.Module):
    """Two stacks of layers, one after the other or side by side, which share some part."""

    def __init__(self, first: nn.Module, second: nn.Module, way: str, names: tuple[str, str]) -> None:
        super().__init__()
        self.names, self.way = names, way
        self.add_module(names[0], first)
        self.add_module(names[1], second)

    def forward(self, *given: Tensor) -> Tensor:
        first, second = (getattr(self, name) for name in self.names)
        x = first(given[0])
        x = x[0] if isinstance(x, tuple) else x
        y = second(x if self.way == "after" else given[-1])
        y = y[0] if isinstance(y, tuple) else y
        return y if self.way == "after" else x.mean(0) * y.mean(0) if self.way == "product" else torch.cat([x, y])


def tied(d: Draw) -> tuple[Any, list[Tensor], Any]:
    """A network, its inputs, and how it is called."""
    return d.choice((_again, _weights, _language, _stacks, _stacks))(d)


def _first(layer: Any, given: tuple[Tensor, ...]) -> Any:
    made = layer(*given)
    return made[0] if isinstance(made, tuple) else made


def _x() -> Tensor:
    return torch.randn(LENGTH, BATCH, WIDTH)


def _again(d: Draw) -> tuple[Any, list[Tensor], Any]:
    """`Sequential(lin, ReLU, lin)` called twice, and its like."""
    lin = nn.Linear(WIDTH, WIDTH, bias=d.random() < 0.8)
    parts = d.choice((
        [lin, nn.ReLU(), lin], [lin, nn.GELU(), lin, nn.GELU()], [lin, nn.ReLU(), nn.Linear(WIDTH, WIDTH), lin],
        [nn.Sequential(lin, nn.ReLU()), lin], [lin, nn.LayerNorm(WIDTH), lin], [lin, lin],
    ))  # fmt: skip
    body = nn.Sequential(*parts)
    calls = d.choice((1, 2, 2, 3))
    if d.random() < 0.2:
        return body, [_x()], _first
    return (
        Again(body, d.choice(("body", "net", "0", "layers")), calls, d.choice(("", "norm", "residual"))),
        [_x()],
        _first,
    )


def _weights(d: Draw) -> tuple[Any, list[Tensor], Any]:
    """Blocks of which some have one weight."""
    first, second = d.sample(("fc1", "fc2", "up", "down", "linear", "0", "1"), 2)
    blocks = [Block(first, second, d.random() < 0.5, d.random() < 0.6) for _ in range(d.randint(2, 4))]
    for name in (first, second):
        if d.random() < 0.7:
            some = d.sample(blocks, d.randint(2, len(blocks)))
            _tie([getattr(b, name) for b in some], d.choice((("weight",), ("weight", "bias"), ("bias",))))
    if d.random() < 0.2:  # one weight in both layers of a block
        _tie([getattr(blocks[0], first), getattr(blocks[0], second)], ("weight",))
    if d.random() < 0.3:
        blocks.insert(d.randrange(len(blocks)), d.choice(blocks))
    return nn.Sequential(*blocks), [_x()], _first


def _tie(layers: list[Any], names: tuple[str, ...]) -> None:
    for layer in layers[1:]:
        for name in names:
            setattr(layer, name, getattr(layers[0], name))


def _language(d: Draw) -> tuple[Any, list[Tensor], Any]:
    body = d.choice((
        lambda: nn.TransformerEncoderLayer(WIDTH, 2, 12), lambda: nn.GRU(WIDTH, WIDTH), lambda: nn.LSTM(WIDTH, WIDTH),
        lambda: Block("fc1", "fc2", True, True), lambda: nn.Identity(), lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 12), 2, enable_nested_tensor=False),
    ))()  # fmt: skip
    net = Language(
        body, d.choice(("head", "lm_head", "decoder", "proj")), d.choice(("layer", "layer", "linear", "matmul", "two")),
        d.random() < 0.5, d.random() < 0.4,
    )  # fmt: skip
    return net, [torch.randint(0, WORDS, (LENGTH, BATCH))], _first


def _stacks(d: Draw) -> tuple[Any, list[Tensor], Any]:
    make = d.choice((_encoders, _encoders, _recurrent, _attentions))
    first, second = make(d)
    names = d.sample(("encoder", "decoder", "left", "right", "a", "b", "layers", "norm"), 2)
    net = Stacks(first, second, d.choice(("after", "product", "beside")), (names[0], names[1]))
    return net, [_x(), _x()] if net.way != "after" else [_x()], _first


def _encoders(d: Draw) -> tuple[nn.Module, nn.Module]:
    """Encoders of torch that share a layer, a part of one, or a norm."""
    given: dict[str, Any] = {"dim_feedforward": 12, "norm_first": d.random() < 0.4, "dropout": d.choice((0.0, 0.1))}
    norms = [nn.LayerNorm(WIDTH) if d.random() < 0.6 else None for _ in range(2)]
    one, other = (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 2, **given), d.randint(1, 2), norm, enable_nested_tensor=False
        )
        for norm in norms
    )
    mine, its = d.choice([*one.layers]), d.choice([*other.layers])
    kind = d.choice(("layer", "layers", "norm", "attention", "linear", "weight", "none", "all"))
    if kind == "layer":
        other.layers[d.randrange(len(other.layers))] = mine
    elif kind == "layers":
        other.layers, other.num_layers = one.layers, one.num_layers
    elif kind == "norm":
        other.norm = one.norm
    elif kind == "attention":
        its.self_attn = mine.self_attn
    elif kind == "linear":
        its.linear1 = mine.linear1
    elif kind == "weight":
        _tie([mine.linear2, its.linear2], ("weight",))
    return one, one if kind == "all" else other


def _recurrent(d: Draw) -> tuple[nn.Module, nn.Module]:
    kind = d.choice((nn.GRU, nn.LSTM, nn.RNN))
    one, other = kind(WIDTH, WIDTH, d.randint(1, 2)), kind(WIDTH, WIDTH, d.randint(1, 2))
    names = d.choice((("weight_ih_l0",), ("weight_hh_l0", "bias_hh_l0"), ("weight_ih_l0", "weight_hh_l0"), ()))
    _tie([one, other], names)
    return one, one if not names and d.random() < 0.5 else other


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, 2)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attn(y, y, y, need_weights=False)[0]


def _attentions(d: Draw) -> tuple[nn.Module, nn.Module]:
    one, other = Attending(), Attending()
    kind = d.choice(("attn", "norm", "in_proj", "out_proj"))
    if kind in ("attn", "norm"):
        setattr(other, kind, getattr(one, kind))
    elif kind == "in_proj":
        _tie([one.attn, other.attn], ("in_proj_weight",))
    else:
        other.attn.out_proj = one.attn.out_proj
    return one, other
