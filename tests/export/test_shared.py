"""Tensors that a file stores once for several layers, and that training makes differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import onnxgen
from onnxgen.export import ExportReport
from onnxgen.export.report import BACK
from tests.export.trained import perturbed
from tests.support.exported import exported
from tests.support.real import imported

RANDOM = np.random.default_rng(0)


def back(proto: onnx.ModelProto, folder: Path, inputs: list[np.ndarray[Any, Any]]) -> tuple[ExportReport, nn.Module]:
    """Generate, move every value, write back, and hold onnxruntime's outputs to the module's."""
    onnx.save(proto, folder / "m.onnx")
    onnxgen.generate(folder / "m.onnx", folder / "model.py")
    model: nn.Module = imported(folder / "model.py").Model.from_pretrained().eval()
    model.load_state_dict(perturbed(model))
    report = onnxgen.export(folder / "model.py", weights=model, out=folder / "out.onnx")
    session = ort.InferenceSession(folder / "out.onnx")
    found = session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=False)})
    with torch.no_grad():
        expected = model(*map(torch.from_numpy, inputs))
    np.testing.assert_allclose(found[0], expected.numpy(), 1e-3, 1e-5)
    return report, model


def users(path: Path, name: str) -> list[tuple[str, int]]:
    """The operators that take a tensor, and as which of their inputs."""
    return [(n.op_type, i) for n in onnx.load(path).graph.node for i, v in enumerate(n.input) if v == name]


def conv_and_norm(ir_version: int = 8) -> onnx.ModelProto:
    """A convolution's bias, a norm's bias and its mean are one tensor; so are the norm's scale and its variance."""
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight", "zeros"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("BatchNormalization", ["r", "ones", "zeros", "zeros", "ones"], ["y"]),
    ]
    weight = RANDOM.standard_normal((4, 2, 3, 3)).astype(np.float32)
    tensors = {"conv.weight": weight, "zeros": np.zeros(4, np.float32), "ones": np.ones(4, np.float32)}
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 5, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 5, 5])
    stored = [numpy_helper.from_array(a, n) for n, a in tensors.items()]
    graph = helper.make_graph(nodes, "g", [image], [y], stored)
    if ir_version < 4:
        graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=ir_version)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_a_bias_shared_with_a_norms_bias_and_mean(ir_version: int, tmp_path: Path) -> None:
    x = RANDOM.standard_normal((3, 2, 5, 5)).astype(np.float32)
    report, _ = back(conv_and_norm(ir_version), tmp_path, [x])
    assert report.method == BACK and report.changed == ["conv.weight", "zeros", "ones"]
    assert report.added == ["zeros_2", "zeros_3", "ones_2"]
    new = onnx.load(tmp_path / "out.onnx")
    taken = {name: users(tmp_path / "out.onnx", name) for name in ("zeros", *report.added, "ones")}
    assert all(len(found) == 1 for found in taken.values()), taken
    norm = [i for found in taken.values() for op, i in found if op == "BatchNormalization"]
    assert sorted(norm) == [1, 2, 3, 4] and ("Conv", 2) in [u for found in taken.values() for u in found]
    declared = {i.name for i in new.graph.input}
    assert set(report.added) <= declared if ir_version < 4 else declared == {"x"}
    assert [n.op_type for n in new.graph.node] == ["Conv", "Relu", "BatchNormalization"]


def test_what_stays_equal_stays_shared(tmp_path: Path) -> None:
    onnx.save(conv_and_norm(), tmp_path / "m.onnx")
    onnxgen.generate(tmp_path / "m.onnx", tmp_path / "model.py")
    report = onnxgen.export(tmp_path / "model.py", out=tmp_path / "out.onnx")
    assert not report.changed and not report.added
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "m.onnx")


class Stacked(nn.Module):
    """Layers whose biases start as equal zeros, and norms as equal ones."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(6) for _ in range(3)])
        for layer in self.layers:
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms):
            x = norm(layer(x).relu() + x)
        return x


@pytest.mark.parametrize("case", ["legacy-11", "legacy-13", "legacy-17", "dynamo-18"])
def test_what_torch_stores_once(case: str, tmp_path: Path) -> None:
    """PyTorch's older exporter stores equal tensors once, and names the others by Identity nodes (at 11 the norm is
    spelled out, too)."""
    x = RANDOM.standard_normal((2, 6)).astype(np.float32)
    report, model = back(exported(Stacked(), [torch.from_numpy(x)], case), tmp_path, [x])
    assert report.method == BACK
    if case.startswith("legacy"):  # the other one shares nothing, and drops the addition of zeros
        assert report.added and sum(1 for _ in model.parameters()) == 12


OVERLAPPING = {
    "columns of a matrix": """(float[n, 8] x) => (float[n, 4] y) <float[8, 6] w = {W48}> {
        p = Slice (w, a, b, i)  q = Slice (w, c, d, i)  u = MatMul (x, p)  v = MatMul (x, q)  y = Add (u, v) }""",
    "a bias": """(float[n, 8] x) => (float[n, 4] y) <float[6] w = {W6}, float[4, 8] k = {W32}, float[4, 8] l = {W32}> {
        p = Slice (w, a, b, z)  q = Slice (w, c, d, z)  u = Gemm <transB = 1> (x, k, p)
        v = Gemm <transB = 1> (x, l, q)  y = Mul (u, v) }""",
}


@pytest.mark.parametrize("case", OVERLAPPING)
def test_slices_that_overlap(case: str, tmp_path: Path) -> None:
    """Two layers have slices of one tensor with some elements in common, which training makes different."""
    text = OVERLAPPING[case]
    bounds = (
        "int64[1] a = {0}, int64[1] b = {4}, int64[1] c = {2}, int64[1] d = {6}, int64[1] i = {1}, int64[1] z = {0}"
    )
    text = text.replace("}>", "}, " + bounds + ">", 1)
    for count in (48, 32, 6):
        text = text.replace(f"W{count}", ", ".join(f"{x:.3f}" for x in RANDOM.standard_normal(count)))
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    report, _ = back(proto, tmp_path, [RANDOM.standard_normal((3, 8)).astype(np.float32)])
    assert report.method == BACK


def test_a_norms_bias_and_mean_that_are_views_of_one_tensor(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4, 5] x) => (float[n, 4, 5] y)
        <float[1, 4] w = {0, 0, 0, 0}, float[4] s = {1, 2, 3, 4}, float[4] v = {4, 3, 2, 1}, int64[1] four = {4},
         int64[1] first = {0}> {
            b = Reshape (w, four)  m = Squeeze (w, first)  y = BatchNormalization (x, s, b, m, v) }"""
    )
    report, _ = back(proto, tmp_path, [RANDOM.standard_normal((2, 4, 5)).astype(np.float32)])
    assert report.method == BACK and report.added == ["w_2"]
    assert [users(tmp_path / "out.onnx", name) for name in ("w", "w_2")] == [[("Reshape", 0)], [("Squeeze", 0)]]
