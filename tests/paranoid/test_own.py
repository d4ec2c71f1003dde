"""The checker's definitions of onnxgen's own operators are torch's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onnxgen.graph.operators import operators
from onnxgen.helpers.fake_quant import fake_quantize, fake_quantize_dynamic
from onnxgen.helpers.rotary import rotate_half, rotate_pairs
from onnxgen.paranoid import own_layers, own_transformer
from onnxgen.paranoid.own import OWN

X = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
W = torch.randn(6, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
MASK = torch.tensor([[True, False, False, True], [False] * 4, [True] * 4, [False, True, True, False]])
SDPA = F.scaled_dot_product_attention

# (operator, inputs, attributes, what torch computes of the inputs)
CASES: list[tuple[str, list[Tensor], dict[str, Any], Callable[..., Any]]] = [
    ("Standardize", [X], {"epsilon": 0.1}, lambda x: F.batch_norm(x, None, None, training=True, eps=0.1)),
    ("Standardize", [X[:1], Y[0, :, 0], Y[1, :, 0]], {"epsilon": 1e-3, "shape": [4, 2, 3]},
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True, eps=1e-3).reshape(4, 2, 3)),
    ("Standardize", [X, Y[0, 0, :2]], {"epsilon": 1e-3, "shape": [2, 4, 6]},
     lambda x, w: F.batch_norm(x.reshape(1, 2, -1), None, None, w, training=True, eps=1e-3).reshape_as(x)),
    ("WeightNorm", [X, Y[:, :1, :1]], {"dim": 0}, torch._weight_norm),
    ("WeightNorm", [X, Y[:1, :1]], {"dim": 2}, lambda v, g: torch._weight_norm(v, g, 2)),
    ("WeightNorm", [X, Y[0, 0, 0]], {"dim": -1}, lambda v, g: torch._weight_norm(v, g, -1)),
    ("SpectralNorm", [X, Y[0, :, 0], Y[:, 0].flatten()], {"dim": 1},
     lambda w, u, v: w / (u @ w.movedim(1, 0).flatten(1) @ v)),
    ("Linear", [X, W], {}, lambda x, w: x @ w),
    ("Linear", [X, W, W[0]], {}, lambda x, w, b: F.linear(x, w.T, b)),
    ("Glu", [X], {"axis": 1}, lambda x: F.glu(x, 1)),
    ("Softplus", [X], {"beta": 2.5}, lambda x: F.softplus(x, 2.5, 40)),
    ("LogSigmoid", [X], {}, F.logsigmoid),
    ("Rsqrt", [X.abs()], {}, torch.rsqrt),
    ("Normalize", [X], {"axis": 2, "p": 1, "epsilon": 4.0}, lambda x: F.normalize(x, 1, 2, 4.0)),
    ("Normalize", [X], {"axis": 1, "p": 2, "epsilon": 1e-12}, lambda x: F.normalize(x, 2, 1)),
    ("CosineSimilarity", [X, Y], {"axis": 1, "epsilon": 1e-8}, lambda x, y: F.cosine_similarity(x, y, 1)),
    ("Variance", [X], {"axes": [0, 2], "keepdims": 1}, lambda x: x.var((0, 2), keepdim=True)),
    ("Deviation", [X], {"axes": [1], "keepdims": 0}, lambda x: x.std(1)),
    ("Attention", [X, Y, Y], {"scale": 0.3}, lambda q, k, v: SDPA(q, k, v, scale=0.3)),
    ("Attention", [X, Y, Y], {"scale": 0.3, "is_causal": 1}, lambda q, k, v: SDPA(q, k, v, is_causal=True, scale=0.3)),
    ("Attention", [X, Y, X, MASK], {"scale": 0.3}, lambda q, k, v, m: SDPA(q, k, v, m, scale=0.3)),
    ("Attention", [X, Y, X, Y[:, :, :4]], {"scale": 0.3}, lambda q, k, v, m: SDPA(q, k, v, m, scale=0.3)),
    ("Unbind", [X], {"axis": 1}, lambda x: x.unbind(1)),
    ("Stack", [X, Y], {"axis": 2}, lambda x, y: torch.stack([x, y], 2)),
    ("Roll", [X], {"shifts": [1, -2], "axes": [1, 2]}, lambda x: torch.roll(x, (1, -2), (1, 2))),
    ("RepeatInterleave", [X], {"repeats": 3, "axis": 1}, lambda x: x.repeat_interleave(3, 1)),
    ("RotateHalf", [X], {}, rotate_half),
    ("RotatePairs", [X], {}, rotate_pairs),
    ("FakeQuantizeDynamic", [X], {}, fake_quantize_dynamic),
    ("FakeQuantize", [X, torch.tensor(0.1).double(), torch.tensor(3.0).double()], {"low": 0, "high": 9},
     lambda x, s, z: fake_quantize(x, s, z, 0, 9)),
    ("FakeQuantize", [X, W[:, 0].abs()], {"axis": 2, "low": -4, "high": 3},
     lambda x, s: fake_quantize(x, s, 0, -4, 3)),
    ("FakeQuantize", [X, X[:, :2].abs()], {"axis": 1, "block": 2, "low": -4, "high": 3},
     lambda x, s: fake_quantize(x, s.repeat_interleave(2, 1), 0, -4, 3)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "original"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_own_operators(op: str, inputs: list[Tensor], attributes: dict[str, Any], original: Callable[..., Any]) -> None:
    made = OWN[op](*(t.numpy() for t in inputs), **attributes)
    expected = original(*inputs)
    pairs = zip(made, expected) if isinstance(made, list) else [(made, expected)]
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours, theirs.numpy(), 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "relu"])
@pytest.mark.parametrize("batch_first", [0, 1])
def test_recurrent_layers(kind: str, batch_first: int) -> None:
    """Two layers, both directions; torch has its gates in another order."""
    torch.manual_seed(0)
    options = {"nonlinearity": "relu"} if kind == "relu" else {}
    kind, order = ("RNN", [0]) if kind in ("RNN", "relu") else (kind, {"LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2]}[kind])
    layer = getattr(nn, kind)(
        6, 5, 2, batch_first=bool(batch_first), bidirectional=True, dtype=torch.float64, **options
    )
    weights = []
    for number in range(2):
        parts: dict[str, list[Any]] = {"weight_ih": [], "weight_hh": [], "bias_ih": [], "bias_hh": []}
        for name, found in parts.items():
            for suffix in ("", "_reverse"):
                gates = getattr(layer, f"{name}_l{number}{suffix}").detach().numpy().reshape(len(order), 5, -1)
                found.append(gates[order].reshape(5 * len(order), -1).squeeze(-1 if "bias" in name else ()))
        biases = np.concatenate([parts["bias_ih"], parts["bias_hh"]], 1)
        weights += [np.stack(parts["weight_ih"]), np.stack(parts["weight_hh"]), biases]
    y, state = layer(X)
    attributes = {"hidden_size": 5, "directions": 2, "batch_first": batch_first, "relu": int(bool(options))}
    count = 2 if kind == "LSTM" else 1
    made = OWN[kind](X.numpy(), *[None] * count, *weights, **attributes)
    for ours, theirs in zip(made, [y, *state] if kind == "LSTM" else [y, state]):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), 1e-9, 1e-12)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "relu"])
def test_recurrent_cells(kind: str) -> None:
    torch.manual_seed(0)
    name = "RNN" if kind == "relu" else kind
    cell = getattr(nn, f"{name}Cell")(6, 5, dtype=torch.float64, **({"nonlinearity": "relu"} if kind == "relu" else {}))
    h, c = torch.randn(2, 4, 5, dtype=torch.float64)
    states = [h, c] if kind == "LSTM" else [h]
    made = OWN[f"{name}Cell"](
        X[0].numpy(), *(s.numpy() for s in states), *(p.detach().numpy() for p in cell.parameters()),
        **({"relu": 1} if kind == "relu" else {}),
    )  # fmt: skip
    theirs = cell(X[0], (h, c)) if kind == "LSTM" else [cell(X[0], h)]
    for ours, wanted in zip(made if kind == "LSTM" else [made], theirs, strict=True):
        np.testing.assert_allclose(ours, wanted.detach().numpy(), 1e-9, 1e-12)


def test_every_own_operator_has_a_definition() -> None:
    """But for what only `--quantized` writes, whose pass is no equality."""
    assert own_layers and own_transformer
    ours = {name for domain, name in operators() if domain == "onnxgen"}
    assert ours - set(OWN) == set()


def test_text_is_numbered_in_its_order() -> None:
    words = np.array([["b", "a"], ["b", "c"]], object)
    table, codes = OWN["TextCodes"](words)
    assert list(table) == ["a", "b", "c"] and codes.tolist() == [[1, 0], [1, 2]]
    assert OWN["TextAt"](table, codes).tolist() == words.tolist()
