"""The mean and the inverse deviation of onnxruntime's fused norms, which training needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxgen
from onnxgen import OnnxgenError


def saved(folder: Path, op: str, outputs: list[str]) -> Path:
    random = np.random.default_rng(0)
    stored = [numpy_helper.from_array(random.standard_normal(4).astype(np.float32), name) for name in ("g", "b")]
    stored = stored[: 1 if "Simplified" in op else 2]
    node = helper.make_node(op, ["x", "s", *(w.name for w in stored)], outputs, domain="com.microsoft")
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "t", 4]) for name in "xs"]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", inputs, ports, stored)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.parametrize(
    ("op", "outputs"),
    [
        *(("SkipLayerNormalization", o) for o in (["y", "m"], ["y", "", "d"], ["y", "m", "d", "t"])),
        *(("SkipSimplifiedLayerNormalization", o) for o in (["y", "", "d"], ["y", "", "d", "t"])),
    ],
)
def test_statistics_are_onnxruntimes(op: str, outputs: list[str], tmp_path: Path) -> None:
    path = saved(tmp_path, op, outputs)
    onnxgen.generate(path, tmp_path / "net.py")
    report = onnxgen.verify(path, tmp_path / "net.py")
    assert report.agrees and {run.oracle for run in report.runs} == {"onnxruntime"}


def test_a_norm_without_a_mean_has_none(tmp_path: Path) -> None:
    """onnxruntime leaves zeros there."""
    path = saved(tmp_path, "SkipSimplifiedLayerNormalization", ["y", "m"])
    with pytest.raises(OnnxgenError, match="the mean of a fused norm that has none is used"):
        onnxgen.generate(path, tmp_path / "net.py")
