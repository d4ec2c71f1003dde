"""Names as Keras, Paddle, MATLAB and their converters give them: layers of weights, and groups of layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgen.pipeline import generate
from onnxgen.scopes.origin import layer_of, regrouped
from tests.ops.harness import assert_same, run_onnxruntime
from tests.support.real import run


@pytest.mark.parametrize(
    ("name", "op_type", "layer"),
    [
        ("conv2_expand_weights", "Conv", ("conv2_expand",)),
        ("conv2_expand_bn_variance", "BatchNormalization", ("conv2_expand_bn",)),
        ("fc_0.w_0", "MatMul", ("fc_0",)),
        ("model/dense_2/kernel:0", "MatMul", ("model", "dense_2")),
        ("batch_normalization_1/moving_variance:0", "BatchNormalization", ("batch_normalization_1",)),
        ("lstm_5_W", "LSTM", ("lstm_5",)),
        ("Operation_1_MatMul_W", "MatMul", ("Operation_1",)),
        ("block_6_depthwise_W_new", "Conv", ("block_6_depthwise",)),
        ("W1", "Conv", None),
        ("scale", "BatchNormalization", None),
        ("Parameter193", "Conv", None),
        ("a b_weights", "Conv", None),
        ("1_weights", "Conv", None),
        ("x" * 500 + "_weights", "Conv", None),
    ],
)
def test_layer_of(name: str, op_type: str, layer: tuple[str, ...] | None) -> None:
    assert layer_of(name, op_type) == layer


def grouped(*names: str) -> dict[str, str]:
    return {"/".join(old): ".".join(new) for old, new in regrouped(tuple(name.split("/")) for name in names).items()}


def test_groups_of_layers() -> None:
    layers = [f"conv{i}_{layer}" for i in (2, 3) for layer in ("expand", "expand_bn")]
    assert grouped("conv1", "conv1_bn", *layers, "conv_last") == {
        "conv1": "conv1",
        "conv1_bn": "conv1_bn",  # conv1 is a layer itself
        "conv2_expand": "conv2.expand",
        "conv2_expand_bn": "conv2.expand_bn",
        "conv3_expand": "conv3.expand",
        "conv3_expand_bn": "conv3.expand_bn",
        "conv_last": "conv_last",
    }


def test_groups_within_groups_and_a_root_that_all_share() -> None:
    layers = [f"net/conv{i}_block{j}_{k}" for i in (2, 3) for j in (1, 2) for k in ("1_conv", "1_bn")]
    found = grouped(*layers, "net/conv1_conv")
    assert found["net/conv3_block2_1_conv"] == "conv3.block2.conv_1"
    assert found["net/conv1_conv"] == "conv1_conv"


@pytest.mark.parametrize(
    "names",
    [
        ("dense", "dense_1", "dense_2"),
        ("minBank1_0", "minBank1_1", "minBank2_0", "minBank2_1"),  # numbers are no names
        ("hidden_0_a", "hidden_1_a"),  # groups of one
        ("block_1_a", "block_1_b", "other"),  # a group that is alone
    ],
)
def test_what_is_no_group(names: tuple[str, ...]) -> None:
    assert grouped(*names) == {name: name for name in names}


def paddle(path: Path) -> onnx.ModelProto:
    """Two blocks of a convolution and a norm, and a linear layer, as Paddle's converter names them."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in (1, 2):
        weights[f"conv{i}_linear_weights"] = random.standard_normal((3, 3, 1, 1))
        for key in ("scale", "offset", "mean", "variance"):
            weights[f"conv{i}_linear_bn_{key}"] = random.random(3) + 0.5
        norm = [f"conv{i}_linear_bn_{key}" for key in ("scale", "offset", "mean", "variance")]
        nodes.append(helper.make_node("Conv", [x, f"conv{i}_linear_weights"], [f"c{i}"]))
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *norm], [f"n{i}"]))
        nodes.append(helper.make_node("Relu", [f"n{i}"], [x := f"r{i}"]))
    weights["linear_0.w_0"], weights["linear_0.b_0"] = random.standard_normal((4, 1)), random.random(1)
    nodes.append(helper.make_node("MatMul", [x, "linear_0.w_0"], ["m"]))
    nodes.append(helper.make_node("Add", ["m", "linear_0.b_0"], ["y"]))
    io = [helper.make_tensor_value_info(name, 1, ["n", 3, 4, d]) for name, d in (("x", 4), ("y", 1))]
    stored = [numpy_helper.from_array(v.astype("float32"), k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], stored)
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="PaddlePaddle", ir_version=8)
    onnx.save(model, path)
    return model


def test_groups_of_two_layers_save_nothing(tmp_path: Path) -> None:
    """Classes for two groups would be longer than their layers, so the layers have the names of their roles."""
    model = paddle(tmp_path / "net.onnx")
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype("float32")}
    made = run(tmp_path / "net.onnx", tmp_path, feeds)
    assert_same(made.outputs[0].detach().numpy(), run_onnxruntime(model, feeds)[0])
    trained = {name for name, _ in made.model.named_parameters()}
    layers = {f"{name}{i}" for i in (1, 2) for name in ("conv", "bn")} | {"fc"}
    assert trained == {f"{layer}.weight" for layer in layers} | {"bn1.bias", "bn2.bias", "fc.bias"}


def test_pytorch_names_are_left_alone(tmp_path: Path) -> None:
    """The same file, were it PyTorch's: its names with underscores are parameters of the root."""
    model = paddle(tmp_path / "net.onnx")
    model.producer_name = "pytorch"
    onnx.save(model, tmp_path / "net.onnx")
    assert "self.conv1 = nn.Conv2d" in generate(tmp_path / "net.onnx").source
