"""Drawn composite layers of torch: transformers, attention and recurrent layers with every argument, and classes that
look like them: other norms, shared, cut and frozen layers, members that have the names of a layer's parts."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onnxgen.options import Options
from onnxgen.paranoid.check import name_of
from onnxgen.paranoid.quick import NEEDED, UNCOMPARED
from onnxgen.passes import PASSES
from tests.hunts.judge import Case, Unmade
from tests.hunts.tied import tied
from tests.support.exported import exported

Draw = random.Random
WIDTH, LENGTH, BATCH = 8, 5, 3
DYNAMO = 0.04  # of the cases: they take seconds each
# The legacy exporter can't trace the question whether a mask is causal.
_DECODES = ("tgt_is_causal", "memory_is_causal")
NOT_CAUSAL: dict[type, tuple[str, ...]] = {
    nn.TransformerDecoder: _DECODES,
    nn.TransformerDecoderLayer: _DECODES,
    nn.TransformerEncoder: ("is_causal",),
    nn.Transformer: ("src_is_causal", *_DECODES),
}
CLASSES = 7
HEADS = ("head", "classifier", "fc", "norm", "proj", "linear1", "decoder", "lm_head")
REWRITING = sorted({name_of(step) for step in PASSES} - UNCOMPARED)
PARTS = ("norm", "norm1", "norm3", "dropout1", "activation", "linear1", "layers", "self_attn", "proj", "weight_norm")


class Around(nn.Module):
    """A layer with members of its own, used around it."""

    def __init__(self, inner: nn.Module, first: str, second: str, ways: tuple[str, str], call: Any) -> None:
        super().__init__()
        self.names, self.ways, self.call = (first, second), ways, call
        if isinstance(inner, list):
            self.layers = nn.ModuleList(inner)
        else:
            self.enc = inner
        self.add_module(first, nn.LayerNorm(WIDTH))
        self.add_module(second, nn.Linear(WIDTH, WIDTH))

    def forward(self, *given: Tensor) -> Tensor:
        x = self._used(0, given[0])
        y = x
        for layer in self.layers if hasattr(self, "layers") and not hasattr(self, "enc") else [self.enc]:
            y = self.call(layer, (y, *given[1:]))
        y = self._used(1, y)
        if self.ways[1] == "residual":
            return y + x
        return y.mean(0) if self.ways[1] == "pooled" else y

    def _used(self, place: int, x: Tensor) -> Tensor:
        member = getattr(self, self.names[place])
        way = self.ways[place]
        if way == "weight":
            return x * member.weight[0] if member.weight.ndim == 2 else x * member.weight
        return x if way == "not" else member(x)


class Classified(nn.Module):
    """A network that ends in a layer of classes."""

    def __init__(self, body: nn.Module, name: str, width: int, is_pooled: bool, call: Any) -> None:
        super().__init__()
        self.body, self.name, self.is_pooled, self.call = body, name, is_pooled, call
        self.add_module(name, nn.Linear(width, CLASSES))

    def forward(self, *given: Tensor) -> Any:
        x = self.call(self.body, given)
        return getattr(self, self.name)(x.mean(0) if self.is_pooled else x)


def make(seed: int) -> Case:
    """The file of a seed's module, what it is run with, and the options that it is generated with.

    Raises:
        Unmade: torch or the exporter refuses the module.
    """
    d = random.Random(seed)
    torch.manual_seed(seed)
    case = f"dynamo-{d.choice((18, 20))}" if d.random() < DYNAMO else f"legacy-{d.choice((14, 17, 18))}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            net, given = drawn(d)
            names = [name for name, _ in net.named_parameters()]
            proto = exported(net, given, case, {})
        except Exception as error:
            raise Unmade(" ".join(str(error).split())) from None
    feeds = [{f"i{i}": np.array(x) for i, x in enumerate(given)}]
    options = _options(d, names)
    lied = frozenset(n for n in REWRITING if d.random() < 0.5) if d.random() < 0.08 else frozenset[str]()
    lied -= {*NEEDED}  # these are never left out: where one is wrong, nothing is written
    classes = d.randint(1, CLASSES - 1) if isinstance(net, Classified) else 0
    return Case(seed, proto, feeds, options, False, classes, lied, doubts=d.random() < 0.05)


def _options(d: Draw, names: list[str]) -> Options:
    draw = d.random()
    if draw < 0.15 and names:
        return Options(frozen=f"^{d.choice(names).rpartition('.')[0].replace('.', '[.]')}[.]")
    if draw < 0.25:
        return Options(dropout={d.choice(("**.self_attn", "**.linear1", "**.norm1", "**")): 0.1})
    if draw < 0.28:
        return Options(dynamic_batch=True, batch_axes={"i0": 1})
    return Options(dtype=d.choice(("float16", "bfloat16", "float64"))) if draw < 0.4 else Options()


def drawn(d: Draw) -> tuple[nn.Module, list[Tensor]]:
    """A module in eval mode, and its inputs."""
    kinds = (_recurrent, _attention, _layers, _layers, _stack, _stack, _whole, tied, tied, tied)
    inner, given, call = d.choice(kinds)(d)
    if (is_bare := d.random() < 0.45) and isinstance(inner, list):
        inner = nn.Sequential(*inner)
    elif given[0].is_floating_point() and (not is_bare or len(given) > 1):
        first, second = d.sample(PARTS, 2)
        ways = d.choice(("module", "not", "weight")), d.choice(("module", "residual", "pooled", "not", "weight"))
        ways = ("not", "not") if is_bare else ways
        inner = Around(inner, first, second, ways, call)
    if d.random() < 0.25:
        with torch.no_grad():
            width = call(inner.eval(), given).shape[-1]
        inner = Classified(inner, d.choice(HEADS), width, d.random() < 0.6, call)
    if d.random() < 0.85:
        _trained(inner)
    return inner.eval(), given


def _trained(net: nn.Module) -> None:
    """Weights as training leaves them: none is as another."""
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(torch.rand_like(tensor) - 0.5 + (1.0 if tensor.ndim == 1 else 0.0))


def _first(layer: Callable[..., Any], given: tuple[Tensor, ...]) -> Any:
    """Call a layer with as many of the inputs as there are; of several results the first."""
    known = next((words for kind, words in NOT_CAUSAL.items() if isinstance(layer, kind)), ())
    made = layer(*given, **dict.fromkeys(known, False))
    return made[0] if isinstance(made, tuple) else made


def _x(*lengths: int) -> list[Tensor]:
    return [torch.randn(length, BATCH, WIDTH) for length in lengths]


def _recurrent(d: Draw) -> tuple[Any, list[Tensor], Any]:
    kind, deep, both = d.choice((nn.LSTM, nn.GRU, nn.RNN)), d.randint(1, 3), d.random() < 0.4
    more: dict[str, Any] = {"bias": d.random() < 0.8, "batch_first": d.random() < 0.3, "dropout": d.choice((0.0, 0.2))}
    if kind is nn.LSTM and d.random() < 0.25:
        more["proj_size"] = WIDTH // 2 if both else WIDTH
        return kind(WIDTH, 2 * WIDTH, deep, bidirectional=both, **more), _x(LENGTH), _first
    if kind is nn.RNN and d.random() < 0.5:
        more["nonlinearity"] = "relu"
    return kind(WIDTH, WIDTH // 2 if both else WIDTH, deep, bidirectional=both, **more), _x(LENGTH), _first


def _attention(d: Draw) -> tuple[Any, list[Tensor], Any]:
    crossed, weights, batch_first = d.random() < 0.5, d.random() < 0.3, d.random() < 0.4
    more = {"bias": d.random() < 0.7, "batch_first": batch_first, "dropout": d.choice((0.0, 0.1))}
    if d.random() < 0.15:
        more |= {"add_bias_kv": True} if d.random() < 0.5 else {"add_zero_attn": True}
    layer = nn.MultiheadAttention(WIDTH, d.choice((1, 2, 4)), **more)
    hidden = (
        torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1) if d.random() < 0.3 and not batch_first else None
    )

    def call(layer: Any, given: tuple[Tensor, ...]) -> Any:
        memory = given[1] if crossed else given[0]
        mask = hidden if not crossed else None
        made = layer(given[0], memory, memory, need_weights=weights, attn_mask=mask)
        return made[0]

    wrapped = Called(layer, call)
    if not crossed:
        return wrapped, _x(LENGTH), _first
    return wrapped, (_x(LENGTH, LENGTH + 2) if not batch_first else _x(LENGTH, LENGTH)), _first


class Called(nn.Module):
    """A layer that is called in a way of its own."""

    def __init__(self, layer: nn.Module, call: Any) -> None:
        super().__init__()
        self.attn, self.call = layer, call

    def forward(self, *given: Tensor) -> Any:
        return self.call(self.attn, given)


def _arguments(d: Draw) -> dict[str, Any]:
    given: dict[str, Any] = {"dim_feedforward": d.choice((8, 12)), "dropout": d.choice((0.0, 0.1))}
    given |= {"activation": d.choice(("relu", "gelu", nn.functional.silu)), "norm_first": d.random() < 0.4}
    return given | {"batch_first": d.random() < 0.3, "bias": d.random() < 0.8, "layer_norm_eps": d.choice((1e-5, 1e-3))}


def _norm(d: Draw) -> nn.Module | None:
    return d.choice((
        lambda: None, lambda: nn.LayerNorm(WIDTH), lambda: nn.LayerNorm(WIDTH), lambda: nn.LayerNorm(WIDTH, bias=False),
        lambda: nn.RMSNorm(WIDTH), lambda: nn.Linear(WIDTH, WIDTH), lambda: nn.Identity(),
        lambda: nn.LayerNorm((BATCH, WIDTH)), lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)),
        lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    ))()  # fmt: skip


def _changed(d: Draw, layer: Any) -> Any:
    """A layer of which, now and then, a part is another."""
    draw = d.random()
    if draw < 0.12 and (norm := _norm(d)) is not None:
        layer.norm1 = norm
    elif draw < 0.18:
        layer.linear2 = nn.Sequential(layer.linear2, nn.Tanh())
    elif draw < 0.22:
        layer.dropout1 = nn.Linear(WIDTH, WIDTH)
    elif draw < 0.26:
        layer.linear1.weight = nn.Parameter(layer.linear1.weight.detach(), requires_grad=False)
    return layer


def _layers(d: Draw) -> tuple[Any, list[Tensor], Any]:
    """Single layers, or an author's own list of them."""
    heads, given = d.choice((1, 2)), _arguments(d)
    if d.random() < 0.3:
        return _changed(d, nn.TransformerDecoderLayer(WIDTH, heads, **given)), _x(LENGTH, LENGTH), _first
    made = [_changed(d, nn.TransformerEncoderLayer(WIDTH, heads, **given)) for _ in range(d.randint(1, 3))]
    if len(made) > 1 and d.random() < 0.25:
        made[1] = made[0]
    if len(made) > 1 and d.random() < 0.15:
        made[1].linear1.weight = made[0].linear1.weight
    return (made[0] if len(made) == 1 else made), _x(LENGTH), _first


def _stack(d: Draw) -> tuple[Any, list[Tensor], Any]:
    heads, given, deep = d.choice((1, 2)), _arguments(d), d.randint(1, 3)
    if d.random() < 0.35:
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(WIDTH, heads, **given), deep, _norm(d))
        return _cut(d, decoder), _x(LENGTH, LENGTH), _first
    layer = _changed(d, nn.TransformerEncoderLayer(WIDTH, heads, **given))
    return _cut(d, nn.TransformerEncoder(layer, deep, _norm(d), enable_nested_tensor=False)), _x(LENGTH), _first


def _cut(d: Draw, stack: Any) -> Any:
    """A stack of which, now and then, a layer is gone, is another, or is called twice."""
    draw = d.random()
    if draw < 0.1 and len(stack.layers) > 1:
        del stack.layers[0]
        stack.num_layers -= 1
    elif draw < 0.2 and len(stack.layers) > 1:
        stack.layers[1] = stack.layers[0]
    elif draw < 0.3:
        _changed(d, stack.layers[-1])
    return stack


def _whole(d: Draw) -> tuple[Any, list[Tensor], Any]:
    given = _arguments(d)
    net = nn.Transformer(WIDTH, d.choice((1, 2)), d.randint(1, 2), d.randint(1, 2), **given)
    if d.random() < 0.3 and (norm := _norm(d)) is not None:
        d.choice((net.encoder, net.decoder)).norm = norm
    return net, _x(LENGTH, LENGTH), _first
