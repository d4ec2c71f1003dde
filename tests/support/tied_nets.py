"""Small modules that share tensors, and such that look as if they did: copies that are equal before training."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8


class Block(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.lin, self.own, self.norm = shared, nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(x + self.own(F.relu(self.lin(x))))
        return made


class Branches(nn.Module):
    """The sum of several convolutions of one input."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([F.relu(conv(x)) for conv in self.convs]).sum(0)


class Heads(nn.Module):
    """A head reads the result of each layer."""

    def __init__(self, *heads: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in heads)
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x)
            found.append(head(x))
        return torch.stack(found)


class Looped(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        return x


class Language(nn.Module):
    """Ids are drawn from the input, which is the same for all modules here."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(torch.tanh(self.fc(self.words((x * 5).long().clamp(0, 10)))))
        return made


class Read(nn.Module):
    """`forward` reads tensors of layers beside the layers."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.fc, self.norm1 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        for tensor in self.norm1.parameters() if draws else ():
            nn.init.normal_(tensor)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm1(self.fc(x)) + x * self.norm1.weight + self.norm1.bias
        return made


def linears(count: int, tied: tuple[str, ...]) -> nn.Sequential:
    """Layers that share these tensors of the first."""
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(count)]
    for layer in layers:
        nn.init.normal_(layer.bias)
        for name in tied:
            setattr(layer, name, getattr(layers[0], name))
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def equal_biases() -> nn.Module:
    made = linears(3, ())
    for layer in made.children():
        for bias in [layer.bias] if isinstance(layer, nn.Linear) else ():
            nn.init.constant_(bias, 0.5)
    return made


def convs() -> nn.Module:
    made = [nn.Conv1d(5, 5, 3, padding=d, dilation=d) for d in (1, 2, 3)]
    for conv in made[1:]:
        conv.weight = made[0].weight
    return Branches(*made)


def encoder(draws: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
    nn.init.constant_(layer.self_attn.out_proj.bias, 0.5)  # the dynamo exporter drops a bias of zeros
    made = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    for tensor in made.parameters() if draws else ():
        nn.init.normal_(tensor, std=0.4)
    return made


def drawn_anew() -> nn.Module:
    """As `apply` leaves an encoder whose linear layers it draws again: the projections of the attentions stay equal."""
    made = encoder(False)
    for layer in made.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.4)
            nn.init.constant_(layer.bias, 0.5)  # the dynamo exporter drops a bias of zeros
    return made


def called_again() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(layer, nn.ReLU(), layer)


def head() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4))


def blocks(shared: nn.Module, copies: bool = False) -> nn.Module:
    return nn.Sequential(*(Block(copy.deepcopy(shared) if copies else shared) for _ in range(3)))


def copied(module: nn.Module, count: int = 3) -> list[nn.Module]:
    return [copy.deepcopy(module) for _ in range(count)]


SHARED: dict[str, Callable[[], nn.Module]] = {
    "a layer in three blocks": lambda: blocks(nn.Linear(WIDTH, WIDTH)),
    "a matrix in three blocks": lambda: blocks(nn.Linear(WIDTH, WIDTH, bias=False)),
    "a norm in three blocks": lambda: blocks(nn.LayerNorm(WIDTH)),
    "a layer that is called twice": called_again,
    "a block that is called thrice": lambda: nn.Sequential(*[Block(nn.Linear(WIDTH, WIDTH))] * 3),
    "a block in a loop": lambda: Looped(Block(nn.Linear(WIDTH, WIDTH))),
    "weights without biases": lambda: linears(3, ("weight",)),
    "weights and biases": lambda: linears(3, ("weight", "bias")),
    "kernels": convs,
    "an embedding and the last layer": Language,
    "a head in a list": lambda: Heads(*[head()] * 3),
    "tensors that forward reads": lambda: Read(True),
    "tensors that forward reads, untrained": lambda: Read(False),
    "an attention in two layers": lambda: nn.Sequential(*[encoder(True).layers[0]] * 2),  # type: ignore[index]
}
"""Modules of which several parts have one tensor, for an input of [2, 5, WIDTH]."""

COPIED: dict[str, Callable[[], nn.Module]] = {
    "an encoder": lambda: encoder(False),
    "an encoder, trained": lambda: encoder(True),
    "an encoder, drawn anew": drawn_anew,
    "blocks": lambda: nn.Sequential(*copied(Block(nn.Linear(WIDTH, WIDTH)))),
    "layers in blocks that differ": lambda: blocks(nn.Linear(WIDTH, WIDTH), copies=True),
    "heads": lambda: Heads(*copied(head())),
    "biases of equal numbers": equal_biases,
}
"""Modules that share nothing, though some of their tensors are equal."""
