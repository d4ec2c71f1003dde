"""Indexing against onnxruntime: Gather, Slice, Scatter and their kin."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxgen.options import Options
from tests.ops.fuzz import agree, examples, floats, ints
from tests.ops.harness import generate, instantiate, run_model, run_node, run_onnxruntime, unbound_names

OPS = (
    "Gather GatherElements GatherND Scatter ScatterElements ScatterND Slice Compress ReverseSequence TensorScatter"
).split()
FAR = [2**31 - 1, 2**63 - 1, -(2**31) + 1, -(2**63), -(2**63) + 1]
BOUNDS = st.one_of(st.integers(-9, 9), st.sampled_from(FAR))


def i64(values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


# ------------------------------------------------------------------------------------------------------- Gather


@st.composite
def indices(draw: Any, size: int, rank: int) -> np.ndarray[Any, Any]:
    shape = draw(ints(0, 3, rank))
    flat = draw(st.lists(st.integers(-size, size - 1), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return i64(flat).reshape(shape)


@given(st.data())
@examples(60)
def test_gather(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    index = data.draw(indices(shape[axis], data.draw(st.integers(0, 2))))
    if data.draw(st.booleans()):
        index = index.astype(np.int32)
    stored = data.draw(st.sampled_from([set(), {1}]))
    agree("Gather", [floats(*shape), index], {"axis": axis}, initializers=stored, dynamic=data.draw(st.booleans()))


@pytest.mark.parametrize(
    "dtype",
    ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float64", "bool", "object"],
)
def test_gather_any_dtype(dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(str if dtype == "object" else dtype)
    x = x.astype(object) if dtype == "object" else x
    run_node("Gather", [x, i64([2, 0, -1])], {"axis": 1})


@pytest.mark.parametrize(
    "index, axis, written",
    [
        (0, 1, "i0[:, 0]"),
        (-1, 2, "i0[..., -1]"),
        ([0], 0, "i0[:1]"),
        ([1, 2], 1, "i0[:, 1:]"),
        ([2, 0], 1, "i0[:, [2, 0]]"),
    ],
)
def test_constant_indices_are_read_off(index: Any, axis: int, written: str) -> None:
    ran = run_node("Gather", [floats(2, 3, 4), i64(index)], {"axis": axis}, initializers={1})
    assert written in ran.forward


def table_model(ids: np.ndarray[Any, Any], name: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Gather", [name, "ids"], ["y"])]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ids.shape)],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (*ids.shape, 4))],
            [numpy_helper.from_array(floats(5, 4), name)],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )


def test_a_trained_table_is_an_embedding() -> None:
    model = table_model(i64([[1, 2]]), "words.weight")
    generated = generate(model)
    assert "self.words = nn.Embedding(5, 4)" in generated.source
    module = instantiate(generated)
    assert list(module.state_dict()) == ["words.weight"]
    y = module(torch.tensor([[1, 4]]))
    assert torch.equal(y, torch.from_numpy(floats(5, 4)[[[1, 4]]]))
    y.sum().backward()
    assert module.words.weight.grad is not None


def test_a_table_without_a_name_is_called_by_what_it_is_asked_for() -> None:
    """Positions are counted, or a known row of numbers that follow each other."""
    rows = """s = Shape (x) one = Constant <value = int64 {1}> () zero = Constant <value = int64 {0}> ()
      n = Gather (s, one) counted = Range (zero, n, one)
      known = Constant <value = int64[3] {1, 2, 3}> () other = Constant <value = int64[3] {0, 2, 3}> ()"""
    table = numpy_helper.from_array(floats(9, 4), "onnx::Gather_7")
    for ids, name in (
        ("counted", "position_embedding"), ("known", "position_embedding"), ("token_type_ids", "token_type_embedding"),
        ("x", "embedding"), ("other", "embedding"),
    ):  # fmt: skip
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 17]>
            g (int64[N, 3] x, int64[N, 3] token_type_ids) => (float y) {{ {rows} y = Gather (t, {ids}) }}"""
        )
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.node[-1].input[0] = table.name
        model.graph.initializer.append(table)
        feeds = {given: i64([[0, 1, 3], [2, 2, 8]]) for given in ("x", "token_type_ids")}
        ran = run_model(model, feeds)
        np.testing.assert_array_equal(ran.outputs[0], run_onnxruntime(model, feeds)[0])
        made = [key for key, module in ran.model.named_modules() if isinstance(module, torch.nn.Embedding)]
        assert made == [name], ids


def test_indices_that_may_be_negative_stay_exact() -> None:
    """The table has no name and the ids are computed: an Embedding would refuse -1."""
    x = floats(5, 4)
    nodes = [helper.make_node("Sub", ["ids", "one"], ["moved"]), helper.make_node("Gather", ["t", "moved"], ["y"])]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, (2,))],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 4))],
            [numpy_helper.from_array(x, "t"), numpy_helper.from_array(i64(1), "one")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    ran = run_model(model, {"ids": i64([0, 3])}, Options())
    np.testing.assert_array_equal(ran.outputs[0], x[[-1, 2]])


@given(st.data())
@examples(30)
def test_gather_elements(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    at = [data.draw(st.integers(1, s)) for s in shape]
    at[axis] = data.draw(st.integers(1, 5))
    flat = data.draw(ints(-shape[axis], shape[axis] - 1, int(np.prod(at))))
    dtype = data.draw(st.sampled_from([np.float32, np.int64, np.uint16, np.uint64]))
    x = (floats(*shape) * 100).astype(np.int64).astype(dtype)
    stored = data.draw(st.sampled_from([set(), {1}]))
    agree("GatherElements", [x, i64(flat).reshape(at)], {"axis": axis}, initializers=stored)


@given(st.data())
@examples(30)
def test_gather_nd(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    batch = data.draw(st.integers(0, len(shape) - 1))
    k = data.draw(st.integers(1, len(shape) - batch))
    places = [*shape[:batch], *data.draw(st.lists(st.integers(1, 3), min_size=0 if batch else 1, max_size=2))]
    index = np.stack(
        [i64(data.draw(ints(-shape[batch + j], shape[batch + j] - 1, int(np.prod(places))))) for j in range(k)], -1
    ).reshape(*places, k)
    agree("GatherND", [floats(*shape), index], {"batch_dims": batch}, dynamic=data.draw(st.booleans()))


# ------------------------------------------------------------------------------------------------------ Scatter


@given(st.data())
@examples(40)
def test_scatter_elements(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    reduction = data.draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    at = [data.draw(st.integers(1, s)) for s in shape]
    count = int(np.prod(at))
    if reduction == "none":  # the same place twice: no order is promised
        index = np.stack(
            [np.random.default_rng(i).permutation(shape[axis])[: at[axis]] for i in range(count // at[axis])], -1
        )
        index = np.moveaxis(index.reshape(at[axis], *[a for i, a in enumerate(at) if i != axis % len(at)]), 0, axis)
        index = np.where(index % 2, index, index - shape[axis])
    else:
        index = i64(data.draw(ints(-shape[axis], shape[axis] - 1, count))).reshape(at)
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.int64, np.uint8]))
    x, updates = (floats(*shape) * 9).astype(dtype), (floats(*at, seed=1) * 9).astype(dtype)
    agree("ScatterElements", [x, index, updates], {"axis": axis, "reduction": reduction}, opset=18)


@given(st.data())
@examples(40)
def test_scatter_nd(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    k = data.draw(st.integers(1, len(shape)))
    reduction = data.draw(st.sampled_from(["none", "add", "mul", "max", "min"]))
    rows = int(np.prod(shape[:k]))
    n = data.draw(st.integers(1, rows))
    chosen = np.random.default_rng(n).permutation(rows)[:n]
    if reduction != "none":
        chosen = i64(data.draw(ints(0, rows - 1, n)))
    index = np.stack(np.unravel_index(chosen, shape[:k]), -1).astype(np.int64)
    index = np.where(data.draw(st.booleans()), index, index - i64(shape[:k]))
    updates = floats(n, *shape[k:], seed=2)
    agree("ScatterND", [floats(*shape), index, updates], {"reduction": reduction}, opset=18)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_of_unsigned(dtype: Any, reduction: str) -> None:
    """torch has no kernels for these dtypes; sums and products wrap."""
    top = np.iinfo(dtype).max
    x, updates, index = np.array([top, 1, 2], dtype), np.array([3, top], dtype), i64([-3, 2])
    wanted = x.copy()
    functions = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    wanted[index] = functions[reduction](x[index], updates) if reduction != "none" else updates
    attrs = {"reduction": reduction}
    run_node("ScatterElements", [x, index, updates], attrs, 18, expected=[wanted])
    run_node("ScatterND", [x, index.reshape(2, 1), updates], attrs, 18, expected=[wanted])


# -------------------------------------------------------------------------------------------------------- Slice


@given(st.data())
@examples(80)
def test_slice(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    count = data.draw(st.integers(1, len(shape)))
    axes = data.draw(st.permutations(range(len(shape))))[:count]
    axes = [a - len(shape) if data.draw(st.booleans()) else a for a in axes]
    starts, ends = (data.draw(st.lists(BOUNDS, min_size=count, max_size=count)) for _ in range(2))
    steps = data.draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, -1, -2]), min_size=count, max_size=count))
    inputs = [floats(*shape), i64(starts), i64(ends), i64(axes), i64(steps)]
    if data.draw(st.booleans()) and all(s == 1 for s in steps):
        inputs = inputs[:4]
    stored = data.draw(st.sampled_from([{1, 2, 3, 4}, {1, 2, 3, 4}, {3, 4}, {2, 3, 4}, set()]))
    stored = {i for i in stored if i < len(inputs)}
    agree("Slice", inputs, {}, opset=13, initializers=stored, dynamic=data.draw(st.booleans()))


@given(ints(-4, 4, 2), ints(-4, 4, 2))
@examples(10)
def test_slice_before_opset_10(starts: list[int], ends: list[int]) -> None:
    agree("Slice", [floats(3, 4, 2)], {"starts": starts, "ends": ends, "axes": [2, 1]}, opset=9)
    agree("Slice", [floats(3, 4, 2)], {"starts": starts, "ends": ends}, opset=9)


@pytest.mark.parametrize(
    "start, end, axis, step, written",
    [
        (1, -1, 1, 1, "i0[:, 1:-1]"),
        (0, FAR[1], 0, 2, "i0[::2]"),
        (-1, FAR[3], 2, -1, "i0.flip(2)"),
        (0, 3, 1, 1, "i0[:, :3]"),
    ],
)
def test_slices_are_read_off(start: int, end: int, axis: int, step: int, written: str) -> None:
    inputs = [floats(3, 4, 5), i64([start]), i64([end]), i64([axis]), i64([step])]
    ran = run_node("Slice", inputs, initializers={1, 2, 3, 4}, dynamic=True)
    assert written in ran.forward


# ------------------------------------------------------------------------------------------------------- others


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("condition", [[True, False], [False, True, True], [False]])
def test_compress(axis: int | None, condition: list[bool]) -> None:
    attrs = {} if axis is None else {"axis": axis}
    run_node("Compress", [floats(3, 3), np.array(condition)], attrs)
    run_node("Compress", [floats(3, 3), np.array(condition)], attrs, initializers={1})


@given(st.integers(0, 1), ints(1, 4, 3))
@examples(10)
def test_reverse_sequence(batch: int, lengths: list[int]) -> None:
    x = floats(3, 4, 2) if batch == 0 else floats(4, 3, 2)
    agree("ReverseSequence", [x, i64(lengths)], {"batch_axis": batch, "time_axis": 1 - batch}, dynamic=True)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
def test_array_feature_extractor(shape: tuple[int, ...]) -> None:
    run_node("ArrayFeatureExtractor", [floats(*shape), i64([2, 0])], domain="ai.onnx.ml", opset=13)


@pytest.mark.parametrize("op", OPS)
def test_every_schema_name_is_bound(op: str) -> None:
    assert unbound_names(op) == []
