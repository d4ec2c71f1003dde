"""One kernel that is slid with several strides, as a transform over octaves does, and biases that fill a place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.ops.harness import Ran, run_model, run_onnxruntime

RNG = np.random.default_rng(0)
KERNELS = {name: RNG.normal(size=(4, 1, 1, 8)).astype(np.float32) for name in ("k1", "k2")}
FEEDS = {"x": RNG.normal(size=(2, 1, 1, 64)).astype(np.float32)}


def net(convolutions: list[tuple[list[str], int]], producer: str = "tf2onnx", **stored: Any) -> onnx.ModelProto:
    """The sum of the first columns of convolutions: each has its inputs behind x, and a stride."""
    nodes, parts = [], []
    for number, (inputs, stride) in enumerate(convolutions):
        nodes.append(helper.make_node("Conv", ["x", *inputs], [f"c{number}"], strides=[1, stride]))
        nodes.append(helper.make_node("Slice", [f"c{number}", "zero", "four", "three"], [f"p{number}"]))
        parts.append(f"p{number}")
    nodes.append(helper.make_node("Sum", parts, ["y"]))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, d) for n, d in (("x", ["n", 1, 1, 64]), ("y", None)))
    tensors = {**KERNELS, "zero": np.array([0]), "four": np.array([4]), "three": np.array([3]), **stored}
    used = {name for inputs, _ in convolutions for name in inputs} | {"zero", "four", "three"}
    kept = [numpy_helper.from_array(array, name) for name, array in tensors.items() if name in used]
    graph = helper.make_graph(nodes, "g", [x], [y], kept)
    return helper.make_model(graph, producer_name=producer, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def check(model: onnx.ModelProto) -> Ran:
    ran = run_model(model, FEEDS)
    np.testing.assert_allclose(ran.outputs[0], run_onnxruntime(model, FEEDS)[0], rtol=1e-5, atol=1e-6)
    return ran


def test_a_kernel_of_several_strides_is_one_parameter() -> None:
    ran = check(net([(["k1"], 8), (["k1"], 4), (["k1"], 2), (["k1"], 1)]))
    assert len([*ran.model.parameters()]) == 1 and "tie_weights" not in ran.source
    assert ran.source.count("F.conv2d(x, self.") == 4


@pytest.mark.parametrize("strides", [(8, 8, 8), (8, 4)])
def test_a_kernel_of_one_layer_stays_a_layer(strides: tuple[int, ...]) -> None:
    """Layers that are called several times, and a pair."""
    assert "nn.Conv2d(" in check(net([(["k1"], stride) for stride in strides])).source


def test_a_kernel_with_the_key_of_a_layer_stays_a_layer() -> None:
    model = net([(["octave.weight"], stride) for stride in (8, 4, 2)], **{"octave.weight": KERNELS["k1"]})
    assert "nn.Conv2d(" in check(model).source


def test_zeros_that_several_kernels_share_are_no_bias() -> None:
    zeros = {"b": np.zeros(4, np.float32)}
    ran = check(net([(["k1", "b"], 8), (["k2", "b"], 8)], **zeros))
    assert {name.rpartition(".")[2] for name, _ in ran.model.named_parameters()} == {"weight"}


@pytest.mark.parametrize(
    ("convolutions", "producer", "bias"),
    [
        ([(["k1", "b"], 8)], "tf2onnx", 0.0),  # of one layer, which may just not have been trained
        ([(["k1", "b"], 8), (["k2", "b"], 8)], "tf2onnx", 1.0),
        ([(["k1", "b"], 8), (["k2", "b"], 8)], "pytorch", 0.0),  # which stores equal parameters once
    ],
)
def test_other_biases_stay(convolutions: list[tuple[list[str], int]], producer: str, bias: float) -> None:
    model = net(convolutions, producer, b=np.full(4, bias, np.float32))
    assert any(name.endswith("bias") for name, _ in check(model).model.named_parameters())


def test_what_its_author_calls_a_buffer_is_none_of_a_layer() -> None:
    """The kernel of a short-time Fourier transform, whose names are those of a call."""
    model = net([(["If_0__Inline_0__stft.basis_buffer"], 8)], **{"If_0__Inline_0__stft.basis_buffer": KERNELS["k1"]})
    ran = check(model)
    assert not [*ran.model.parameters()] and "F.conv2d(x, self.basis_buffer" in ran.source
