"""The pass that makes floats of integers goes wrong, one way each, and is caught."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxgen.output.compose
import onnxgen.passes
from onnxgen import Options
from onnxgen.errors import WrongRewrite
from onnxgen.graph.annotations import TRAINABLE
from onnxgen.graph.nodes import all_nodes
from onnxgen.paranoid.quick import PARANOID
from onnxgen.passes import PASSES
from onnxgen.pipeline import build
from onnxgen.weights.dequantised import Dequantised
from tests.paranoid.test_wrong_rewrites import Harm, another, passed_on, put, without

# the package has functions by the names of its modules
package, pairs, layers, weights, moved = (
    importlib.import_module(f"onnxgen.passes.quantized{name}")
    for name in ("", ".pairs", ".layers", ".weights", ".moved")
)
Wrong = Callable[[pytest.MonkeyPatch], None]
FLOAT, QAT, LEARNED = "float", "qat", "qat-learned"
NUMBERS = "{1,-2,3,-4,50,60,-70,8,9,-100,11,12,-13,14,15,127}"
SCALES = "float sx = {0.02}, uint8 zx = {128}, float sy = {0.05}, uint8 zy = {0}, float sw = {0.01}, int8 zw = {0}"
W = f"int8[4,4] w_quantized = {NUMBERS}, {SCALES}"
INPUT = "q = QuantizeLinear(x, sx, zx) d = DequantizeLinear(q, sx, zx) "
WEIGHT = "w = DequantizeLinear(w_quantized, sw, zw) "
OUTPUT = "r = QuantizeLinear(p, sy, zy) y = DequantizeLinear(r, sy, zy)"
CHANNELS = (
    f"int8[4,4] w_quantized = {NUMBERS}, {SCALES}, float[4] sc = {{0.01,0.02,0.03,0.04}}, int8[4] zc = {{0,0,0,0}}"
)
BIAS = f"{W}, int32[4] b_quantized = {{1000,-2000,3000,-4000}}"
GRAPHS = {  # the nodes, and what is stored
    "layer": (INPUT + WEIGHT + "p = MatMul(d, w) " + OUTPUT, W),
    "channels": (
        INPUT + "w = DequantizeLinear<axis=1>(w_quantized, sc, zc) p = MatMul(d, w) " + OUTPUT,
        CHANNELS,
    ),
    "six": (INPUT + WEIGHT + "p = MatMul(d, w) " + OUTPUT, W.replace("sy = {0.05}", "sy = {0.0235294}")),
    "input": ("q = QuantizeLinear(x, sx, zy) d = DequantizeLinear(q, sx, zy) y = Tanh(d)", SCALES),
    "moved": (INPUT + "a = Neg(d) q2 = QuantizeLinear(a, sw, zx) t = Transpose<perm=[1,0]>(q2) "
              "e = DequantizeLinear(t, sw, zx) y = Tanh(e)", SCALES),
    "integers": ("a = Neg(x) q = QuantizeLinear(a, sx, zx) y = Transpose<perm=[1,0]>(q)", SCALES),
    "dynamic": ("q, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, w_quantized, z, zw) f = Cast<to=1>(i) "
                "k = Mul(s, sc) y = Mul(f, k)", CHANNELS),
    "qlinear": ("q = QuantizeLinear(x, sx, zx) m = QLinearMatMul(q, sx, zx, w_quantized, sw, zw, sy, zx) "
                "a = com.microsoft.QLinearAdd(m, sy, zx, q, sx, zx, sz, zx) y = DequantizeLinear(a, sz, zx)",
                W + ", float sz = {0.06}"),
    "gemm": ("q = QuantizeLinear(x, sx, zx) "
             "y = com.microsoft.QGemm<transB=1>(q, sx, zx, w_quantized, sw, zw, b_quantized)", BIAS),
    "softmax": (INPUT + "q2 = QuantizeLinear(d, sx, zx) "
                "a = com.microsoft.QLinearSoftmax<axis=1,opset=13>(q2, sx, zx, ss, zy) y = DequantizeLinear(a, ss, zy)",
                SCALES + ", float ss = {0.00392}"),
    "shared": (INPUT + WEIGHT + "v = DequantizeLinear(v_quantized, sw, zw) p = MatMul(d, w) "
               "o = MatMul(p, v) y = Relu(o)",
               f"{W}, int8[4,4] v_quantized = {NUMBERS}"),
    "no zero point": (INPUT + WEIGHT + "p = MatMul(d, w) r = QuantizeLinear<output_dtype=3>(p, sy) "
                      "y = DequantizeLinear(r, sy)", W),
    "chain": (INPUT + "a = Neg(d) q2 = QuantizeLinear(a, sw, zx) t = Transpose<perm=[1,0]>(q2) "
              "u = Reshape(t, flat) e = DequantizeLinear(u, sw, zx) y = Tanh(e)", SCALES + ", int64[1] flat = {16}"),
    "pad": ("q = QuantizeLinear(x, sx, zx) p = Pad(q, one) y = DequantizeLinear(p, sx, zx)",
            SCALES + ", int64[4] one = {0,1,0,1}"),
    "joined": ("a = Neg(x) q = QuantizeLinear(x, sx, zx) r = QuantizeLinear(a, sw, zx) c = Concat<axis=1>(q, r) "
               "y = DequantizeLinear(c, sx, zx)", SCALES),
    "table": ("i = Cast<to=7>(x) j = Abs(i) k = Clip(j, n0, n3) g = Gather(w_quantized, k) "
              "y = DequantizeLinear(g, sw, zw)", W + ", int64 n0 = {0}, int64 n3 = {3}"),
    "unused": ("w = DequantizeLinear(w_quantized, sw, zw) y = Tanh(x)", W),
    "halves": ("h = Cast<to=10>(x) q = QuantizeLinear(h, hx, zx) d = DequantizeLinear(q, hx, zx) "
               "w = DequantizeLinear(w_quantized, hw, zw) f = MatMul(d, w) y = Cast<to=1>(f)",
               W + ", float hx = {0.02}, float hw = {0.01}"),
    "bits": ("y = com.microsoft.MatMulNBits<K=4,N=4,bits=4,block_size=16>(x, b, s)",
             "uint8[4,1,8] b = {" + ",".join(str(i * 37 % 256) for i in range(32)) + "}, float[4] s = {1,2,3,4}"),
}  # fmt: skip


def patched(module: Any, name: str, value: Any) -> Wrong:
    return lambda patch: patch.setattr(module, name, value)


def nothing(module: Any, name: str, made: Any = None) -> Wrong:
    return patched(module, name, lambda *_, **__: made)


def after(op: str, harm: Harm, name: str = "quantized", index: int = 0) -> Wrong:
    """A node that the pass wrote is changed."""

    def wrong(patch: pytest.MonkeyPatch) -> None:
        def wrapped(step: Any) -> Any:
            def harmed(model: ir.Model, options: Options) -> None:
                step(model, options)
                harm([node for node in all_nodes(model.graph) if node.op_type == op][index])

            harmed.__name__ = step.__name__
            return harmed if step.__name__ == name else step

        patch.setattr(onnxgen.passes, "PASSES", [wrapped(step) for step in PASSES])

    return wrong


def by(name: str) -> Harm:
    """The node has another scale."""
    return lambda node: node.replace_input_with(1, node.graph.initializers[name])  # type: ignore[union-attr]


def how(**changes: Any) -> Wrong:
    """What is said of a stored tensor is something else."""
    right = weights._linear

    def wrong(node: ir.Node) -> Dequantised | None:
        found = right(node)
        return None if found is None else replace(found, **changes)

    return patched(weights, "_linear", wrong)


def forgotten(node: ir.Node) -> None:
    """A node's weight is said to be no parameter."""
    weight = node.inputs[1]
    assert weight is not None
    TRAINABLE.set(weight, (False, "no gradient reaches it from an output"))


def transposed(node: ir.Node) -> None:
    """The second operand of a product is turned."""
    made = ir.Node("", "Transpose", [node.inputs[1]], version=21)
    assert node.graph is not None
    node.graph.insert_before(node, made)
    node.replace_input_with(1, made.outputs[0])


def other_numbers(self: Dequantised, *_: Any) -> Any:
    return np.zeros((4, 4), np.int8)


def digits(self: Dequantised, stored: Any) -> Any:
    """Four bits each, the first in the high ones."""
    return np.stack([stored >> 4, stored & 15], -1).reshape(self.shape[0], -1)[:, : self.shape[1]]


def another_axis(patch: pytest.MonkeyPatch) -> None:
    """Scales of columns are those of rows."""
    right = layers._dequantised
    patch.setattr(layers, "_dequantised", lambda at, x, scale, zero, _: right(at, x, scale, zero, 0))


def without_pass(patch: pytest.MonkeyPatch) -> None:
    """The pass does nothing."""

    def quantized(model: ir.Model, options: Options) -> None: ...

    patch.setattr(onnxgen.passes, "PASSES", [quantized if p.__name__ == "quantized" else p for p in PASSES])


def half(scale: ir.Value) -> list[ir.Value]:
    """Of a product the first factor alone."""
    node = scale.producer()
    first = scale if node is None else node.inputs[0]
    assert first is not None
    return [first]


def as_fake(model: ir.Model, mode: str, right: Any = pairs.pairs) -> Any:
    return right(model, QAT)


def as_float(model: ir.Model, mode: str, right: Any = weights.weights) -> Any:
    return right(model, FLOAT)


CASES: list[tuple[str, str, str, Wrong, str]] = [
    ("a ReLU that is lost", FLOAT, "layer", patched(pairs, "_rectified", lambda _, x: x), "changed 'y'"),
    ("no layer has one", FLOAT, "layer", patched(pairs, "FUSES", ()), "changed 'y'"),
    ("a ReLU of what is no layer", FLOAT, "input", patched(pairs, "_may_be_negative", lambda _: True), "changed 'y'"),
    ("a ReLU6 without its end", FLOAT, "six", patched(pairs, "SIX", 5.0), "changed 'y'"),
    ("a ReLU as a ReLU6", FLOAT, "layer", patched(pairs, "SIX", 12.75), "changed 'y'"),
    ("a sum as a difference", FLOAT, "qlinear", after("Add", another("Sub")), "changed 'y'"),
    ("a weight that is turned", FLOAT, "qlinear", after("MatMul", transposed), "changed 'y'"),
    ("a Gemm's attribute", FLOAT, "gemm", after("Gemm", put(transB=0)), "changed 'y'"),
    ("a Gemm's factor", FLOAT, "gemm", after("Gemm", put(alpha=1.01)), "changed 'y'"),
    ("a bias that is lost", FLOAT, "gemm", after("Gemm", without(2)), "changed 'y'"),
    ("a bias by half of its scale", FLOAT, "gemm", patched(weights, "factors", half), "changed 'y'"),
    ("an axis of scales", FLOAT, "channels", how(axis=0), "changed 'y'"),
    ("rounding in a graph of floats", FLOAT, "layer", patched(package, "pairs", as_fake), "in a graph of floats"),
    ("the other half of a byte", FLOAT, "bits", patched(Dequantised, "_numbers", digits), "changed 'y'"),
    ("what is moved turns otherwise", FLOAT, "moved", after("Transpose", put(perm=[0, 1])), "changed 'y'"),
    ("a product that stays", FLOAT, "dynamic", nothing(package, "products"), "still one of integers"),
    ("columns that are rows", FLOAT, "dynamic", another_axis, "changed 'y'"),
    ("nothing is moved", FLOAT, "moved", nothing(package, "dequantise_first"), "need not be integers"),
    ("no pair is one", FLOAT, "layer", nothing(package, "pairs", []), "need not be integers"),
    ("an output of integers", FLOAT, "integers", nothing(package, "float_outputs", {}), "floats, but is UINT8"),
    ("weights of integers", FLOAT, "layer", nothing(package, "weights"), "need not be integers|written back"),
    ("a name of no file", FLOAT, "layer", nothing(weights, "_take_over", "weight"), "are called 'weight'"),
    ("another tensor of the file", FLOAT, "layer", how(tensor="w_quantised"), "for the file's 'w_quantised'"),
    ("a name with a line behind it", FLOAT, "layer", nothing(weights, "_take_over", "w_"),
     "are called 'w_'"),
    ("a table of integers", FLOAT, "table", nothing(package, "dequantise_first"), "need not be integers"),
    ("nothing at all", FLOAT, "layer", without_pass, "need not be integers"),
    ("a weight that is not rounded", QAT, "layer", patched(weights, "fake_weight", lambda _, w, *__: w), "not rounded"),
    ("no weight is rounded", QAT, "layer", patched(package, "weights", as_float), "is not rounded"),
    ("an input that is not rounded", QAT, "layer", patched(pairs, "fake", lambda _, x, *__: x), "changed 'y'"),
    ("another range", QAT, "layer", after("FakeQuantize", put(low=0, high=127)), "changed 'y'"),
    ("another scale", QAT, "layer", after("FakeQuantize", by("sy")), "changed 'y'"),
    ("another scale of a weight", QAT, "layer", after("FakeQuantize", by("sx"), index=1), "changed 'y'"),
    ("a zero point that is lost", QAT, "layer", after("FakeQuantize", without(2)), "changed 'y'"),
    ("another range of a weight", QAT, "layer", after("FakeQuantize", put(high=127, low=-120), index=1), "not rounded"),
    ("packed numbers of more bits", QAT, "bits", after("FakeQuantize", put(low=-16, high=15)), "not rounded as"),
    ("a weight as floats", QAT, "layer", after("FakeQuantize", put(to=1), index=1), "not rounded as"),
    ("another axis", QAT, "channels", after("FakeQuantize", put(axis=0), index=1), "changed 'y'"),
    ("rounded by another's scale", QAT, "moved", patched(pairs, "_is_rounded", lambda *_: True), "changed 'y'"),
    ("a dynamic one that is lost", QAT, "dynamic", after("FakeQuantizeDynamic", passed_on), "changed 'y'"),
    ("a scale that is not learned", LEARNED, "layer", nothing(pairs, "_learn"), "scale '.*' is not trained"),
    ("a scale that several learn", LEARNED, "shared", patched(pairs, "_is_own", lambda _: True), "'sw' is trained"),
    ("a softmax's scale", LEARNED, "softmax", patched(pairs, "_is_of_one_scale", lambda _: True), "'ss' is trained"),
    ("scales that were not to be learned", QAT, "layer",
     patched(pairs, "_node", lambda *a, _right=pairs._node, **k: _right(*a[:3], LEARNED, *a[4:], **k)), "is trained"),
    ("a weight that is forgotten", FLOAT, "layer", after("MatMul", forgotten, "trainable"), "'w' is not trained"),
    ("integers that are forgotten", FLOAT, "layer", nothing(onnxgen.output.compose, "quantised", {}),
     "do not record its integers"),
    ("a ReLU of a type with a sign", FLOAT, "no zero point", patched(pairs, "limits", lambda _: (0.0, 9.0)),
     "changed 'y'"),
    ("what was moved still counts", LEARNED, "chain", patched(pairs, "_is_of_one_scale", lambda _: False),
     "not trained"),
    ("padded with another number", FLOAT, "pad", patched(moved, "_zero", lambda *_: None), "changed 'y'"),
    ("types that are mixed up", QAT, "layer", after("FakeQuantize", put(to=2)), "no longer be computed"),
    ("other integers", FLOAT, "layer", patched(Dequantised, "integers", other_numbers), "other integers"),
]  # fmt: skip


def model_of(name: str, folder: Path) -> Path:
    text, stored = GRAPHS[name]
    head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{head} wrong (float[4, 4] x) => (float[] y) <{stored}> {{ {text} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if name == "integers":
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    for tensor in model.graph.initializer if name == "halves" else ():
        if tensor.name in ("hx", "hw"):
            halves = onnx.numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(onnx.numpy_helper.from_array(halves, tensor.name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def built(name: str, mode: str, folder: Path, paranoid: bool = True) -> str:
    options = Options(quantized=mode, paranoid=paranoid)
    return build(model_of(name, folder), options, folder / "m.py").report.checked


@pytest.mark.parametrize("mode", [FLOAT, QAT, LEARNED])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_right_one_is_right(name: str, mode: str, tmp_path: Path) -> None:
    assert "; of 0 nothing is said" in built(name, mode, tmp_path)


@pytest.mark.parametrize(("what", "mode", "name", "wrong", "said"), CASES, ids=[case[0] for case in CASES])
def test_a_wrong_one_is_caught(
    what: str, mode: str, name: str, wrong: Wrong, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--paranoid`, and without."""
    monkeypatch.delenv(PARANOID, raising=False)
    wrong(monkeypatch)
    for paranoid in (True, False):
        with pytest.raises(WrongRewrite, match=said):
            built(name, mode, tmp_path, paranoid)
