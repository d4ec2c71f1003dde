"""Records of a graph: each change is seen, whatever pass makes it, and a record made from the last says as much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxgen.passes
from onnxgen.errors import STRICT
from onnxgen.options import Options
from onnxgen.paranoid import quick
from onnxgen.paranoid.claims import difference
from onnxgen.paranoid.picture import Made, Picture, take
from onnxgen.paranoid.quick import UNCOMPARED, QuickChecker, name_of
from onnxgen.pipeline import build
from onnxgen.reader import read
from tests.conftest import shared_models

NET = (
    '<ir_version: 8, opset_import: ["": 17]> net (float[n,4] x, bool c) => (float[n,4] y, float[n,4] z) '
    "<float[4] w = {1, 2, 3, 4}, float[4] v = {4, 3, 2, 1}> "
    "{ a = Add(x, w) b = LeakyRelu<alpha = 0.5>(a) y = Mul(b, v) "
    "z = If(c) <then_branch = one () => (float[n,4] p) { p = Tanh(b) }, "
    "else_branch = two () => (float[n,4] q) { q = Sigmoid(b) }> }"
)


def _new(node: ir.Node) -> ir.Node:
    made = ir.Node("", "Neg", [node.inputs[0]], version=13)
    assert node.graph is not None
    node.graph.insert_before(node, made)
    return made


def _branch(node: ir.Node) -> ir.Graph:
    return node.attributes["then_branch"].as_graph()


def _another_of_the_same_count(model: ir.Model, add: ir.Node) -> None:
    other = _new(add)
    add.outputs[0].replace_all_uses_with(other.outputs[0])
    model.graph.remove(add, safe=True)


def _moved(model: ir.Model, leaky: ir.Node, choice: ir.Node) -> None:
    model.graph.remove(leaky)
    _branch(choice).insert_before(_branch(choice)[0], leaky)


Change = Callable[[ir.Model, ir.Node, ir.Node, ir.Node, ir.Node], object]
CHANGES: dict[str, Change] = {
    "an input": lambda model, add, leaky, mul, choice: mul.replace_input_with(0, add.outputs[0]),
    "fewer inputs": lambda model, add, leaky, mul, choice: mul.resize_inputs(1),
    "an attribute": lambda model, add, leaky, mul, choice: leaky.attributes.add(ir.AttrFloat32("alpha", 0.25)),
    "one more attribute": lambda model, add, leaky, mul, choice: mul.attributes.add(ir.AttrInt64("axis", 1)),
    "no attribute": lambda model, add, leaky, mul, choice: leaky.attributes.pop("alpha"),
    "the operator": lambda model, add, leaky, mul, choice: setattr(mul, "op_type", "Div"),
    "the domain": lambda model, add, leaky, mul, choice: setattr(mul, "domain", "com.example"),
    "a new node": lambda model, add, leaky, mul, choice: _new(mul),
    "a node less": lambda model, add, leaky, mul, choice: model.graph.remove(mul),
    "another node": lambda model, add, leaky, mul, choice: _another_of_the_same_count(model, add),
    "a node in another graph": lambda model, add, leaky, mul, choice: _moved(model, leaky, choice),
    "a node of a branch": lambda model, add, leaky, mul, choice: _branch(choice)[0].replace_input_with(
        0, add.outputs[0]
    ),
    "a new node in a branch": lambda model, add, leaky, mul, choice: _new(_branch(choice)[0]),
    "another branch": lambda model, add, leaky, mul, choice: choice.attributes.add(
        ir.AttrGraph("then_branch", choice.attributes["else_branch"].as_graph())
    ),
    "an output": lambda model, add, leaky, mul, choice: model.graph.outputs.__setitem__(0, leaky.outputs[0]),
    "an input of the network": lambda model, add, leaky, mul, choice: model.graph.inputs.append(ir.Value(name="new")),
    "the name of an output": lambda model, add, leaky, mul, choice: setattr(mul.outputs[0], "name", "other"),
    "a stored tensor": lambda model, add, leaky, mul, choice: setattr(
        model.graph.initializers["w"], "const_value", ir.tensor(np.ones(4, np.float32))
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> ir.Model:
    onnx.save(onnx.parser.parse_model(NET), tmp_path / "m.onnx")
    return read(tmp_path / "m.onnx", Options())


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_seen(name: str, model: ir.Model) -> None:
    before = take(model)
    assert before.is_as(model)
    CHANGES[name](model, *model.graph)
    assert not before.is_as(model)


def _told(picture: Picture) -> list[object]:
    """Everything that a picture says. Nodes that are as they were share a record: they are compared by its fields."""
    fields = [name for name in Made.__slots__ if name not in ("node", "look")]
    nodes = [(node, [getattr(made, name) for name in fields]) for node, made in picture.nodes.items()]
    members = {graph: [made.node for made in some] for graph, some in picture.members.items()}
    makers = {value: made.node for value, made in picture.maker.items()}
    rest = (getattr(picture, name) for name in ("graphs", "stored", "moving", "given", "facts", "names"))
    return [nodes, members, makers, *rest]


class Doubting(QuickChecker):
    """Asks after each pass what a comparison of two complete records says."""

    asked: list[str] = []

    def run(self, step: onnxgen.passes.Pass, model: ir.Model, options: Options) -> None:
        name, before = name_of(step), take(model)
        super().run(step, model, options)
        if name in UNCOMPARED:
            return
        assert self.last is not None
        after = take(model)
        self.asked.append(name)
        if difference(before, after) is not None:
            assert not before.is_as(model) and _told(self.last) == _told(after), name
        assert self.last.is_as(model), name


@pytest.mark.parametrize("entry", shared_models("net"))
def test_no_pass_of_a_file_escapes(entry: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass changes is seen, and the record that is made from the last one says all that a new one says."""
    monkeypatch.setenv(STRICT, "1")
    monkeypatch.setattr(Doubting, "asked", [])
    monkeypatch.setattr(quick, "checker_for", lambda options, left_out: Doubting(left_out))
    monkeypatch.setattr(onnxgen.passes.Step, "concerns", lambda *_: True)
    build(entry["path"], Options(), tmp_path / "model.py")
    assert len(Doubting.asked) > 30
