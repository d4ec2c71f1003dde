"""Names are obeyed if they save source, or if they are keys of a PyTorch state dict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxgen import generate
from onnxgen.graph.annotations import NAMELESS, SCOPE
from onnxgen.graph.nodes import all_nodes
from onnxgen.options import Options
from onnxgen.pipeline import read_and_simplify
from onnxgen.scopes.origin import shortest


@dataclass
class Text:
    length: int


def network(path: Path, weight: str, producer: str = "", layers: int = 6) -> Path:
    """Layers of a matrix, a bias and a Relu. `weight`: the names of the matrices, with the number of the layer."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], {}, "x"
    for i in range(layers):
        at = (i, i) if "w" in weight else (2 * i, 2 * i + 1)
        matrix, bias = weight.format(at[0]), weight.format(at[1]).replace("weight", "bias").replace("w_", "b_")
        weights[matrix], weights[bias] = random.standard_normal((4, 4)), random.standard_normal(4)
        nodes.append(helper.make_node("MatMul", [x, matrix], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", bias], [f"a{i}"]))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [x := f"r{i}"]))
    stored = [numpy_helper.from_array(v.astype("float32"), k) for k, v in weights.items()]
    io = [helper.make_tensor_value_info(name, 1, ["n", 4]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "g", io[:1], io[1:], stored)
    opsets = [helper.make_opsetid("", 13)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, producer_name=producer, ir_version=8), path)
    return path


def reading(path: Path, obeyed: int, other: int) -> tuple[Text, ir.Model]:
    """Return what `shortest` takes, if the sources have these lengths with names and without."""
    model = read_and_simplify(path, Options())
    return shortest(model, Options(), lambda: Text(other if NAMELESS.get(model.graph) else obeyed)), model


@pytest.mark.parametrize(("obeyed", "other", "follows"), [(100, 100, True), (104, 100, True), (106, 100, False)])
def test_the_shorter_source_is_taken(obeyed: int, other: int, follows: bool, tmp_path: Path) -> None:
    made, model = reading(network(tmp_path / "net.onnx", "part{}_weight"), obeyed, other)
    assert made.length == (obeyed if follows else other)
    assert NAMELESS.get(model.graph) is not follows
    assert any(SCOPE.get(node) for node in all_nodes(model.graph)) is follows, "the scopes of the reading are left"


@pytest.mark.parametrize("producer", ["pytorch", "onnxruntime.transformers", ""])
def test_keys_of_a_state_dict_are_obeyed(producer: str, tmp_path: Path) -> None:
    made, _ = reading(network(tmp_path / "net.onnx", "layers.{}.fc.weight", producer), 1000, 10)
    assert made.length == 1000


@pytest.mark.parametrize(("kept", "follows"), [(12, True), (5, True), (4, False)])
def test_keys_of_most_tensors(kept: int, follows: bool, tmp_path: Path) -> None:
    """An exporter that folds norms loses the keys of their layers, and no state dict has those of the others alone."""
    path = network(tmp_path / "net.onnx", "part{}.fc.weight", "pytorch")
    model = onnx.load(path)
    lost = {t.name: f"onnx::Conv_{i}" for i, t in enumerate(model.graph.initializer) if i >= kept}
    for tensor in model.graph.initializer:
        tensor.name = lost.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [lost.get(name, name) for name in node.input]
    onnx.save(model, path)
    made = generate(path)
    assert ("self.part0" in made.source) is follows, made.source
    assert ("self.blocks = nn.Sequential(" in made.source) is not follows, made.source


@pytest.mark.parametrize(
    "weight", ["linear_{}.w_0", "linear_{}.w_0_deepcopy_7", "p2o.helper.constant.{}", "val_{}_scale", "t{}"]
)
def test_counters_make_no_modules(weight: str, tmp_path: Path) -> None:
    """A count over the file names no module and no parameter: six layers are one class."""
    made = generate(network(tmp_path / "net.onnx", weight))
    assert made.source.count("(nn.Module):") == 2
    assert "self.fc = nn.Linear(4, 4)" in made.source
    assert "num_blocks=6" in made.source and "[Block() for _ in range(num_blocks)]" in made.source
