"""Values of branches, loops and functions that bear one name are different values; a trained file has its own names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as oh
from onnx.numpy_helper import from_array

from onnxgen.common.names import printable
from onnxgen.reader.normal import distinct, restore
from tests.export.test_shared import back
from tests.support.reader_models import TRUE, Write, branch, model, node, refusal, write

__all__ = ["write"]  # a fixture


def matrix(name: str, seed: int, *dims: int) -> onnx.TensorProto:
    return from_array(np.random.default_rng(seed).standard_normal(dims or (4, 4)).astype(np.float32), name)


def branches(*outer: onnx.TensorProto, then: int = 4) -> onnx.ModelProto:
    """Both branches of an If store a matrix `fc.weight`, and call its product `h`."""

    def made(seed: int, out: str, width: int) -> onnx.GraphProto:
        nodes = [node("MatMul", ["x", "fc.weight"], ["h"]), node("ReduceSum", ["h", "axis"], [out])]
        return branch(nodes, out, [matrix("fc.weight", seed, 4, width)])

    chosen = node("If", ["c"], ["y"], then_branch=made(1, "s", then), else_branch=made(2, "s", 4))
    axis = from_array(np.array([-1]), "axis")
    return model([chosen], [axis, *outer], inputs=["x", oh.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])])


@pytest.mark.parametrize("then", [4, 5])
@pytest.mark.parametrize("outer", [0, 1])
def test_matrices_of_branches_are_trained_apart_and_go_back(outer: int, then: int, tmp_path: Path) -> None:
    proto = branches(*[matrix("fc.weight", 9)] * outer, then=then)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    for condition in (True, False):
        report, made = back(proto, tmp_path, [x, np.array(condition)])
        assert sorted(p.numel() for p in made.parameters()) == [16, 4 * then] and len(report.changed) == 2
    written = onnx.load(tmp_path / "out.onnx")
    inner = [a.g.initializer[0] for a in written.graph.node[0].attribute]
    assert [t.name for t in inner] == ["fc.weight"] * 2 and inner[0].raw_data != inner[1].raw_data
    assert all(a.g.node == b.g.node for a, b in zip(written.graph.node[0].attribute, proto.graph.node[0].attribute))


def test_names_are_given_and_taken_back() -> None:
    proto = branches(matrix("fc.weight", 9))
    before = proto.SerializeToString(deterministic=True)
    given = distinct(proto)
    assert sorted(given.values()) == ["fc.weight", "fc.weight", "h", "s"]
    names = [n.name for a in proto.graph.node[0].attribute for n in a.g.initializer]
    assert len({*names, "fc.weight"}) == 3 and not distinct(proto)
    assert {printable(name) for name in names} == {"fc.weight"}  # whatever shows a name shows the file's
    restore(proto, given)
    assert proto.SerializeToString(deterministic=True) == before


def test_a_name_that_has_two_values_among_branches_is_refused(write: Write) -> None:
    """onnxruntime takes the outer value in both, where one branch takes it and another stores a tensor of its name."""
    then = branch([node("MatMul", ["x", "w"], ["s"])], "s", [matrix("w", 1)])
    other = branch([node("MatMul", ["x", "w"], ["s"])], "s")
    proto = model([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], [TRUE, matrix("w", 2)])
    assert "one branch stores a tensor w, and another one takes the outer value" in refusal(write(proto))
