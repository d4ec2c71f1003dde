"""Views of stored tensors against what onnxruntime computes from them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnxgen.options import Options
from onnxgen.shapes import propagate
from onnxgen.weights import stored
from onnxgen.weights.stored import Views, is_plain, is_uniform

STORED = "float[2, 1, 6] w, float[2, 1, 3] v, int64[1] one = {1}, int64[1] last = {-1}, int64[2] rows = {-1, 4}"
STORED += ", int64[2] start = {0, -4}, int64[2] stop = {9, 5}, int64[2] along = {0, -1}, int64[2] parts = {2, 4}"
VIEWS = [  # opset, nodes
    (13, "y = Identity(w)"),
    (13, "y = Transpose(w)"),
    (13, "y = Transpose<perm=[2, 0, 1]>(w)"),
    (11, "y = Unsqueeze<axes=[-1, 0]>(w)"),
    (13, "y = Unsqueeze(w, along)"),
    (13, "y = Unsqueeze(w, last)"),
    (11, "y = Squeeze<axes=[-2]>(w)"),
    (11, "t = Unsqueeze<axes=[0]>(w) y = Squeeze<axes=[0]>(t)"),
    (13, "y = Squeeze(w, one)"),
    (13, "y = Squeeze(w)"),
    (13, "y = Reshape(w, rows)"),
    (13, "y = Flatten<axis=2>(w)"),
    (9, "y = Slice<starts=[1, -5], ends=[9, -2], axes=[0, 2]>(w)"),
    (9, "y = Slice<starts=[1], ends=[2]>(w)"),
    (13, "y = Slice(w, start, stop, along)"),
    (13, "y = Concat<axis=-1>(v, w)"),
    (13, "y = Concat<axis=0>(w, w)"),
    (11, "a, y = Split<axis=-1, split=[2, 4]>(w)"),
    (13, "a, y = Split<axis=2>(w, parts)"),
    (13, "y, b = Split(w)"),
    (13, "t = Transpose(w) a, b = Split(t, parts) c = Concat<axis=0>(b, a) y = Transpose(c)"),
]
NONE = ["y = Relu(w)", "y = Slice(w, one, last, last, last)", "t = Slice(w, one, last, last, last) y = Transpose(t)"]
NONE += ["y = Squeeze(w, last)"]  # invalid


def parse(opset: int, body: str) -> onnx.ModelProto:
    lines = body.replace(") ", ")\n ")
    proto = onnx.parser.parse_model(
        f'<ir_version: 7, opset_import: ["" : {opset}]> g () => (float y) <{STORED}> {{ {lines} }}'
    )
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, shape in (("w", (2, 1, 6)), ("v", (2, 1, 3))):
        numbers = np.random.default_rng(len(shape)).random(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(numbers, name))
    return proto


def seen(proto: onnx.ModelProto) -> stored.Source | None:
    model = ir.from_proto(proto)
    propagate(model.graph, Options())
    return Views(model, Options())(model.graph.outputs[0])


def test_views_are_what_onnxruntime_computes() -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for opset, body in VIEWS:
        proto = parse(opset, body)
        (want,) = ort.InferenceSession(proto.SerializeToString(), options).run(None, {})
        found = seen(proto)
        assert found is not None, body
        np.testing.assert_array_equal(found.numpy(), want, body, strict=True)
    for body in NONE:
        assert seen(parse(13, body)) is None, body


def test_very_many_pieces_are_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = parse(13, "a = Concat<axis=2>(v, w) y = Concat<axis=2>(a, v)")  # 2 pieces, and then 3
    for most, known in ((5, True), (4, False)):
        monkeypatch.setattr(stored, "MAX_CONCATENATED_PIECES", most)
        assert (seen(twice) is not None) == known, most


def test_how_many_pieces_are_a_view() -> None:
    proto = parse(13, "y = Identity(w)")
    for count in (32_768, 32_769):
        proto.graph.node[0].CopyFrom(onnx.helper.make_node("Concat", ["w"] * count, ["y"], axis=0))
        assert (seen(proto) is not None) == (count == 32_768)


def test_equal_numbers() -> None:
    table = [  # a tensor; is it a vector of equal numbers, and of equal numbers at all
        (np.ones(3), True, True),
        (np.ones((1, 3, 1)), True, True),
        (np.ones((2, 2)), False, True),
        (np.ones(1), False, True),
        (np.array(2.0), False, True),
        (np.array([1, 1, 2]), False, False),
        (np.array([0] * 99 + [1]), False, False),
        (np.zeros(99), True, True),
    ]
    for array, vector, plain in table:
        assert (is_uniform(ir.tensor(array)), is_plain(ir.tensor(array))) == (vector, plain), array
