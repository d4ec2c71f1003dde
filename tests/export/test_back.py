"""Trained values written back into the original graph: onnxruntime runs them, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import onnxgen
from onnxgen.export.report import BACK
from tests.conftest import ROOT
from tests.export.trained import blank, perturbed
from tests.support.real import imported

MNIST = ROOT / "samples" / "mnist" / "mnist.onnx"


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """The sample's original and module in a folder of their own."""
    (tmp_path / "mnist.onnx").write_bytes(MNIST.read_bytes())
    onnxgen.generate(tmp_path / "mnist.onnx", tmp_path / "model.py")
    return tmp_path


def trained(module: Path, change: Callable[[torch.nn.Module], dict[str, Tensor]] = perturbed) -> torch.nn.Module:
    """The model of a generated file with other values in it."""
    model: torch.nn.Module = imported(module).Model.from_pretrained().eval()
    model.load_state_dict(change(model))
    return model


def outputs(path: Path, *inputs: Any) -> list[Any]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)})


def test_the_new_file_computes_what_the_trained_module_does(mnist: Path) -> None:
    model = trained(mnist / "model.py")
    save_file(model.state_dict(), mnist / "best.safetensors")
    report = onnxgen.export(mnist / "model.py", weights=mnist / "best.safetensors", out=mnist / "tuned.onnx")
    x = np.random.default_rng(0).random((5, 1, 28, 28), np.float32)
    (new,), (old,) = outputs(mnist / "tuned.onnx", x), outputs(MNIST, x)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(new, expected, 1e-3, 1e-5)
    assert np.abs(new - old).max() > 1e-3, "training did change something"
    assert report.method == BACK and report.verified is not None and report.verified.agrees
    assert len(report.changed) == report.tensors == 18 and report.wrote == [mnist / "tuned.onnx"]


def test_nothing_but_values_differs(mnist: Path) -> None:
    onnxgen.export(mnist / "model.py", weights=trained(mnist / "model.py"), out=mnist / "tuned.onnx")
    new, old = onnx.load(mnist / "tuned.onnx"), onnx.load(MNIST)
    assert new != old
    assert blank(new) == blank(old)


def test_without_training_the_bytes_are_the_same(mnist: Path) -> None:
    report = onnxgen.export(mnist / "model.py")
    assert report.wrote == [mnist / "mnist-tuned.onnx"] and report.changed == []
    assert onnx.load(mnist / "mnist-tuned.onnx") == onnx.load(MNIST)


def test_a_constant_that_is_there_twice(tmp_path: Path) -> None:
    """onnxruntime loads the file; where both are alike they are one, which is trained."""
    w = onnx.numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    nodes = [onnx.helper.make_node("Constant", [], ["w"], value=w)] * 2
    nodes.append(onnx.helper.make_node("Mul", ["x", "w"], ["y"]))
    ports = [[onnx.helper.make_tensor_value_info(name, 1, ["n", 2])] for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", *ports)
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    onnxgen.generate(path, tmp_path / "model.py")
    assert onnxgen.verify(path, tmp_path / "model.py").agrees
    model = imported(tmp_path / "model.py").Model.from_pretrained()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    report = onnxgen.export(tmp_path / "model.py", weights=model, out=tmp_path / "out.onnx")
    assert report.method == BACK
    got = ort.InferenceSession(tmp_path / "out.onnx").run(None, {"x": np.ones((1, 2), np.float32)})[0]
    np.testing.assert_array_equal(got, [[3, 6]])


def test_constants_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    made = [onnx.numpy_helper.from_array(np.array([1, i], np.float32), "w") for i in (1, 2)]
    nodes = [onnx.helper.make_node("Constant", [], ["w"], value=w) for w in made]
    nodes.append(onnx.helper.make_node("Mul", ["x", "w"], ["y"]))
    ports = [[onnx.helper.make_tensor_value_info(name, 1, ["n", 2])] for name in "xy"]
    graph = onnx.helper.make_graph(nodes, "g", *ports)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(onnxgen.OnnxgenError, match="duplicate name w"):
        onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
