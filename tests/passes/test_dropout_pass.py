"""Dropout that the dynamo exporter writes as random numbers becomes nn.Dropout again."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
import torch

from onnxgen.runtime.load import load

# As torch 2.13 writes F.dropout(x, 0.2, inplace=True) in training mode.
SPELLED = """
    <ir_version: 10, opset_import: ["" : 18]>
    spelled (float[batch, 64] x) => (float[batch, 64] y)
    <float keep = {{0.8}}> {{
        zero = Constant <value = float {{0.0}}> ()
        shape = Shape {shape} (x)
        empty = Expand (zero, shape)
        random = RandomUniformLike <low = 0.0, high = 1.0{seed}> (empty)
        p = CastLike (keep, random)
        sampled = Less (random, p)
        noise = CastLike (sampled, empty)
        divisor = Constant <value = float {{{divisor}}}> ()
        scaled = Div (noise, divisor)
        y = Mul (x, scaled)
    }}
"""


def model(folder: Path, shape: str = "", seed: str = "", divisor: str = "0.8") -> torch.nn.Module:
    text = SPELLED.format(shape=shape, seed=seed, divisor=divisor)
    onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
    return load(folder / "model.onnx")


def test_it_is_dropout(tmp_path: Path) -> None:
    made = model(tmp_path)
    (layer,) = (m for m in made.modules() if isinstance(m, torch.nn.Dropout))
    assert layer.p == 0.2
    x = torch.ones(3, 64)
    assert torch.equal(made.eval()(x), x)
    torch.manual_seed(0)
    expected = torch.nn.Dropout(0.2)(x)
    torch.manual_seed(0)
    assert torch.equal(made.train()(x), expected)


@pytest.mark.parametrize(
    "other", [{"shape": "<start = 1>"}, {"seed": ", seed = 3.0"}, {"divisor": "0.5"}], ids=["rows", "seeded", "scale"]
)
def test_what_is_no_dropout_stays(other: dict[str, str], tmp_path: Path) -> None:
    made = model(tmp_path, **other)
    assert not any(isinstance(m, torch.nn.Dropout) for m in made.modules())
