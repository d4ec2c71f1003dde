"""What onnxruntime fused is trained as layers, and goes back into its fused nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

import onnxgen
from onnxgen.export.report import BACK
from tests.export.trained import perturbed
from tests.ops.fuzz import floats
from tests.ops.harness import tensor_proto
from tests.support.real import imported

MICROSOFT = "com.microsoft"


def block(path: Path, **attributes: Any) -> None:
    """A transformer's block as onnxruntime fuses it: packed attention, residual norms, a GELU with its bias."""
    weights = {
        "qkv_weight": floats(8, 24) * 0.3, "qkv_bias": floats(24, seed=1),
        "gamma": floats(8, seed=2) + 2, "beta": floats(8, seed=3), "out_bias": floats(8, seed=4),
        "up": floats(8, 16, seed=5), "up_bias": floats(16, seed=6), "down": floats(16, 4, seed=7),
    }  # fmt: skip
    nodes = [
        helper.make_node(
            "Attention",
            ["x", "qkv_weight", "qkv_bias"],
            ["a"],
            "attention",
            domain=MICROSOFT,
            num_heads=2,
            **attributes,
        ),
        helper.make_node(
            "SkipLayerNormalization", ["a", "x", "gamma", "beta", "out_bias"], ["n"], "norm", domain=MICROSOFT
        ),
        helper.make_node("MatMul", ["n", "up"], ["m"], "up"),
        helper.make_node("BiasGelu", ["m", "up_bias"], ["g"], "gelu", domain=MICROSOFT),
        helper.make_node("FusedMatMul", ["g", "down"], ["y"], "down", domain=MICROSOFT),
    ]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5, 4])],
        [tensor_proto(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"qkv_hidden_sizes": [8, 8, 8]}], ids=str)
def test_a_fused_block(tmp_path: Path, attributes: dict[str, Any]) -> None:
    block(tmp_path / "block.onnx", **attributes)
    onnxgen.generate(tmp_path / "block.onnx", tmp_path / "model.py")
    model: torch.nn.Module = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    kinds = sorted(type(m).__name__ for m in model.modules() if not list(m.children()))
    assert kinds == ["LayerNorm", *["Linear"] * 3]
    model.load_state_dict(perturbed(model))
    save_file(model.state_dict(), tmp_path / "best.safetensors")
    report = onnxgen.export(tmp_path / "model.py", weights=tmp_path / "best.safetensors", out=tmp_path / "tuned.onnx")
    assert report.method == BACK and sorted(report.changed) == sorted(i.name for i in _initializers(tmp_path))
    x = floats(3, 5, 8, seed=9)
    (new,), (old,) = (_run(tmp_path / name, x) for name in ("tuned.onnx", "block.onnx"))
    with torch.no_grad():
        np.testing.assert_allclose(new, model(torch.from_numpy(x)).numpy(), 1e-3, 1e-4)
    assert np.abs(new - old).max() > 1e-3, "training did change something"


def _initializers(folder: Path) -> list[TensorProto]:
    return list(onnx.load(folder / "block.onnx").graph.initializer)


def _run(path: Path, x: Any) -> list[Any]:
    return list(ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x}))
