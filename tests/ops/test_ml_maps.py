"""Maps of ai.onnx.ml, which are dicts, against onnxruntime; and through `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnxgen.errors import OnnxgenError
from onnxgen.export import export
from onnxgen.pipeline import generate as write
from onnxgen.verify import verify
from tests.ops.classical import ML, floats, ml_model, run_ml
from tests.ops.harness import assert_same, generate, run_model, run_onnxruntime, unbound_names

STR, INT, FLOAT, DOUBLE = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE


@pytest.mark.parametrize("operator", ["ZipMap", "DictVectorizer", "CastMap"])
def test_every_version_is_bound(operator: str) -> None:
    assert unbound_names(operator, ML) == []


def map_model(operator: str, key: int, value: int, attrs: dict[str, Any]) -> onnx.ModelProto:
    """A model of one node that takes a map."""
    taken = onnx.ValueInfoProto(name="x")
    taken.type.map_type.key_type = key
    taken.type.map_type.value_type.tensor_type.elem_type = value
    node = helper.make_node(operator, ["x"], ["y"], domain=ML, **attrs)
    graph = helper.make_graph([node], "graph", [taken], [onnx.ValueInfoProto(name="y")])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("labels", [["b", "a", "c"], [5, -7, 9]])
def test_zip_map(labels: list[Any]) -> None:
    attrs = {"classlabels_strings" if isinstance(labels[0], str) else "classlabels_int64s": labels}
    ran = run_ml("ZipMap", [floats(4, 3)], attrs, dynamic=True)
    run_ml("ZipMap", [floats(3)], attrs)
    x = torch.randn(2, 3, requires_grad=True)
    ran.model(x)[1][labels[2]].backward()
    assert x.grad is not None and x.grad.tolist() == [[0, 0, 0], [0, 0, 1]]


def test_zip_map_of_other_columns() -> None:
    with pytest.raises(OnnxgenError, match="3 labels for 2 columns"):
        generate(ml_model("ZipMap", [floats(4, 2)], {"classlabels_int64s": [1, 2, 3]}, 1, 1))
    with pytest.raises(OnnxgenError, match="the node needs either classlabels_strings or"):
        generate(ml_model("ZipMap", [floats(4, 2)], {}, 1, 1))


NUMBERS = {"z": 1.5, "q": 3.0}
VECTORS = [
    (STR, FLOAT, {"string_vocabulary": ["a", "z"]}, NUMBERS, None),
    (INT, FLOAT, {"int64_vocabulary": [3, 1]}, {1: 2.5, 7: 1.0}, None),
    # onnxruntime takes no others from Python
    (STR, DOUBLE, {"string_vocabulary": ["a", "z"]}, NUMBERS, np.array([[0, 1.5]])),
    (STR, INT, {"string_vocabulary": ["a", "z"]}, {"z": 4}, np.array([[0, 4]])),
    (INT, STR, {"int64_vocabulary": [3, 1]}, {1: "u"}, np.array([["", "u"]], object)),
]


@pytest.mark.parametrize("key,value,attrs,given,expected", VECTORS)
def test_dict_vectorizer(key: int, value: int, attrs: dict[str, Any], given: dict[Any, Any], expected: Any) -> None:
    model = map_model("DictVectorizer", key, value, attrs)
    ran = run_model(model, {"x": given})
    assert_same(ran.outputs, run_onnxruntime(model, {"x": given}) if expected is None else [expected])


CASTS = [
    (FLOAT, {"cast_to": "TO_FLOAT"}, {3: 1.5, 1: 2.0}, None),
    (FLOAT, {"cast_to": "TO_STRING"}, {3: 1.5, 1: 2.0}, None),
    (FLOAT, {"cast_to": "TO_INT64"}, {3: 1.5, 1: -2.7}, None),
    (FLOAT, {"cast_to": "TO_INT64", "map_form": "SPARSE", "max_map": 5}, {3: 1.7, 1: -2.5, 8: 1.0}, None),
    (FLOAT, {"cast_to": "TO_STRING", "map_form": "SPARSE", "max_map": 3}, {1: -2.5}, None),
    (FLOAT, {"map_form": "SPARSE", "max_map": 3}, {1: -2.5}, None),
    (STR, {"cast_to": "TO_FLOAT"}, {3: "1.5", 1: "2"}, np.array([[2, 1.5]], np.float32)),
    (STR, {"cast_to": "TO_INT64"}, {3: "15", 1: "-2"}, np.array([[-2, 15]])),
    (STR, {"cast_to": "TO_STRING"}, {3: "a", 1: "b"}, np.array([["b", "a"]], object)),
]


@pytest.mark.parametrize("value,attrs,given,expected", CASTS)
def test_cast_map(value: int, attrs: dict[str, Any], given: dict[Any, Any], expected: Any) -> None:
    model = map_model("CastMap", INT, value, attrs)
    ran = run_model(model, {"x": given})
    assert_same(ran.outputs, run_onnxruntime(model, {"x": given}) if expected is None else [expected])


def test_numbers_of_maps_carry_gradients() -> None:
    model = run_model(map_model("DictVectorizer", STR, FLOAT, {"string_vocabulary": ["a", "z"]}), {"x": NUMBERS}).model
    given = torch.tensor(2.0, requires_grad=True)
    model({"z": given})[0, 1].square().backward()
    assert given.grad is not None and given.grad.item() == 4.0


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def classified(labels: list[str]) -> onnx.ModelProto:
    """A linear classifier whose scores are zipped, as scikit-learn's converter writes it."""
    attrs = {"coefficients": floats(9).tolist(), "intercepts": [0.1, 0.2, 0.3], "post_transform": "SOFTMAX"}
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain=ML, offset=[0.1, 0.2, 0.3], scale=[1.0, 2.0, 3.0]),
        helper.make_node("LinearClassifier", ["s"], ["label", "p"], domain=ML, classlabels_strings=labels, **attrs),
        helper.make_node("ZipMap", ["p"], ["zipped"], domain=ML, classlabels_strings=labels),
    ]
    maps = helper.make_map_type_proto(STR, helper.make_tensor_type_proto(FLOAT, []))
    outputs = [
        helper.make_tensor_value_info("label", STR, ["n"]),
        helper.make_value_info("zipped", helper.make_sequence_type_proto(maps)),
    ]
    graph = helper.make_graph(nodes, "graph", [helper.make_tensor_value_info("x", FLOAT, ["n", 3])], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(ML, 1)], ir_version=8)


def test_verify_compares_maps(tmp_path: Path) -> None:
    path = saved(tmp_path, classified(["a", "b", "c"]))
    write(path, tmp_path / "net.py")
    report = verify(path, tmp_path / "net.py")
    assert report.agrees and [o.name for o in report.runs[0].outputs] == ["label", "zipped"]
    before, _, after = (tmp_path / "net.py").read_text().rpartition('"b"')
    (tmp_path / "net.py").write_text(f'{before}"q"{after}')
    assert not verify(path, tmp_path / "net.py").agrees


@pytest.mark.parametrize("operator", ["DictVectorizer", "CastMap"])
def test_verify_draws_maps(tmp_path: Path, operator: str) -> None:
    key, attrs = (STR, {"string_vocabulary": ["a", "b"]}) if operator == "DictVectorizer" else (INT, {})
    path = saved(tmp_path, map_model(operator, key, FLOAT, attrs))
    write(path, tmp_path / "net.py")
    assert verify(path, tmp_path / "net.py").agrees


def test_trained_numbers_go_back_into_their_attributes(tmp_path: Path) -> None:
    path = saved(tmp_path, classified(["a", "b", "c"]))
    write(path, tmp_path / "net.py")
    from onnxgen.runtime.load import from_pretrained, imported

    with imported(tmp_path / "net.py") as file:
        model = from_pretrained(file, tmp_path / "net.py")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp_path / "trained.safetensors")
    export(tmp_path / "net.py", weights=tmp_path / "trained.safetensors", out=tmp_path / "back.onnx")
    before, after = onnx.load(path).graph.node, onnx.load(tmp_path / "back.onnx").graph.node
    for old, new in zip(before, after):
        for a, b in zip(old.attribute, new.attribute):
            moved = 1.0 if a.name in ("coefficients", "intercepts") else 0.0  # not the scaler of the input
            np.testing.assert_allclose(b.floats, np.array(a.floats) + moved, rtol=1e-6)
            assert (a.name, a.strings, a.s) == (b.name, b.strings, b.s)
