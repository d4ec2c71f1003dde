"""The checker's definitions of torch's recurrent layers, attention and transformers are those layers, at edges too.

Where a definition gives something, so does the layer, and the same. What it refuses is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.paranoid.test_own import reference

pytestmark = pytest.mark.filterwarnings("ignore")
DOUBLE = torch.float64
INFINITY = float("inf")
KINDS = ["LSTM", "GRU", "RNN", "relu"]
GATES = {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2], "RNN": [0]}  # ONNX's gates, as positions among torch's
FEATURES, HIDDEN = 6, 5
# lengths of the target, of the memory, and the batch
SIZES = [(4, 4, 2), (1, 3, 2), (3, 1, 2), (0, 2, 2), (2, 0, 2), (2, 3, 0), (1, 1, 1)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE)


def plain(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().numpy()


def agrees(where: str, definition: Callable[[], Any], layer: Callable[[], Any]) -> bool:
    """Compare what both give; False if the definition refuses."""
    try:
        ours = flat(definition())
    except Exception:
        return False
    try:
        theirs = flat(layer())
    except Exception as error:
        pytest.fail(f"{where}: the layer refuses: {error}")
    for a, b in zip(ours, theirs, strict=True):
        if b is not None:  # probabilities that nobody asked for
            assert np.shape(a) == tuple(b.shape), where
            np.testing.assert_allclose(a, plain(b), 1e-9, 1e-12, err_msg=where)
    return True


def flat(made: Any) -> list[Any]:
    return [one for part in made for one in flat(part)] if isinstance(made, list | tuple) else [made]


# ---- recurrent layers ------------------------------------------------------------------------------------------------


def recurrent(kind: str, layers: int = 1, **options: Any) -> nn.RNNBase:
    if kind == "relu":
        kind, options = "RNN", {**options, "nonlinearity": "relu"}
    made: nn.RNNBase = getattr(nn, kind)(FEATURES, HIDDEN, layers, dtype=DOUBLE, **options)
    return made


def recurrent_tensors(layer: nn.RNNBase) -> list[Any]:
    """Return the tensors of every layer with the gates in ONNX's order."""
    order, found = GATES[layer.mode.split("_")[0]], []
    for number in range(layer.num_layers):
        parts: dict[str, Any] = {}
        for name in ("weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if layer.bias else [])):
            each = []
            for suffix in ("", "_reverse") if layer.bidirectional else ("",):
                tensor = plain(getattr(layer, f"{name}_l{number}{suffix}"))
                each.append(tensor.reshape(len(order), HIDDEN, *tensor.shape[1:])[order].reshape(tensor.shape))
            parts[name] = np.stack(each)
        biases = np.concatenate([parts["bias_ih"], parts["bias_hh"]], 1) if layer.bias else None
        found += [parts["weight_ih"], parts["weight_hh"], biases]
    return found


def states_near(count: int, batch: int) -> list[tuple[int, ...] | None]:
    """Return the shape of the states, and shapes that would broadcast to it."""
    return [
        None,
        (count, batch, HIDDEN),
        (count, 1, HIDDEN),
        (1, batch, HIDDEN),
        (count + 1, batch, HIDDEN),
        (count, HIDDEN),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch_first", "directions"), [(0, 1), (0, 2), (1, 2)])
def test_recurrent_layers(kind: str, batch_first: int, directions: int) -> None:
    """Lengths and batches of 0 and 1, one sample without an axis of its own, states that torch does not broadcast."""
    compared, name = 0, "RNN" if kind == "relu" else kind
    for layers, bias, dropout in [(1, True, 0.0), (2, False, 0.0), (2, True, 1.0)]:
        layer = recurrent(
            kind, layers, bias=bias, dropout=dropout, batch_first=bool(batch_first), bidirectional=directions == 2
        )
        tensors, count = recurrent_tensors(layer), layers * directions
        attributes: dict[str, Any] = {"hidden_size": HIDDEN, "directions": directions, "batch_first": batch_first}
        attributes |= {"relu": int(kind == "relu"), "dropout": dropout}
        for length, batch in product((0, 1, 3), (0, 1, 2)):
            sizes = (batch, length) if batch_first else (length, batch)
            for shape, state in product([sizes, (length,), (*sizes, 1)], states_near(count, batch)):
                x = drawn(*shape, FEATURES)
                states = [None if state is None else drawn(*state) for _ in range(2 if kind == "LSTM" else 1)]
                given = None if state is None else states[0] if kind != "LSTM" else tuple(states)

                compared += agrees(
                    f"{layer} {shape} {state}",
                    partial(reference(name), plain(x), *map(plain, states), *tensors, **attributes),
                    partial(layer, x, given),
                )
    assert compared > 40


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
def test_recurrent_cells(kind: str, bias: bool) -> None:
    compared, name = 0, "RNN" if kind == "relu" else kind
    options = {"nonlinearity": "relu"} if kind == "relu" else {}
    cell = getattr(nn, f"{name}Cell")(FEATURES, HIDDEN, bias=bias, dtype=DOUBLE, **options)
    weights, attributes = [plain(p) for p in cell.parameters()], {"relu": 1} if kind == "relu" else {}
    for rows in ((), (0,), (1,), (4,), (2, 3)):
        for state in (None, (HIDDEN,), (*rows, HIDDEN), (1, HIDDEN), (*rows, 1), (4, HIDDEN)):
            x, states = drawn(*rows, FEATURES), [None if state is None else drawn(*state) for _ in range(2)]
            states = states[: 2 if kind == "LSTM" else 1]

            given = None if state is None else states[0] if kind != "LSTM" else tuple(states)
            defined = partial(reference(f"{name}Cell"), plain(x), *map(plain, states), *weights, **attributes)
            compared += agrees(f"{cell} {rows} {state}", defined, partial(cell, x, given))
    assert compared > 6


# ---- attention -------------------------------------------------------------------------------------------------------


def attention_tensors(layer: nn.MultiheadAttention) -> tuple[list[Any], list[int]]:
    """Return the tensors of a layer, matrices as [in, out], and the first columns of q, k and v."""
    width = layer.embed_dim
    parts = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    weights: list[Any] = [plain(layer.in_proj_weight).T] * 3 if parts[0] is None else []
    starts = [0, width, 2 * width]
    if not weights:
        weights, starts = [plain(part).T for part in parts], [0, 0, 0]
    biases: list[Any] = [None] * 3
    if layer.in_proj_bias is not None:
        biases = [plain(layer.in_proj_bias)] * 3 if any(starts) else [plain(p) for p in layer.in_proj_bias.chunk(3)]
    return [*weights, *biases, plain(layer.out_proj.weight), plain(layer.out_proj.bias)], starts


def masks(rows: int, columns: int, heads: int, batch: int) -> Iterator[Tensor | None]:
    """Masks of all forms, such that hide whole rows, and shapes that would broadcast to one."""
    yield None
    yield torch.rand(rows, columns) > 0.5
    yield torch.ones(rows, columns, dtype=torch.bool)
    yield torch.where(torch.rand(rows, columns) > 0.5, -INFINITY, 0.0).to(DOUBLE)
    yield torch.rand(batch * heads, rows, columns) > 0.5
    yield from (drawn(*shape) for shape in [(rows, columns), (batch * heads, rows, columns), (1, columns)])
    yield from (drawn(*shape) for shape in [(1, rows, columns), (batch, rows, columns), (columns,)])


def paddings(batch: int, keys: int) -> Iterator[Tensor | None]:
    yield from (None, torch.rand(batch, keys) > 0.6, torch.ones(batch, keys, dtype=torch.bool))
    yield from (drawn(batch, keys), drawn(1, keys), drawn(batch, 1))


ATTENTIONS: list[dict[str, Any]] = [
    {"num_heads": 1},
    {"num_heads": 6, "batch_first": True, "dropout": 1.0},
    {"num_heads": 2, "bias": False, "kdim": 4},
    {"num_heads": 3, "kdim": 4, "vdim": 3, "batch_first": True},
]


@pytest.mark.parametrize("options", ATTENTIONS, ids=str)
@pytest.mark.parametrize(("need_weights", "average"), [(False, True), (True, True), (True, False)])
def test_attention(options: dict[str, Any], need_weights: bool, average: bool) -> None:
    """With gradients: a row without keys is NaN beside the probabilities, and zeros without them."""
    compared, layer = 0, trained(nn.MultiheadAttention(FEATURES, dtype=DOUBLE, **options))
    assert isinstance(layer, nn.MultiheadAttention)
    (tensors, starts), heads, defined = attention_tensors(layer), layer.num_heads, reference("MultiheadAttention")
    attributes = {"heads": heads, "starts": starts, "transposed": 0, "batch_first": int(layer.batch_first)}
    attributes |= {"dropout": layer.dropout, "need_weights": int(need_weights), "average": int(average)}
    for length, keys, batch in SIZES:
        sides = [(length, FEATURES), (keys, layer.kdim), (keys, layer.vdim)]
        inputs = [drawn(*((batch, n) if layer.batch_first else (n, batch)), width) for n, width in sides]
        for mask, padding in product(masks(length, keys, heads, batch), paddings(batch, keys)):
            if torch.rand(()) > 0.4:
                continue
            shapes = [None if m is None else (m.dtype, tuple(m.shape)) for m in (mask, padding)]
            compared += agrees(
                f"{length} {keys} {batch} {shapes}",
                partial(defined, *map(plain, inputs), *tensors, *map(plain, (mask, padding)), **attributes),
                partial(layer, *inputs, padding, need_weights, mask, average_attn_weights=average),
            )
    assert compared > 60


# ---- transformers ----------------------------------------------------------------------------------------------------


def trained(module: nn.Module) -> nn.Module:
    """Draw the vectors, which are zeros and ones in a new module."""
    for tensor in module.parameters():
        if tensor.ndim == 1:
            nn.init.normal_(tensor)
    return module


def layer_tensors(layer: nn.Module) -> tuple[list[Any], list[int]]:
    tensors: list[Any] = []
    starts: list[int] = []
    for name in ("self_attn", "multihead_attn"):
        if isinstance(attention := getattr(layer, name, None), nn.MultiheadAttention):
            more, firsts = attention_tensors(attention)
            tensors, starts = tensors + more, starts + firsts
    for part in (layer.linear1, layer.linear2):
        tensors += [plain(part.weight).T, plain(part.bias)]  # type: ignore[union-attr, arg-type]
    for name in ("norm1", "norm2", "norm3"):
        if isinstance(norm := getattr(layer, name, None), nn.LayerNorm):
            tensors += [plain(norm.weight), plain(norm.bias)]
    return tensors, starts


def stack_tensors(module: nn.Module) -> tuple[list[Any], list[int]]:
    """Return the tensors of a layer or of a stack."""
    if not isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        return layer_tensors(module)
    parts = [layer_tensors(layer) for layer in module.layers]
    norm = [plain(module.norm.weight), plain(module.norm.bias)] if isinstance(module.norm, nn.LayerNorm) else []
    return sum((p[0] for p in parts), []) + norm, sum((p[1] for p in parts), [])


def transformers(heads: int, **options: Any) -> Iterator[tuple[nn.Module, dict[str, int]]]:
    """Yield modules, each with its number of encoders, decoders and norms."""
    encoder = nn.TransformerEncoderLayer(FEATURES, heads, 7, dtype=DOUBLE, **options)
    decoder = nn.TransformerDecoderLayer(FEATURES, heads, 7, dtype=DOUBLE, **options)
    norm = nn.LayerNorm(FEATURES, 1e-3, bias=options["bias"], dtype=DOUBLE)
    yield encoder, {"stacked": 0, "encoders": 1, "decoders": 0, "norms": 0}
    yield decoder, {"stacked": 0, "encoders": 0, "decoders": 1, "norms": 0}
    yield nn.TransformerEncoder(encoder, 2), {"stacked": 1, "encoders": 2, "decoders": 0, "norms": 0}
    yield nn.TransformerDecoder(decoder, 2, norm), {"stacked": 1, "encoders": 0, "decoders": 2, "norms": 1}


@pytest.mark.parametrize(
    ("heads", "batch_first", "norm_first", "bias", "activation", "epsilon", "dropout"),
    [
        (1, False, False, True, "relu", 1e-5, 0.0),
        (2, True, True, False, "gelu", 0.1, 0.0),
        (6, True, False, True, "gelu", 1e-5, 1.0),
        (3, False, True, True, "relu", 0.1, 0.0),
    ],
)
def test_transformers(
    heads: int, batch_first: bool, norm_first: bool, bias: bool, activation: str, epsilon: float, dropout: float
) -> None:
    compared = 0
    shared: dict[str, Any] = {"batch_first": batch_first, "norm_first": norm_first, "dropout": dropout}
    for module, counts in transformers(heads, bias=bias, activation=activation, layer_norm_eps=epsilon, **shared):
        tensors, starts = stack_tensors(trained(module))
        attributes = {**shared, **counts, "activation": activation, "epsilon": epsilon, "norm_epsilon": 1e-3}
        attributes |= {"heads": heads, "starts": starts, "transposed": [0] * (len(starts) // 3)}
        for length, keys, batch in SIZES:
            target, memory = (drawn(*((batch, n) if batch_first else (n, batch)), FEATURES) for n in (length, keys))
            for _ in range(3):
                chosen = [_any(masks(*sides, heads, batch)) for sides in ((length, length), (length, keys))]
                if counts["encoders"]:
                    inputs, order = [target, None], [chosen[0], None, None]
                    given = [target, chosen[0]]
                else:
                    inputs, order = [target, memory], [None, *chosen]
                    given = [target, memory, *chosen]
                compared += agrees(
                    f"{module} {length} {keys} {batch} {[None if m is None else tuple(m.shape) for m in chosen]}",
                    partial(reference("Transformer"), *map(plain, [*inputs, *order]), *tensors, **attributes),
                    partial(module, *given),
                )
    assert compared > 15


def _any(found: Iterator[Tensor | None]) -> Tensor | None:
    every = list(found)
    return every[int(torch.randint(len(every), ()))]
