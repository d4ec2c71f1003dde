"""`--dtype`: the whole network in another floating point type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper as h
from onnx import numpy_helper as nh

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.options import Options
from tests.conftest import ROOT, shared_models
from tests.support.real import imported

DTYPES = ("float16", "bfloat16", "float64")
SEVERAL = [e for e in shared_models("net", "graph") if e.id == "absent" or "transformers_test" in e.id][:12]


def network(folder: Path, *nodes: onnx.NodeProto, inputs: str, **stored: Any) -> Path:
    given = {"x": (onnx.TensorProto.FLOAT, ["n", 4]), "m": (onnx.TensorProto.INT64, ["n", 3])}
    ports = [h.make_tensor_value_info(name, *given[name]) for name in inputs]
    result = h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    tensors = [nh.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = h.make_graph(nodes, "g", ports, [result], tensors)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_casts_make_is_of_the_type_too(dtype: str, tmp_path: Path) -> None:
    """A mask of -3.4e38, which half precision has not; and the scales of a Resize, which stay."""
    path = network(
        tmp_path,
        h.make_node("Cast", ["m"], ["kept"], to=onnx.TensorProto.FLOAT),
        h.make_node("Sub", ["one", "kept"], ["left_out"]),
        h.make_node("Mul", ["left_out", "lowest"], ["mask"]),
        h.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["scores"]),
        h.make_node("Add", ["scores", "mask"], ["masked"]),
        h.make_node("Softmax", ["masked"], ["p"], axis=-1),
        h.make_node("Unsqueeze", ["p", "axes"], ["image"]),
        h.make_node("Resize", ["image", "", "scales"], ["y"], mode="nearest"),
        inputs="xm",
        one=np.float32(1),
        lowest=np.float32(np.finfo(np.float32).min),
        axes=np.array([0, 1]),
        scales=np.array([1, 1, 1.1, 3], np.float32),
        **{"fc.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "fc.bias": np.zeros(3, np.float32)},
    )
    onnxgen.generate(path, tmp_path / "model.py", Options(dtype=dtype))
    kind = getattr(torch, dtype)
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    x, m = torch.rand(20, 4), torch.tensor([[1, 0, 1]] * 20)
    y = model(x.to(kind), m)
    (expected,) = onnxruntime.InferenceSession(path).run(None, {"x": x.numpy(), "m": m.numpy()})
    assert y.dtype == kind and y.shape == (1, 1, 22, 9)
    np.testing.assert_allclose(y.detach().float().numpy(), expected, 2e-2, 2e-2)
    assert f"x  {dtype}" in (tmp_path / "model.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", SEVERAL)
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_transformers(entry: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    """No two types meet; whether values agree to so few digits is the network's."""
    try:
        onnxgen.generate(entry["path"], tmp_path / "model.py", Options(dtype=dtype))
    except OnnxgenError:
        pytest.skip("the file is refused")
    report = onnxgen.verify(entry["path"], tmp_path / "model.py", runs=1)
    (run,) = report.runs
    assert not run.error and all(o.got == o.expected for o in run.outputs), report.problems()
    assert dtype != "float64" or not report.differs


def test_classical_operators_are_refused(tmp_path: Path) -> None:
    node = h.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")
    path = network(tmp_path, node, inputs="x")
    model = onnx.load(path)
    model.opset_import.append(h.make_opsetid("ai.onnx.ml", 3))
    onnx.save(model, path)
    with pytest.raises(OnnxgenError, match=r"ai\.onnx\.ml\.Normalizer.*float32.*leave --dtype out"):
        onnxgen.generate(path, tmp_path / "model.py", Options(dtype="float16"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_held_and_layers_are_as_ever(dtype: str, tmp_path: Path) -> None:
    """The rate of a Dropout stays a number of Python's; gradients are compared in float64."""
    onnxgen.generate(ROOT / "samples/mnist/mnist.onnx", tmp_path / "model.py", Options(dtype=dtype))
    assert "nn.Dropout(0.3)" in (tmp_path / "model.py").read_text(encoding="utf-8")
    report = onnxgen.verify(ROOT / "samples/mnist/mnist.onnx", tmp_path / "model.py", runs=1)
    assert not report.differs and report.gradients.groups == report.gradients.held > 0


def deep(folder: Path, layers: int = 8) -> Path:
    """A network that makes small differences larger: half precision is not enough for two digits of its output."""
    rng, nodes, stored, last = np.random.default_rng(0), [], {}, "x"
    for i in range(layers):
        stored[f"fc{i}.weight"] = rng.normal(0, 1.4, (4, 4)).astype(np.float32)
        nodes.append(h.make_node("MatMul", [last, f"fc{i}.weight"], [f"h{i}"]))
        nodes.append(h.make_node("Tanh", [f"h{i}"], [last := f"a{i}"]))
    nodes.append(h.make_node("Identity", [last], ["y"]))
    return network(folder, *nodes, inputs="x", **stored)


def test_half_precision_of_a_deep_network_is_measured(tmp_path: Path) -> None:
    """The bound is how far the file itself moves when every result and weight is rounded; wrong weights are past it."""
    path, module = deep(tmp_path), tmp_path / "model.py"
    onnxgen.generate(path, module, Options(dtype="float16"))
    report = onnxgen.verify(path, module)
    assert report.agrees, report.problems()
    assert any("results of onnxruntime differ as much" in note for note in report.notes)
    model = imported(module).Model.from_pretrained()
    with torch.no_grad():
        model.fc3.weight[0] += 0.5
    wrong = onnxgen.verify(path, model, options=Options(dtype="float16"))
    assert wrong.differs


def test_what_rounding_hides_is_not_told_apart(tmp_path: Path) -> None:
    """bfloat16 moves this output by more than a twentieth: neither equal nor different."""
    path, module = deep(tmp_path), tmp_path / "model.py"
    onnxgen.generate(path, module, Options(dtype="bfloat16"))
    report = onnxgen.verify(path, module, runs=1, sizes={"n": 64})
    assert not report.agrees and not report.differs and "rounding every bfloat16 moves" in report.untold["y"]


def test_gradients_of_many_elements_fit_half_precision(tmp_path: Path) -> None:
    """Each of 70,000 rows adds one to the gradient of the bias: float16 ends at 65,504."""
    stored = {"fc.weight": np.ones((4, 2), np.float32), "fc.bias": np.zeros(2, np.float32)}
    path = network(tmp_path, h.make_node("Gemm", ["x", "fc.weight", "fc.bias"], ["y"]), inputs="x", **stored)
    onnxgen.generate(path, tmp_path / "model.py", Options(dtype="float16"))
    report = onnxgen.verify(path, tmp_path / "model.py", runs=1, sizes={"n": 70_000})
    assert report.agrees and report.gradients.reached == 2, report.problems()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_half_precision_network_between_casts_has_the_type(dtype: str, tmp_path: Path) -> None:
    """Ports of float32 around a network of float16: what is between the Casts is not a size."""
    weight = np.linspace(-1, 1, 12).astype(np.float16).reshape(4, 3)
    path = network(
        tmp_path,
        h.make_node("Cast", ["x"], ["half"], to=onnx.TensorProto.FLOAT16),
        h.make_node("MatMul", ["half", "fc.weight"], ["wide"]),
        h.make_node("Tanh", ["wide"], ["bounded"]),
        h.make_node("Cast", ["bounded"], ["y"], to=onnx.TensorProto.FLOAT),
        inputs="x",
        **{"fc.weight": weight},
    )
    onnxgen.generate(path, tmp_path / "model.py", Options(dtype=dtype))
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    kind = getattr(torch, dtype)
    assert {p.dtype for p in model.parameters()} == {kind}
    x = np.random.default_rng(0).normal(size=(20, 4))
    made = model(torch.from_numpy(x).to(kind)).detach().numpy()
    np.testing.assert_allclose(made, np.tanh(x @ weight.astype(np.float64)), atol=1e-6)


def test_a_number_that_is_an_output_has_the_type(tmp_path: Path) -> None:
    path = network(tmp_path, h.make_node("Constant", [], ["y"], value_float=42.0), inputs="")
    onnxgen.generate(path, tmp_path / "model.py", Options(dtype="float16"))
    assert imported(tmp_path / "model.py").Model.from_pretrained()().dtype == torch.float16


def test_numbers_that_the_file_writes_and_draws_are_of_the_type(tmp_path: Path) -> None:
    """However a Constant spells them, and though RandomUniform and RandomNormal draw float32 if nothing is said."""
    path = network(
        tmp_path,
        h.make_node("Constant", [], ["one"], value_float=0.75),
        h.make_node("Constant", [], ["row"], value_floats=[1.0, -2.0, 0.5, 4.0]),
        h.make_node("RandomUniform", [], ["drawn"], shape=[4], low=0.0, high=1e-6),
        h.make_node("RandomNormal", [], ["normal"], shape=[4], mean=0.25, scale=1e-6),
        h.make_node("Mul", ["x", "row"], ["scaled"]),
        h.make_node("Add", ["scaled", "one"], ["moved"]),
        h.make_node("Sum", ["moved", "drawn", "normal"], ["y"]),
        inputs="x",
    )
    x = torch.tensor([[0.5, 1.0, -1.0, 2.0]])
    for dtype in DTYPES:
        onnxgen.generate(path, tmp_path / "model.py", Options(dtype=dtype))
        y = imported(tmp_path / "model.py").Model.from_pretrained()(x.to(getattr(torch, dtype)))
        assert y.dtype == getattr(torch, dtype), dtype
        np.testing.assert_allclose(y.detach().float().numpy(), [[1.5, -1.0, 0.5, 9.0]], 1e-2)
