"""Operators of onnxruntime that the standard has others for, and those that it dropped: onnxruntime runs them itself.

Where its CPU provider has no kernel, the text of docs/ContribOperators.md is the oracle, in numpy beside the test.
"""

from __future__ import annotations

import inspect
import keyword
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from onnxgen.graph.operators import bodies, operators
from tests.ops.fuzz import floats
from tests.ops.harness import Ran, generate, node_model, refusal, run_onnxruntime
from tests.ops.harness import run_node as run

MICROSOFT = "com.microsoft"
F = np.float32


def run_node(op_type: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    kwargs.setdefault("domain", MICROSOFT)
    kwargs.setdefault("rtol", 1e-4)
    kwargs.setdefault("atol", 1e-5)
    return run(op_type, inputs, attrs, **kwargs)


# ---- activations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu(dtype: Any) -> None:
    x, bias = floats(2, 3, 8).astype(dtype) * 3, floats(8, seed=1).astype(dtype)
    kwargs: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}
    if dtype == np.float32:
        assert "F.gelu(i0)" in run_node("Gelu", [x], **kwargs).source
        assert "F.gelu(i0 + i1)" in run_node("BiasGelu", [x, bias], **kwargs).source
    assert "F.gelu(i0, approximate='tanh')" in run_node("FastGelu", [x], **kwargs).source
    run_node("FastGelu", [x, bias], **kwargs, initializers={1})


@pytest.mark.parametrize("alpha", [None, 1.0, 0.5, -1.0])
def test_quick_gelu(alpha: float | None) -> None:
    ran = run_node("QuickGelu", [floats(2, 3, 8)], None if alpha is None else {"alpha": alpha})
    assert ("F.silu" in ran.source) == (alpha == 1.0)


def test_bias_split_gelu() -> None:
    """There is no CPU kernel. "Fusion for GEGLU ... (bias + input) is split into 2 halves, left * gelu(right)"."""
    from math import erf

    x, bias = floats(2, 3, 16), floats(16, seed=1)
    left, right = np.split((x + bias).astype(np.float64), 2, -1)
    expected = (left * right * 0.5 * (1 + np.vectorize(erf)(right / np.sqrt(2)))).astype(F)
    run_node("BiasSplitGelu", [x, bias], expected=[expected], dynamic=True)


# ---- norms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8), (3, 8)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_skip_layer_normalization(simplified: bool, skip: tuple[int, ...], with_bias: bool) -> None:
    """The norm is a module with its weights."""
    inputs = [floats(2, 3, 8), floats(*skip, seed=1), floats(8, seed=2)]
    inputs += [] if simplified else [floats(8, seed=3)]
    inputs += [floats(8, seed=4)] if with_bias else []
    name = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    weights = set(range(2, len(inputs)))
    ran = run_node(name, inputs, {"epsilon": 1e-5}, initializers=weights)
    assert f"nn.{'RMSNorm' if simplified else 'LayerNorm'}(8" in ran.source
    run_node(name, inputs, outputs=["o0", "", "", "o3"], dynamic=True)


def test_skip_layer_normalization_without_beta() -> None:
    run_node("SkipLayerNormalization", [floats(2, 3, 8), floats(2, 3, 8, seed=1), floats(8, seed=2)])


def test_the_mean_of_a_norm_without_one_is_refused() -> None:
    inputs = [floats(2, 3, 8), floats(2, 3, 8), floats(8)]
    text = refusal("SkipSimplifiedLayerNormalization", inputs, outputs=2, domain=MICROSOFT)
    assert "the mean of a fused norm that has none" in text and "for inference" in text


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("opset", [11, 17, 21])
def test_norms_in_the_standards_domain(axis: int, opset: int) -> None:
    """onnxruntime writes them there whatever the opset."""
    x = floats(2, 3, 8)
    weight, bias = floats(*x.shape[axis:], seed=1), floats(*x.shape[axis:], seed=2)
    attrs = {"axis": axis, "epsilon": 1e-3}
    run_node("SimplifiedLayerNormalization", [x, weight], attrs, domain="", opset=opset, initializers={1})
    run_node("SimplifiedLayerNormalization", [x, weight], attrs, domain="", opset=opset, outputs=2)
    run_node("LayerNormalization", [x, weight, bias], attrs, domain="", opset=opset, initializers={1, 2})


def group_norm(x: Any, gamma: Any, beta: Any, groups: int, activation: int, epsilon: float = 1e-5) -> Any:
    """Channels last; "The activation after group normalization: 0 for None, 1 for SiLU"."""
    n, *spatial, c = x.shape
    grouped = x.reshape(n, -1, groups, c // groups)
    mean, var = grouped.mean((1, 3), keepdims=True), grouped.var((1, 3), keepdims=True)
    y = ((grouped - mean) / np.sqrt(var + epsilon)).reshape(x.shape) * gamma + beta
    return (y / (1 + np.exp(-y)) if activation else y).astype(F)


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("skip", [None, (2, 5, 4, 6), (2, 1, 1, 6), (2, 6)])
def test_group_norm(activation: int, channels_last: int, skip: tuple[int, ...] | None) -> None:
    """There is no CPU kernel for either."""
    x, gamma, beta = floats(2, 5, 4, 6), floats(6, seed=1), floats(6, seed=2)
    attrs = {"activation": activation, "groups": 3, "channels_last": channels_last}
    turn = (lambda v: v) if channels_last else (lambda v: np.moveaxis(v, -1, 1) if v.ndim == 4 else v)
    if skip is None:
        expected = group_norm(x, gamma, beta, 3, activation)
        ran = run_node("GroupNorm", [turn(x), gamma, beta], attrs, expected=[turn(expected)], initializers={1, 2})
        assert "nn.GroupNorm(3, 6)" in ran.source
        assert ("silu" in ran.source.lower()) == bool(activation)
        return
    added, bias = floats(*skip, seed=3), floats(6, seed=4)
    total = x + (added if added.ndim == 4 else added[:, None, None]) + bias
    expected = group_norm(total, gamma, beta, 3, activation)
    inputs = [turn(x), gamma, beta, turn(added), bias]
    run_node("SkipGroupNorm", inputs, attrs, outputs=2, expected=[turn(expected), turn(total)], atol=1e-4)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_embed_layer_normalization(segments: bool, positions: bool, mask: bool) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 20, (2, 5)).astype(np.int32)
    inputs = [
        ids, (ids % 2).astype(np.int32) if segments else None, floats(20, 8), floats(9, 8, seed=1),
        floats(2, 8, seed=2) if segments else None, floats(8, seed=3), floats(8, seed=4),
        (ids % 4 - 1).astype(np.int32) if mask else None,  # what is not 1 does not count
        rng.integers(0, 9, (2, 5)).astype(np.int32) if positions else None,
    ]  # fmt: skip
    stored = {2, 3, 5, 6} | ({4} if segments else set())
    ran = run_node("EmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=2, initializers=stored, dynamic=True)
    width = "dim" if segments and positions else "8"  # of a network with several layers, an argument
    assert f"nn.Embedding(20, {width})" in ran.source and f"nn.LayerNorm({width})" in ran.source
    run_node("EmbedLayerNormalization", inputs, {"epsilon": 1e-5}, outputs=3, initializers=stored)


# ---- layers ----------------------------------------------------------------------------------------------------------

ACTIVATIONS = [
    ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]),
    ("HardSigmoid", [0.3, 0.4]),
]  # fmt: skip


@pytest.mark.parametrize("activation, parameters", ACTIVATIONS)
@pytest.mark.parametrize("added", [False, True])
def test_fused_conv(activation: str, parameters: list[float], added: bool) -> None:
    inputs = [floats(2, 4, 7, 6), floats(6, 2, 3, 3, seed=1), floats(6, seed=2)]
    inputs += [floats(2, 6, 4, 3, seed=3)] if added else []
    attrs: dict[str, Any] = {"activation": activation, "group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}
    if parameters:
        attrs["activation_params"] = parameters
    ran = run_node("FusedConv", inputs, attrs, initializers={1, 2}, dynamic=True)
    assert "nn.Conv2d(4, 6, kernel_size=3, stride=2, padding=1, groups=2)" in ran.source


def test_an_unknown_activation_is_refused() -> None:
    attrs = {"activation": "Swirl"}
    assert "activation" in refusal("FusedConv", [floats(1, 1, 4, 4), floats(1, 1, 3, 3)], attrs, domain=MICROSOFT)
    assert "must be of type FLOAT, not STRING" in refusal("QuickGelu", [floats(2)], {"alpha": "one"}, domain=MICROSOFT)
    assert "input 'W' is missing" in refusal("FusedConv", [floats(1, 1, 4, 4)], domain=MICROSOFT)


@pytest.mark.parametrize("name, inputs", [("Gelu", 1), ("CDist", 2)])
def test_what_a_newer_onnxruntime_may_have_is_refused(name: str, inputs: int) -> None:
    """Of an operator that is written out, and of one that has a function: onnxruntime refuses the same nodes."""
    attrs = {"metric": "euclidean"} if name == "CDist" else {}
    given = [floats(2, 2, seed=s) for s in range(inputs)]
    run_node(name, given, attrs)
    for more, kwargs, what in (
        ([], {"strange": 1}, "attribute 'strange' is not handled"),
        ([floats(1)], {}, "but the schema has"),
    ):
        text = refusal(name, given + more, attrs | kwargs, domain=MICROSOFT)
        assert f"node node (com.microsoft.{name}-1)" in text and what in text and "update onnxgen" in text
        with pytest.raises(Exception, match="INVALID_GRAPH"):
            run_onnxruntime(node_model(name, given + more, attrs | kwargs, domain=MICROSOFT), {})


def test_what_onnxruntime_ignores_is_noted() -> None:
    """It has no version of its own of a standard operator's schema that would name attributes."""
    model = node_model("LayerNormalization", [floats(2, 8), floats(8)], {"axis": -1, "strange": 1}, opset=13)
    assert any("strange of LayerNormalization" in note for note in generate(model).report.notes)
    run("LayerNormalization", [floats(2, 8), floats(8)], {"axis": -1, "strange": 1}, opset=13)


def test_other_domains_say_why() -> None:
    assert "search in Python" in refusal("BeamSearch", [floats(1)], domain=MICROSOFT)
    assert "before it was compiled" in refusal("EPContext", [floats(1)], domain=MICROSOFT)
    assert "tokenize in Python" in refusal("BertTokenizer", [floats(1)], domain="ai.onnx.contrib")


@pytest.mark.parametrize("name", ["NhwcConv", "NhwcFusedConv"])
def test_nhwc_conv(name: str) -> None:
    """There is no CPU kernel: "It is same as FusedConv, but with channels last"."""
    x, w, b = floats(2, 7, 6, 4), floats(6, 4, 3, 3, seed=1), floats(6, seed=2)
    attrs = {"strides": [2, 1], "pads": [1, 0, 1, 0]}
    conv = run_node("FusedConv", [np.moveaxis(x, -1, 1), w, b], attrs).expected[0]
    if name == "NhwcFusedConv":
        attrs["activation"] = "Relu"
        conv = np.maximum(conv, 0)
    ran = run_node(name, [x, w, b], attrs, expected=[np.moveaxis(conv, 1, -1)], initializers={1, 2})
    assert "nn.Conv2d(4, 6, kernel_size=3, stride=(2, 1), padding=(1, 0))" in ran.source


GEMM = [
    ("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("Elu", {"alpha": 0.5}), ("Sigmoid", {}), ("Tanh", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("Selu", {"alpha": 1.5, "gamma": 1.2}), ("Softplus", {}),
    ("Softsign", {}), ("ThresholdedRelu", {"alpha": 0.3}),
]  # fmt: skip


@pytest.mark.parametrize("activation, parameters", GEMM)
def test_fused_gemm(activation: str, parameters: dict[str, float]) -> None:
    attrs: dict[str, Any] = {f"activation_{k}": v for k, v in parameters.items()} | {
        "transB": 1,
        "activation": activation,
    }
    inputs = [floats(3, 4), floats(5, 4, seed=1), floats(5, seed=2)]
    assert "nn.Linear(4, 5)" in run_node("FusedGemm", inputs, attrs, initializers={1, 2}).source
    inputs[1] = inputs[1].T.copy()
    run_node("FusedGemm", inputs, attrs | {"alpha": 0.5, "beta": 2.0, "transB": 0})


@pytest.mark.parametrize("alpha", [1.0, 0.125])
@pytest.mark.parametrize("turns", range(16))
def test_fused_matmul(alpha: float, turns: int) -> None:
    names = ["transA", "transB", "transBatchA", "transBatchB"]
    flags = {name: turns >> bit & 1 for bit, name in enumerate(names)}

    def operand(m: int, k: int, last: int, batch: int) -> Any:
        rows = (k, m) if last else (m, k)
        return floats(rows[0], 2, 3, rows[1], seed=m) if batch else floats(2, 3, *rows, seed=m)

    a = operand(4, 5, flags["transA"], flags["transBatchA"])
    b = operand(5, 6, flags["transB"], flags["transBatchB"])
    run_node("FusedMatMul", [a, b], flags | {"alpha": alpha})


def test_fused_matmul_of_a_stored_matrix_is_linear() -> None:
    ran = run_node("FusedMatMul", [floats(2, 3, 4), floats(5, 4)], {"transB": 1}, initializers={1}, dynamic=True)
    assert "nn.Linear(4, 5, bias=False)" in ran.source
    run_node("TransposeMatMul", [floats(4, 3), floats(4, 5)], {"transA": 1, "alpha": 2.0})


def sparse_product(a: Any, b: Any, attrs: dict[str, Any]) -> Any:
    """What onnxruntime makes of a, as an input that is sparse: it has no kernel for another."""
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain=MICROSOFT, **attrs)
    # Its inference of shapes that are stated overlooks transA and transB.
    given = [
        helper.make_sparse_tensor_value_info("a", kind, ["m", "k"]),
        helper.make_tensor_value_info("b", kind, ["l", "n"]),
    ]
    graph = helper.make_graph([node], "g", given, [helper.make_tensor_value_info("y", kind, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    places = np.argwhere(a).astype(np.int64).ravel()
    device = ort.OrtDevice.make("cpu", 0)
    sparse = ort.SparseTensor.sparse_coo_from_numpy(np.array(a.shape), a[a != 0], places, device)
    feeds = {"a": ort.OrtValue.ort_value_from_sparse_tensor(sparse), "b": ort.OrtValue.ortvalue_from_numpy(b)}
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run_with_ort_values(["y"], feeds)[0].numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_a_sparse_matrix_times_a_dense_one(dtype: Any) -> None:
    dense = np.array([[0, 2, 0, 0], [0, 0, 0, 0], [1, 0, 0, 5]], dtype)
    other = np.round(4 * floats(4, 5)).astype(dtype)
    for turned in range(4):
        attrs = {"transA": turned & 1, "transB": turned >> 1, "alpha": 0.5}
        a, b = dense.T.copy() if turned & 1 else dense, other.T.copy() if turned >> 1 else other
        expected = [sparse_product(a, b, attrs)]
        run_node("SparseToDenseMatMul", [a, b], attrs, initializers={0}, dynamic=True, expected=expected)


@pytest.mark.parametrize("stored", [{1, 2, 3}, {1}])
def test_conv_transpose_with_dynamic_pads(stored: set[int]) -> None:
    inputs = [floats(1, 2, 5, 4), floats(2, 3, 3, 3, seed=1), np.array([1, 0, 1, 1]), floats(3, seed=2)]
    attrs = {"strides": [2, 2], "output_padding": [1, 0]}
    run_node("ConvTransposeWithDynamicPads", inputs, attrs, initializers=stored, dynamic=True)
    run_node("ConvTransposeWithDynamicPads", [*inputs[:2], np.zeros(4, np.int64)], attrs, initializers=stored - {3})


# ---- the standard's, by another name ---------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -1, 2])
def test_trilu(upper: int, k: int | None) -> None:
    run_node("Trilu", [floats(2, 4, 5), *([] if k is None else [np.array(k)])], {"upper": upper}, dynamic=True)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_pad(mode: str, shape: tuple[int, ...]) -> None:
    pads = np.array([1, 2, 0, 1]).reshape(shape)
    value = [np.array([1.5], F)] if mode == "constant" else []
    run_node("Pad", [floats(3, 4), pads, *value], {"mode": mode})
    run_node("Pad", [floats(3, 4), pads, *value], {"mode": mode}, initializers={1, 2} if value else {1}, dynamic=True)


def test_unique() -> None:
    run_node("Unique", [np.array([3, 1, 1, 7, 3, 2.5], F)], outputs=3)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode: str, padding: str, corners: int) -> None:
    grid = np.random.default_rng(3).uniform(-1.3, 1.3, (2, 3, 4, 2)).astype(F)
    attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    run_node("GridSample", [floats(2, 3, 5, 6), grid], attrs, atol=1e-4)


def test_small_ones() -> None:
    run_node("ExpandDims", [floats(2, 3), np.array(-1, np.int32)], initializers={1})
    run_node("GatherND", [floats(2, 3), np.array([[0, 1], [1, 2]], np.int32)])
    run_node("Range", [np.array(1, F), np.array(7, F), np.array(2, F)])
    run_node("Range", [np.array([1], F), np.array([7], F)])


# ---- what the standard dropped ---------------------------------------------------------------------------------------


def run_old(op_type: str, inputs: list[Any], attrs: dict[str, Any] | None = None, **kwargs: Any) -> Ran:
    return run_node(op_type, inputs, attrs, **{"domain": "", "opset": 7, **kwargs})


@pytest.mark.parametrize("dtype", ["float32"])
def test_dropped_operators(dtype: str) -> None:
    x = floats(2, 3, 5, 4).astype(dtype)
    run_old("Affine", [x], {"alpha": 2.0, "beta": -0.5})
    run_old("Affine", [x])
    run_old("Scale", [x], {"scale": 0.25})
    run_old("ScaledTanh", [x], {"alpha": 1.7159, "beta": 0.6667})
    run_old("ParametricSoftplus", [x], {"alpha": 0.5, "beta": 2.0})
    run_old("ImageScaler", [x], {"scale": 2.0, "bias": [0.1, 0.2, 0.3]}, dynamic=True)
    run_old("Crop", [x], {"border": [1, 2, 1, 1]}, dynamic=True)
    run_old("Crop", [x], {"border": [1, 2, 0, 0], "scale": [2, 3]})
    starts, ends = np.array([1, 0]), np.array([4, 3])
    run_old("DynamicSlice", [x, starts, ends, np.array([2, 3])])
    run_old("DynamicSlice", [x, starts, ends], initializers={1, 2})


def test_samples_of_a_grid() -> None:
    """Before the standard had the operator, its modes had torch's names."""
    x, grid = floats(1, 2, 4, 5), floats(1, 3, 4, 2, seed=1)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                attrs = {"mode": mode, "padding_mode": padding, "align_corners": align}
                run_node("GridSample", [x, grid], attrs, rtol=1e-3)


def test_upsample_one() -> None:
    """onnxruntime has its schema and no kernel: what it computes for Upsample-7 with the same scales is the oracle."""
    x = floats(1, 2, 3, 4)
    for mode in ("nearest", "linear"):
        expected = run("Upsample", [x], {"mode": mode, "scales": [1.0, 1.0, 2.0, 3.0]}, opset=7).expected
        attrs = {"mode": mode.replace("linear", "bilinear"), "height_scale": 2.0, "width_scale": 3.0}
        run_old("Upsample", [x], attrs, opset=1, expected=expected)


def test_given_tensor_fill() -> None:
    """onnxruntime has its schema and no kernel."""
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    expected = np.array(values, F).reshape(2, 3)
    run_old("GivenTensorFill", [], {"values": values, "shape": [2, 3]}, expected=[expected])
    run_old("GivenTensorFill", [floats(2, 3)], {"values": values}, expected=[expected])
    attrs = {"values": values, "input_as_shape": 1, "extra_shape": [3]}
    assert "in no way, or in several ways" in refusal("GivenTensorFill", [np.array([2])], attrs, opset=7)


def test_bodies_know_onnxruntimes_schemas() -> None:
    """Every input and attribute of every schema that this onnxruntime has for them, by name."""
    known = bodies()
    names = {key: parameters(versions[-1].function) for key, versions in known.items()}
    missing, found = [], set()
    for schema in onnxruntimes_schemas():
        if (key := (schema.domain, schema.name)) in known:
            found.add(key)
            wanted = [*(i.name for i in schema.inputs), *schema.attributes]
            missing += [f"{schema.name}: {name}" for name in map(as_parameter, wanted) if name not in names[key]]
    assert missing == []
    assert len(found) > 20


def test_functions_know_onnxruntimes_schemas() -> None:
    """The same of those that are no bodies; and their inputs have the schema's order, by which they are given."""
    own = operators()
    missing, found = [], set()
    for schema in onnxruntimes_schemas():
        if schema.domain != MICROSOFT or (schema.domain, schema.name) not in own:
            continue
        for operator in own[schema.domain, schema.name]:
            found.add(schema.name)
            names = [operator.renames.get(i.name, as_parameter(i.name)) for i in schema.inputs]
            attributes = [operator.renames.get(name, as_parameter(name)) for name in schema.attributes]
            missing += [f"{schema.name}: {n}" for n in [*names, *attributes] if n not in operator.parameters]
            assert list(operator.parameters)[: len(names)] == names, schema.name
    assert missing == []
    assert found == {name for domain, name in own if domain == MICROSOFT}


def onnxruntimes_schemas() -> list[Any]:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return list(state.get_all_operator_schema())


def as_parameter(name: str) -> str:
    """What a body or a function calls an input or an attribute."""
    return f"{name}_" if keyword.iskeyword(name) else name


def parameters(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)
