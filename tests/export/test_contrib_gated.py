"""A block of Gated DeltaNet as onnxruntime fuses it: trained as layers, and back in its fused nodes."""

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
from tests.ops.kernels import needs
from tests.support.real import imported

MICROSOFT = "com.microsoft"
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
PACKED = {"gate_activation": "softplus", "beta_activation": "sigmoid", "qk_l2_norm": 1}


def block(path: Path, packed: bool) -> None:
    """Two heads of four; `packed`: its recurrence is GatedDeltaNet's, whose gates are its own."""
    weights = {
        "qkv": floats(8, 24) * 0.3, "taps": floats(24, 1, 3, seed=1), "tap_bias": floats(24, seed=2),
        "decays": floats(8, 2, seed=3), "rates": floats(8, 2, seed=4), "dt_bias": floats(2, seed=5),
        "a_log": floats(2, seed=6), "gates": floats(8, 8, seed=7), "scale": floats(4, seed=8) + 2,
        "out": floats(8, 4, seed=9),
    }  # fmt: skip

    def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
        domain = "" if op in ("MatMul", "Split", "Reshape") else MICROSOFT
        return helper.make_node(
            op, inputs.split(" "), outputs.split(" "), outputs.split(" ")[0], domain=domain, **attrs
        )

    nodes = [
        node("MatMul", "x qkv", "projected"),
        node(
            "CausalConvWithState", "projected taps tap_bias past", "mixed present", activation="silu", channels_last=1
        ),
        node("MatMul", "x decays", "a"),
        node("MatMul", "x rates", "b"),
        node("MatMul", "x gates", "z"),
    ]
    if packed:
        nodes += [
            node("GatedDeltaNet", "mixed    a b state a_log dt_bias", "heads ended", **PACKED),
            node("Reshape", "heads shape", "read"),
        ]
    else:
        nodes += [
            node("Split", "mixed", "q k v", axis=-1, num_outputs=3),
            node("LinearAttentionGate", "a dt_bias a_log b", "decay beta"),
            node("LinearAttention", "q k v state decay beta", "read ended", **HEADS),
        ]
    nodes += [node("GatedRMSNorm", "read scale z", "normed"), node("MatMul", "normed out", "y")]
    given = {"x": ["batch", 5, 8], "past": ["batch", 2, 24], "state": ["batch", 2, 4, 4]}
    made = {"y": ["batch", 5, 4], "present": ["batch", 2, 24], "ended": ["batch", 2, 4, 4]}
    stored = [tensor_proto(value, name) for name, value in weights.items()]
    stored += [tensor_proto(np.array([0, 0, -1]), "shape")] if packed else []
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in given.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in made.items()],
        stored,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(False, marks=needs("CausalConvWithState", "LinearAttention", "GatedRMSNorm")),
        pytest.param(True, marks=needs("GatedDeltaNet")),
    ],
)
def test_a_fused_block(tmp_path: Path, packed: bool) -> None:
    block(tmp_path / "block.onnx", packed)
    onnxgen.generate(tmp_path / "block.onnx", tmp_path / "model.py")
    model: torch.nn.Module = imported(tmp_path / "model.py").Model.from_pretrained().eval()
    kinds = sorted(type(m).__name__ for m in model.modules() if not list(m.children()))
    assert kinds == ["Conv1d", *["Linear"] * 5, "RMSNorm"]
    inputs = floats(3, 5, 8, seed=9), floats(3, 2, 24, seed=10), floats(3, 2, 4, 4, seed=11)
    _assert_same(tmp_path / "block.onnx", model, inputs)
    model.load_state_dict(perturbed(model))
    save_file(model.state_dict(), tmp_path / "best.safetensors")
    report = onnxgen.export(tmp_path / "model.py", weights=tmp_path / "best.safetensors", out=tmp_path / "tuned.onnx")
    stored = [i.name for i in onnx.load(tmp_path / "block.onnx").graph.initializer if i.name != "shape"]
    assert report.method == BACK and sorted(report.changed) == sorted(stored)
    _assert_same(tmp_path / "tuned.onnx", model, inputs)


def _assert_same(path: Path, model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(zip(("x", "past", "state"), inputs)))
    with torch.no_grad():
        made = model(*map(torch.from_numpy, inputs))
    for actual, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), wanted, 1e-4, 1e-5)
