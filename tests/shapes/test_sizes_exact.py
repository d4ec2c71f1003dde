"""Sizes that a graph computes are those of onnxruntime for every size: float32 rounds, and integers wrap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as rt
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnxgen
from onnxgen.common.limits import Limits
from onnxgen.helpers.resize import scale_size as written
from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.shapes.dims import LARGEST, bound, evaluate, fits, scale_size, symbol
from onnxgen.shapes.info import info

Step = tuple[Any, ...]  # an operator, and its constant: ("Mul", 0.67); with "first", the constant is the first operand
SIZES = (*range(300), *range(300, 4097, 7), 4095, 4096)
SCALES = [0.67, 2 / 3, 0.3, 1.3, 0.1, 1.7, 1 / 3, 0.05, 3.3, 0.7, 0.29, 0.58, 1.1, 1.15, 0.9, 0.99, 1.01, 0.6, 1.2, 7.7]
SCALES += [1 / 7, 1 / 49, 1 / 10, 0.15, 0.35, 0.45, 2.3, 4.1, 1 / 3.3, 0.0333, 0.625, 0.8, 0.4, 0.2, 5 / 6, 6 / 7]
FLOAT, DOUBLE, INT32 = ("Cast", np.float32), ("Cast", np.float64), ("Cast", np.int32)
CHAINS: dict[str, list[Step]] = {
    "floor": [FLOAT, ("Mul", SCALES), ("Floor",)],
    "ceil": [FLOAT, ("Mul", SCALES), ("Ceil",)],
    "round": [FLOAT, ("Mul", SCALES), ("Round",)],
    "cut off": [FLOAT, ("Mul", SCALES)],
    "below zero": [FLOAT, ("Mul", [-0.29, -1.3])],
    "two factors": [FLOAT, ("Mul", SCALES), ("Mul", 0.5), ("Floor",)],
    "two floors": [FLOAT, ("Mul", SCALES), ("Floor",), ("Mul", 1.7), ("Floor",)],
    "divided": [FLOAT, ("Div", SCALES), ("Floor",)],
    "divided and multiplied": [FLOAT, ("Div", [3, 7, 10, 49]), ("Mul", [3, 7, 10, 49])],
    "divides": [FLOAT, ("Div", [100, 1000, 7], "first"), ("Floor",)],
    "added to": [FLOAT, ("Mul", SCALES), ("Add", 0.5), ("Floor",)],
    "root": [FLOAT, ("Sqrt",), ("Mul", [1, 3, 3.3]), ("Floor",)],
    "twice as exact": [DOUBLE, ("Mul", SCALES), ("Floor",)],
    "rounded later": [DOUBLE, ("Mul", SCALES), FLOAT, ("Mul", 1.5)],
    "as exact later": [FLOAT, DOUBLE, ("Mul", SCALES), ("Floor",)],
    "twice as exact later": [FLOAT, ("Mul", SCALES), DOUBLE, ("Mul", 3), ("Floor",)],
    "through integers": [FLOAT, ("Mul", SCALES), INT32, FLOAT, ("Mul", 0.67)],
    "past float32": [("Mul", 1000003), FLOAT, ("Mul", [0.67, 1.0])],
    "int32 wraps": [INT32, ("Mul", [536870912, 1000003]), ("Add", 7), ("Mul", 100), ("Div", 1000)],
    "int32 wraps below zero": [INT32, ("Mul", -1000003), ("Mul", 1000), ("Abs",)],
    "int64 wraps": [("Mul", 2**60), ("Div", 2**50)],
    "cast to fewer bits": [("Mul", 2**24), INT32],
}


def chain(steps: list[Step]) -> onnx.ModelProto:
    """Return a graph that computes the integers y from the length of x, and as many ones as y, or 9."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["v"])]
    stored = {"zero": np.array([0]), "most": np.array(9)}
    name, dtype = "v", np.dtype(np.int64)
    for i, (op, *constant) in enumerate(steps):
        made = f"v{i}"
        if op == "Cast":
            dtype = np.dtype(constant[0])
            to = helper.np_dtype_to_tensor_dtype(dtype)
            nodes.append(helper.make_node(op, [name], [made], to=to))
        else:
            operands = [name, *([f"c{i}"] if constant else [])]
            stored |= {f"c{i}": np.array(constant[0], dtype)} if constant else {}
            nodes.append(helper.make_node(op, operands[::-1] if "first" in constant else operands, [made]))
        name = made
    nodes += [
        helper.make_node("Cast", [name], ["y"], to=TensorProto.INT64),
        helper.make_node("ReduceMin", ["y"], ["least"], keepdims=0),
        helper.make_node("Abs", ["least"], ["size"]),
        helper.make_node("Min", ["size", "most"], ["few"]),
        helper.make_node("Reshape", ["few", "one"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["z"]),
    ]
    stored["one"] = np.array([1])
    ends = [helper.make_tensor_value_info(k, t, None) for k, t in (("y", TensorProto.INT64), ("z", TensorProto.FLOAT))]
    kept = [numpy_helper.from_array(array, k) for k, array in stored.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph(nodes, "g", inputs, ends, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_onnxruntimes(name: str, tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(chain(CHAINS[name]), path)
    session, made = rt.InferenceSession(path), onnxgen.load(path)
    for size in SIZES if name != "divides" else SIZES[1:]:
        x = np.zeros(size, np.float32)
        for a, e in zip(made(torch.from_numpy(x)), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(a.numpy(), e, f"size {size}")


def test_a_scaled_size_is_that_of_float32() -> None:
    for scale in map(np.float32, SCALES):
        size = scale_size(symbol("n"), float(scale))
        expected = np.floor(np.arange(4097, dtype=np.float32) * scale).astype(int).tolist()
        assert [written(n, float(scale)) for n in range(4097)] == expected
        assert [evaluate(size, {"n": n}) for n in range(0, 4097, 16)] == expected[::16]


def test_bounds_of_sizes() -> None:
    n, m = symbol("n"), symbol("m")
    assert bound(3 * n * m - 5) == 3 * LARGEST + 5 and bound(n % 8) == 8 and bound(7) == 7
    assert bound(scale_size(n, 0.5) + n // 4) <= 0.75 * LARGEST + 2
    int32, uint8 = ir.DataType.INT32, ir.DataType.UINT8
    assert fits(2047 * n * m, int32) and not fits(2048 * n, int32) and not fits(2**31, int32) and fits(-(2**31), int32)
    assert fits(n % 8, uint8) and not fits(n % 8 - 8, uint8) and not fits(n, uint8)


def test_elements_past_the_limit_are_left_to_the_module(tmp_path: Path) -> None:
    """Four constants of 100 elements, and the sums of three pairs of them: as many are computed as the limit holds."""
    lines = [f"k{i} = ConstantOfShape<value = float[1] {{{i}.}}>(size)" for i in range(4)]
    lines += [f"s{i} = Add(k{i}, k{i + 1})" for i in range(3)] + ["t = Sum(s0, s1, s2)", "y = Mul(x, t)"]
    header = '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 100] x) => (y) <int64[1] size = {100}>'
    proto = onnx.parser.parse_model(header + "{" + "\n".join(lines) + "}")
    x = np.ones((2, 100), np.float32)
    (expected,) = rt.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    onnx.save(proto, tmp_path / "constants.onnx")
    for limit in (1, 99, 100, 350, 700, 10_000):
        model, options = ir.serde.deserialize_model(proto), Options(limits=Limits(fold_elements=limit))
        propagate(model.graph, options)
        assert sum(info(node.outputs[0]).data is not None for node in model.graph) == min(limit // 100, 8)
        made = onnxgen.load(tmp_path / "constants.onnx", options)
        np.testing.assert_array_equal(made(torch.from_numpy(x)).numpy(), expected)
