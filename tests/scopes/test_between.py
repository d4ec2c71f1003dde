"""Nodes that say nothing of where they were written: PyTorch before 1.13 named parameters only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from onnxgen.graph.annotations import SCOPE
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.scopes.between import infer_missing_scopes
from tests.support.reader_models import Write, model, node, weight, write
from tests.zoo import ZOO
from tests.zoo.export import Case, export
from tests.zoo.road import Road

__all__ = ["write"]  # a fixture


def placed(write: Write, nodes: Sequence[onnx.NodeProto], weights: Sequence[str]) -> dict[str, str]:
    """Dotted scopes by node name."""
    read_model = read(write(model(nodes, [weight(name, 4, 4) for name in weights])), Options())
    infer_missing_scopes(read_model, Options())
    return {n.name or "": ".".join(SCOPE.get(n)) for n in read_model.graph}


def layer(name: str, source: str, result: str) -> onnx.NodeProto:
    return node("MatMul", [source, f"{name}.weight"], [result], name=name)


def test_between_two_layers_of_a_module(write: Write) -> None:
    nodes = [
        layer("body.fc1", "x", "a"),
        node("Neg", ["a"], ["b"], name="inside"),
        layer("body.fc2", "b", "c"),
        node("Neg", ["c"], ["d"], name="outside"),
        layer("head", "d", "y"),
    ]
    found = placed(write, nodes, ["body.fc1.weight", "body.fc2.weight", "head.weight"])
    assert found["inside"] == "body" and found["outside"] == ""


def test_a_skip_connection_ends_where_it_began(write: Write) -> None:
    nodes = [layer("stem", "x", "x0")]
    for i in (0, 1):
        nodes += [
            layer(f"blocks.{i}.fc1", f"x{i}", f"a{i}"),
            node("Neg", [f"a{i}"], [f"b{i}"], name=f"neg{i}"),
            layer(f"blocks.{i}.fc2", f"b{i}", f"c{i}"),
            node("Add", [f"x{i}", f"c{i}"], [f"s{i}"], name=f"add{i}"),
            node("Relu", [f"s{i}"], [f"x{i + 1}"], name=f"relu{i}"),
        ]
    nodes.append(layer("head", "x2", "y"))
    found = placed(write, nodes, [f"{n.name}.weight" for n in nodes if n.op_type == "MatMul"])
    for i in (0, 1):
        assert [found[f"{name}{i}"] for name in ("neg", "add", "relu")] == [f"blocks.{i}"] * 3


@pytest.mark.parametrize(
    ("where", "shown", "wanted"),
    [("attn.self.k", False, "attn.self"), ("attn.self.k", True, "attn"), ("attn.k", False, "attn")],
)
def test_attention_is_where_its_projections_are(write: Write, where: str, shown: bool, wanted: str) -> None:
    """As in BERT, whose `self` attends, and whose `output` stands beside it. Unless a projection is used elsewhere."""
    names = {"q": "attn.self.q", "k": where, "v": "attn.self.v"}
    moves = [node("Identity" if n == "v" else "Abs", [n], [f"{n}0"], name=f"move {n}") for n in names]
    nodes = [
        *(layer(path, "x", n) for n, path in names.items()),
        *moves,
        node("Attention", ["q0", "k0", "v0"], ["a"], name="attend", q_num_heads=2, kv_num_heads=2),
        node("Flatten", ["a"], ["b"], name="merge"),
        node("Neg", ["b"], ["c"], name="behind"),
        layer("attn.output.dense", "c", "d"),
        node("Sub", ["d", "k" if shown else "x"], ["y"], name="sub"),
    ]
    proto = model(nodes, [weight(f"{n.name}.weight", 4, 4) for n in nodes if n.op_type == "MatMul"], opsets={"": 23})
    read_model = read(write(proto), Options())
    infer_missing_scopes(read_model, Options())
    found = {n.name or "": ".".join(SCOPE.get(n)) for n in read_model.graph}
    assert [found[n] for n in ("move q", "attend", "merge", "behind")] == [wanted] * 3 + ["attn"]


@pytest.mark.parametrize("outside", [False, True])
def test_branches_of_a_block_meet_in_it(write: Write, outside: bool) -> None:
    """Unless something else takes one of them, too."""
    nodes = [
        layer("stem", "x", "s"),
        layer("blocks.0.fc", "s", "a"),
        layer("blocks.0.shortcut", "s", "b"),
        node("Add", ["a", "b"], ["c"], name="add"),
        node("Relu", ["c"], ["d"], name="relu"),
        layer("blocks.1.fc", "d", "e"),
        node("Sub", ["e", "b" if outside else "e"], ["y"], name="sub"),
    ]
    found = placed(write, nodes, [f"{n.name}.weight" for n in nodes if n.op_type == "MatMul"])
    assert found["add"] == ("" if outside else "blocks.0")


def test_activations_between_layers_of_a_list_are_not_the_layers(write: Write) -> None:
    nodes = [layer("fcs.0", "x", "a"), node("Relu", ["a"], ["b"], name="relu"), layer("fcs.1", "b", "y")]
    assert placed(write, nodes, ["fcs.0.weight", "fcs.1.weight"])["relu"] == ""


def test_sizes_may_be_read_of_any_value(write: Write) -> None:
    nodes = [
        layer("stem", "x", "a"),
        layer("body.fc1", "a", "b"),
        node("Shape", ["a"], ["size"], name="shape"),
        node("Reshape", ["b", "size"], ["c"], name="reshape"),
        layer("body.fc2", "c", "y"),
    ]
    found = placed(write, nodes, ["stem.weight", "body.fc1.weight", "body.fc2.weight"])
    assert found["reshape"] == "body"


@pytest.mark.parametrize(("name", "classes"), [("resnet18", 3), ("vit", 5), ("bert", 9)])
def test_files_without_node_names_have_the_classes_of_those_with(name: str, classes: int, tmp_path: Path) -> None:
    entry, case, path = ZOO[name], Case("legacy", 17, True), tmp_path / "model.onnx"
    original = export(entry, path, case.exporter, case.opset, case.training)
    proto = onnx.load(path)
    for n in proto.graph.node:
        n.name = ""
    onnx.save(proto, path)
    made = Road(name, entry, case, path, original, tmp_path)
    made.check()
    assert set(made.model.state_dict()) == set(original.state_dict())
    found = {type(m).__name__ for m in made.model.modules() if not type(m).__module__.startswith("torch")}
    assert len(found) <= classes, found


def lost(source: str, result: str) -> onnx.NodeProto:
    """A layer whose weight has no name."""
    return node("MatMul", [source, f"w{result}"], [result], name=result)


@pytest.mark.parametrize("count", [1, 2])
def test_a_layer_that_lost_its_name_is_the_second_one(write: Write, count: int) -> None:
    nodes = []
    for i in range(count):
        nodes += [layer(f"unit{i}.fc1", f"x{i}" if i else "x", f"a{i}"), lost(f"a{i}", f"b{i}")]
        nodes.append(node("Relu", [f"b{i}"], [f"x{i + 1}"], name=f"relu{i}"))
    nodes.append(layer("head", f"x{count}", "y"))
    found = placed(write, nodes, [name for n in nodes if n.op_type == "MatMul" for name in n.input[1:]])
    assert found["b0"] == ("unit0.fc2" if count > 1 else "")


@pytest.mark.parametrize("what", ["a third", "used twice", "no first one"])
def test_other_layers_without_names_are_outside(write: Write, what: str) -> None:
    first = "fc3" if what == "no first one" else "fc1"
    nodes = [
        *(layer(f"unit0.{first}", "x", "a0"), lost("a0", "b0"), layer(f"unit1.{first}", "b0", "a1"), lost("a1", "b1")),
        layer("head", "b1", "y0"),
    ]
    if what == "a third":
        nodes += [layer(f"unit{i}.fc7", f"b{i}", f"c{i}") for i in (0, 1)]
    if what == "used twice":
        nodes += [node("Neg", [f"a{i}"], [f"c{i}"], name=f"neg{i}") for i in (0, 1)]
    nodes.append(node("Neg", ["y0"], ["y"], name="end"))
    found = placed(write, nodes, [name for n in nodes if n.op_type == "MatMul" for name in n.input[1:]])
    assert found["b0"] != "unit0.fc2" and found["b1"] != "unit1.fc2"


def test_a_backbone_without_names_is_not_in_the_head(write: Write) -> None:
    """Folding norms into a detector leaves names to its last layers only."""
    nodes = [node("Neg", ["x"], ["a"], name="begin"), lost("a", "b"), node("Relu", ["b"], ["c"], name="act")]
    nodes += [lost("c", "d"), layer("head.preds.0", "d", "y")]
    found = placed(write, nodes, ["wb", "wd", "head.preds.0.weight"])
    assert {found[name] for name in ("begin", "b", "act", "d")} == {""}
