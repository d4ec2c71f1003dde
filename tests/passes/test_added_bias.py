"""A bias that is added to a layer's result, as converters from other frameworks write it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import numpy_helper

from tests.ops.harness import Ran, assert_same, run_model, run_onnxruntime

RANDOM = np.random.default_rng(1)


def run(text: str, x: tuple[int, ...], **weights: np.ndarray) -> Ran:
    """Run a graph over x, and compare its outputs with onnxruntime's."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(v.astype("float32"), k) for k, v in weights.items())
    feeds = {"x": RANDOM.standard_normal(x).astype("float32")}
    ran = run_model(model, feeds)
    assert_same(ran.outputs[0], run_onnxruntime(model, feeds)[0])
    return ran


def parameters(ran: Ran) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in ran.model.named_parameters()}


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


CONV = "g (float[n, 3, 5, 5] x) => (float[n, 4, 3, 3] y) { c = Conv (x, W) y = Add (c, b) }"


@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1)])
def test_of_a_convolution(shape: tuple[int, ...]) -> None:
    bias = normal(*shape)
    ran = run(CONV, (2, 3, 5, 5), W=normal(4, 3, 3, 3), b=bias)
    assert parameters(ran) == {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,)}
    assert torch.equal(ran.model.conv.bias, torch.tensor(bias.reshape(-1).astype("float32")))


def test_behind_a_reshape_on_the_left_of_one_channel_and_transposed() -> None:
    text = "<int64[4] s = {1, -1, 1, 1}> { c = Conv (x, W) r = Reshape (b, s) y = Add (r, c) }"
    ran = run(
        "g (float[n, 3, 5, 5] x) => (float[n, 4, 3, 3] y) " + text, (2, 3, 5, 5), W=normal(4, 3, 3, 3), b=normal(4)
    )
    assert set(parameters(ran)) == {"conv.weight", "conv.bias"}
    one = "g (float[n, 3, 5] x) => (float[n, 1, 7] y) { c = ConvTranspose (x, W) y = Add (c, b) }"
    assert set(parameters(run(one, (2, 3, 5), W=normal(3, 1, 3), b=normal(1, 1)))) == {"deconv.weight", "deconv.bias"}


def test_of_a_matrix_product() -> None:
    text = "g (float[n, 5] x) => (float[n, 4] y) { c = MatMul (x, W) y = Add (c, b) }"
    assert parameters(run(text, (2, 5), W=normal(5, 4), b=normal(1, 4))) == {"fc.weight": (4, 5), "fc.bias": (4,)}
    deep = text.replace("[n, 4]", "[1, n, 4]")
    assert "fc.bias" not in parameters(run(deep, (2, 5), W=normal(5, 4), b=normal(1, 1, 4))), "it adds an axis"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        (CONV, (4, 3, 3)),  # varies over the image
        (CONV, (1, 1, 3)),
        (CONV, (2, 4, 1, 1)),  # varies over the batch
        (CONV.replace("y)", "y, float[n, 4, 3, 3] c)"), (4, 1, 1)),  # the result is used elsewhere
        (CONV.replace("(x, W)", "(x, W, b2)"), (4, 1, 1)),  # there is a bias
        (CONV.replace("W", '"conv.weight"').replace(", b)", ', "shift.bias")'), (4, 1, 1)),  # another module's
    ],
)
def test_what_is_no_bias(text: str, shape: tuple[int, ...]) -> None:
    torchlike = "conv.weight" in text
    weights = {
        "conv.weight" if torchlike else "W": normal(4, 3, 3, 3),
        "shift.bias" if torchlike else "b": normal(*shape),
    }
    ran = run(text, (2, 3, 5, 5), **weights, **({"b2": normal(4)} if "b2" in text else {}))
    assert shape in parameters(ran).values(), "the tensor stays a parameter of its own"
