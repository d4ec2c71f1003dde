"""Where members live: every name is one thing only."""

from __future__ import annotations

import re

import pytest
import torch.nn as nn

from onnxgen.common.names import MODULE_ATTRIBUTES
from onnxgen.lowering.member_paths import COMPOSITE_ATTRIBUTES, LAYER_ATTRIBUTES

LAYERS = (
    nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.ConvTranspose2d(2, 2, 1), nn.BatchNorm1d(2),
    nn.LayerNorm(2), nn.GroupNorm(1, 2), nn.InstanceNorm1d(2), nn.RMSNorm(2), nn.PReLU(), nn.Embedding(2, 2),
    nn.RNN(2, 2), nn.LSTM(2, 2, 2, bidirectional=True), nn.GRU(2, 2),
)  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS, ids=lambda m: type(m).__name__)
def test_what_layers_read_of_themselves_is_known(layer: nn.Module) -> None:
    has = {n for n in (*vars(layer), *layer._parameters, *layer._buffers) if not n.startswith("_")}
    has = {n for n in has if not re.fullmatch(r"(weight|bias)_[ih]h_l\d+(_reverse)?", n)}
    assert has - MODULE_ATTRIBUTES <= LAYER_ATTRIBUTES


LAYER = {"d_model": 4, "nhead": 2}
ENCODER, DECODER = nn.TransformerEncoderLayer(**LAYER), nn.TransformerDecoderLayer(**LAYER)
COMPOSITES = (
    ENCODER,
    DECODER,
    nn.TransformerEncoder(ENCODER, 1),
    nn.TransformerDecoder(DECODER, 1),
    nn.Transformer(4, 2),
)


@pytest.mark.parametrize("layer", COMPOSITES, ids=lambda m: type(m).__name__)
def test_what_composite_layers_read_of_themselves_is_known(layer: nn.Module) -> None:
    has = {n for n in (*vars(layer), *layer._modules) if not n.startswith("_")}
    known = {*COMPOSITE_ATTRIBUTES[type(layer).__name__].split(), *LAYER_ATTRIBUTES}
    assert has - MODULE_ATTRIBUTES <= known
