"""If, Loop and Scan as Python statements, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

from onnxgen.errors import OnnxgenError
from tests.ops.harness import (
    Ran,
    assert_same,
    generate,
    run_model,
    run_onnxruntime,
    unbound_names,
)

F = np.float32


def check(graph: str, *feeds: dict[str, Any], opset: int = 18) -> Ran:
    """A model in ONNX's textual form, run on each set of inputs and compared with onnxruntime."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{graph}')
    onnx.checker.check_model(model)
    for feed in feeds:
        ran = run_model(model, feed)
        ran.expected = run_onnxruntime(model, feed)
        for actual, expected in zip(ran.outputs, ran.expected, strict=True):
            assert_same(actual, expected)
    return ran


@pytest.mark.parametrize("name", ["If", "Loop", "Scan"])
def test_every_schema_version_binds(name: str) -> None:
    assert unbound_names(name) == []


# ----------------------------------------------------------------------------------------------------------------- If

NESTED_IF = """
g (bool a, bool b, float[N, 2] x) => (float[M, 2] y, float[N, 2] z) {
  big = Exp (x)
  y, z = If (a) <
    then_branch = t () => (float[P, 2] t_y, float[N, 2] t_z) {
      t_y = If (b) <
        then_branch = tt () => (float[P, 2] tt_y) { tt_y = Concat <axis = 0> (x, big) },
        else_branch = te () => (float[P, 2] te_y) { te_y = Neg (big) }
      >
      t_z = Identity (x)
    },
    else_branch = e () => (float[P, 2] e_y, float[N, 2] e_z) {
      e_z = Add (x, big)
      e_y = Sub (e_z, x)
    }
  >
}
"""


def test_nested_branches_use_outer_values() -> None:
    x = np.array([[1, -2], [0.5, 3], [0, 1]], F)
    truths = [(np.array(a), np.array(b)) for a in (True, False) for b in (True, False)]
    ran = check(NESTED_IF, *({"a": a, "b": b, "x": x} for a, b in truths))
    assert ran.forward.count("if ") == 2


@pytest.mark.parametrize(
    "branch, says",
    [
        (
            "h () => (float[N, 3] u) { u = Exp (x) }",
            "node y (If-18): the node has 2 outputs, but 1 are computed",
        ),
        ("h (float[N, 3] i) => (float[N, 3] u, float[N, 3] v) { u = Exp (x) v = Neg (i) }", "input i was never"),
    ],
)
def test_a_branch_that_does_not_fit_is_the_files_fault(branch: str, says: str) -> None:
    graph = f"""
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 3] x, bool c) => (float[N, 3] y, float[N, 3] z) {{
      y, z = If (c) <then_branch = {branch}, else_branch = {branch.replace("h", "k", 1)}>
    }}
    """
    with pytest.raises(OnnxgenError) as caught:
        generate(parser.parse_model(graph))
    assert says in str(caught.value) and str(caught.value).endswith(
        " -> if onnxruntime runs the model, report this as a bug in onnxgen"
    )


def test_a_known_condition_leaves_no_if() -> None:
    graph = """
    g (float[N, 3] x) => (float[N, 3] y) {
      shape = Shape (x)
      rank = Size (shape)
      two = Constant <value = int64 {2}> ()
      same = Equal (rank, two)
      y = If (same) <
        then_branch = t () => (float[N, 3] t_y) { t_y = Exp (x) },
        else_branch = e () => (float[N, 3] e_y) { e_y = Neg (x) }
      >
    }
    """
    assert "if " not in check(graph, {"x": np.ones((2, 3), F)}).forward


def test_sizes_from_a_branch_are_known_after_it() -> None:
    graph = """
    g (bool c, float[N, 2] x) => (float[K] y) {
      part = If (c) <
        then_branch = t () => (float[P, 2] a) { a = Concat <axis = 0> (x, x) },
        else_branch = e () => (float[P, 2] b) { b = Identity (x) }
      >
      shape = Shape (part)
      zero = Constant <value = int64[1] {0}> ()
      one = Constant <value = int64[1] {1}> ()
      rows = Gather <axis = 0> (shape, zero)
      two = Constant <value = int64[1] {2}> ()
      size = Mul (rows, two)
      y = Reshape (part, size)
    }
    """
    x = np.arange(6, dtype=F).reshape(3, 2)
    check(graph, {"c": np.array(True), "x": x}, {"c": np.array(False), "x": x})


# --------------------------------------------------------------------------------------------------------------- Loop


def test_swapped_states() -> None:
    """Fibonacci, and a body that swaps: all states change at once."""
    graph = """
    g (int64 n, float[2] a, float[2] b) => (float[2] x, float[2] y, float[2] p, float[2] q) {
      keep = Constant <value = bool {1}> ()
      x, y = Loop (n, keep, a, b) <
        body = fib (int64 i, bool c, float[2] u, float[2] v) => (bool c_out, float[2] v_out, float[2] w) {
          c_out = Identity (c)
          w = Add (u, v)
          v_out = Identity (v)
        }
      >
      p, q = Loop (n, keep, a, b) <
        body = swap (int64 i2, bool c2, float[2] u2, float[2] v2) => (bool c3, float[2] v3, float[2] u3) {
          c3 = Identity (c2)
          v3 = Identity (v2)
          u3 = Identity (u2)
        }
      >
    }
    """
    feeds = [{"n": np.array(n), "a": np.array([1, 2], F), "b": np.array([3, 5], F)} for n in (0, 1, 4, 5)]
    check(graph, *feeds)


def test_condition_and_count() -> None:
    """Each stops the loop; scan outputs are stacked, also of no turn at all."""
    graph = """
    g (int64 n, bool go, float[1] x) => (float[1] y, float[K, 1] all, int64[K] turns) {
      limit = Constant <value = float[1] {20.0}> ()
      y, all, turns = Loop (n, go, x) <
        body = b (int64 i, bool c, float[1] u) => (bool again, float[1] v, float[1] v2, int64 turn) {
          v = Add (u, u)
          less = Less (v, limit)
          again = Squeeze (less)
          v2 = Neg (u)
          turn = Identity (i)
        }
      >
    }
    """
    feeds = [
        {"n": np.array(n), "go": np.array(go), "x": np.array([x], F)}
        for n, go, x in ((10, True, 1), (2, True, 1), (0, True, 1), (5, False, 1), (7, True, 30))
    ]
    assert "break" in check(graph, *feeds).forward


def test_without_a_count_it_is_a_while() -> None:
    graph = """
    g (float x) => (float y, int64 last) {
      keep = Constant <value = bool {1}> ()
      zero = Constant <value = int64 {0}> ()
      limit = Constant <value = float {50.0}> ()
      y, last = Loop ("", keep, x, zero) <
        body = b (int64 i, bool c, float u, int64 before) => (bool again, float v, int64 now) {
          v = Add (u, u)
          again = Less (v, limit)
          now = Identity (i)
        }
      >
    }
    """.replace('""', "")
    ran = check(graph, {"x": np.array(1, F)}, {"x": np.array(30, F)})
    assert "while " in ran.forward


def test_states_may_grow() -> None:
    graph = """
    g (int64 n, float[1, K] x) => (float[R, K] y, int64[2] shape) {
      keep = Constant <value = bool {1}> ()
      y = Loop (n, keep, x) <
        body = b (int64 i, bool c, float[P, K] u) => (bool d, float[Q, K] v) {
          d = Identity (c)
          v = Concat <axis = 0> (u, x)
        }
      >
      shape = Shape (y)
    }
    """
    check(graph, *({"n": np.array(n), "x": np.ones((1, 3), F)} for n in (0, 1, 3)))


def test_loops_in_loops_and_branches() -> None:
    graph = """
    g (int64 n, float[2] x) => (float[2] y, float[K, L, 2] all) {
      keep = Constant <value = bool {1}> ()
      three = Constant <value = int64 {3}> ()
      one = Constant <value = int64 {1}> ()
      y, all = Loop (n, keep, x) <
        body = outer (int64 i, bool c, float[2] u) => (bool d, float[2] v, float[L, 2] steps) {
          d = Identity (c)
          odd_ = Mod (i, three)
          is_one = Equal (odd_, one)
          w, steps = Loop (three, keep, u) <
            body = inner (int64 j, bool e, float[2] s) => (bool f, float[2] t, float[2] t2) {
              f = Identity (e)
              t = Add (s, x)
              t2 = Mul (t, u)
            }
          >
          v = If (is_one) <
            then_branch = yes () => (float[2] a) { a = Neg (w) },
            else_branch = no () => (float[2] b) { b = Add (w, u) }
          >
        }
      >
    }
    """
    check(graph, *({"n": np.array(n), "x": np.array([0.5, -1], F)} for n in (1, 2, 4)))


def test_a_stored_weight_is_one_module_used_in_each_turn() -> None:
    graph = """
    g (int64 n, float[2, 3] x) => (float[2, 3] y)
    <float[3, 3] weight = {0.5, 0.1, -0.2, 0.3, 0.7, 0.1, 0.2, -0.4, 0.9}> {
      keep = Constant <value = bool {1}> ()
      y = Loop (n, keep, x) <
        body = b (int64 i, bool c, float[2, 3] u) => (bool d, float[2, 3] v) {
          d = Identity (c)
          p = MatMul (u, weight)
          v = Tanh (p)
        }
      >
    }
    """
    ran = check(graph, {"n": np.array(3), "x": np.ones((2, 3), F)})
    assert list(ran.model.state_dict()) == ["fc.weight"]
    ran.model(torch.tensor(3), torch.ones(2, 3)).sum().backward()
    gradient = ran.model.fc.weight.grad
    assert gradient is not None and torch.isfinite(gradient).all() and gradient.abs().sum() > 0


# --------------------------------------------------------------------------------------------------------------- Scan

SCAN = """
g (float[2] h, float[A, B, 2] x, float[A, 2] z) => (float[2] last, float[P, Q, R] ys, float[S, 2] zs) {
  last, ys, zs = Scan <
    num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [FORWARD, BACK],
    scan_output_axes = [1, 0], scan_output_directions = [BACK, FORWARD],
    body = b (float[2] s, float[A, 2] u, float[2] v) => (float[2] t, float[A, 2] y, float[2] w) {
      t = Add (s, v)
      y = Mul (u, t)
      w = Sub (v, s)
    }
  > (h, x, z)
}
"""


@pytest.mark.parametrize("forward", [0, 1])
@pytest.mark.parametrize("back", [0, 1])
def test_scan_axes_and_directions(forward: int, back: int) -> None:
    rng = np.random.default_rng(0)
    h, x, z = (rng.normal(size=s).astype(F) for s in ((2,), (3, 3, 2), (3, 2)))
    check(SCAN.replace("FORWARD", str(forward)).replace("BACK", str(back)), {"h": h, "x": x, "z": z})


def test_scan_of_opset_8_goes_over_a_batch() -> None:
    graph = """
    g (float[B, 2] h, float[B, S, 2] x) => (float[B, 2] last, float[B, S, 2] ys) {
      last, ys = Scan <num_scan_inputs = 1, directions = [1],
        body = b (float[2] s, float[2] u) => (float[2] t, float[2] y) {
          t = Add (s, u)
          y = Mul (t, u)
        }
      > ("", h, x)
    }
    """.replace('""', "")
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 8]>\n{graph}')
    rng = np.random.default_rng(0)
    h, x = rng.normal(size=(2, 2)).astype(F), rng.normal(size=(2, 3, 2)).astype(F)
    total = h[:, None] + np.cumsum(x[:, ::-1], 1)
    ran = run_model(model, {"h": h, "x": x})
    assert_same(ran.outputs[0], total[:, -1])
    assert_same(ran.outputs[1], total * x[:, ::-1])


def test_the_shape_of_what_may_have_no_axes() -> None:
    """Its list of sizes is empty, which torch takes for floats."""
    feeds = [{"c": np.array(c), "x": np.ones((2, 3), F)} for c in (True, False)]
    check(
        """g (bool c, float[2, 3] x) => (int64[r] z) {
          y = If (c) <
            then_branch = t () => (float[] a) { a = ReduceMax <keepdims = 0> (x) },
            else_branch = e () => (float[2, 3] b) { b = Identity (x) }
          >
          z = Shape (y)
        }""",
        *feeds,
    )
