"""A mixture of experts as onnxruntime fuses it: trained, and back in its fused node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

import onnxgen
from onnxgen.export.report import BACK
from tests.export.trained import perturbed
from tests.ops.fuzz import floats
from tests.ops.harness import tensor_proto
from tests.ops.kernels import needs
from tests.support.real import imported

STORED = {
    "router.weight": floats(8, 4), "experts.gate_up_proj": floats(4, 12, 8, seed=1) / 3,
    "experts.gate_up_proj_bias": floats(4, 12, seed=2), "experts.down_proj": floats(4, 8, 6, seed=3) / 3,
    "experts.down_proj_bias": floats(4, 8, seed=4),
}  # fmt: skip


def mixture(path: Path) -> None:
    """Two of four experts for each token, gated as GPT-OSS does it."""
    nodes = [
        helper.make_node("Reshape", ["x", "rows"], ["tokens"]),
        helper.make_node("MatMul", ["tokens", "router.weight"], ["scores"]),
        helper.make_node(
            "MoE", ["x", "scores", *list(STORED)[1:]], ["y"], domain="com.microsoft", k=2, normalize_routing_weights=1,
            activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0, swiglu_limit=7.0,
        ),
    ]  # fmt: skip
    rows = tensor_proto(np.asarray([-1, 8]), "rows")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", 8]) for name in "xy")
    graph = helper.make_graph(nodes, "experts", [x], [y], [rows, *(tensor_proto(v, k) for k, v in STORED.items())])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)


@needs("MoE")
def test_experts_are_trained_and_go_back(tmp_path: Path) -> None:
    mixture(tmp_path / "experts.onnx")
    onnxgen.generate(tmp_path / "experts.onnx", tmp_path / "model.py")
    model: Any = imported(tmp_path / "model.py").Model.from_pretrained()
    assert len(list(model.parameters())) == len(STORED)
    model.load_state_dict(perturbed(model))
    save_file(model.state_dict(), tmp_path / "best.safetensors")
    report = onnxgen.export(tmp_path / "model.py", weights=tmp_path / "best.safetensors", out=tmp_path / "tuned.onnx")
    assert report.method == BACK and sorted(report.changed) == sorted(STORED)
    session = ort.InferenceSession(tmp_path / "tuned.onnx", providers=["CPUExecutionProvider"])
    for shape in ((1, 5, 8), (3, 2, 8)):
        x = floats(*shape, seed=5)
        with torch.no_grad():
            made = model(torch.from_numpy(x))
        np.testing.assert_allclose(made.numpy(), session.run(None, {"x": x})[0], 1e-4, 1e-5)
