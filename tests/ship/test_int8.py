"""8-bit integers lose no more of a run's metric than they may, and what stays in floats is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import nn

import onnxgen
from onnxgen.errors import OnnxgenError
from onnxgen.ship import ship
from onnxgen.ship.targets.int8 import _between
from onnxgen.training import fit
from onnxgen.training.runs.metrics import points_lost
from tests.training.shipping import network

RANDOM = np.random.default_rng(0)
NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,8] x) => (float[N,5] y) { h = MatMul(x, a)
 r = Tanh(h)
 y = MatMul(r, b) }"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run whose labels are what its network says. One column is so large that 8 bits say nothing of the others.

    The first layer takes no notice of that column.
    """
    folder = tmp_path_factory.mktemp("rows")
    a, b = RANDOM.standard_normal((8, 16)).astype(np.float32), RANDOM.standard_normal((16, 5)).astype(np.float32)
    a[0] = 0
    model = onnx.parser.parse_model(NET)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for x, name in ((a, "a"), (b, "b")))
    onnx.save(model, folder / "net.onnx")
    onnxgen.generate(folder / "net.onnx", folder / "model.py")
    x = RANDOM.standard_normal((200, 8)).astype(np.float32)
    x[:, 0] *= 3000
    data = {"x": x, "label": (np.tanh(x @ a) @ b).argmax(1)}
    fit(folder / "model.py", data, out=folder / "run", epochs=1, lr=1e-9, val=0.5, show="nothing", device="cpu")
    return folder / "run", data


def kinds(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_layers_that_lose_most_stay_in_floats(rows: tuple[Path, Any], tmp_path: Path) -> None:
    run, data = rows
    report = ship(run, "onnx-int8", tmp_path / "net.onnx", data=data)
    assert report.before["accuracy"] == 1 and report.after["accuracy"] >= 0.99
    assert {"MatMul", "MatMulInteger"} <= {*kinds(tmp_path / "net.onnx")}
    notes = "\n".join(report.notes)
    assert "1 of 2 layers and 39% of the numbers are 8-bit integers" in notes and "times the size" in notes
    assert "in floats, since they lose most (noise in the outputs): MatMul_0 (" in notes
    assert "accuracy 1 -> " in notes and "on 100 samples of the val part" in notes


def test_a_person_may_allow_more(rows: tuple[Path, Any], tmp_path: Path) -> None:
    run, data = rows
    report = ship(run, "onnx-int8", tmp_path / "net.onnx", data=data, may_lose=100)
    assert report.after["accuracy"] < 0.8 and "MatMul" not in kinds(tmp_path / "net.onnx")


def test_what_would_lose_more_is_refused(rows: tuple[Path, Any], tmp_path: Path) -> None:
    run, data = rows
    with pytest.raises(
        OnnxgenError,
        match=r"8-bit integers lose more than -1 points, also in half of the layers: accuracy 1 -> .*--may-lose \d\d",
    ):
        ship(run, "onnx-int8", tmp_path / "net.onnx", data=data, may_lose=-1)
    assert [*tmp_path.iterdir()] == []


def test_a_network_without_such_layers_is_refused(tmp_path: Path) -> None:
    import torch

    module = network(tmp_path, nn.PReLU(8), torch.zeros(2, 8))
    data = {"x": RANDOM.random((20, 8), np.float32), "y": RANDOM.random((20, 8), np.float32)}
    fit(module, data, target="y", out=tmp_path / "run", epochs=1, show="nothing", device="cpu", task="outputs")
    with pytest.raises(OnnxgenError, match="onnxruntime has integers for no layer of the network"):
        ship(tmp_path / "run", "onnx-int8", data=data)


def test_integers_go_from_one_convolution_to_the_next() -> None:
    graph = onnx.parser.parse_graph("""g (float[N,C,H,W] x, float[C,C,1,1] w) => (float[N,C,H,W] z) {
        [first] a = Conv(x, w)
        [relu] b = Relu(a)
        [norm] n = LayerNormalization(x, w)
        [add] c = Add(b, x)
        [second] d = Conv(c, w)
        [out] z = Relu(d) }""")
    assert _between(graph.node, {"first", "second"}) == {"relu", "add"}
    assert _between(graph.node, {"first"}) == set()


def test_points() -> None:
    assert points_lost("accuracy", 0.9, 0.88) == pytest.approx(2)
    assert points_lost("character_error", 0.1, 0.13) == pytest.approx(3)
    assert points_lost("loss", 0.5, 0.51) == pytest.approx(2) and points_lost("psnr", 20.0, 19.0) == pytest.approx(5)
    assert points_lost("perplexity", 10.0, 9.0) == pytest.approx(-10) and points_lost("loss", 0.0, 0.0) == 0
    assert points_lost("loss", 0.0, 1.0) == points_lost("accuracy", 0.9, np.nan) == np.inf
