"""Weights are written back at once: a wrong record is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxgen import pipeline
from onnxgen.errors import WrongRewrite
from onnxgen.options import Options
from onnxgen.output import compose as generated
from onnxgen.passes.folded import folds
from onnxgen.weights.provenance import way_back

TEXT = """
<ir_version: 10, opset_import: ["" : 17]>
net (float[N, 3, 8, 8] x) => (float[N, 4, 8, 8] y) {
  a = Conv <pads = [1, 1, 1, 1]> (x, "conv.weight", "conv.bias")
  b = Relu (a)
  y = MatMul (b, "matrix")
}
"""


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNXGEN_PARANOID", "1")
    model, draw = parser.parse_model(TEXT), np.random.default_rng(0)
    for name, shape in {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "matrix": (8, 8)}.items():
        model.graph.initializer.append(numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize("options", [Options(), Options(restore_batchnorm=True), Options(dtype="bfloat16")])
def test_what_is_right_is_let_pass(network: Path, options: Options) -> None:
    pipeline.build(network, options, network.with_suffix(".py"))


def test_a_norm_that_is_not_there(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> Any:
        return {key: replace(fold, norm="elsewhere") for key, fold in folds(*args).items()}

    monkeypatch.setattr(generated, "folds", wrong)
    with pytest.raises(WrongRewrite, match="can't be written back"):
        pipeline.build(network, Options(restore_batchnorm=True), network.with_suffix(".py"))


def test_a_matrix_that_is_not_turned(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args: Any) -> Any:
        record = way_back(*args)
        assert isinstance(record["matrix"], dict), "a linear layer's weight is the matrix turned"
        return {**record, "matrix": next(key for key in args[0] if args[0][key].names == ("matrix",))}

    monkeypatch.setattr(generated, "way_back", wrong)
    with pytest.raises(WrongRewrite, match="'matrix' is written back as other numbers"):
        pipeline.build(network, Options(), network.with_suffix(".py"))
