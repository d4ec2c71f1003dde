"""Gradient (ai.onnx.preview.training), held to torch's autograd of the same function, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from onnxgen.errors import OnnxgenError
from tests.ops.fuzz import floats
from tests.ops.harness import assert_same, generate, instantiate, run_model

Shapes = dict[str, list[int]]
node = helper.make_node


def gradient(inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return node("Gradient", inputs, outputs, domain="ai.onnx.preview.training", **attributes)


def graph(nodes: Sequence[onnx.NodeProto], inputs: Shapes, outputs: Shapes, stored: Any = None) -> onnx.GraphProto:
    declared = [[helper.make_tensor_value_info(n, 1, s) for n, s in d.items()] for d in (inputs, outputs)]
    return helper.make_graph(nodes, "g", *declared, [numpy_helper.from_array(a, n) for n, a in (stored or {}).items()])


def model(*args: Any, **kwargs: Any) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    return helper.make_model(graph(*args, **kwargs), opset_imports=opsets, ir_version=8)


def derivatives(y: torch.Tensor, *xs: torch.Tensor) -> list[Any]:
    return [g.detach().numpy() for g in torch.autograd.grad(y.sum(), xs)]


LAYER = [node("MatMul", ["X", "W"], ["H"]), node("Tanh", ["H"], ["T"]), node("MatMul", ["T", "Z"], ["Y"])]
SIZES = {"X": [2, 3], "Z": [4, 2]}
X, W, Z, OTHER = floats(2, 3), floats(3, 4), floats(4, 2), floats(2, 4, seed=1)


def layer(h: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return h.tanh() @ z


def test_by_a_weight() -> None:
    """W is stored in the file, and a constant beside; X is no variable."""
    step = gradient(["W", "Z", "X"], ["dW", "dZ"], xs=["W", "Z"], zs=["X"], y="Y")
    made = model([*LAYER, step], SIZES, {"Y": [2, 2], "dW": [3, 4], "dZ": [4, 2]}, {"W": W})
    ran = run_model(made, {"X": X, "Z": Z})
    x, w, z = (torch.tensor(a, requires_grad=True) for a in (X, W, Z))
    y = layer(x @ w, z)
    assert_same(ran.outputs, [y.detach().numpy(), *derivatives(y, w, z)])
    assert "torch.autograd.grad(" in ran.forward and "with torch.enable_grad():" in ran.forward


def test_by_an_intermediate_value() -> None:
    step = gradient(["H", "Z"], ["dH", "dZ"], xs=["H", "Z"], y="Y")
    ran = run_model(model([*LAYER, step], SIZES, {"dH": [2, 4], "dZ": [4, 2]}, {"W": W}), {"X": X, "Z": Z})
    h, z = torch.tensor(X @ W, requires_grad=True), torch.tensor(Z, requires_grad=True)
    assert_same(ran.outputs, derivatives(layer(h, z), h, z))


def test_of_two_variables_each_is_held_while_the_other_changes() -> None:
    """Although the graph makes one of them of the other."""
    nodes = [node("Mul", ["x", "x"], ["s"]), node("Mul", ["s", "x"], ["y"])]
    step = gradient(["x", "s"], ["dx", "ds"], xs=["x", "s"], y="y")
    x = floats(5)
    assert_same(run_model(model([*nodes, step], {"x": [5]}, {"dx": [5], "ds": [5]}), {"x": x}).outputs, [x * x, x])


def test_at_other_values_than_the_graphs_own() -> None:
    """The inputs are H_1 and Z, and one result is left out."""
    step = gradient(["H1", "Z"], ["dH", ""], xs=["H", "Z"], y="Y")
    made = model([*LAYER, step], {**SIZES, "H1": [2, 4]}, {"Y": [2, 2], "dH": [2, 4]}, {"W": W})
    ran = run_model(made, {"X": X, "Z": Z, "H1": OTHER})
    h = torch.tensor(OTHER, requires_grad=True)
    assert_same(ran.outputs[1], derivatives(layer(h, torch.tensor(Z)), h)[0])
    assert_same(ran.outputs[0], layer(torch.tensor(X @ W), torch.tensor(Z)).numpy())


def cubic() -> onnx.ModelProto:
    """x^3 and its first two derivatives, the second by a Gradient of a Gradient."""
    nodes = [
        node("Mul", ["x", "x"], ["s"]),
        node("Mul", ["s", "x"], ["y"]),
        gradient(["x"], ["d"], xs=["x"], y="y"),
        gradient(["x"], ["dd"], xs=["x"], y="d"),
    ]
    return model(nodes, {"x": [5]}, {"y": [5], "d": [5], "dd": [5]})


def test_second_order() -> None:
    x = floats(5)
    assert_same(run_model(cubic(), {"x": x}).outputs, [x**3, 3 * x**2, 6 * x])


def test_results_have_a_gradient_where_gradients_are_enabled() -> None:
    module, x = instantiate(generate(cubic())), torch.tensor(floats(5), requires_grad=True)
    _, d, dd = module(x)
    assert_same(
        [g.detach().numpy() for g in torch.autograd.grad(d.sum() + dd.sum(), x)], [(6 * x + 6).detach().numpy()]
    )
    with torch.no_grad():
        assert not any(made.requires_grad for made in module(x))


def test_descent_in_a_loop() -> None:
    """Five steps down (x - 3)^2: the body of a Loop differentiates its own state."""
    body = graph(
        [
            node("Sub", ["x", "three"], ["e"]),
            node("Mul", ["e", "e"], ["loss"]),
            gradient(["x"], ["g"], xs=["x"], y="loss"),
            node("Mul", ["g", "rate"], ["step"]),
            node("Sub", ["x", "step"], ["next"]),
            node("Identity", ["going"], ["on"]),
        ],
        {"x": [2]},
        {"next": [2]},
    )
    body.input.insert(0, helper.make_tensor_value_info("going", 9, []))
    body.input.insert(0, helper.make_tensor_value_info("i", 7, []))
    body.output.insert(0, helper.make_tensor_value_info("on", 9, []))
    numbers = {"three": np.float32(3), "rate": np.float32(0.1), "five": np.int64(5)}
    made = model([node("Loop", ["five", "", "x0"], ["x5"], body=body)], {"x0": [2]}, {"x5": [2]}, numbers)
    start = floats(2)
    assert_same(run_model(made, {"x0": start}).outputs, [3 + (start - 3) * np.float32(0.8) ** 5])


def test_what_it_has_no_gradient_by_is_zeros() -> None:
    nodes = [node("Floor", ["x"], ["f"]), node("Mul", ["f", "w"], ["y"])]
    step = gradient(["x", "w"], ["dx", "dw"], xs=["x", "w"], y="y")
    x, w = floats(3), floats(3, seed=1)
    ran = run_model(model([*nodes, step], {"x": [3], "w": [3]}, {"dx": [3], "dw": [3]}), {"x": x, "w": w})
    assert_same(ran.outputs, [np.zeros_like(x), np.floor(x)])


@pytest.mark.parametrize(
    "attributes, message",
    [({"y": "nothing"}, "no value 'nothing'"), ({"xs": ["x", "w"]}, "1 inputs for 2"), ({"y": "w"}, "does not depend")],
)
def test_what_fits_nothing_is_an_error(attributes: dict[str, Any], message: str) -> None:
    step = gradient(["x"], ["dx"], **{"xs": ["x"], "y": "y", **attributes})
    made = model([node("Mul", ["x", "w"], ["y"]), step], {"x": [3], "w": [3]}, {"y": [3], "dx": [3]})
    with pytest.raises(OnnxgenError, match=message):
        generate(made)
