"""Helpers of arithmetic under torch.compile and autograd, and arithmetic on sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper

from onnxgen.helpers.casting import float4
from onnxgen.helpers.integers import int_div, uint64_div, uint64_mod
from onnxgen.helpers.ranges import one_hot_places, range_tensor
from onnxgen.helpers.scan import exclusive_cumprod, exclusive_cumsum
from onnxgen.helpers.select import extreme, prod_over, stable_topk
from tests.ops.harness import assert_same, run_model, run_onnxruntime

HELPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "stable_topk": lambda x: stable_topk(x, 2),
    "exclusive_cumsum": lambda x: exclusive_cumsum(x, 1),
    "exclusive_cumprod": lambda x: exclusive_cumprod(x, 0),
    "prod_over": lambda x: prod_over(x, [0, 1]),
    "extreme": lambda x: extreme(x, [1], keepdim=True, largest=True),
    "one_hot_places": lambda x: one_hot_places(x.long(), 5),
    "range_tensor": lambda x: range_tensor(0, x.shape[0] - 5, 1),
    "range of floats": lambda x: range_tensor(0.0, 2.0, 0.5, torch.float32),
    "float4": float4,
    "int_div": lambda x: x.flatten()[int_div(x.shape[0] - 9, 2) :],
    "uint64_div": lambda x: uint64_div(x.abs().to(torch.uint64), torch.tensor(3).to(torch.uint64)),
    "uint64_mod": lambda x: uint64_mod(x.abs().to(torch.uint64), torch.tensor(3).to(torch.uint64)),
}


@pytest.mark.parametrize("name", HELPERS)
def test_compiles_without_a_break(name: str) -> None:
    function = HELPERS[name]
    compiled = torch.compile(function, backend="eager", fullgraph=True, dynamic=True)
    for shape in ((3, 4), (6, 2)):
        x = torch.arange(float(shape[0] * shape[1])).reshape(shape) - 3
        made, expected = compiled(x), function(x)
        for a, e in zip(made, expected) if isinstance(made, tuple) else [(made, expected)]:
            assert a.dtype == e.dtype and torch.equal(a, e)


@pytest.mark.parametrize("name", ["stable_topk", "exclusive_cumsum", "exclusive_cumprod", "prod_over", "extreme"])
def test_gradient(name: str) -> None:
    x = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def function(x: torch.Tensor) -> torch.Tensor:
        made = HELPERS[name](x)
        return made[0] if isinstance(made, tuple) else made

    assert torch.autograd.gradcheck(function, x)


@pytest.mark.parametrize("a", [-7, -6, 0, 6, 7])
@pytest.mark.parametrize("b", [-2, 2, 3])
def test_int_div_cuts_off(a: int, b: int) -> None:
    assert int_div(a, b) == int(a / b)


def test_arithmetic_on_sizes() -> None:
    """Sizes become tensors only where they are data; every result is onnxruntime's."""
    constants = {"i": 0, "j": 1, "two": 2}
    steps = [
        ("Equal", ["n", "two"], {}, 9), ("Less", ["n", "m"], {}, 9), ("Sub", ["n", "m"], {}, 7),
        ("Div", ["n_less_m", "two"], {}, 7), ("Mod", ["n_less_m", "two"], {"fmod": 1}, 7),
        ("Mod", ["n_less_m", "two"], {}, 7), ("Max", ["n", "m"], {}, 7), ("Pow", ["n", "two"], {}, 7),
        ("ReduceProd", ["s"], {"keepdims": 0}, 7), ("Abs", ["n_less_m"], {}, 7), ("Clip", ["n_less_m", "i"], {}, 7),
        ("Range", ["i", "n_less_m", "j"], {}, 7), ("CumSum", ["s", "i"], {}, 7), ("Cast", ["n"], {"to": 1}, 1),
    ]  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["n"]),
        helper.make_node("Gather", ["s", "j"], ["m"]),
        helper.make_node("Sub", ["n", "m"], ["n_less_m"]),
        *(helper.make_node(op, ins, [f"o{k}"], **attrs) for k, (op, ins, attrs, _) in enumerate(steps)),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["n", "m"])],
        [helper.make_tensor_value_info(f"o{k}", dtype, None) for k, (*_, dtype) in enumerate(steps)],
        [numpy_helper.from_array(np.array(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    for shape in ((2, 3), (7, 4), (1, 0), (4, 7)):
        feeds = {"x": np.zeros(shape, np.float32)}
        for actual, expected in zip(run_model(model, feeds).outputs, run_onnxruntime(model, feeds), strict=True):
            assert_same(actual, expected)
