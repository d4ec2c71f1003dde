"""Small rules of the export, each by itself: heads in a record, nodes without names, what is read, types, files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser
from safetensors.torch import load_file, save_file

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.export import adapter, back
from onnxgen.export.heads import Head, Sizes
from onnxgen.export.places import CannotWriteBack, places_of
from onnxgen.export.report import BACK
from onnxgen.export.state import origin_of
from onnxgen.options import Options
from onnxgen.record.way_back import WayBack
from tests.support.real import imported

F = np.float32
HOSTILE = "w\x1b[31m\n"


def written(folder: Path, text: str, stored: dict[str, Any], **how: Any) -> Path:
    """A file of a graph in onnx's text form."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    onnx.save(model, folder / "m.onnx", **how)
    return folder / "m.onnx"


ROWS = "(float[n, 4] x) => (float[n, 3] y) { y = Gemm (x, w, b) }"
DRAWN = np.random.default_rng(0)
STORED = {"w": DRAWN.standard_normal((4, 3)).astype(F), "b": DRAWN.standard_normal(3).astype(F)}


def test_a_node_is_found_by_the_outputs_that_it_has() -> None:
    """Many nodes leave out an output."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y)
        <float[3] a = {1, 2, 4}, float[3] c = {1, 2, 4}> { z, , s = LayerNormalization (x, a)
        y, , t = LayerNormalization (z, c) }"""
    model = parser.parse_model(text)
    sizes = Sizes(model, Path(), 3)
    node = list(sizes.graph({}))[1]
    for values in ([5, 6, 7], [8, 9, 10, 11]):
        sizes.replace(node, 1, np.array(values, F))
        found = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in model.graph.initializer}
        assert found == {"a": [1, 2, 4], "c": values}
    assert sizes.changed == ["c", "c"]


def test_the_size_of_a_head_is_that_of_its_own_parts() -> None:
    head = Head({"a": 0, "c": 1}, {"a": (10, 4), "c": (7, 3)})
    for keys, size in ((["a"], (10, 4)), (["a", "other", "a"], (10, 4)), (["other", "c"], (7, 3))):
        assert head._sizes({"parts": [{"key": key} for key in keys]}) == size
    assert head._sizes("c") == (7, 3)
    with pytest.raises(CannotWriteBack, match="holds layers of several sizes"):
        head._sizes({"parts": [{"key": "a"}, {"key": "c"}]})


def test_tensors_that_a_head_cant_have_are_told_as_plain_text() -> None:
    entry = {"parts": [{"key": "head.weight"}]}
    tensors: dict[str, Any] = {"w": entry, "shared": [entry, entry], "v": entry}
    record = WayBack(tensors, {}, {"v": []})
    for by_tensor, names, told in (
        ({HOSTILE: []}, ["w"], "holds the head's weights as integers"),
        ({}, ["w", "v"], "once for the head and for something else"),
        ({}, ["shared"], "once for the head and for something else"),
        ({}, ["v"], "is in a local function"),
    ):
        found: Any = SimpleNamespace(head=Head({}, {}), integers=SimpleNamespace(by_tensor=by_tensor), record=record)
        place: Any = SimpleNamespace(name=HOSTILE)
        with pytest.raises(CannotWriteBack, match=told) as caught:
            back._Writer._resized(found, place, names, np.zeros(2))  # type: ignore[arg-type]
        assert "w?[31m" in str(caught.value) and str(caught.value).isprintable()


def test_values_that_the_files_type_does_not_hold_are_finer() -> None:
    """Also in a type of as many bits."""
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
    for kind, of_file, value, is_finer in (
        ("f32", "f32", 1 + 2**-20, False),
        ("f32", "f32", np.nan, False),
        ("f64", "f32", 1 + 2**-20, False),
        ("f64", "f32", 1 + 2**-40, True),
        ("f64", "f32", np.nan, False),
        ("f32", "f16", 1 + 2**-20, True),
        ("f16", "f32", 1 + 2**-10, False),
        ("bf16", "f16", 2.0**-40, True),
        ("bf16", "f16", 1 + 2**-7, False),
        ("f16", "bf16", 1 + 2**-10, True),
    ):
        record, values = SimpleNamespace(tensors={"w": "w"}), np.array([1, value]).astype(kinds[kind])
        found: Any = SimpleNamespace(record=record, get=lambda _, values=values: values)
        assert back._Writer._is_finer(found, "w", np.zeros(2, kinds[of_file])) is is_finer, (kind, of_file, value)


def test_names_of_tensors_are_read_without_their_data(tmp_path: Path) -> None:
    path = written(tmp_path, ROWS, STORED, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").rename(tmp_path / "away")
    found = places_of(path)
    assert found.keys() == {"w", "b"} and all(place.is_external for place in found.values())
    (tmp_path / "away").rename(tmp_path / "m.data")
    for name, place in found.items():
        np.testing.assert_array_equal(place.read(tmp_path).numpy(), STORED[name])


def test_no_more_than_the_graph_of_a_file_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its data may be larger than the memory: tensors are mapped and copied one by one."""
    path = written(tmp_path, ROWS, STORED, save_as_external_data=True, location="m.data", size_threshold=0)
    onnxgen.generate(path, tmp_path / "model.py")

    def refused(*given: object) -> None:
        raise AssertionError("the whole data was loaded")

    monkeypatch.setattr(onnx.external_data_helper, "load_external_data_for_model", refused)
    monkeypatch.setattr(onnx, "load_external_data_for_model", refused)
    report = onnxgen.export(tmp_path / "model.py", out=tmp_path / "out.onnx", verify=False)
    assert report.method == BACK and report.wrote == [tmp_path / "out.onnx", tmp_path / "out.onnx.data"]
    monkeypatch.undo()
    x = np.ones((2, 4), F)
    old, new = (onnxruntime.InferenceSession(tmp_path / name).run(None, {"x": x})[0] for name in ("m.onnx", "out.onnx"))
    np.testing.assert_array_equal(old, new)


def test_what_a_free_batch_leaves_over_is_gone(tmp_path: Path) -> None:
    """The shape of a fixed batch, and what computed it."""
    text = """(float[2, 6] x) => (float[2, 3] y) <int64[2] two = {2, 2}, int64[1] three = {3}> {
        shape = Concat <axis = 0> (two, three)  d = Reshape (x, shape)
        m = ReduceMax <axes = [1], keepdims = 0> (d)  y = Relu (m) }"""
    path = written(tmp_path, text, {})
    onnxgen.generate(path, tmp_path / "model.py", Options(dynamic_batch=True))
    onnxgen.export(tmp_path / "model.py", out=tmp_path / "out.onnx")
    graph = onnx.load(tmp_path / "out.onnx").graph
    taken = {name for node in graph.node for name in node.input}
    made = {name for node in graph.node for name in node.output}
    assert {tensor.name for tensor in graph.initializer} <= taken
    assert made <= taken | {"y"}
    x = np.random.default_rng(0).standard_normal((5, 6)).astype(F)
    (y,) = onnxruntime.InferenceSession(tmp_path / "out.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x.reshape(5, 2, 3).max(1), 0))


def test_the_original_is_found_from_the_folder_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside it, or as the project says around it. It is still there when another folder is the current one."""
    (tmp_path / "made").mkdir()
    path = written(tmp_path, ROWS, STORED)
    onnxgen.generate(path, tmp_path / "made" / "model.py")
    space = vars(imported(tmp_path / "made" / "model.py"))
    entry = '[[tool.onnxgen.models]]\nsource = "m.onnx"\noutput = "made/model.py"\n'
    (tmp_path / "pyproject.toml").write_text(entry)
    for folder in (tmp_path, tmp_path / "made"):
        monkeypatch.chdir(tmp_path / "made")
        origin = origin_of(Path("model.py"), space, None)
        monkeypatch.chdir(tmp_path)
        assert origin.onnx.samefile(folder / "m.onnx")
        (tmp_path / "made" / "m.onnx").write_bytes(path.read_bytes())


def test_an_adapter_replaces_what_is_there_only_if_forced(tmp_path: Path) -> None:
    """The name of the original does not force it."""
    path = written(tmp_path, ROWS, STORED)
    onnxgen.generate(path, tmp_path / "model.py")
    state = load_file(tmp_path / "model.safetensors")
    save_file({key: value + 1 for key, value in state.items()}, tmp_path / "best.safetensors")
    (tmp_path / "out.onnx").write_text("mine")
    given: dict[str, Any] = {"onnx": path, "weights": tmp_path / "best.safetensors", "out": tmp_path / "out.onnx"}
    given |= {"verify": False}
    with pytest.raises(OnnxgenError, match="is not an earlier export of this model"):
        adapter.export_apart(tmp_path / "model.py", **given, force=False)
    assert (tmp_path / "out.onnx").read_text() == "mine"
    given["onnx"] = None
    report = adapter.export_apart(tmp_path / "model.py", **given, force=True)
    assert report.wrote == [tmp_path / "out.onnx", tmp_path / "out.onnx_adapter"]
