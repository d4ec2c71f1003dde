"""Gates and recurrences in bfloat16: numpy has no such numbers, so the node stands between casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.ops.fuzz import floats
from tests.ops.harness import assert_same, run_model, run_onnxruntime
from tests.ops.kernels import needs

MICROSOFT = "com.microsoft"
B16, F32 = TensorProto.BFLOAT16, TensorProto.FLOAT
DECAY = -np.abs(floats(10, 2))

# by operator: inputs, of which those in the second column are bfloat16, its attributes, and the types of its outputs
CASES: dict[str, tuple[list[Any], set[int], dict[str, Any], list[int]]] = {
    "GatedRMSNorm": ([floats(2, 3, 8), floats(4), floats(2, 3, 8)], {0, 1, 2}, {}, [B16]),
    "ScaledSiLU": ([floats(2, 3, 8)], {0}, {"alpha": 1.7}, [B16]),
    "LinearAttentionGate": (
        [floats(2, 3, 4), floats(4), floats(4), floats(2, 3, 4, seed=1)], {0, 3}, {}, [B16, B16],
    ),
    "BranchwiseRMSNorm": ([floats(2, 4, 8), floats(4, 8)], {0, 1}, {}, [B16]),
    "HyperConnectionPreMix": ([floats(2, 4, 8), floats(2, 4)], {0, 1}, {}, [B16]),
    "HyperConnectionPostMix": (
        [floats(2, 4, 8), floats(2, 8), floats(2, 4), floats(2, 4, 4)], {0, 1, 2, 3}, {}, [B16],
    ),
    "VarlenCausalConvWithState": (
        [floats(10, 4), floats(4, 1, 3), np.array([0, 3, 10], np.int32), floats(4), floats(2, 4, 2)],
        {0, 1, 3, 4}, {"activation": "silu"}, [B16, B16],
    ),
    "GatedDeltaNet": (
        [floats(10, 2, 4), floats(10, 2, 4), floats(10, 2, 3), None, DECAY, floats(10, 2), floats(2, 2, 3, 4)],
        {0, 1, 2, 4, 5}, {"qk_l2_norm": 1, "beta_activation": "sigmoid"}, [B16, F32],
    ),
    "GatherPacked": (
        [np.random.default_rng(0).integers(0, 60, (5, 36)).astype(np.uint8), np.array([1, 4])],
        set(), {"packed_type": 2, "K": 64}, [B16],
    ),
}  # fmt: skip


def between_casts(op_type: str) -> tuple[onnx.ModelProto, dict[str, Any]]:
    inputs, narrow, attrs, kinds = CASES[op_type]
    feeds = {f"i{n}": value for n, value in enumerate(inputs) if value is not None}
    names = ["" if v is None else f"n{n}" if n in narrow else f"i{n}" for n, v in enumerate(inputs)]
    nodes = [helper.make_node("Cast", [f"i{n}"], [f"n{n}"], to=B16) for n in sorted(narrow)]
    made = [f"m{n}" for n in range(len(kinds))]
    nodes += [helper.make_node(op_type, names, made, domain=MICROSOFT, **attrs)]
    nodes += [helper.make_node("Cast", [m], [f"o{n}"], to=F32) for n, m in enumerate(made)]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    results = [helper.make_tensor_value_info(f"o{n}", F32, None) for n in range(len(kinds))]
    graph = helper.make_graph(nodes, "graph", given, results)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


@pytest.mark.parametrize("op_type", [pytest.param(name, marks=needs(name, since=(1, 32)), id=name) for name in CASES])
def test_in_bfloat16(op_type: str) -> None:
    model, feeds = between_casts(op_type)
    ran = run_model(model, feeds)
    for actual, expected in zip(ran.outputs, run_onnxruntime(model, feeds), strict=True):
        assert_same(actual, expected, rtol=2**-7, atol=1e-5)  # one step of bfloat16
