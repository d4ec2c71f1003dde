"""What mutations begin with: valid files, small and of every kind."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

from tests.support import graph_layers
from tests.support.hostile import HOSTILE, model_of
from tests.support.onnx_cases import node_cases
from tests.support.reader_models import ADD, RELU, branch, conditional, model, node, value, weight

SMALL = 6_000  # bytes of a seed: what is mutated should be what matters
SHARED = Path(__file__).parents[3] / "shared" / "models"


def few() -> list[bytes]:
    """Seeds that are made in well under a second."""
    numbers = lambda *n: from_array(np.array(n, np.int64), "w")  # noqa: E731
    made = [
        model([ADD], [weight("w", 3, 4)]),
        model([node("Gemm", ["x", "w", "b"])], [weight("w", 4, 5), weight("b", 5)], [value("x", ("N", 4))]),
        model([node("Reshape", ["x", "w"])], [numbers(2, -1)]),
        model([node("Expand", ["x", "w"])], [numbers(2, 3, 4)]),
        model([node("ConstantOfShape", ["w"], ["k"]), node("Add", ["x", "k"])], [numbers(3, 4)]),
        model([node("Tile", ["x", "w"])], [numbers(1, 1, 2)]),
        model(
            [
                node("Shape", ["x"], ["s"]),
                node("Gather", ["s", "w"], ["d"]),
                node("Range", ["z", "d", "o"], ["r"]),
                node("Cast", ["r"], to=1),
            ],
            [from_array(np.array(1), "w"), from_array(np.array(0), "z"), from_array(np.array(1), "o")],
        ),
        model([node("Conv", ["x", "w"], pads=[1, 1, 1, 1])], [weight("w", 2, 3, 3, 3)], [value("x", ("N", 3, 8, 8))]),
        model([node("LSTM", ["x", "w", "r"], hidden_size=2)], [weight("w", 1, 8, 4), weight("r", 1, 8, 2)]),
        model([node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], axis=-1)], [weight("w", 4, 4)]),
        conditional(branch([node("Neg", ["x"], ["q"])], "q")),
        looped(),
        called(),
        stored_outside(),
        sparse(),
        *(model_of(HOSTILE[k]) for k in ("quotes", "newlines", "jinja", "dotted_code", "constants")),
        *(graph_layers.make(seed, 3).model for seed in range(6)),
    ]
    return [proto.SerializeToString() for proto in made]


def all_seeds() -> list[bytes]:
    """Those, two of ONNX's own tests of every operator, random graphs, and small real files where they are there."""
    found, seen = few(), Counter[str]()
    for case in sorted(node_cases(), key=lambda case: case.name):
        operator = case.model.graph.node[-1].op_type + "_expanded" * case.name.endswith("_expanded")
        data = case.model.SerializeToString()
        if len(data) <= SMALL and seen[operator] < (1 if operator.endswith("_expanded") else 2):
            seen[operator] += 1
            found.append(data)
    found += [graph_layers.make(seed).model.SerializeToString() for seed in range(100, 160)]
    real = [path for path in sorted(SHARED.rglob("*.onnx")) if path.stat().st_size <= 5 * SMALL]
    random.Random(0).shuffle(real)
    return found + [path.read_bytes() for path in real[:60]]


def looped() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("Add", ["h", "w"], ["h2"]), node("Identity", ["go"], ["go2"]), node("ReduceSum", ["h2"], ["s"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("h", [2, 3, 4])],
        [value("go2", [], TensorProto.BOOL), value("h2", [2, 3, 4]), value("s", None)],
    )
    count = from_array(np.array(3, np.int64), "m")
    return model([node("Loop", ["m", "", "x"], ["y", "z"], body=body)], [count, weight("w", 4)], outputs=["y", "z"])


def called() -> onnx.ModelProto:
    """A local function with an attribute, which calls another."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    inner = helper.make_function("local", "inner", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opsets)
    soft = node("Softmax", ["c"], ["b"])
    soft.attribute.add(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    calls = [node("inner", ["a"], ["c"], domain="local"), soft]
    outer = helper.make_function("local", "outer", ["a"], ["b"], calls, opsets, ["axis"])
    call = node("outer", ["x"], ["h"], domain="local", axis=1, name="call")
    return model(
        [call, node("Add", ["h", "w"])], [weight("w", 4)], opsets={"": 17, "local": 1}, functions=[inner, outer]
    )


def stored_outside() -> onnx.ModelProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "w.bin"), ("offset", "64"), ("length", "48")):
        tensor.external_data.add(key=key, value=text)
    return model([ADD, RELU][:1], [tensor])


def sparse() -> onnx.ModelProto:
    made = model([node("Add", ["x", "w"])])
    values, where = from_array(np.array([1, 2], np.float32), "w"), from_array(np.array([1, 5], np.int64), "i")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, [3, 4]))
    return made
