"""Schema versions that ONNX's own tests reach at no opset, and those that meant something else, one by one.

The oracle is onnxruntime: at the node's opset, at a newer one (`newer`) where the standard only renamed, widened or
moved things, or numpy where there is neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.backend.older import Version
from tests.ops.fuzz import floats
from tests.ops.harness import assert_same, node_model, run_model, run_node, run_onnxruntime

F = np.float32
X, IMAGE, ROWS = floats(2, 3), floats(1, 4, 4, 4), floats(3, 5)
BITS = X > 0
CHANNELS = [floats(4, seed=i) for i in range(4)]
COLUMN = CHANNELS[0].reshape(4, 1, 1)
NORM = [IMAGE, CHANNELS[0], CHANNELS[1], CHANNELS[2], CHANNELS[3] ** 2]
GATED = [floats(4, 2, 3), floats(1, 6, 3), floats(1, 6, 2), floats(1, 12)]
PLAIN = [floats(4, 2, 3), floats(1, 2, 3), floats(1, 2, 2), floats(1, 4)]
BYTES = np.array([[0, 100], [200, 255]], np.uint8)
REGIONS = np.array([[0, 0, 0, 3, 3], [0, 1, 1, 2, 3]], F)


def per_element(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


EACH = [IMAGE, *(floats(4, 4, 4, seed=i) for i in range(3)), floats(4, 4, 4, seed=3) ** 2]

# operator, opset, inputs, attributes, and what else `run_node` or `compared` is given
Row = tuple[str, int, Sequence[Any], dict[str, Any], dict[str, Any]]
TABLE: list[Row] = [
    *((op, 1, [X], {}, {"newer": 13}) for op in ("Abs", "Ceil", "Exp", "Floor", "Neg", "Reciprocal", "Relu", "Tanh")),
    *((op, 6, [X], {}, {}) for op in ("Ceil", "Floor", "Exp", "Neg", "Reciprocal")),
    *((op, 7, [X * 0.3], {}, {}) for op in ("Acos", "Asin", "Atan", "Cos", "Sin", "Tan")),
    *((op, 9, [X * 0.3], {}, {}) for op in ("Asinh", "Atanh", "Cosh", "Sinh")),
    ("Softsign", 1, [X], {}, {}),
    ("Xor", 1, [BITS, BITS[:, 0]], {"broadcast": 1, "axis": 0}, {"expected": [BITS ^ BITS[:, :1]]}),
    ("And", 1, [BITS, BITS[0]], {"broadcast": 1}, {"expected": [BITS & BITS[0]]}),
    ("Greater", 1, [X, X[:, 0]], {"broadcast": 1, "axis": 0}, {"expected": [X[:, :1] < X]}),
    ("Less", 1, [X, X[0]], {"broadcast": 1}, {"expected": [X[0] > X]}),
    ("Equal", 1, [BITS, BITS[0]], {"broadcast": 1}, {"expected": [BITS[0] == BITS]}),
    ("Clip", 1, [X], {"min": -0.5, "max": 0.5}, {"newer": 6}),
    ("Clip", 12, [BYTES, np.uint8(3), np.uint8(201)], {}, {}),
    ("Cast", 1, [X * 9], {"to": "INT32"}, {"expected": [(X * 9).astype(np.int32)]}),
    ("DepthToSpace", 1, [IMAGE], {"blocksize": 2}, {}),
    ("SpaceToDepth", 1, [IMAGE], {"blocksize": 2}, {}),
    ("Dropout", 1, [X], {"is_test": 1}, {"expected": [X]}),
    ("Dropout", 6, [X], {"is_test": 1, "ratio": 0.9}, {"expected": [X]}),
    ("BatchNormalization", 1, NORM, {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}, {"newer": 9}),
    ("BatchNormalization", 6, NORM, {"is_test": 1}, {"newer": 9}),
    ("BatchNormalization", 7, NORM, {}, {}),
    ("BatchNormalization", 9, NORM, {"epsilon": 0.01}, {}),
    ("PRelu", 1, [IMAGE, CHANNELS[0]], {}, {"expected": [np.where(IMAGE < 0, IMAGE * COLUMN, IMAGE)]}),
    ("PRelu", 6, [IMAGE, CHANNELS[0]], {}, {"expected": [np.where(IMAGE < 0, IMAGE * COLUMN, IMAGE)]}),
    ("Cast", 6, [X * 9], {"to": TensorProto.INT32}, {}),
    ("Reshape", 1, [X], {"shape": [0, 3, -1]}, {"expected": [X.reshape(2, 3, 1)]}),
    ("Slice", 1, [ROWS], {"starts": [1, -3], "ends": [3, 1000], "axes": [0, 1]}, {}),
    ("BatchNormalization", 7, EACH, {"spatial": 0}, {"expected": [per_element(*EACH)]}),
    ("DequantizeLinear", 10, [BYTES, F(0.5), np.uint8(7)], {}, {}),
    ("DequantizeLinear", 13, [BYTES, np.array([0.5, 2], F), np.array([7, 9], np.uint8)], {"axis": 0}, {}),
    ("QuantizeLinear", 10, [X, F(0.02), np.uint8(99)], {}, {}),
    ("QLinearMatMul", 10, [BYTES, F(0.1), np.uint8(9), BYTES, F(0.2), np.uint8(8), F(9), np.uint8(7)], {}, {}),
    ("GRU", 1, GATED, {"hidden_size": 2, "output_sequence": 1}, {"newer": 7, "outputs": 2}),
    ("GRU", 3, GATED, {"hidden_size": 2, "linear_before_reset": 1, "output_sequence": 1}, {"newer": 7, "outputs": 2}),
    ("GRU", 7, GATED, {"hidden_size": 2, "linear_before_reset": 1}, {"outputs": 2}),
    ("GRU", 14, GATED, {"hidden_size": 2}, {"outputs": 2}),
    ("RNN", 1, PLAIN, {"hidden_size": 2, "output_sequence": 1}, {"newer": 7, "outputs": 2}),
    ("GatherND", 11, [ROWS, np.array([[2, 1], [0, -1]])], {}, {}),
    ("GatherND", 12, [ROWS, np.array([[2], [0], [4]])], {"batch_dims": 1}, {}),
    ("Gemm", 1, [X, floats(3, 4), CHANNELS[0]], {"broadcast": 1, "alpha": 0.5}, {"newer": 7}),
    ("GlobalLpPool", 1, [IMAGE], {"p": 3.0}, {"newer": 2}),
    ("GlobalLpPool", 2, [IMAGE], {"p": 3}, {}),
    ("GlobalLpPool", 22, [IMAGE], {"p": 3}, {"newer": 2}),
    ("InstanceNormalization", 1, NORM[:3], {"consumed_inputs": [0, 0, 0]}, {"newer": 6}),
    ("LpPool", 1, [IMAGE], {"kernel_shape": [2, 2], "p": 3.0}, {"newer": 2}),
    ("MaxRoiPool", 1, [IMAGE, REGIONS], {"pooled_shape": [2, 2]}, {}),
    ("MaxRoiPool", 22, [IMAGE, REGIONS], {"pooled_shape": [2, 2]}, {"newer": 1}),
    ("OneHot", 9, [np.array([1, 5, 0]), np.int64(4), np.array([2, 7], F)], {}, {}),
    ("OneHot", 11, [np.array([1, -1, 0]), np.int64(4), np.array([2, 7], F)], {"axis": 0}, {}),
    ("Pad", 2, [X], {"pads": [0, 1, -1, 0], "value": 3.0}, {}),
    ("Pad", 1, [X], {"paddings": [0, 1, 2, 0], "value": 3.0}, {"newer": 2}),
    ("ReduceMax", 1, [ROWS], {"axes": [1]}, {}),
    ("ReduceMax", 12, [BYTES], {"axes": [0], "keepdims": 0}, {}),
    ("ReduceMin", 12, [BYTES], {"axes": [0], "keepdims": 0}, {}),
    ("Resize", 10, [IMAGE, np.array([1, 1, 1.5, 2], F)], {"mode": "linear"}, {"initializers": {1}}),
    ("RoiAlign", 10, [IMAGE, REGIONS[:, 1:], np.zeros(2, np.int64)], {"output_height": 2, "output_width": 2}, {}),
    ("ScatterElements", 11, [ROWS, np.array([[1, 3]]), np.array([[8, 9]], F)], {"axis": 1}, {}),
    ("ScatterElements", 13, [ROWS, np.array([[1, -1]]), np.array([[8, 9]], F)], {"axis": -1}, {}),
    ("Split", 1, [ROWS], {"split": [2, 3], "axis": 1}, {"newer": 2, "outputs": 2}),
    ("Tile", 1, [X, np.int64(3), np.int64(1)], {}, {"expected": [np.tile(X, (1, 3))], "initializers": {1, 2}}),
    ("TopK", 1, [ROWS], {"k": 2, "axis": 1}, {"outputs": 2}),
    ("Upsample", 1, [IMAGE], {"height_scale": 2.0, "width_scale": 3.0},
     {"expected": [IMAGE.repeat(2, 2).repeat(3, 3)]}),
    ("Selu", 1, [X], {}, {"expected": [np.where(X > 0, X, 1.6732 * (np.exp(X) - 1)).astype(F) * F(1.0507)]}),
    ("Elu", 1, [X], {}, {"newer": 6}),
    ("Max", 12, [BYTES, BYTES.T.copy()], {}, {}),
    ("Concat", 1, [X, X], {}, {"expected": [np.concatenate([X, X], 1)]}),
    ("Hardmax", 1, [floats(2, 2, 3)], {}, {"newer": 11}),
    ("Softmax", 1, [floats(2, 2, 3)], {}, {"newer": 11}),
    ("LogSoftmax", 1, [floats(2, 2, 3)], {}, {"newer": 11}),
    ("Det", 11, [floats(2, 3, 3)], {}, {}),
    ("BitShift", 11, [BYTES, BYTES % 5], {"direction": "LEFT"}, {}),
    ("NonZero", 9, [np.round(X)], {}, {}),
    ("Unique", 11, [np.array([3, 1, 3, 2], F)], {}, {"outputs": 4}),
    ("MeanVarianceNormalization", 9, [IMAGE], {}, {}),
]  # fmt: skip


def compared(op: str, opset: int, inputs: Sequence[Any], attrs: dict[str, Any], **options: Any) -> None:
    """`run_node`; `newer`: the opset at which onnxruntime says what is right, without what it no longer knows."""
    inputs = [np.asarray(v) for v in inputs]
    newer = options.pop("newer", None)
    if newer is not None:
        known = onnx.defs.get_schema(op, newer).attributes
        renamed = {{"paddings": "pads"}.get(name, name): value for name, value in attrs.items()}
        kept = {name: int(v) if name == "p" else v for name, v in renamed.items() if name in known}
        model = node_model(op, inputs, kept, newer, options.get("outputs", 1))
        options["expected"] = run_onnxruntime(model, {f"i{n}": v for n, v in enumerate(inputs)})
    for dynamic in (False, True):
        run_node(op, inputs, attrs, opset, dynamic=dynamic, **options)


@pytest.mark.parametrize("row", TABLE, ids=[f"{row[0]}-{row[1]}" for row in TABLE])
def test_what_it_meant(row: Row) -> None:
    op, opset, inputs, attrs, options = row
    compared(op, opset, inputs, attrs, **options)


DRAWN: list[tuple[str, int, list[Any], dict[str, Any]]] = [
    ("RandomNormal", 1, [], {"shape": [4, 50]}),
    ("RandomNormal", 22, [], {"shape": [4, 50]}),
    ("RandomUniform", 1, [], {"shape": [4, 50]}),
    ("RandomUniform", 22, [], {"shape": [4, 50]}),
    ("RandomNormalLike", 1, [floats(4, 50)], {}),
    ("RandomNormalLike", 22, [floats(4, 50)], {}),
    ("RandomUniformLike", 1, [floats(4, 50)], {}),
    ("Bernoulli", 15, [np.full((4, 50), 0.5, F)], {}),
    ("Multinomial", 7, [np.zeros((4, 3), F)], {"sample_size": 50}),
    ("Multinomial", 22, [np.zeros((4, 3), F)], {"sample_size": 50}),
]


@pytest.mark.parametrize("op, opset, inputs, attrs", DRAWN, ids=[f"{row[0]}-{row[1]}" for row in DRAWN])
def test_what_is_drawn(op: str, opset: int, inputs: list[Any], attrs: dict[str, Any]) -> None:
    (made,) = run_node(op, inputs, attrs, opset, compare=False).outputs
    mean, spread = (
        (0, 1) if "Normal" in op else (1, 0.82) if op == "Multinomial" else (0.5, 0.5 if op[0] == "B" else 0.29)
    )
    assert made.shape == (4, 50) and made.dtype == (np.int32 if op == "Multinomial" else F)
    assert abs(made.mean() - mean) < 0.3 and abs(made.std() - spread) < 0.2


@pytest.mark.parametrize("opset", [1, 11, 13, 16, 19, 21, 23, 24, 25])
def test_branches(opset: int) -> None:
    """If: what a branch may make grew, and nothing else."""
    branches = {}
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs")):
        node = helper.make_node(op, ["x"], [f"{op}_y"], **({"consumed_inputs": [0]} if opset == 1 else {}))
        out = helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, [2, 3])
        branches[name] = helper.make_graph([node], name, [], [out])
    model = whole([helper.make_node("If", ["c"], ["y"], **branches)], {"c": (9, []), "x": (1, [2, 3])}, opset)
    for condition, expected in ((True, -X), (False, abs(X))):
        assert_same(run_model(model, {"c": np.array(condition), "x": X}).outputs, [expected])


@pytest.mark.parametrize("opset", [1, 11, 13, 16, 19, 21, 23, 24, 25])
def test_loops(opset: int) -> None:
    body = helper.make_graph(
        [helper.make_node("Sum", ["s", "x"], ["t"]), helper.make_node("Identity", ["on"], ["going"])],
        "body",
        [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("on", 9, []),
         helper.make_tensor_value_info("s", 1, [2, 3])],
        [helper.make_tensor_value_info("going", 9, []), helper.make_tensor_value_info("t", 1, [2, 3])],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    model = whole([loop], {"n": (7, []), "x": (1, [2, 3])}, opset)
    assert_same(run_model(model, {"n": np.array(3), "x": X}).outputs, [X + X + X + X])


@pytest.mark.parametrize("opset", [15, 18, 28])
def test_optionals(opset: int) -> None:
    """An optional that is there."""
    get = [helper.make_node("Optional", ["x"], ["o"]), helper.make_node("OptionalGetElement", ["o"], ["y"])]
    assert_same(run_model(whole(get, {"x": (1, [2, 3])}, opset), {"x": X}).outputs, [X])
    ask = [helper.make_node("OptionalHasElement", ["o"], ["h"]), helper.make_node("Where", ["h", "x", "z"], ["y"])]
    model = whole([get[0], *ask], {"x": (1, [2, 3]), "z": (1, [2, 3])}, opset)
    assert_same(run_model(model, {"x": X, "z": X + 1}).outputs, [X])


def whole(nodes: Sequence[onnx.NodeProto], inputs: dict[str, tuple[int, list[int]]], opset: int) -> onnx.ModelProto:
    """A model that makes y [2, 3]."""
    declared = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(nodes, "g", declared, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


TREES = {
    "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.1, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
}  # fmt: skip


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
def test_trees(kind: str, version: int) -> None:
    prefix = "target" if kind == "Regressor" else "class"
    leaves = {f"{prefix}_treeids": [0, 0], f"{prefix}_nodeids": [1, 2], f"{prefix}_ids": [0, 1]}
    leaves[f"{prefix}_weights"] = [0.5, 0.75]  # type: ignore[assignment]
    rest = {"n_targets": 2} if kind == "Regressor" else {"classlabels_int64s": [3, 4]}
    attrs, outputs = {**TREES, **leaves, **rest}, 1 if kind == "Regressor" else 2
    model = node_model(f"TreeEnsemble{kind}", [X], attrs, 21, outputs, domain="ai.onnx.ml")
    model.opset_import[1].version = version
    assert_same(run_model(model, {"i0": X}).outputs, run_onnxruntime(model, {"i0": X}))


def run_here() -> set[Version]:
    """The schema versions that these tests run."""
    found = {(op, opset) for op, opset, *_ in [*TABLE, *DRAWN]}
    found |= {(op, opset) for op in ("If", "Loop") for opset in (1, 11, 13, 16, 19, 21, 23, 24, 25)}
    found |= {(op, v) for op in ("Optional", "OptionalGetElement", "OptionalHasElement") for v in (15, 18, 28)}
    trees = {("ai.onnx.ml", f"TreeEnsemble{kind}", v) for kind in ("Regressor", "Classifier") for v in (1, 3)}
    trees.add(("ai.onnx.ml", "LabelEncoder", 1))  # test_ml_features.py
    return trees | {("", op, onnx.defs.get_schema(op, opset).since_version) for op, opset in found}
