"""Chains of views, across the scopes that exporters name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxgen.graph.annotations import PRODUCER, SCOPE
from onnxgen.options import Options
from onnxgen.passes.views import views
from onnxgen.shapes import propagate
from tests.ops.harness import assert_same, run_model, run_onnxruntime


def chained(*steps: tuple[str, str, list[int]], scopes: dict[str, tuple[str, ...]]) -> ir.Model:
    """Reshapes to sizes, each (input, output, sizes); then a Relu of each value that none takes."""
    nodes = [helper.make_node("Reshape", [x, f"{y}_sizes"], [y], y) for x, y, _ in steps]
    ends = [y for _, y, _ in steps if y not in {x for x, _, _ in steps}]
    nodes += [helper.make_node("Relu", [end], [f"{end}_out"], f"{end}_relu") for end in ends]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, 4])
    out = [helper.make_tensor_value_info(f"{end}_out", TensorProto.FLOAT, None) for end in ends]
    sizes = [numpy_helper.from_array(np.array(given, np.int64), f"{y}_sizes") for _, y, given in steps]
    graph = helper.make_graph(nodes, "g", [x], out, sizes)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    propagate(model.graph, Options())
    for node in model.graph:
        SCOPE.set(node, scopes.get(node.name or "", ("net",)))
    return model


def reshapes(model: ir.Model) -> int:
    views(model, Options())
    return sum(node.op_type in ("Reshape", "Unsqueeze", "Squeeze") for node in model.graph)


def test_a_transpose_without_an_order_turns_all_axes_round() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    sizes = [numpy_helper.from_array(np.array(s), name) for name, s in (("two", [4, 6]), ("three", [3, 2, 4]))]
    nodes = [
        helper.make_node("Transpose", ["x"], ["a"]), helper.make_node("Reshape", ["a", "two"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"]), helper.make_node("Reshape", ["c", "three"], ["y"]),
    ]  # fmt: skip
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [2, 3, 4]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [given], [made], sizes)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    expected = run_onnxruntime(model, {"x": x})[0]
    assert_same(run_model(model, {"x": x}).outputs[0], expected)
    rewritten = ir.from_proto(model)
    propagate(rewritten.graph, Options())
    views(rewritten, Options())
    assert [node.op_type for node in rewritten.graph] != [node.op_type for node in model.graph.node]
    assert_same(run_onnxruntime(ir.to_proto(rewritten), {"x": x})[0], expected)


CHAIN = (("x", "a", [-1, 24]), ("a", "b", [-1, 1, 24]), ("b", "c", [-1, 2, 12]))


@pytest.mark.parametrize(("producer", "left"), [("tf2onnx", 1), ("pytorch", 3)])
def test_a_scope_of_views_alone_is_no_module(producer: str, left: int) -> None:
    """TensorFlow's functions have scopes; PyTorch's are modules."""
    model = chained(*CHAIN, scopes={"b": ("net", "conv1d")})
    PRODUCER.set(model.graph, producer)
    assert reshapes(model) == left


def test_a_scope_with_more_is_one() -> None:
    model = chained(*CHAIN, scopes={"b": ("net", "layer"), "c_relu": ("net", "layer")})
    PRODUCER.set(model.graph, "tf2onnx")
    assert reshapes(model) == 3


def test_equal_views_are_one() -> None:
    """Then the chain before them ends in one node."""
    steps = (("x", "a", [-1, 24]), ("a", "b", [-1, 3, 8]), ("a", "c", [-1, 3, 8]))
    model = chained(*steps, scopes={})
    assert reshapes(model) == 1 and len(model.graph.outputs) == 2
    model = chained(*steps[:2], ("a", "c", [-1, 8, 3]), scopes={})
    assert reshapes(model) == 3
    model = chained(*steps, scopes={"c": ("other",), "c_relu": ("other",)})
    assert reshapes(model) == 3
