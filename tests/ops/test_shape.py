"""Shapes, axes, joining and splitting: sizes stored, of dynamic dims, and computed at run time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from onnxgen.shapes.dims import evaluate, symbol
from onnxgen.shapes.infer_layout import equal_parts
from tests.ops.fuzz import agree, examples, floats
from tests.ops.harness import assert_same, node_model, run_model, run_node, unbound_names

OPS = ["Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Concat", "Split", "Expand", "Shape", "Size"]


def i64(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


@pytest.mark.parametrize("name", OPS)
def test_every_version_is_taken(name: str) -> None:
    assert unbound_names(name) == []


@pytest.mark.parametrize("stored, dynamic", [({1}, False), ({1}, True), (set(), False), (set(), True)])
@pytest.mark.parametrize("sizes", [(0, -1), (-1, 0, 4), (6, 4), (-1,), (0, 0, 2, 2), (0, 0, -1, 2), (1, -1, 4)])
def test_reshape(sizes: tuple[int, ...], stored: set[int], dynamic: bool) -> None:
    run_node("Reshape", [floats(2, 3, 4), i64(*sizes)], {}, initializers=stored, dynamic=dynamic)


@pytest.mark.parametrize("stored", [{1}, set()])
@pytest.mark.parametrize("allowzero, sizes", [(0, (0, 0, 2)), (1, (3, 0, 2)), (1, (0,)), (0, (2, -1))])
def test_reshape_of_nothing(allowzero: int, sizes: tuple[int, ...], stored: set[int]) -> None:
    run_node("Reshape", [np.zeros((2, 0, 4), np.float32), i64(*sizes)], {"allowzero": allowzero}, initializers=stored)


def test_reshape_to_a_scalar() -> None:
    for stored in ({1}, set[int]()):
        run_node("Reshape", [floats(1, 1), i64()], {}, initializers=stored)


@given(st.data())
@examples(60)
def test_axes(data: Any) -> None:
    """Squeeze and Unsqueeze of several axes, counted from either end, in any order; as attributes and as inputs."""
    rank = data.draw(st.integers(1, 4))
    places = data.draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    axes = [a - rank if data.draw(st.booleans()) else a for a in places]
    narrow = floats(*[1 if a in places else a + 2 for a in range(rank)])
    wide = floats(*[a + 2 for a in range(rank) if a not in places])
    dynamic, stored = data.draw(st.booleans()), data.draw(st.sampled_from([set(), {1}]))
    for op, x in (("Squeeze", narrow), ("Unsqueeze", wide)):
        agree(op, [x, i64(*axes)], {}, initializers=stored, dynamic=dynamic)
        agree(op, [x], {"axes": axes}, opset=11, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(1, 3, 1), (1, 1), (2, 3), ()])
def test_squeeze_of_every_axis_of_size_one(shape: tuple[int, ...], dynamic: bool) -> None:
    run_node("Squeeze", [floats(*shape)], {}, dynamic=dynamic)


@given(st.data())
@examples(40)
def test_split(data: Any) -> None:
    axis = data.draw(st.integers(-3, 2))
    x, dynamic = floats(5, 6, 7), data.draw(st.booleans())
    size, parts = x.shape[axis], data.draw(st.integers(1, 4))
    agree("Split", [x], {"axis": axis, "num_outputs": parts}, opset=18, outputs=parts, dynamic=dynamic)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size])]
    for stored in (set[int](), {1}):
        agree("Split", [x, i64(*sizes)], {"axis": axis}, initializers=stored, outputs=parts, dynamic=dynamic)
    agree("Split", [x], {"axis": axis, "split": sizes}, opset=11, outputs=parts, dynamic=dynamic)


@given(st.data())
@examples(40)
def test_expand(data: Any) -> None:
    """Both ways: the input's axes and those asked for broadcast to each other."""
    rank = data.draw(st.integers(0, 4))
    whole = [axis + 2 for axis in range(rank)]
    have = [n if data.draw(st.booleans()) else 1 for n in whole][data.draw(st.integers(0, rank)) :]
    asked = [n if data.draw(st.booleans()) else 1 for n in whole][data.draw(st.integers(0, rank)) :]
    for stored in (set[int](), {1}):
        agree("Expand", [floats(*have), i64(*asked)], {}, initializers=stored, dynamic=data.draw(st.booleans()))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "int64", "bool"])
def test_a_number_of_the_file_is_expanded_as_a_tensor_of_it(dtype: str) -> None:
    """As the first state of a recurrent layer, `torch.zeros(n, 64)`."""
    for number in (0, 1, 0.1, -0.0, np.nan) if "float" in dtype else (0, 1, -3):
        for array, sizes in ((np.array(number), i64(2, 3)), (np.array([[number]]), i64(2, 3, 1))):
            ran = run_node("Expand", [array.astype(dtype), sizes], {}, initializers={0})
            assert "expand" not in ran.forward and not [*ran.model.buffers()], number
    assert "expand" in run_node("Expand", [np.ones((1, 1, 1), dtype), i64(2, 3)], {}, initializers={0}).forward


def test_a_fill_takes_its_sizes_one_by_one() -> None:
    for number, text in ((0, "torch.zeros(i0_0, i0_1, "), (2, "torch.full((i0_0, i0_1), 2")):
        x, model = floats(2, 3), node_model("Expand", [np.float32(number), i64(2, 3)], initializers={0})
        model.graph.input[0].CopyFrom(node_model("Relu", [x], dynamic=True).graph.input[0])
        model.graph.node.insert(0, helper.make_node("Shape", ["i0"], ["i1"]))
        model.graph.node[1].input[0] = model.graph.initializer[0].name = "number"
        ran = run_model(model, {"i0": x})
        assert_same(ran.outputs[0], np.full((2, 3), number, np.float32))
        assert text in ran.forward


@given(st.permutations(range(4)), st.booleans())
@examples(20)
def test_transpose(order: list[int], dynamic: bool) -> None:
    agree("Transpose", [floats(2, 3, 4, 5)], {"perm": order}, dynamic=dynamic)


@pytest.mark.parametrize("axis", range(-3, 4))
@pytest.mark.parametrize("dynamic", [False, True])
def test_flatten(axis: int, dynamic: bool) -> None:
    run_node("Flatten", [floats(2, 3, 4)], {"axis": axis}, dynamic=dynamic)


@pytest.mark.parametrize("axis", [-2, 0, 1])
def test_concat(axis: int) -> None:
    parts = [floats(*[2 + n if a == axis % 2 else 3 for a in range(2)], seed=n) for n in range(3)]
    run_node("Concat", parts, {"axis": axis}, dynamic=True)
    run_node("Concat", parts[:1], {"axis": axis})


@pytest.mark.parametrize("size, parts", [(5, 3), (7, 4), (10, 4), (9, 5), (6, 3), (1, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_split_into_parts_of_one_size(size: int, parts: int, dynamic: bool) -> None:
    run_node("Split", [floats(size, 2)], {"num_outputs": parts}, outputs=parts, dynamic=dynamic)


@pytest.mark.parametrize("size, sizes", [(4, [2, 2, 0]), (5, [2, 2, 1, 0]), (2, [1, 1, 0, 0]), (0, [0, 0])])
@pytest.mark.parametrize("dynamic", [False, True])
def test_split_into_parts_that_are_empty(size: int, sizes: list[int], dynamic: bool) -> None:
    """onnxruntime refuses these: `onnx.reference` has them."""
    x = floats(size, 2)
    expected = np.split(x, np.cumsum(sizes)[:-1])
    attributes = {"num_outputs": len(sizes)}
    run_node("Split", [x], attributes, outputs=len(sizes), dynamic=dynamic, expected=expected)


def test_split_sizes_of_parts_are_known() -> None:
    """What is computed of a part's size is what the part has."""
    for size, last in ((7, 1), (4, 0), (3, 1)):
        assert equal_parts(size, 3)[-1] == last
    n = symbol("n")
    parts = equal_parts(n, 4)
    for size in range(12):
        real = [evaluate(p, {"n": size}) for p in parts]
        assert real == [max(0, min(-(-size // 4), size - i * -(-size // 4))) for i in range(4)] and sum(real) == size
    assert equal_parts(3 * n, 3) == [n, n, n]
