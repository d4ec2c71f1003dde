"""Local functions become the nodes of their bodies."""

from __future__ import annotations

import cProfile
import itertools
import pstats
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

from onnxgen.common.limits import Limits
from onnxgen.graph.annotations import SCOPE
from onnxgen.graph.operators import bodies, operators
from onnxgen.options import Options
from onnxgen.reader import read
from onnxgen.shapes.infer import is_operator
from tests.support.reader_models import Write, X, branch, conditional, model, node, refusal, run, same_as_before, write

__all__ = ["write"]  # a fixture


def function(name: str, nodes: Sequence[NodeProto], opset: int = 17, **kw: Any) -> onnx.FunctionProto:
    imports = [oh.make_opsetid("", opset), oh.make_opsetid("f", 1)]
    return oh.make_function("f", name, ["a"], ["b"], list(nodes), imports, **kw)


def call(op: str, inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",), **kw: Any) -> NodeProto:
    return oh.make_node(op, list(inputs), list(outputs), domain="f", **kw)


def calling(nodes: Sequence[NodeProto], functions: Sequence[onnx.FunctionProto]) -> onnx.ModelProto:
    return model(nodes, opsets={"": 17, "f": 1}, functions=functions)


def test_functions_are_inlined(write: Write) -> None:
    alpha = node("LeakyRelu", ["a"], ["t"], name="leaky")
    alpha.attribute.append(onnx.AttributeProto(name="alpha", type=1, ref_attr_name="slope"))
    inner = function("Inner", [alpha, node("Exp", ["t"], ["b"], name="exp")], attributes=["slope"])
    outer = function("Outer", [call("Inner", ["a"], ["m"], name="first", slope=0.5), call("Inner", ["m"], ["b"])])
    chain = [call("Outer", ["x"], ["z"], name="encoder/block"), call("Outer", ["z"], ["y"])]
    found = read(write(calling(chain, [outer, inner])), Options())
    assert not found.functions and len(found.graph) == 8
    same_as_before(calling(chain, [outer, inner]), found)
    # The first call had a name, and so had the first one inside; node metadata is clean again.
    assert [SCOPE.get(n) for n in found.graph][:3] == [("encoder", "block", "first")] * 2 + [("encoder", "block")]
    assert not any(n.metadata_props for n in found.graph)


def test_functions_in_branches_and_with_branches(write: Write) -> None:
    other = branch([node("Neg", ["a"], ["other"])], "other")
    body = [
        node("Constant", [], ["c"], value=from_array(np.array(True))),
        node("If", ["c"], ["b"], then_branch=branch([node("Abs", ["a"], ["q"])], "q"), else_branch=other),
    ]
    proto = conditional(branch([call("F", ["x"], ["k"]), call("F", ["k"], ["m"])], "m"))
    proto.functions.append(function("F", body))
    proto.opset_import.append(oh.make_opsetid("f", 1))
    same_as_before(proto, read(write(proto), Options()))


def test_a_function_with_nodes_out_of_order(write: Write) -> None:
    """onnxruntime refuses these."""
    proto = calling([call("F")], [function("F", [node("Neg", ["t"], ["b"]), node("Abs", ["a"], ["t"])])])
    np.testing.assert_array_equal(run(ir.to_proto(read(write(proto), Options())))[0], -np.abs(X))


def test_function_of_another_opset(write: Write) -> None:
    """Softmax flattened before opset 13: a node must keep the version of the function that it came from."""
    old = function("Old", [node("Softmax", ["a"], ["b"])], opset=11)
    found = read(write(calling([call("Old", ["x"], ["z"]), node("Softmax", ["z"])], [old])), Options())
    assert [(n.op_type, n.version) for n in found.graph] == [("Softmax", 11), ("Softmax", None)]
    assert found.opset_imports[""] == 17


def test_function_refusals(write: Write) -> None:
    loop = [function("A", [call("B", ["a"], ["b"])]), function("B", [call("A", ["a"], ["b"])])]
    assert "call themselves" in refusal(write(calling([call("A")], loop)))
    assert "call themselves: A, A" in refusal(write(calling([call("A")], [function("A", [call("A", ["a"], ["b"])])])))
    twice = [function("A", [node("Neg", ["a"], ["b"])])] * 2
    assert "defined twice" in refusal(write(calling([call("A")], twice)))
    twice = [function("A\n", [node("Neg", ["a"], ["b"])])] * 2
    assert "the local function A? is defined twice" in refusal(write(calling([call("A\n")], twice)))
    ghost = function("A", [node("Neg", ["ghost"], ["b"])])
    assert "ghost" in refusal(write(calling([call("A")], [ghost])))
    nothing = function("A", [node("Neg", ["a"], ["q"])])
    assert "output b of local function A" in refusal(write(calling([call("A")], [nothing])))
    single = function("A", [node("Neg", ["a"], ["b"])])
    assert "the node has 2 inputs, but the local function has 1" in refusal(
        write(calling([call("A", ["x", "x"])], [single]))
    )
    assert "the node has 2 outputs, but" in refusal(write(calling([call("A", ["x"], ["y", "z"])], [single])))
    through = function("A", [])
    through.output[:] = ["a"]
    assert "an input that the call leaves out" in refusal(write(calling([call("A", [""])], [through])))


def test_function_hands_its_input_through(write: Write) -> None:
    pair = oh.make_function("f", "P", ["a"], ["a", "b", "b2"], [node("Neg", ["a"], ["b"])], [oh.make_opsetid("", 17)])
    pair.output[:] = ["a", "b", "b"]
    proto = model(
        [call("P", ["x"], ["y", "z", "w"])], outputs=["y", "z", "w"], opsets={"": 17, "f": 1}, functions=[pair]
    )
    found = read(write(proto), Options())
    assert [v.name for v in (*found.graph.inputs, *found.graph.outputs)] == ["x", "y", "z", "w"]
    for got, expected in zip(run(ir.to_proto(found)), (X, -X, -X), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_function_takes_and_gives_fewer(write: Write) -> None:
    """Trailing inputs and outputs may be left out; so may attributes, which then have the function's default."""
    leaky = node("LeakyRelu", ["t"], ["b"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=1, ref_attr_name="slope"))
    body = [node("Clip", ["a", "", "top"], ["t"]), leaky, node("Neg", ["b"], ["spare"])]
    many = oh.make_function("f", "M", ["a", "top"], ["b", "spare"], body, [oh.make_opsetid("", 17)], ["slope"])
    default = oh.make_function("f", "D", ["a", "top"], ["b", "spare"], body, [oh.make_opsetid("", 17)])
    default.attribute_proto.append(oh.make_attribute("slope", 0.5))
    expected = np.where(X < 0, X * np.float32(0.5), X)
    for function_, kw in ((many, {"slope": 0.5}), (default, {})):
        proto = calling([call(function_.name, ["x"], ["y"], **kw)], [function_])
        np.testing.assert_array_equal(run(ir.to_proto(read(write(proto), Options())))[0], expected)


def test_many_calls_are_linear(write: Write) -> None:
    """Counted in calls, which no busy machine changes."""
    counts = []
    for count in (20, 200, 600):  # what is done once a process counts for the first
        chain = [call("A", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
        chain[0].input[0], chain[-1].output[0] = "x", "y"
        path = write(calling(chain, [function("A", [node("Neg", ["a"], ["t"]), node("Neg", ["t"], ["b"])])]))
        profile = cProfile.Profile()
        found = profile.runcall(read, path, Options())
        counts.append(vars(pstats.Stats(profile))["total_calls"])
        names = [v.name for n in found.graph for v in n.outputs]
        assert len(set(names)) == len(names) == 2 * count
    assert counts[2] < 3 * 1.02 * counts[1], counts


def test_functions_that_nest_graphs_too_deep(write: Write) -> None:
    functions = [function("F0", [node("Neg", ["a"], ["b"])])]
    for i in range(40):
        inner = branch([call(f"F{i}", ["a"], ["q"])], "q")
        truth = node("Constant", [], ["c"], value=from_array(np.array(True)))
        functions.append(function(f"F{i + 1}", [truth, node("If", ["c"], ["b"], then_branch=inner, else_branch=inner)]))
    limits = Limits(nodes=2**62)
    assert r"nests graphs 40 deep" in refusal(write(calling([call("F40")], functions)), Options(limits=limits))


def test_exponential_functions_are_refused(write: Write) -> None:
    names = [f"F{i}" for i in range(60)]
    functions = [function("F0", [node("Neg", ["a"], ["t"]), node("Neg", ["t"], ["b"])])]
    for inner, name in itertools.pairwise(names):
        functions.append(function(name, [call(inner, ["a"], ["t"]), call(inner, ["t"], ["b"])]))
    assert "makes more than 10**15 nodes" in refusal(write(calling([call("F59")], functions)))


KERNELS = [("com.microsoft", "Gelu"), ("com.microsoft", "FastGelu"), ("", "Softplus"), ("ai.onnx.ml", "Binarizer")]


@pytest.mark.parametrize(("domain", "name"), KERNELS)
def test_a_function_with_the_name_of_an_operator(domain: str, name: str, write: Write) -> None:
    """onnxruntime takes its own operator, whatever the function of that name says; the node stays as it is."""
    opsets = [oh.make_opsetid("", 17)]
    made = oh.make_function(domain, name, ["a"], ["b"], [node("Neg", ["a"], ["b"])], opsets)
    proto = model(
        [node(name, ["x"], ["y"], domain=domain)],
        opsets={"": 17, "com.microsoft": 1, "ai.onnx.ml": 3},
        functions=[made],
    )
    found = read(write(proto), Options())
    assert [n.op_type for n in found.graph] == [name] and not found.functions
    same_as_before(proto, found)


def test_a_function_of_the_domain_that_no_operator_has(write: Write) -> None:
    made = oh.make_function(
        "com.microsoft", "Mine", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [oh.make_opsetid("", 17)]
    )
    call = node("Mine", ["x"], ["y"], domain="com.microsoft")
    proto = model([call], opsets={"": 17, "com.microsoft": 1}, functions=[made])
    found = read(write(proto), Options())
    assert [n.op_type for n in found.graph] == ["Neg"]
    same_as_before(proto, found)


def test_all_operators_of_onnxruntime_are_known() -> None:
    names = {key for key in (*bodies(), *operators()) if key[0] == "com.microsoft"}
    assert [name for domain, name in names if not is_operator(domain, name, 1)] == []
