"""torch's attention and transformer modules come back as themselves; `long_transformer_modules.py` draws more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.ops.harness import run_model, run_onnxruntime
from tests.support.exported import exported, held
from tests.support.transformers import (
    BATCH,
    LENGTH,
    WIDTH,
    Drawn,
    Whole,
    attention,
    hold,
    hold_back,
    trained,
    transformer,
)

X = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("seed", range(8))
def test_attention(seed: int) -> None:
    hold(attention(seed))


@pytest.mark.parametrize("seed", range(10))
def test_transformers(seed: int) -> None:
    hold(transformer(seed))


@pytest.mark.parametrize("draw,seed", [(attention, 1), (transformer, 0), (transformer, 2)])
def test_trained_values_go_back(draw: Any, seed: int, tmp_path: Path) -> None:
    hold_back(draw(seed), tmp_path)


def test_initial_values_that_are_stored_once_part(tmp_path: Path) -> None:
    """An untrained module's biases are zeros, and its norms ones: the file has one tensor for all of them."""
    model = Whole(nn.Transformer(WIDTH, 2, 1, 2, 20, batch_first=True), {})
    hold_back(Drawn(model, [X, X[:, 1:]], "legacy-17", "nn.Transformer("), tmp_path)


class Padded(nn.Module):
    def __init__(self, layer: bool = False) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True) if layer else None
        self.attn = None if layer else nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        if self.layer is not None:
            y: Tensor = self.layer(x, src_key_padding_mask=padding)
            return y
        assert self.attn is not None
        made: Tensor = self.attn(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return made


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
@pytest.mark.parametrize("layer", [False, True])
def test_a_sample_of_padding_alone(case: str, layer: bool) -> None:
    """NaN, as in the file, with gradients and without: torch's own layer has zeros there if gradients are computed."""
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1], padding[2, 3:] = True, True
    proto = exported(trained(Padded(layer)).eval(), (X, padding), case)
    feeds = {"i0": X.numpy(), "i1": padding.numpy()}
    ran, expected = run_model(proto, feeds), run_onnxruntime(proto, feeds)[0]
    assert np.isnan(expected[1]).all() and not np.isnan(expected[[0, 2]]).any()
    for made in (ran.outputs[0], ran.model(X, padding).detach().numpy()):
        np.testing.assert_allclose(made, expected, 1e-4, 1e-5)
    assert "nn.MultiheadAttention(" in ran.source


class Wrong(nn.Module):
    """Attention that differs from torch's module in one thing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.attn = Parts()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attn(x, self.what)
        return made


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.randn(3 * WIDTH, WIDTH) / 4)
        self.in_proj_bias = nn.Parameter(torch.randn(3 * WIDTH))
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, what: str) -> Tensor:
        heads = (LENGTH, BATCH * 2, WIDTH // 2) if what != "sizes before heads" else (LENGTH, BATCH, WIDTH // 2, 2)
        qkv = nn.functional.linear(x.transpose(0, 1), self.in_proj_weight, self.in_proj_bias)
        q, k, v = qkv.unflatten(-1, (3, WIDTH)).movedim(-2, 0)
        if what == "sizes before heads":
            q, k, v = (t.reshape(heads).movedim(-1, -2).reshape(LENGTH, BATCH * 2, -1) for t in (q, k, v))
        q, k, v = (t.reshape(LENGTH, BATCH * 2, WIDTH // 2).transpose(0, 1) for t in (q, k, v))
        scores = q @ k.transpose(1, 2) * (0.5 if what == "another scale" else (WIDTH // 2) ** -0.5)
        weights = scores.softmax(1 if what == "another axis" else -1)
        y = (weights @ v).transpose(0, 1).reshape(LENGTH * BATCH, WIDTH)
        y = y.reshape(BATCH, LENGTH, WIDTH).transpose(0, 1).reshape(-1, WIDTH) if what == "samples mixed" else y
        y = y.relu() if what == "relu" else y
        return self.out_proj(y).reshape(LENGTH, BATCH, WIDTH).transpose(0, 1)


@pytest.mark.parametrize(
    "what", ["nothing", "another scale", "another axis", "samples mixed", "sizes before heads", "relu"]
)
def test_what_differs_stays_written_out(what: str) -> None:
    torch.manual_seed(0)
    ran = held(Wrong(what), [X], "dynamo-18")
    assert ("nn.MultiheadAttention(" in ran.source) == (what == "nothing")


class Own(nn.Module):
    """A layer like torch's, but for one thing."""

    def __init__(self, what: str) -> None:
        super().__init__()
        activation = torch.tanh if what == "tanh" else nn.functional.relu
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, activation, batch_first=True)
        if what == "eps":
            self.body.norm2.eps = 1e-3

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.body(x)
        return made


@pytest.mark.parametrize("what", ["tanh", "eps", "nothing"])
def test_a_layer_that_differs_stays_written_out(what: str) -> None:
    ran = held(trained(Own(what)), [X], "legacy-17")
    assert ("nn.TransformerEncoderLayer(" in ran.source) == (what == "nothing")
    assert "nn.MultiheadAttention(" in ran.source or what == "nothing"


class Mixed(nn.Module):
    """A list that begins with a layer, and goes on with something else."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Module()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 20, 0.0, batch_first=True)
        self.body.layers = nn.ModuleList([layer, nn.Linear(WIDTH, WIDTH, bias=False)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.body.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("case", ["legacy-17", "dynamo-18"])
def test_a_list_with_other_layers_is_no_encoder(case: str) -> None:
    """Keys are those of the original: an `nn.TransformerEncoder` would take the list for its own."""
    ran = held(trained(Mixed()), [X], case)
    assert "nn.TransformerEncoder(" not in ran.source
