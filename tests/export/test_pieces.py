"""Parts of the export by themselves: elements in the fields of a protobuf, other types, and what exporters say."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from onnxgen.errors import OnnxgenError
from onnxgen.export import adapter, changes, decoding
from onnxgen.export.changes import retyped_file
from onnxgen.export.decoding import _Fitting
from onnxgen.export.job import _quiet
from onnxgen.export.places import CannotWriteBack, fill, places
from onnxgen.heads.labels import Axis, Labels, _axis
from onnxgen.options import Options
from onnxgen.record.tail import Channels, Level, Tail

F = np.float32
TYPED = {  # the protobuf's field of the elements of a type
    np.float32: "float_data",
    np.float64: "double_data",
    np.float16: "int32_data",
    ml_dtypes.bfloat16: "int32_data",
    np.int64: "int64_data",
    np.int32: "int32_data",
}


def test_elements_stay_in_the_field_that_a_tensor_uses() -> None:
    """onnx reads what was written; types whose field is not known get bytes."""
    for kind in (*TYPED, np.uint8, np.int16, np.bool_, np.uint64, ml_dtypes.float8_e4m3fn):
        old, new = (np.array(v).astype(kind) for v in ([[1, 0, 1]], [[0, 1, 3]]))
        for raw in (True, False):
            code = helper.np_dtype_to_tensor_dtype(old.dtype)
            data = old.tobytes() if raw else old.reshape(-1).astype(F).tolist()
            tensor = helper.make_tensor("w", code, old.shape, data, raw=raw)
            assert numpy_helper.to_array(tensor).tolist() == old.tolist()
            fill(tensor, new)
            assert numpy_helper.to_array(tensor).tolist() == new.tolist()
            field = TYPED.get(kind, "raw_data")
            used = [name.name for name, _ in tensor.ListFields() if name.name.endswith("_data")]
            assert used == ["raw_data" if raw else field], (kind, raw)


def test_sparse_tensors_become_dense_where_new_elements_are_nonzero() -> None:
    """Each of several, also as nodes' attributes; one whose zeros stay zeros is still sparse."""

    def sparse(name: str) -> onnx.SparseTensorProto:
        return helper.make_sparse_tensor(
            numpy_helper.from_array(np.array([1, 2], F), name), numpy_helper.from_array(np.array([0, 3])), [4]
        )

    names = ("a", "b", "c", "d")
    node = helper.make_node("Constant", [], ["e"], sparse_value=sparse("e"))
    graph = helper.make_graph([node], "g", [], [], sparse_initializer=[sparse(name) for name in names])
    model = helper.make_model(graph)
    dense, holes = np.array([1, 2, 3, 4], F), np.array([5, 0, 0, 6], F)
    wrote = {place.name: place.write(holes if place.name == "c" else dense) for place in places(model)}
    assert wrote == {"a": False, "b": False, "c": True, "d": False, "e": False}
    assert {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer} == dict.fromkeys(
        ("a", "b", "d"), dense.tolist()
    )
    (kept,) = model.graph.sparse_initializer
    assert kept.values.name == "c" and numpy_helper.to_array(kept.values).tolist() == [5, 6]
    (attribute,) = model.graph.node[0].attribute
    assert attribute.name == "value" and numpy_helper.to_array(attribute.t).tolist() == dense.tolist()
    onnx.checker.check_node(model.graph.node[0])


CASTS = """(float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[1] one = {1}> {
    y = Div (sum, one)
    sum = Sum (late, filled, eye)
    late = Celu <alpha = 0.5> (made)
    made = Sub (x, w)
    size = Shape (made)
    filled = ConstantOfShape <value = float[1] {2.5}> (size)
    eye = EyeLike <dtype = 1> (made) }"""


def test_a_file_in_another_type_is_one_that_onnx_takes(tmp_path: Path) -> None:
    """Nodes in any order; operators that lack the type compute in single precision, and so do their attributes."""
    x = np.array([[0, 1], [5, 8]], F)
    wanted = np.where(x - [[1, 2], [3, 4]] < 0, 0.5 * np.expm1((x - [[1, 2], [3, 4]]) / 0.5), x - [[1, 2], [3, 4]])
    wanted = wanted + 2.5 + np.eye(2)
    kinds = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16, ir.DataType.DOUBLE: np.float64}
    for dtype, kind in kinds.items():
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {CASTS}')
        onnx.save(model, tmp_path / "net.onnx")
        (tmp_path / dtype.name).mkdir()
        out = retyped_file(tmp_path / "net.onnx", dtype, Options(), tmp_path / dtype.name)
        onnx.checker.check_model(out, full_check=True)
        made = onnx.load(out)
        assert (
            made.graph.input[0].type.tensor_type.elem_type == made.graph.output[0].type.tensor_type.elem_type == dtype
        )
        (got,) = ReferenceEvaluator(made).run(None, {"x": x.astype(kind)})
        assert got.dtype == kind and np.abs(got.astype(np.float64) - wanted).max() < 0.05
    old = parser.parse_model('<ir_version: 3, opset_import: ["" : 8]> g (float[2] x) => (float[2] y) { y = Relu (x) }')
    onnx.save(old, tmp_path / "net.onnx")
    with pytest.raises(CannotWriteBack, match=r"opset 8 has no bfloat16 \(upgrade it with onnx.version_converter\)"):
        retyped_file(tmp_path / "net.onnx", ir.DataType.BFLOAT16, Options(), tmp_path)


def test_sizes_of_a_file_in_another_type_are_what_they_were(tmp_path: Path) -> None:
    """A tenth of ten rows is one; in half precision it would be none."""
    text = """(float[n, 2] x) => (float[m, 2] y) <float[1] tenth = {0.1}, int64[1] start = {0}> {
        shape = Shape <end = 1> (x)  rows = Cast <to = 1> (shape)  part = Mul (rows, tenth)
        end = Cast <to = 7> (part)  y = Slice (x, start, end) }"""
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}'), tmp_path / "net.onnx")
    (tmp_path / "new").mkdir()
    made = onnx.load(retyped_file(tmp_path / "net.onnx", ir.DataType.FLOAT16, Options(), tmp_path / "new"))
    x = np.ones((10, 2), np.float16)
    assert [y.shape for y in (*ReferenceEvaluator(made).run(None, {"x": x}), *ran(made, x=x))] == [(1, 2)] * 2


def test_only_a_branch_that_is_recorded_ends_an_export(capfd: pytest.CaptureFixture[str]) -> None:
    """Not what exporters say besides, and nothing of it is shown."""
    branch = "Converting a tensor to a Python boolean might cause the trace to be incorrect"
    said = [
        (branch, torch.jit.TracerWarning, True),  # type: ignore[attr-defined]
        (branch.replace("boolean", "integer"), torch.jit.TracerWarning, False),  # type: ignore[attr-defined]
        ("Iterating over a tensor", torch.jit.TracerWarning, False),  # type: ignore[attr-defined]
        (branch, UserWarning, False),
        ("anything", DeprecationWarning, False),
    ]

    def exporter(text: str, kind: type[Warning]) -> None:
        print(text)
        logging.getLogger("torch.onnx").critical(text)
        warnings.warn(text, kind, stacklevel=1)
        warnings.warn("another", UserWarning, stacklevel=1)

    before = logging.root.manager.disable
    for text, kind, is_refused in said:
        if is_refused:
            with pytest.raises(TypeError, match="it would record one branch of an if that depends on values"), _quiet():
                exporter(text, kind)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with _quiet():
                    exporter(text, kind)
        assert logging.root.manager.disable == before and capfd.readouterr() == ("", "")


AROUND = """(float[1, 8] m) => (float[1, 8] y, float[1, 3] z) <int64[1] five = {5}, int64[1] last = {-3},
    int64[1] one = {1}, int64[1] eight = {8}, int64[1] end = {9223372036854775807}, int64[1] all = {-8}> {
    a, b, c = Split <axis = -1, split = [4, 1, 3]> (m)  d, e = Split <split = [5, 3], axis = 1> (m)
    f = Slice (m, all, five, one)  g = Slice (m, last, end, one)  h = Slice (m, five, eight, one)
    k = Mul (c, b)  i = Mul (e, g)  j = Add (i, h)  z = Add (j, k)  x = Mul (d, f)  y = Concat <axis = 1> (x, z) }"""


def test_parts_of_an_axis_follow_the_number_of_classes() -> None:
    """Splits by attribute and slices of either sign: onnxruntime computes of 5 classes what it did of 3."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 11]> g {AROUND}')
    original = onnx.ModelProto()
    original.CopyFrom(model)
    changed = with_classes(model, 5)
    assert sorted(changed) == ["a", "all", "d", "eight", "last"]
    onnx.checker.check_model(model, full_check=True)
    for proto, classes in ((original, 3), (model, 5)):
        m = np.random.default_rng(0).standard_normal((1, 5 + classes)).astype(F)
        y, z = ran(proto, m=m)
        rows = m[:, 5:]
        np.testing.assert_allclose(z, rows * rows + rows + rows * m[:, 4:5], rtol=1e-6)
        np.testing.assert_allclose(y, np.concatenate((np.square(m[:, :5]), z), 1), rtol=1e-6)


CHOSEN = """(float[1, 8] m) => (float[1, 3] r, float[1, 5] o, float[1, 3] s, float[1, 8] b)
    <int64[3] rows = {5, 6, 7}, int64[5] order = {-3, -2, -1, 0, 1}, int64[2] first = {0, 4},
    float[1, 3] factors = {2, 2, 2}, float[8] shift = {1, 2, 4, 6, 7, 9, 9, 9}> {
    r = Gather <axis = 1> (m, rows)  o = Gather <axis = -1> (m, order)  f = Gather <axis = 1> (m, first)
    s = Mul (r, factors)  b = Add (m, shift) }"""


def with_classes(model: onnx.ModelProto, classes: int) -> list[str]:
    """Fit a model of 5 channels before 3 classes to 5 classes; `o` begins with them, others have nothing but them."""

    def axis(codes: list[int], moved: list[int], origins: list[int], firsts: list[int]) -> Axis:
        return Axis(1, 2, *(np.array(numbers, np.int64) for numbers in (codes, moved, origins, firsts)))

    whole = axis(
        [-1] * 5 + [0, 1, 2], [0, 1, 2, 3, 4, 5, -1, -1, 10], [0, 1, 2, 3, 4, 5, 6, 7, 7, 7], [0, 1, 2, 3, 4, 5, 5, 5]
    )
    alone = axis([0, 1, 2], [0, -1, -1, 5], [0, 1, 2, 2, 2], [0, 0, 0])
    begins = axis([0, 1, 2, -1, -1], [0, -1, -1, 5, 6, 7], [0, 1, 2, 2, 2, 3, 4], [0, 0, 0, 3, 4])
    axes = {**dict.fromkeys("myb", whole), **dict.fromkeys("ceghijkzrs", alone), "o": begins}
    original = onnx.ModelProto()
    original.CopyFrom(model)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5 + classes
    tail: Any = SimpleNamespace(maps=("m",), classes=3)
    return _Fitting(model, original, Path(), Labels(axes, frozenset()), tail, classes).run()


def ran(model: onnx.ModelProto, **given: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, given))


def test_constants_along_an_axis_follow_the_number_of_classes() -> None:
    """What is chosen of the classes and what broadcasts along them; before IR version 4, stored tensors are inputs."""
    for version in (3, 8):
        model = parser.parse_model(f'<ir_version: {version}, opset_import: ["" : 11]> g {CHOSEN}')
        for t in model.graph.initializer if version == 3 else ():
            model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, t.dims))
        for classes in (3, 5):
            changed = with_classes(model, classes) if classes > 3 else []
            assert changed == ([] if classes == 3 else ["rows", "order", "factors", "shift"])
            onnx.checker.check_model(model, full_check=True)
            m = np.random.default_rng(0).standard_normal((1, 5 + classes)).astype(F)
            r, o, s, b = ran(model, m=m)
            np.testing.assert_array_equal(r, m[:, 5:])
            np.testing.assert_array_equal(o, np.concatenate((m[:, 5:], m[:, :2]), 1))
            np.testing.assert_array_equal(s, 2 * m[:, 5:])
            np.testing.assert_array_equal(b, m + np.array([1, 2, 4, 6, 7] + [9] * classes, F))


def test_constants_that_tell_classes_apart_are_refused() -> None:
    for old, new, told in (
        ("rows = {5, 6, 7}", "rows = {5, 7, 6}", "Gather r takes some of the 3 classes"),
        ("order = {-3, -2, -1, 0, 1}", "order = {0, 1, -3, -2, 2}", "Gather o takes some of the 3 classes"),
        ("factors = {2, 2, 2}", "factors = {2, 1, 2}", "Mul s has a number for each of the 3 classes"),
        ("7, 9, 9, 9}", "7, 9, 9, 8}", "Add b has a number for each of the 3 classes"),
    ):
        assert old in CHOSEN
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 11]> g {CHOSEN.replace(old, new)}')
        with pytest.raises(CannotWriteBack, match=f"^{told}$"):
            with_classes(model, 5)


def test_the_comparison_of_two_files_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """onnxruntime warns of a weight that no node uses, which an export may leave."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Neg (x) }'
    )
    model = onnx.parser.parse_model(text)
    (made,) = decoding._run(model, ["y"], {"x": np.ones(2, np.float32)})
    assert made.tolist() == [-1, -1] and capfd.readouterr() == ("", "")


ANCHORS = """(float[n, 1, 4, 4] x) => (float[1, CHANNELS, 1, 1] y) <int64 height = {2}> {
    m = Conv (x, w)  size = Shape (x)  h = Gather (size, height)  stride = Cast <to = 1> (h)  y = Mul (m, stride) }"""


def test_the_comparison_of_two_heads_takes_the_classes_of_every_anchor() -> None:
    """Each of two anchors has a box, an object and its classes; the decoding asks for the height of the image."""

    def model(channels: int, text: str = ANCHORS) -> onnx.ModelProto:
        text = text.replace("CHANNELS", str(channels))
        made = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
        made.graph.initializer.append(numpy_helper.from_array(np.zeros((channels, 1, 4, 4), F), "w"))
        return made

    parts = Channels(0, 0, 4, 7), Channels(0, 5, 2, 7), Channels(0, 4, 1, 7)
    tail = Tail("yolov5", ("m",), (Level(1, 1, 4, ((2, 2), (4, 4)), *parts),), 4, 4, 2)
    axis = _axis(np.array(2 * [-1, -1, -1, -1, -1, 0, 1]), 2, 3)
    assert axis is not None
    axes = {"y": replace(axis, axis=1)}
    decoding.same_boxes(model(14), model(16), tail, 3, axes)
    with pytest.raises(CannotWriteBack, match="^with 3 classes it computes another y$"):
        decoding.same_boxes(model(14), model(16, ANCHORS.replace("{2}", "{1}")), tail, 3, axes)


def test_an_adapter_is_of_two_files_with_the_same_nodes(tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y)'
    for name, body in {"one": "y = Relu (x)", "same": "y = Relu (x)", "other": "y = Tanh (x)"}.items():
        onnx.save(parser.parse_model(f"{head} {{ {body} }}"), tmp_path / f"{name}.onnx")
    assert adapter._adapted(tmp_path / "one.onnx", tmp_path / "same.onnx", [])[1] == {}
    with pytest.raises(OnnxgenError, match="another graph than the original"):
        adapter._adapted(tmp_path / "one.onnx", tmp_path / "other.onnx", [])


def test_integers_that_keep_their_bytes_are_not_reported_as_changed() -> None:
    report: Any = SimpleNamespace(changed=["a", "b"], below=["b", "c"], notes=[])
    moved: Any = [SimpleNamespace(how=SimpleNamespace(tensor="b"))]
    adapter._without_rounding(report, moved)
    assert (report.changed, report.below) == (["a"], ["c"]) and report.notes == [
        "1 tensor of integers keep their bytes"
    ]


def test_why_the_types_stay_those_of_the_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object) -> None:
        raise CannotWriteBack("Conv has no such type")

    origin, report = SimpleNamespace(space={}, onnx=tmp_path / "net.onnx"), SimpleNamespace(notes=[])
    monkeypatch.setattr(changes, "retyped_file", refused)
    for name, told in ((next(iter(changes.NAMED)), True), ("", False)):
        monkeypatch.setattr(changes, "metadata_of", lambda space, name=name: {changes.KEY: name})
        report.notes.clear()
        made: Any = SimpleNamespace(origin=origin, options=None)
        assert changes.Changed._retyped(made, tmp_path, report) is None  # type: ignore[arg-type]
        assert [note.endswith("original ones: Conv has no such type") for note in report.notes] == [True] * told
