"""Lists that are only taken apart again, as PyTorch's exporter writes them where it does not optimise."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from tests.ops.harness import assert_same, run_model, run_onnxruntime

X = np.arange(2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3)


def outputs(body: str, result: str = "y") -> str:
    """The generated source of a graph over x [2, 5, 3], whose outputs are onnxruntime's."""
    head = f'<ir_version: 8, opset_import: ["" : 17]> g (float[n,5,3] x) => (float {result})'
    constants = "zero = Constant <value = int64 {0}> () one = Constant <value = int64 {1}> ()"
    last = "last = Constant <value = int64 {-1}> ()"
    model = onnx.parser.parse_model(f"{head} {{ {constants} {last} {body} }}")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    ran = run_model(model, {"x": X})
    for actual, expected in zip(ran.outputs, run_onnxruntime(model, {"x": X})):
        assert_same(actual, expected)
    return ran.source


@pytest.mark.parametrize(
    ("split", "text"),
    [
        ("s = SplitToSequence <axis = 1> (x, two)", "x.split([2, 2, 1], dim=1)"),
        ("s = SplitToSequence <axis = -2> (x, sizes)", "x.split([1, 4], dim=1)"),
        ("s = SplitToSequence <axis = 2> (x)", "x.chunk(3, dim=-1)"),
    ],
)
def test_parts_by_number(split: str, text: str) -> None:
    made = "two = Constant <value = int64 {2}> () sizes = Constant <value_ints = [1, 4]> ()"
    take = "a = SequenceAt(s, zero) b = SequenceAt(s, last)"
    join = "ra = ReduceSum(a, one1) rb = ReduceSum(b, one1) y = Add(ra, rb)"
    source = outputs(f"{made} one1 = Constant <value_ints = [1]> () {split} {take} {join}")
    assert "list(" not in source, source
    assert text in source


def test_without_the_axis() -> None:
    source = outputs(
        "s = SplitToSequence <axis = 2, keepdims = 0> (x) a = SequenceAt(s, one) b = SequenceAt(s, last) y = Add(a, b)"
    )
    assert "list(" not in source, source


@pytest.mark.parametrize(
    "body",
    [
        "s = SplitToSequence <axis = 1>(x) a = SequenceAt(s, one) j = ConcatFromSequence <axis = 1> (s) y = Mul(j, a)",
        "s = SplitToSequence <axis = 0> (x) y = SequenceAt(s, one)",  # its length is not known
        "m = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (m) k = Mod (i, one) "
        "s = SplitToSequence <axis = 1> (x) y = SequenceAt(s, k)",  # which one is not known
    ],
)
def test_lists_that_stay(body: str) -> None:
    assert "list(" in outputs(body)
