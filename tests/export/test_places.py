"""Wherever a file stores a tensor, a trained value finds its way there, and onnxruntime takes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import onnxgen
from onnxgen.export import ExportReport, files
from onnxgen.export.report import ANEW, BACK
from onnxgen.options import Options
from tests.export.trained import blank, perturbed
from tests.support.real import imported

FLOAT = TensorProto.FLOAT
W = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
B = np.random.default_rng(2).standard_normal(3).astype(np.float32)
X = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)


def value(name: str, *dims: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[onnx.TensorProto] = (), kind: int = FLOAT, **more: Any
) -> onnx.ModelProto:
    """From x [batch, 4] to y, at opset 17, IR version 8."""
    graph = helper.make_graph(
        nodes, "g", [value("x", "batch", 4, kind=kind)], [value("y", "batch", 3, kind=kind)], tensors
    )
    made: dict[str, Any] = {
        "opset_imports": [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
        "ir_version": 8,
    }
    return helper.make_model(graph, **{**made, **more})


def tensor(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
    return numpy_helper.from_array(array, name)


def gemm(*more: onnx.NodeProto, out: str = "y") -> list[onnx.NodeProto]:
    return [*more, helper.make_node("Gemm", ["x", "w", "b"], [out])]


class Trained:
    """A file, its module with moved weights, and what the export made of it."""

    def __init__(self, proto: onnx.ModelProto, folder: Path, options: Options | None = None, **how: Any) -> None:
        self.path, self.out, module = folder / "m.onnx", folder / "new" / "tuned.onnx", folder / "model.py"
        self.out.parent.mkdir()
        onnx.save(proto, self.path, **how)
        self.files = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        onnxgen.generate(self.path, module, options or Options())
        self.model: nn.Module = imported(module).Model.from_pretrained().eval()
        self.model.load_state_dict(perturbed(self.model))
        self.report: ExportReport = onnxgen.export(module, weights=self.model, out=self.out)
        assert {p: p.read_bytes() for p in self.files} == self.files, "the original is as it was"

    def agrees(self, x: Any = X, atol: float = 1e-5) -> np.ndarray[Any, Any]:
        """onnxruntime on the new file and the module in PyTorch; not what the old file computes."""
        (new,), (old,) = (ort.InferenceSession(p).run(None, {"x": x}) for p in (self.out, self.path))
        with torch.no_grad():
            expected = self.model(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(new, expected, 1e-3, atol)
        assert np.abs(new.astype(np.float64) - old).max() > 1e-3
        return np.asarray(new)

    def same_graph(self) -> bool:
        return blank(onnx.load(self.out)) == blank(onnx.load(self.path))


def test_typed_fields_stay_typed(tmp_path: Path) -> None:
    w = helper.make_tensor("w", FLOAT, W.shape, W.reshape(-1).tolist())
    done = Trained(model(gemm(), [w, tensor("b", B)]), tmp_path)
    done.agrees()
    new = {t.name: t for t in onnx.load(done.out).graph.initializer}
    assert len(new["w"].float_data) == 12 and not new["w"].raw_data and new["b"].raw_data
    assert done.report.changed == ["w", "b"] and done.same_graph()


@pytest.mark.parametrize(("kind", "dtype", "atol"), [(10, np.float16, 1e-2), (11, np.float64, 1e-9)])
@pytest.mark.parametrize("raw", [True, False])
def test_other_types(kind: int, dtype: Any, atol: float, raw: bool, tmp_path: Path) -> None:
    def stored(name: str, array: np.ndarray[Any, Any]) -> onnx.TensorProto:
        array = array.astype(dtype)
        return tensor(name, array) if raw else helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())

    done = Trained(model(gemm(), [stored("w", W), stored("b", B)], kind=kind), tmp_path)
    done.agrees(X.astype(dtype), atol)
    assert bool(onnx.load(done.out).graph.initializer[0].raw_data) == raw and done.same_graph()


def test_constants_of_every_kind(tmp_path: Path) -> None:
    where = numpy_helper.from_array(np.array([0, 2], np.int64), "i")
    sparse = helper.make_sparse_tensor(tensor("v", B[:2]), where, [3])
    nodes = [
        helper.make_node("Constant", [], ["w"], value=tensor("", W)),
        helper.make_node("Constant", [], ["b"], value_floats=B.tolist()),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
        helper.make_node("Constant", [], ["f"], value_float=0.5),
        *gemm(out="a"),
        helper.make_node("Mul", ["a", "s"], ["m"]),
        helper.make_node("Add", ["m", "f"], ["y"]),
    ]
    done = Trained(model(nodes), tmp_path, Options(trainable="^(w|b|s|f)$"))
    done.agrees()
    assert sorted(done.report.changed) == ["b", "f", "s", "w"]
    assert done.report.notes == ["s was sparse and is now dense"]
    new = onnx.load(done.out)
    assert [n.attribute[0].name for n in new.graph.node[:4]] == ["value", "value_floats", "value", "value_float"]
    assert new.graph.node[4:] == onnx.load(done.path).graph.node[4:]


def test_a_sparse_initializer_stays_sparse_while_its_zeros_are_zeros(tmp_path: Path) -> None:
    rows = np.array([[0, 1], [2, 2], [3, 0]], np.int64)
    proto = model(gemm(), [tensor("b", B)])
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(tensor("w", np.array([1, 2, 3], np.float32)), tensor("i", rows), [4, 3])
    )
    onnx.save(proto, tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    network = imported(tmp_path / "model.py").Model.from_pretrained()
    with torch.no_grad():
        (weight,) = (p for p in network.parameters() if p.ndim == 2)
        weight.mul_(3)
    report = onnxgen.export(tmp_path / "model.py", weights=network, out=tmp_path / "tuned.onnx")
    new = onnx.load(tmp_path / "tuned.onnx").graph.sparse_initializer[0]
    assert numpy_helper.to_array(new.values).tolist() == [3, 6, 9] and report.changed == ["w"] and not report.notes


def test_initializers_that_are_inputs_too(tmp_path: Path) -> None:
    proto = model(gemm(), [tensor("w", W), tensor("b", B)], ir_version=3)
    proto.graph.input.extend([value("w", 4, 3), value("b", 3)])
    done = Trained(proto, tmp_path)
    done.agrees()
    assert done.same_graph() and [i.name for i in onnx.load(done.out).graph.input] == ["x", "w", "b"]


def test_tensors_of_inner_graphs(tmp_path: Path) -> None:
    def branch(name: str, scale: float) -> onnx.GraphProto:
        nodes = [helper.make_node("MatMul", ["x", f"{name}.weight"], [name])]
        weight = tensor(f"{name}.weight", W * np.float32(scale))
        return helper.make_graph(nodes, name, [], [value(name, None, 3)], [weight])

    total = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["cond"]),
        helper.make_node("If", ["cond"], ["y"], then_branch=branch("one", 1), else_branch=branch("two", 2)),
    ]
    done = Trained(model(total, [tensor("zero", np.float32(0))]), tmp_path)
    for x in (np.abs(X), -np.abs(X)):
        done.agrees(x)
    assert sorted(done.report.changed) == ["one.weight", "two.weight"] and done.same_graph()


def test_external_data_goes_to_a_file_of_its_own(tmp_path: Path) -> None:
    proto = model(gemm(), [tensor("w", W), tensor("b", B)])
    done = Trained(proto, tmp_path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert tmp_path / "weights.bin" in done.files
    assert done.report.wrote == [done.out, done.out.with_name("tuned.onnx.data")]
    assert sorted(p.name for p in done.out.parent.iterdir()) == ["tuned.onnx", "tuned.onnx.data"]
    (tmp_path / "weights.bin").rename(tmp_path / "gone")
    new = ort.InferenceSession(done.out).run(None, {"x": X})[0]
    with torch.no_grad():
        np.testing.assert_allclose(new, done.model(torch.from_numpy(X)).numpy(), 1e-3, 1e-5)
    places = [e.value for t in onnx.load(done.out, load_external_data=False).graph.initializer for e in t.external_data]
    assert set(places) >= {"tuned.onnx.data"} and "weights.bin" not in places


def test_what_a_protobuf_cannot_hold_goes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_PROTOBUF_BYTES", 40)
    monkeypatch.setattr(files, "MAX_INLINE_BYTES", 20)
    done = Trained(model(gemm(), [tensor("w", W), tensor("b", B)]), tmp_path)
    done.agrees()
    inside = {t.name: t.data_location for t in onnx.load(done.out, load_external_data=False).graph.initializer}
    assert inside == {"w": TensorProto.EXTERNAL, "b": TensorProto.DEFAULT}


def calls(*names: str) -> onnx.ModelProto:
    """A local function that stores a matrix, called for each name; the results are added."""
    body = [
        helper.make_node("Constant", [], ["t"], value=tensor("", W)),
        helper.make_node("MatMul", ["a", "t"], ["r"]),
    ]
    function = helper.make_function("own", "Times", ["a"], ["r"], body, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Times", ["x"], [n], domain="own", name=n) for n in names]
    nodes += [helper.make_node("Sum", list(names), ["y"])]
    return model(nodes, functions=[function])


def test_a_tensor_of_a_local_function(tmp_path: Path) -> None:
    done = Trained(calls("one"), tmp_path)
    done.agrees()
    assert done.report.method == BACK and done.report.changed == ["t"] and done.same_graph()


def test_a_tensor_of_a_local_function_for_two_calls(tmp_path: Path) -> None:
    """Called twice it has one tensor for both: where they differ now, the network is exported anew, and says why."""
    done = Trained(calls("one", "two"), tmp_path)
    done.agrees()
    assert done.report.method == ANEW and "once for all calls" in done.report.why
