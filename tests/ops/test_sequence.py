"""Sequences and optionals against onnxruntime and ONNX's own cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

from tests.ops.harness import assert_same, run_model, run_node, run_onnxruntime, unbound_names

F = np.float32
SEQUENCES = [
    "SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceLength", "SequenceInsert", "SequenceErase",
    "SplitToSequence", "ConcatFromSequence", "SequenceMap",
]  # fmt: skip
OPTIONALS = ["Optional", "OptionalHasElement", "OptionalGetElement"]


@pytest.mark.parametrize("name", SEQUENCES + OPTIONALS)
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


def check(graph: str, *feeds: dict[str, Any], opset: int = 17) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{graph}')
    for feed in feeds:
        ran = run_model(model, feed)
        for actual, expected in zip(ran.outputs, run_onnxruntime(model, feed), strict=True):
            assert_same(actual, expected)


ROWS = [np.full(2, i, F) for i in range(4)]


@pytest.mark.parametrize("position", [None, 0, 1, 4, -1, -4])
@pytest.mark.parametrize("stored", [True, False])
def test_insert(position: int | None, stored: bool) -> None:
    where = None if position is None else np.array(position)
    kept = {2} if stored and position is not None else set()
    run_node("SequenceInsert", [ROWS, np.full(2, 9, F), where], opset=17, initializers=kept)


@pytest.mark.parametrize("position", [None, 0, 1, 3, -1, -2, -4])
@pytest.mark.parametrize("stored", [True, False])
def test_erase_and_at(position: int | None, stored: bool) -> None:
    where = None if position is None else np.array(position)
    kept = {1} if stored and position is not None else set()
    run_node("SequenceErase", [ROWS, where], opset=17, initializers=kept)
    if where is not None:
        run_node("SequenceAt", [ROWS, where], opset=17, initializers=kept)


def test_length_and_concatenation() -> None:
    run_node("SequenceLength", [ROWS], opset=17)
    run_node("ConcatFromSequence", [ROWS], {"axis": 0}, opset=17)
    run_node("ConcatFromSequence", [ROWS], {"axis": -1, "new_axis": 1}, opset=17)
    run_node("ConcatFromSequence", [ROWS], {"axis": 1, "new_axis": 1}, opset=17)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("split", [None, 2, 3, [1, 3, 2], [6]])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("stored", [True, False])
def test_split(axis: int, split: Any, keepdims: int, stored: bool) -> None:
    x = np.arange(36, dtype=F).reshape(6, 6)
    if isinstance(split, int) and not keepdims:
        keepdims = 1  # no meaning with `split`; onnxruntime fails
    sizes = None if split is None else np.array(split)
    kept = {1} if stored and split is not None else set()
    run_node("SplitToSequence", [x, sizes], {"axis": axis, "keepdims": keepdims}, opset=17, initializers=kept)


def test_a_list_grows_in_a_loop() -> None:
    graph = """
    g (int64 n, float[2] x) => (float[K, 2] y, int64 length) {
      keep = Constant <value = bool {1}> ()
      none = SequenceEmpty ()
      rows = Loop (n, keep, none) <
        body = b (int64 i, bool c, seq(float[2]) s) => (bool d, seq(float[2]) t) {
          d = Identity (c)
          f = Cast <to = 1> (i)
          row = Mul (x, f)
          t = SequenceInsert (s, row)
        }
      >
      y = ConcatFromSequence <axis = 0, new_axis = 1> (rows)
      length = SequenceLength (rows)
    }
    """
    check(graph, *({"n": np.array(n), "x": np.array([1, 2], F)} for n in (1, 4)))


def test_a_list_is_never_changed_in_place() -> None:
    graph = """
    g (float[2] a, float[2] b) => (seq(float[2]) first, seq(float[2]) more, seq(float[2]) less) {
      zero = Constant <value = int64 {0}> ()
      first = SequenceConstruct (a, b)
      more = SequenceInsert (first, a)
      less = SequenceErase (more, zero)
    }
    """
    check(graph, {"a": np.array([1, 2], F), "b": np.array([3, 4], F)})


@pytest.mark.parametrize("given", [True, False])
def test_optional_input(given: bool) -> None:
    """Absent is None; a branch asks whether it is there."""
    graph = """
    g (optional(float[2]) maybe, float[2] x) => (float[2] y) {
      has = OptionalHasElement (maybe)
      y = If (has) <
        then_branch = t () => (float[2] a) {
          v = OptionalGetElement (maybe)
          a = Add (v, x)
        },
        else_branch = e () => (float[2] b) { b = Neg (x) }
      >
    }
    """
    x = np.array([1, 2], F)
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{graph}')
    ran = run_model(model, {"maybe": x if given else None, "x": x})
    assert_same(ran.outputs[0], x + x if given else -x)
