"""Models of ai.onnx.ml for tests: one node, at any version of the domain, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.ops.harness import Ran, Value, _declared, assert_same, run_model, run_onnxruntime

ML = "ai.onnx.ml"
NUMBERS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "int64": TensorProto.INT64}


def ml_model(
    op_type: str, inputs: Sequence[Value], attrs: dict[str, Any], version: int, outputs: int, dynamic: bool = False
) -> onnx.ModelProto:
    """A model of one node of that version of ai.onnx.ml, whose outputs' types are left to be inferred."""
    names = [f"i{n}" for n in range(len(inputs))]
    results = [f"o{n}" for n in range(outputs)]
    node = helper.make_node(op_type, names, results, name="node", domain=ML, **attrs)
    declared = [_declared(name, value, dynamic) for name, value in zip(names, inputs)]
    graph = helper.make_graph([node], "graph", declared, [onnx.ValueInfoProto(name=r) for r in results])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run_ml(
    op_type: str,
    inputs: Sequence[Value],
    attrs: dict[str, Any],
    version: int = 1,
    outputs: int = 1,
    expected: Sequence[Value] | None = None,
    dynamic: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
) -> Ran:
    """Generate such a model, run it, and compare with onnxruntime (or with `expected`)."""
    model = ml_model(op_type, inputs, attrs, version, outputs, dynamic)
    feeds = {f"i{n}": v for n, v in enumerate(inputs)}
    ran = run_model(model, feeds)
    ran.expected = list(run_onnxruntime(model, feeds) if expected is None else expected)
    assert len(ran.outputs) == len(ran.expected)
    for actual, wanted in zip(ran.outputs, ran.expected):
        assert_same(actual, wanted, rtol, atol)
    return ran


def floats(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
