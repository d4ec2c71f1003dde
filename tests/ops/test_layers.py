"""Activations, matrix products and norms, whether or not their tensors are stored: what layers are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.fuzz import floats
from tests.ops.harness import run_node, unbound_names

ACTIVATIONS = [
    *("Relu", "LeakyRelu", "PRelu", "Elu", "Selu", "Celu", "Gelu", "Mish", "HardSwish", "HardSigmoid", "Sigmoid"),
    *("Softplus", "Softsign", "Softmax", "LogSoftmax", "Swish", "ThresholdedRelu", "Tanh"),
]
PRODUCTS = ["MatMul", "Gemm"]
NORMS = [
    *("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
    *("RMSNormalization", "Dropout"),
]


@pytest.mark.parametrize("name", ACTIVATIONS + PRODUCTS + NORMS)
def test_every_version_is_taken(name: str) -> None:
    assert unbound_names(name) == []


# ---- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [None, -3, -2, -1, 0, 1, 2])
def test_softmax(name: str, opset: int, axis: int | None, dynamic: bool) -> None:
    """Before opset 13 the tensor is flattened at the axis, which is 1 by default; since then the last one."""
    run_node(name, [floats(2, 3, 4)], {} if axis is None else {"axis": axis}, opset, dynamic=dynamic)


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_a_vector(opset: int) -> None:
    run_node("Softmax", [floats(5)], {"axis": 0}, opset)


@pytest.mark.parametrize("stored", [set(), {1}])
@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 1), (1, 3, 1, 1), (5,), (4, 5), (2, 3, 4, 5), (3, 4, 5)])
def test_prelu(shape: tuple[int, ...], stored: set[int]) -> None:
    run_node("PRelu", [floats(2, 3, 4, 5), floats(*shape, seed=1)], {}, initializers=stored)


def test_slopes_of_channels_are_a_layer_whatever_the_opset() -> None:
    """Before opset 7 a vector has one slope for each channel."""
    x = floats(2, 3, 4, 5)
    for opset, shape in ((1, (3,)), (6, (3,)), (6, (1,)), (7, (3, 1, 1)), (16, (1, 3, 1, 1)), (16, (1,))):
        slope = floats(*shape, seed=1)
        spread = slope.reshape(-1, 1, 1)
        expected = [np.where(x < 0, spread * x, x)]
        ran = run_node("PRelu", [x, slope], {}, opset, initializers={1}, expected=expected)
        assert "nn.PReLU(" in ran.source and len(list(ran.model.parameters())) == 1, (opset, shape)


@pytest.mark.parametrize(
    "name, attrs",
    [
        ("LeakyRelu", {"alpha": 0.3}), ("Elu", {"alpha": 0.7}), ("Celu", {"alpha": 0.7}),
        ("ThresholdedRelu", {"alpha": 0.4}),
        ("Selu", {"alpha": 1.5, "gamma": 0.8}), ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("HardSigmoid", {}),
        ("HardSwish", {}), ("Gelu", {"approximate": "tanh"}), ("Gelu", {}), ("Mish", {}), ("Softplus", {}),
        ("LeakyRelu", {}), ("Elu", {}), ("Selu", {}), ("Celu", {}), ("ThresholdedRelu", {}),
    ],
)  # fmt: skip
def test_parameters_of_activations(name: str, attrs: dict[str, Any]) -> None:
    x = np.concatenate([floats(40) * 4, np.array([0, -0.0, 1, -1, 30, -30], np.float32)])
    run_node(name, [x], attrs, 21, rtol=1e-4, atol=1e-6)


# ---- products --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [set(), {1}, {0}])
@pytest.mark.parametrize(
    "a, b", [((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((2, 4), (4, 3)), ((5, 2, 4), (4, 3)), ((2, 4), (5, 4, 3)),
             ((5, 1, 2, 4), (3, 4, 6)), ((1, 2, 4), (1, 4, 3))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], stored: set[int]) -> None:
    run_node("MatMul", [floats(*a), floats(*b, seed=1)], {}, initializers=stored)


@pytest.mark.parametrize("stored", [set(), {1}, {1, 2}, {0, 1}, {2}])
@pytest.mark.parametrize("bias", [None, (), (1,), (3,), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 2.0), (1.0, 0.0)])
def test_gemm(
    turned: tuple[int, int], bias: tuple[int, ...] | None, scales: tuple[float, float], stored: set[int]
) -> None:
    if bias is None and 2 in stored:
        return
    a, b = floats(2, 4), floats(4, 3, seed=1)
    inputs = [a.T.copy() if turned[0] else a, b.T.copy() if turned[1] else b]
    attrs = {"transA": turned[0], "transB": turned[1], "alpha": scales[0], "beta": scales[1]}
    run_node("Gemm", [*inputs, None if bias is None else floats(*bias, seed=2)], attrs, initializers=stored)


# ---- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [set(), {1, 2, 3, 4}, {3, 4}, {1, 2}])
@pytest.mark.parametrize("size", [(), (5,), (4, 5), (2, 3, 4)])
def test_batch_norm(size: tuple[int, ...], stored: set[int]) -> None:
    values = [floats(3, seed=n) for n in range(3)]
    inputs = [floats(2, 3, *size), *values, np.abs(floats(3, seed=4)) + 0.5]
    run_node("BatchNormalization", inputs, {"epsilon": 0.01}, 15, initializers=stored)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2)])
def test_a_batch_norm_that_trains_without_stored_statistics(shape: tuple[int, ...]) -> None:
    """onnxruntime has no such kernel: the oracle is the standard's text, in numpy."""
    x, (scale, bias, mean, var) = floats(*shape), (np.abs(floats(3, seed=n)) for n in range(4))
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    kept, new_mean, new_var = 0.7, x.mean(axes), x.var(axes)
    rows = [v.reshape(-1, *[1] * (x.ndim - 2)) for v in (new_mean, new_var, scale, bias)]
    y = (x - rows[0]) / np.sqrt(rows[1] + 1e-5) * rows[2] + rows[3]
    expected = [y, mean * kept + new_mean * (1 - kept), var * kept + new_var * (1 - kept)]
    attrs = {"training_mode": 1, "momentum": kept}
    for outputs in (3, 1):
        inputs = [x, scale, bias, mean, var]
        run_node("BatchNormalization", inputs, attrs, 15, outputs, expected=expected[:outputs], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stored", [set(), {1, 2}, {1}])
@pytest.mark.parametrize("axis", [-1, 1, 2, -2, 0])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(axis: int, stored: set[int], outputs: int, bias: bool) -> None:
    """The mean and the inverse deviation are outputs, too."""
    if not bias and 2 in stored:
        return
    shape = (2, 3, 4)[axis:]
    inputs = [floats(2, 3, 4), floats(*shape, seed=1), floats(*shape, seed=2) if bias else None]
    attrs = {"axis": axis, "epsilon": 1e-3}
    run_node("LayerNormalization", inputs, attrs, 17, outputs, stored, rtol=1e-4, atol=1e-5)


def test_rms_norm_with_a_scale_of_any_shape() -> None:
    """A layer only where the scale has the shape that is normalised, and that is known; else it is spread."""
    x = floats(2, 3, 4)
    for axis, shapes in ((-1, [(4,), (1,), (), (3, 4), (3, 1), (2, 3, 4)]), (1, [(3, 4), (4,), (3, 1), (1, 1)])):
        axes = (2,) if axis == -1 else (1, 2)
        normal = x / np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-3)
        for shape in shapes:
            scale = floats(*shape, seed=1)
            expected = [(normal * scale).astype(np.float32)]
            for stored, dynamic in ((set(), False), ({1}, False), ({1}, True), (set(), True)):
                attrs = {"axis": axis, "epsilon": 1e-3}
                ran = run_node(
                    "RMSNormalization", [x, scale], attrs, 23, initializers=stored, dynamic=dynamic,
                    expected=expected, rtol=1e-4, atol=1e-5,
                )  # fmt: skip
                is_layer = bool(stored) and not dynamic and shape == x.shape[axis:]
                assert ("nn.RMSNorm(" in ran.source) == is_layer, (axis, shape)


def test_a_group_norm_of_single_elements_is_its_bias() -> None:
    """torch refuses such groups, in a batch of one."""
    for size in ((), (1,), (1, 1)):
        x, scale, bias = floats(1, 4, *size), floats(4, seed=1), floats(4, seed=2)
        for opset in (18, 21):
            for stored in (set(), {1, 2}):
                run_node(
                    "GroupNormalization", [x, scale, bias], {"num_groups": 4}, opset, initializers=stored,
                    expected=[bias.reshape(x.shape)],
                )  # fmt: skip


@pytest.mark.parametrize("stored", [set(), {1, 2}])
@pytest.mark.parametrize("size", [(5,), (4, 5), (2, 3, 4)])
def test_instance_norm(size: tuple[int, ...], stored: set[int]) -> None:
    inputs = [floats(2, 3, *size), floats(3, seed=1), floats(3, seed=2)]
    run_node("InstanceNormalization", inputs, {"epsilon": 1e-3}, 6, initializers=stored, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stored", [set(), {1, 2}])
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("dynamic", [False, True])
def test_group_norm(opset: int, stored: set[int], dynamic: bool) -> None:
    """Opset 18 has a scale a group, 21 one a channel."""
    count = 2 if opset == 18 else 6
    x, scale, bias = floats(2, 6, 4, 5), floats(count, seed=1), floats(count, seed=2)
    grouped = x.reshape(2, 2, -1)
    deviation = np.sqrt(grouped.var(-1, keepdims=True) + 1e-3)
    plain = ((grouped - grouped.mean(-1, keepdims=True)) / deviation).reshape(x.shape)
    each = [np.repeat(v, 6 // count).reshape(1, 6, 1, 1) for v in (scale, bias)]
    expected = [plain * each[0] + each[1]]
    attrs = {"num_groups": 2, "epsilon": 1e-3}
    run_node(
        "GroupNormalization", [x, scale, bias], attrs, opset, initializers=stored, dynamic=dynamic,
        expected=expected, rtol=1e-4, atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("opset, attrs", [(6, {"ratio": 0.3, "is_test": 1}), (10, {"ratio": 0.3}), (12, {}), (22, {})])
def test_dropout_does_nothing_in_eval_mode(opset: int, attrs: dict[str, Any]) -> None:
    x = floats(2, 3)
    run_node("Dropout", [x], attrs, opset, expected=[x])
    if opset >= 12:
        ran = run_node("Dropout", [x, np.array(0.25, np.float32)], {}, opset, initializers={1}, expected=[x])
        assert "0.25" in ran.source
