"""The plugin that lies in the tree: the core works without it, and it is a plugin like any other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

import onnxgen
from onnxgen import OnnxgenError, Options
from onnxgen.export.report import BACK
from onnxgen.graph import operators
from onnxgen.pipeline import generate
from tests.ops.classical import ml_model
from tests.ops.harness import run_node
from tests.plugins.nets import saved


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """onnxgen without the plugins of its tree."""
    monkeypatch.setattr(operators, "BUNDLED", ())
    _forget()
    yield
    _forget()


def _forget() -> None:
    """What was asked of the operators so far holds for those of before; of this process, so for other tests, too."""
    for kept in (operators.bundled, operators._others):
        kept.cache_clear()


def linear() -> onnx.ModelProto:
    attrs = {"coefficients": [0.5, -1.25, 2.0], "intercepts": [0.75]}
    return ml_model("LinearRegressor", [np.ones((2, 3), np.float32)], attrs, 1, 1)


def test_the_core_works_without_it(bare: None, tmp_path: Path) -> None:
    run_node("Relu", [np.array([-1.0, 2.0], np.float32)])
    with pytest.raises(OnnxgenError, match=r"ai\.onnx\.ml\.LinearRegressor"):
        generate(saved(linear(), tmp_path / "a.onnx"), tmp_path / "a.py")


def test_named_as_a_plugin_it_writes_the_same(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = saved(linear(), tmp_path / "a.onnx")
    own = generate(path, tmp_path / "a.py").source
    request.getfixturevalue("bare")
    named = generate(path, tmp_path / "a.py", Options(plugins=["onnxgen.classical"]), force=True).source
    assert named == own and "nn.Linear(3, 1)" in own


AFFINE = """
import numpy as np
import onnxgen


@onnxgen.op(
    "Affine",
    domain="com.acme",
    tables=("gains",),
    infer=lambda n: [n.input(0)],
    reference=lambda x, gains: x * np.asarray(gains, np.float32),
)
def affine(b, X, gains):
    return b("x * g", x=X, g=gains)
"""


@pytest.mark.parametrize("compared", [True, False])
def test_a_table_of_a_users_plugin_is_written_back(compared: bool, tmp_path: Path) -> None:
    plugin, gains = tmp_path / "ops.py", [1.5, 2.5, 3.5, 0.75]
    plugin.write_text(AFFINE)
    node = onnx.helper.make_node("Affine", ["x"], ["y"], domain="com.acme", gains=gains)
    ports = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 4]) for name in "xy"]
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.acme", 1)]
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    path = saved(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    generated = generate(path, tmp_path / "m.py", Options(plugins=[str(plugin)]))
    assert generated.report.trainable["y:gains"][0]
    trained = {key: 2 * value for key, value in load_file(tmp_path / "m.safetensors").items()}
    save_file(trained, tmp_path / "t.safetensors")
    how = {"out": tmp_path / "out.onnx", "plugins": [str(plugin)], "verify": compared}
    report = onnxgen.export(tmp_path / "m.py", weights=tmp_path / "t.safetensors", **how)
    (written,) = onnx.load(tmp_path / "out.onnx").graph.node
    assert report.method == BACK
    assert onnx.helper.get_attribute_value(written.attribute[0]) == [2 * gain for gain in gains]
