"""Idioms held to what they must be: the text that a person would write, onnxruntime's outputs, PyTorch's gradients.

hold(spelled("s = Sigmoid(x)  y = Mul(s, x)"), "return F.silu(x)", F.silu)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx.parser
import torch
import torch.nn.functional as F

from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime, to_torch

# on both sides of what activations are cut at, and on none of them: what the gradient is there, each spelling chooses
POINTS = np.array([-40, -9.5, -6.1, -3.1, -2.9, -1.2, -0.7, -0.1, 0.1, 0.4, 1.1, 2.9, 3.2, 5.9, 6.2, 40], "float32")


def spelled(
    text: str,
    stored: str = "",
    shape: str = "2, 2, 4",
    kind: str = "float",
    opset: int = 17,
    outputs: str = "",
) -> onnx.ModelProto:
    """A graph of x, of type `kind`, and y, which `text` computes; `stored` declares tensors, in ONNX's text syntax.

    `outputs` names further outputs. Shape inference fills in their types and shapes.
    """
    declared = ", ".join(f"{kind}[] {name}" for name in ("y", *outputs.split()))
    head = f'<ir_version: 8, opset_import: ["": {opset}]>\n'
    tensors = f"<{stored}>" if stored else ""
    model = onnx.parser.parse_model(f"{head}spelled ({kind}[{shape}] x) => ({declared}) {tensors} {{ {text} }}")
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


def points(model: onnx.ModelProto) -> np.ndarray[Any, Any]:
    """`POINTS` in the shape of the input, in an order of their own; dims without a number are 3."""
    tensor = model.graph.input[0].type.tensor_type
    shape = [d.dim_value or 3 for d in tensor.shape.dim]
    drawn = np.random.default_rng(0).permutation(np.resize(POINTS, int(np.prod(shape))))
    return drawn.reshape(shape).astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def hold(
    model: onnx.ModelProto,
    wanted: str,
    original: Callable[..., Any] | None = None,
    x: np.ndarray[Any, Any] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
) -> Ran:
    """The generated `forward` says `wanted`; outputs are onnxruntime's and the original's, gradients the original's."""
    x = points(model) if x is None else x
    feeds = {model.graph.input[0].name: x}
    ran = run_model(model, feeds)
    for actual, expected in zip(ran.outputs, run_onnxruntime(model, feeds)):
        assert_same(actual, expected, rtol, atol)
    assert wanted in " ".join(ran.forward.split()), ran.forward
    if original is not None:
        ours, theirs = gradient(ran.model, x), gradient(original, x)
        assert_same(ours[0], theirs[0], rtol, atol)
        assert_same(ours[1], theirs[1], 1e-4, 1e-5)
    return ran


def function_of(text: str) -> Callable[..., Any]:
    """The function of x that a line of PyTorch computes."""
    made: Callable[..., Any] = eval(f"lambda x: {text}", {"F": F, "torch": torch})
    return made


def gradient(function: Callable[..., Any], x: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """(value, gradient of a weighted sum) of a function at x."""
    argument = to_torch(x).requires_grad_()
    made = function(argument)
    weights = torch.from_numpy(np.random.default_rng(1).standard_normal(tuple(made.shape))).to(made.dtype)
    (made * weights).sum().backward()
    assert argument.grad is not None
    return made.detach().numpy(), argument.grad.numpy()


def text_of(model: onnx.ModelProto) -> str:
    """What the generated `forward` says, on one line; its outputs are held to onnxruntime's."""
    return " ".join(hold(model, "").forward.split())
