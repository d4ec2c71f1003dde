"""What operators say of themselves is what onnxruntime computes, and few other places name them."""

from __future__ import annotations

import random
import statistics
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper as h

from onnxgen.graph.operators import Operator, card, having, operators
from onnxgen.graph.traits import (
    ADDS,
    AVERAGES,
    COMMUTES,
    COMPARISON,
    ELEMENTWISE,
    FILLS,
    JOINS,
    KEEPS_SIGN,
    MOVES,
    PICKS,
    QUANTISED,
    QUANTISES,
    RANDOM,
    RESAMPLES,
    SAME,
    SCALES,
    SELECTS,
    SHUFFLES,
    SIGMOID,
    SIZES,
    SOFTMAX,
    WHOLE,
)
from onnxgen.ops.rules import rules
from tests.support import mentions

Array = NDArray[Any]
INTS = np.int64
# the further inputs of an operator, and its attributes
FURTHER: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "CenterCropPad": ([np.array([4, 3])], {}), "Compress": ([np.array([True, False, True])], {"axis": 0}),
    "Concat": (["x"], {"axis": 0}), "DepthToSpace": ([], {"blocksize": 2}), "Expand": ([np.array([2, 4, 4, 4])], {}),
    "Gather": ([np.array([0, 0])], {}), "GatherElements": ([np.zeros((1, 4, 4, 4), INTS)], {}),
    "GatherND": ([np.array([[0, 1]])], {}), "Pad": ([np.array([0, 0, 1, 0, 0, 0, 0, 2])], {}),
    "Reshape": ([np.array([4, 4, 4])], {}), "ReverseSequence": ([np.array([3])], {"time_axis": 1, "batch_axis": 0}),
    "ScatterElements": ([np.zeros((1, 1, 1, 1), INTS), "one"], {}), "ScatterND": ([np.zeros((1, 4), INTS), "one"], {}),
    "Slice": ([np.array([1]), np.array([3]), np.array([1])], {}), "SpaceToDepth": ([], {"blocksize": 2}),
    "Split": ([], {"num_outputs": 2, "axis": 1}), "Squeeze": ([np.array([0])], {}), "Trilu": ([], {}),
    "Tile": ([np.array([1, 2, 1, 1])], {}), "Unsqueeze": ([np.array([0])], {}),
    "MaxPool": ([], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}), "GlobalMaxPool": ([], {}),
    "AveragePool": ([], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "count_include_pad": 1}),
    "Cast": ([], {"to": 11}), "CastLike": ([np.zeros(1, np.float64)], {}),
    "PRelu": ([np.full((4, 1, 1), 0.5, "f")], {}),
    "CumSum": ([np.array(1)], {}), "CumProd": ([np.array(1)], {}), "Mod": (["y"], {"fmod": 1}),
    "Clip": ([np.float32(-0.5), np.float32(1)], {}), "LpNormalization": ([], {"p": 2}),
    "Softmax": ([], {"axis": 1}), "LogSoftmax": ([], {"axis": 1}), "ArgMax": ([], {"axis": 1}),
    "ArgMin": ([], {"axis": 1}), "TopK": ([np.array([1])], {}),
    "QuantizeLinear": ([np.float32(0.01), np.array(128, np.uint8)], {}),
    "DequantizeLinear": ([np.float32(0.01), np.array(128, np.uint8)], {}),
    "Resize": ([np.zeros(0, "f"), np.array([1, 1, 2, 3], "f")], {"mode": "linear"}),
    "Upsample": ([np.array([1, 1, 2, 3], "f")], {"mode": "linear"}),
}  # fmt: skip
BINARY = frozenset("Add Sub Mul Div Pow Max Min Mean Sum".split()) | having(COMPARISON, COMMUTES)
TWO = {"Split", "TopK", "Unique"}  # outputs
BY_OTHERS = {"Compress", "MaxRoiPool", "NonMaxSuppression", "RoiAlign"}  # they select by another input than the data
OPSETS = {"Upsample": 9}  # where a later one has it no more
# of these one is enough, or onnxruntime has no kernel of float
LEFT = {
    "Scatter",
    "TensorScatter",
    "OneHot",
    "Where",
    "CumProd",
    "CenterCropPad",
    "Swish",
    "BitwiseNot",
    "BitShift",
    "Not",
}
LEFT |= {"And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}


def standard(*traits: Any) -> list[str]:
    return sorted(name for name in having(*traits) - LEFT - having(RANDOM) if ("", name) in operators())


def run(op: str, x: Array, y: Array) -> list[Array]:
    """The outputs of one node, of `x` and, where it takes several tensors, `y`."""
    given, attributes = FURTHER.get(op, (["y"] if op in BINARY else [], {}))
    one = y.reshape(-1)[:1] if op == "ScatterND" else y.reshape(-1)[:1].reshape((1,) * x.ndim)
    arrays = {"x": x}
    for i, value in enumerate(given):
        named = {"x": y, "y": y, "one": one}.get(value) if isinstance(value, str) else value
        assert named is not None
        arrays[f"i{i}"] = named
    return computed(op, arrays, **attributes)


def computed(op: str, arrays: dict[str, Array], **attributes: Any) -> list[Array]:
    """The outputs of one node of given inputs."""
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    ports = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in arrays.items()]
    outputs = ["z", "w"] if op in TWO else ["z"]
    made = [h.make_value_info(name, onnx.TypeProto()) for name in outputs]
    model = h.make_model(h.make_graph([h.make_node(op, list(arrays), outputs, **attributes)], "g", ports, made))
    model.ir_version, model.opset_import[0].version = 9, OPSETS.get(op, 20)
    found: list[Array] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, arrays)
    return found


def drawn(seed: int, low: float = -2.0) -> Array:
    return np.random.default_rng(seed).uniform(low, 2.0, (1, 4, 4, 4)).astype(np.float32)


def facts(op: str) -> Operator:
    found = card("", op)
    assert found.name
    return found


@pytest.mark.parametrize("op", standard(MOVES, PICKS))
def test_elements_are_those_of_the_data(op: str) -> None:
    x, y = drawn(1), drawn(2)
    here = {*x.ravel().tolist(), *(y.ravel().tolist() if len(facts(op).data) > 1 else ())}
    for result in run(op, x, y):
        assert set(result.ravel().tolist()) <= (here | {0.0} if op in having(FILLS) else here)


@pytest.mark.parametrize("op", standard(AVERAGES))
def test_averages_lie_between_the_data(op: str) -> None:
    (result,) = run(op, drawn(1, 0.5), drawn(2, 0.5))
    assert result.min() >= 0 and result.max() <= 2.0


@pytest.mark.parametrize("op", standard(KEEPS_SIGN))
def test_nothing_is_negative_where_no_data_is(op: str) -> None:
    assert all(result.min() >= 0 for result in run(op, drawn(1, 0.1), drawn(2, 0.1)))


@pytest.mark.parametrize("op", standard(ELEMENTWISE))
def test_an_element_depends_on_its_place_alone(op: str) -> None:
    """All other elements are changed, and this one remains."""
    x, y = drawn(1, 0.1), drawn(2, 0.1)
    others, beside = drawn(3, 0.1), drawn(4, 0.1)
    others[0, 1, 2, 3], beside[0, 1, 2, 3] = x[0, 1, 2, 3], y[0, 1, 2, 3]
    (before,), (after,) = run(op, x, y), run(op, others, beside)
    assert before.shape == x.shape
    np.testing.assert_array_equal(before[0, 1, 2, 3], after[0, 1, 2, 3])


@pytest.mark.parametrize("op", sorted(n for d, n in operators() if not d and facts(n).least is not None))
def test_nothing_is_less_than_the_least(op: str) -> None:
    if op in LEFT:
        pytest.skip("left out")
    x = (drawn(1) * 4).astype(np.float32)
    least = facts(op).least
    assert least is not None
    assert np.nanmin(run(op, x, x)[0]) >= least - 1e-6


@pytest.mark.parametrize("op", standard(SAME))
def test_the_same_numbers_keep_their_order(op: str) -> None:
    """Rounding may make neighbours equal, and makes no other difference."""
    x = np.arange(64).reshape(1, 4, 4, 4).astype(np.float32) / 32 - 1
    (result,) = run(op, (x * 32 + 128).astype(np.uint8) if op == "DequantizeLinear" else x, x)
    assert result.shape == x.shape and (np.diff(result.ravel().astype(np.float64)) > 0).all()


@pytest.mark.parametrize("op", standard(SIZES))
def test_sizes_are_those_of_any_data(op: str) -> None:
    (first,), (second,), (other,) = (run(op, x, x) for x in (drawn(1), drawn(2), np.zeros((2, 3, 4, 4), np.float32)))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other) and np.prod(first) == 64


@pytest.mark.parametrize("op", standard(JOINS, SHUFFLES))
def test_nothing_is_lost_where_data_are_joined_or_shuffled(op: str) -> None:
    x, y = drawn(1), drawn(2)
    (result,) = run(op, x, y)
    given = np.concatenate([x, y], None) if op in having(JOINS) else x
    np.testing.assert_array_equal(np.sort(result, None), np.sort(given, None))
    if op in having(SHUFFLES):
        assert result.shape[0] == 1 and result.shape[1] != 4 and result.shape[2:] != (4, 4)


@pytest.mark.parametrize("op", standard(ADDS, SCALES))
def test_sums_and_products(op: str) -> None:
    x, y = drawn(1), drawn(2, 0.5)
    (result,) = run(op, x, y)
    one, other = (x + y, x - y) if op in having(ADDS) else (x * y, x / y)
    assert np.allclose(result, one) or np.allclose(result, other)


def both_ways(op: str) -> tuple[Array, Array, Array]:
    """Two tensors, and what an operator makes of them and its neutral number: its second input, or its first."""
    x, y = drawn(1, 0.5), drawn(2, 0.5)
    neutral = np.full(x.shape, facts(op).rules.neutral, np.float32)
    if op in having(COMMUTES) and op in LEFT:  # of truth values
        x, y, neutral = x > 1, y > 1, neutral.astype(bool)
    return x, run(op, x, neutral)[0], run(op, neutral, x)[0]


@pytest.mark.parametrize("op", sorted(n for d, n in operators() if not d and facts(n).rules.neutral is not None))
def test_the_neutral_number_changes_nothing(op: str) -> None:
    x, after, before = both_ways(op)
    np.testing.assert_array_equal(after, x)
    assert np.array_equal(before, x) == (op in having(COMMUTES))


@pytest.mark.parametrize("op", sorted(n for n in having(COMMUTES) if ("", n) in operators()))
def test_inputs_that_may_change_places(op: str) -> None:
    x, y = (drawn(1) > 0, drawn(2) > 0) if op in LEFT else (drawn(1), drawn(2))
    (one,), (other,) = run(op, x, y), run(op, y, x)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("op", sorted({*standard(WHOLE)} - {"MatMul"}))
def test_whole_numbers_stay_whole(op: str) -> None:
    x, y = np.rint(drawn(1) * 9), np.rint(drawn(2) * 9)
    (result,) = run(op, x, y)
    np.testing.assert_array_equal(result, np.rint(result))


def quantised(op: str, steps: Array, zero: int) -> Array:
    """What an operator makes of integers that stand for the same floats, whatever their zero point is."""
    integers, scale, shift = (steps + zero).astype(np.uint8), np.float32(0.25), np.uint8(zero)
    weight = np.arange(16, dtype=np.uint8).reshape(1, 4, 2, 2) if op == "ConvInteger" else integers[0, 0] * 0 + 3
    grid = {"scale": scale, "zero": shift}
    forms = {"QuantizeLinear": {"x": steps * scale, **grid}, "DequantizeLinear": {"x": integers, **grid}}
    made = computed(op, forms.get(op, {"x": integers, "w": weight, "zero": shift}))[0]
    return made.astype(np.int64) - zero if op == "QuantizeLinear" else made


@pytest.mark.parametrize("op", sorted({*standard(QUANTISED)} - {"DynamicQuantizeLinear"}))  # it chooses the zero point
def test_integers_stand_for_floats(op: str) -> None:
    steps = np.rint(drawn(1) * 9)
    made = quantised(op, steps, 100)
    np.testing.assert_array_equal(made, quantised(op, steps, 131))
    if op in having(QUANTISES):
        np.testing.assert_array_equal(made, steps * (0.25 if op == "DequantizeLinear" else 1))


@pytest.mark.parametrize("op", standard(SIGMOID))
def test_sigmoids_grow_from_0_to_1(op: str) -> None:
    x = np.linspace(-40, 40, 64, dtype=np.float32).reshape(1, 4, 4, 4)
    (result,) = run(op, x, x)
    assert (np.diff(result.ravel()) >= 0).all()
    assert result.min() == pytest.approx(0, abs=1e-6) and result.max() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("op", standard(SOFTMAX))
def test_a_softmax_sums_to_1(op: str) -> None:
    (result,) = run(op, drawn(1), drawn(2))
    shares = result if result.min() > 0 else np.exp(result)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("op", standard(RESAMPLES))
def test_what_is_alike_stays_alike_at_another_size(op: str) -> None:
    (same,) = run(op, np.full((1, 4, 4, 4), 0.5, np.float32), drawn(2))
    (other,) = run(op, drawn(1), drawn(2))
    assert same.shape == other.shape == (1, 4, 8, 12) and np.allclose(same, 0.5)
    assert drawn(1).min() <= other.min() < other.max() <= drawn(1).max()


@pytest.mark.parametrize("op", sorted({*standard(SELECTS)} - BY_OTHERS))
def test_which_are_selected_depends_on_their_order(op: str) -> None:
    x = drawn(1)
    chosen, again, other = (
        [made for made in run(op, data, x) if made.dtype == np.int64] for data in (x, x * 3, np.maximum(-x, 0))
    )
    assert chosen and all(map(np.array_equal, chosen, again))
    assert not all(map(np.array_equal, chosen, other))


MIRRORED = (
    "ArgMax ArgMin Max Min ReduceMax ReduceMin Greater Less GreaterOrEqual LessOrEqual And Or Floor Ceil Sin Cos "
    "Sinh Asinh ReduceL1 ReduceL2 BitwiseAnd BitwiseOr GatherElements GatherND ScatterElements ScatterND "
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike SpaceToDepth DepthToSpace Squeeze Unsqueeze"
).split()


def test_operators_that_mirror_each_other_are_of_the_same_kinds() -> None:
    for one, other in zip(MIRRORED[::2], MIRRORED[1::2], strict=True):
        assert operators()["", one][-1].traits == operators()["", other][-1].traits, (one, other)


def test_what_is_said_of_inputs_names_inputs() -> None:
    """The name of each is the schema's, but where a version of it has another."""
    for (domain, name), versions in operators().items():
        said = versions[-1]
        named = {*" ".join(said.inputs.values()).split()}
        taken = {p.name for p in said.parameters.values() if p.kind is not p.KEYWORD_ONLY}
        assert named <= taken, (domain, name)


def test_rules_of_one_name_are_found_in_their_rooms() -> None:
    assert rules("transpose").keys() == {"infer", "elements", "kernel", "batch", "view"}
    assert card("", "Transpose").rules.batch is rules("transpose")["batch"]
    with pytest.raises(LookupError, match="transposed"):
        rules("transposed")


# ---- how many places name an operator --------------------------------------------------------------------------------

# passes that read a layer off its formula name each operator in it, in code and not in tables
LAYER_READERS = ("passes/unrolled/", "passes/multihead", "passes/transformer", "passes/layouts")
ROOMS = ("ops", "microsoft")  # what an operator is,
BODIES = (("passes", "contrib"), ("passes", "standard"))  # and what stands for it


@cache
def named_in() -> dict[str, frozenset[str]]:
    """The operators that each file outside their rooms names in a text that holds nothing else."""
    outside = [path for path in mentions.files() if path.parts[0] not in ROOMS and path.parts[:2] not in BODIES]
    return {path.as_posix(): mentions.named_in(path) for path in outside}


def places(name: str) -> int:
    return sum(name in names for names in named_in().values())


def test_few_places_name_an_operator() -> None:
    """What is known of an operator stands with its function: the rest of the product asks for it."""
    every = sorted(name for domain, name in operators() if not domain)
    of_some = statistics.median(places(name) for name in random.Random(20).sample(every, 20))
    assert of_some <= 2 and statistics.median(map(places, every)) <= 2
    named = {file: len(names & {*every}) for file, names in named_in().items()}
    readers = sum(n for file, n in named.items() if file.startswith(LAYER_READERS))
    said = "a table of operators has come back; or make this number smaller"
    assert sum(named.values()) - readers <= 558 and readers <= 55, said


def test_few_tables_name_operators() -> None:
    """Outside of the rooms of operators. Four of them are of PyTorch's layers, not of ONNX's operators."""
    outside = [path for path in mentions.files() if path.parts[0] not in ROOMS and path.parts[:2] not in BODIES]
    assert sum(len([*mentions.tables(path)]) for path in outside) <= 17, "make a card say it; or lower this number"


def test_places_are_found_by_that_test() -> None:
    assert places("Constant") > 10 and "Constant" in named_in()["weights/stored.py"]
