"""Passes that do not do what they promise, though every number is right: each is caught."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

import onnxgen.passes
from onnxgen import Options, pipeline
from onnxgen.errors import WrongRewrite
from onnxgen.shapes.info import info, set_info

GRAPH = """
<ir_version: 10, opset_import: ["" : 17]>
net (float[N, 3, 8, 8] x, bool c) => (float[N, 4] y, int64[N] z) {
  shifted = Sub (x, mean)
  a = Conv <pads = [1, 1, 1, 1]> (shifted, "features.weight", "features.bias")
  b = InstanceNormalization (a, ones, zeros)
  pooled = GlobalAveragePool (b)
  d = Flatten (pooled)
  e = MatMul (d, matrix)
  f = Add (e, row)
  g = Mul (f, mask)
  h = Add (g, steps)
  i = Mul (h, powers)
  j = Mul (i, half)
  k = Mul (j, free)
  chosen = If (c) <then_branch = one () => (float[N, 5] t) { t = Mul (k, inner) },
                   else_branch = two () => (float[N, 5] t) { t = Identity (k) }>
  y = Gemm <transB = 1> (chosen, "head.weight", "head.bias")
  scored = Mul (y, unread)
  z = ArgMax <axis = 1, keepdims = 0> (scored)
}
"""
draw = np.random.default_rng(0)
TRAINED = {"features.weight": (6, 3, 3, 3), "features.bias": (6,), "matrix": (6, 5), "row": (5,), "free": (5,)}
TRAINED |= {"inner": (5,), "head.weight": (4, 5), "head.bias": (4,)}
FIXED: dict[str, Any] = {
    "mean": draw.standard_normal((1, 3, 1, 1)), "ones": np.ones(6), "zeros": np.zeros(6), "mask": [0, 1, 1, 0, 1],
    "steps": [0, 2, 4, 6, 8], "powers": [1, 0.5, 0.25, 0.125, 0.0625], "half": 0.5, "unread": [0.3, -0.1, 0.2, 0.9],
}  # fmt: skip
trainable = sys.modules["onnxgen.passes.trainable"]  # in its package the name is the function's


@pytest.fixture
def network(tmp_path: Path) -> Path:
    model = parser.parse_model(GRAPH)
    arrays = {name: draw.standard_normal(shape) for name, shape in TRAINED.items()} | FIXED
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def build(network: Path, **options: Any) -> None:
    pipeline.build(network, Options(paranoid=True, **options), network.with_suffix(".py"))


def test_right_decisions_pass(network: Path) -> None:
    build(network)
    build(network, frozen="head", trainable="half")


@pytest.mark.parametrize("name", [*TRAINED, *FIXED])
def test_another_decision(network: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = trainable._decide

    def decided(value: Any, *rest: Any) -> tuple[bool, str]:
        found: tuple[bool, str] = decide(value, *rest)
        return (not found[0], "turned round") if value.name == name else found

    monkeypatch.setattr(trainable, "_decide", decided)
    known = "not trained" if name in TRAINED else "trained"
    with pytest.raises(WrongRewrite, match=f"trainable is wrong: '{name}' is {known}: turned round"):
        build(network)


def test_no_decision(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored_values = trainable.stored_values
    monkeypatch.setattr(trainable, "stored_values", lambda graph: list(stored_values(graph))[1:])
    with pytest.raises(WrongRewrite, match="was not decided"):
        build(network)


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The passes, of which one does nothing."""

    def nothing(model: ir.Model, options: Options) -> None: ...

    nothing.__name__ = name
    passes = [nothing if step.__name__ == name else step for step in onnxgen.passes.PASSES]
    monkeypatch.setattr(onnxgen.passes, "PASSES", passes)


def written(folder: Path, graph: str, opset: int = 17) -> Path:
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]>\n{graph}')
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def test_text_that_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, "net (string[N, 2] x) => (string[2, N] y) { y = Transpose <perm = [1, 0]> (x) }")
    build(network)
    without(monkeypatch, "text")
    with pytest.raises(WrongRewrite, match="the pass text is wrong: Transpose .* is given text"):
        build(network)


@pytest.mark.parametrize("value, dtype", [("x", "INT64"), ("y", "INT64"), ("y.codes", "STRING")])
def test_codes_and_text_confused(tmp_path: Path, value: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, "net (string[N, 2] x) => (string[2, N] y) { y = Transpose <perm = [1, 0]> (x) }")
    step = next(step for step in onnxgen.passes.PASSES if step.__name__ == "text")

    def text(model: ir.Model, options: Options) -> None:
        step(model, options)
        values = [v for node in model.graph for v in (*node.inputs, *node.outputs) if v is not None and v.name == value]
        set_info(values[0], replace(info(values[0]), dtype=ir.DataType[dtype]))

    monkeypatch.setattr(onnxgen.passes, "PASSES", [text if s is step else s for s in onnxgen.passes.PASSES])
    with pytest.raises(WrongRewrite, match="the pass text is wrong: .*(values that are not text|text of numbers)"):
        build(network)


def test_a_batch_that_stays_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, "net (float[1, 4] x) => (float[1, 4] y) { y = Tanh (x) }")
    build(network, dynamic_batch=True)
    batch = sys.modules["onnxgen.passes.batch"]
    with monkeypatch.context() as patch:
        patch.setattr(batch, "_infer_anew", lambda *_: None)
        with pytest.raises(WrongRewrite, match="axis 0 of 'x' is still 1"):
            build(network, dynamic_batch=True)
    with monkeypatch.context() as patch:
        patch.setattr(batch, "_inputs", lambda *_: (1, []))
        with pytest.raises(WrongRewrite, match="it freed no batch of an input"):
            build(network, dynamic_batch=True)
    without(monkeypatch, "dynamic_batch")
    with pytest.raises(WrongRewrite, match="it recorded no batch"):
        build(network, dynamic_batch=True)


def test_samples_that_are_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = "net (float[2, 3, 4] x) => (float[2, 12] y) { t = Tanh (x) y = Reshape (t, s) }"
    network = written(tmp_path, graph.replace("{", "<int64[2] s = {2, 12}> {", 1))
    build(network, dynamic_batch=True)
    step = next(step for step in onnxgen.passes.PASSES if step.__name__ == "dynamic_batch")

    def dynamic_batch(model: ir.Model, options: Options) -> None:
        step(model, options)
        (tanh,) = (node for node in model.graph if node.op_type == "Tanh")
        turned = ir.Node("", "Softmax", [tanh.outputs[0]], [ir.AttrInt64("axis", 0)], version=13)
        ir.convenience.replace_all_uses_with(tanh.outputs[0], turned.outputs[0])
        turned.replace_input_with(0, tanh.outputs[0])
        set_info(turned.outputs[0], info(tanh.outputs[0]))
        model.graph.insert_after(tanh, turned)

    monkeypatch.setattr(onnxgen.passes, "PASSES", [dynamic_batch if s is step else s for s in onnxgen.passes.PASSES])
    with pytest.raises(WrongRewrite, match="of 3 batches at once the output 'y' is another: the largest difference"):
        build(network, dynamic_batch=True)


def test_an_operator_that_is_known_is_not_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, "net (float[N, 2, 3, 4] x) => (float[N, 2, 3, 4] y) { y = Attention (x, x, x) }", 23)
    build(network)
    monkeypatch.setattr(sys.modules["onnxgen.passes.expand"], "find", lambda *_: None)
    with pytest.raises(WrongRewrite, match="the pass expand is wrong: it expands Attention"):
        build(network)


CONVOLUTIONS = """net (float[N, 3, 8, 8] x) => (float[N, 4, 4, 4] y) {
  a = Conv (x, weight, two)
  b = Relu (a)
  y = Conv (b, three, four)
}"""
SHAPES = {"weight": (5, 3, 3, 3), "two": (5,), "three": (4, 5, 3, 3), "four": (4,)}


@pytest.mark.parametrize("weight", ["w", "onnx::Conv_41"])
def test_a_norm_that_is_not_put_back(tmp_path: Path, weight: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, CONVOLUTIONS)
    model = onnx.load(network)
    for name, shape in SHAPES.items():
        array = draw.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, weight if name == "weight" else name))
    model.graph.node[0].input[1] = weight
    onnx.save(model, network)
    build(network, restore_batchnorm=True)
    folded = sys.modules["onnxgen.passes.folded"]
    monkeypatch.setattr(folded, "_is_own", lambda *_: False)
    with pytest.raises(WrongRewrite, match="no norm was added after"):
        build(network, restore_batchnorm=True)


def test_a_flag_that_is_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, "net (float[N, 4] x) => (float[N, 4] y) { y = Tanh (x) }")
    step = next(step for step in onnxgen.passes.PASSES if step.__name__ == "contrib")

    def contrib(model: ir.Model, options: Options) -> None:
        step(model, options)
        (tanh,) = model.graph
        flat = ir.Node("", "ReduceMax", [tanh.outputs[0]], [ir.AttrInt64("keepdims", -1)], version=11)
        model.graph.insert_after(tanh, flat)

    monkeypatch.setattr(onnxgen.passes, "PASSES", [contrib if s is step else s for s in onnxgen.passes.PASSES])
    with pytest.raises(WrongRewrite, match="the pass contrib is wrong: keepdims of ReduceMax .* is neither 0 nor 1"):
        build(network)


def test_a_norm_of_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = written(tmp_path, CONVOLUTIONS)
    model = onnx.load(network)
    names = {"weight": "conv1.weight", "two": "conv1.bias", "three": "conv2.weight", "four": "conv2.bias"}
    for name, shape in SHAPES.items():
        array = draw.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, names[name]))
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for node, scope in zip(model.graph.node, ("conv1", "relu", "conv2")):
        node.name = f"/{scope}/{node.op_type}"
    onnx.save(model, network)
    build(network, restore_batchnorm=True)
    folded = sys.modules["onnxgen.passes.folded"]
    monkeypatch.setattr(folded, "_beside", lambda scope: ("bn2",))
    with pytest.raises(WrongRewrite, match="the norm of conv1 is called bn2"):
        build(network, restore_batchnorm=True)


def test_samples_along_an_axis_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = "net (float[1, 3, 4] x) => (float[1, 12] y) <int64[2] s = {1, -1}> { y = Reshape (x, s) }"
    network = written(tmp_path, graph)
    build(network, dynamic_batch=True)
    layout = sys.modules["onnxgen.passes.batch.layout"]
    place = layout.placed
    monkeypatch.setattr(layout, "placed", lambda *args: place(*args)[::-1])
    with pytest.raises(WrongRewrite, match="the samples of 'y' follow each other along axis 1, not 0"):
        build(network, dynamic_batch=True)
