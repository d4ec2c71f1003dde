"""If, Loop and Scan as Python statements, against onnxruntime."""

from __future__ import annotations

import re
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
    forward = check(graph, *feeds).forward
    assert "break" in forward and re.search(r"for (i|item) in range\(", forward)


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


# --------------------------------------------------------------------------------------------- conditions on sizes


CONDITIONS = [
    ("Equal (n, one)", "if x.shape[1] == 1:"), ("Greater (n, three)", "if x.shape[1] > 3:"),
    ("LessOrEqual (three, n)", "if 3 <= x.shape[1]:"), ("Equal (n, first)", "if l == n:"),
]  # fmt: skip
SIZES = [(1, 1), (2, 1), (3, 3), (2, 5), (1, 4)]


@pytest.mark.parametrize("rule,text", CONDITIONS, ids=[rule for rule, _ in CONDITIONS])
def test_a_condition_on_sizes_is_pythons(rule: str, text: str) -> None:
    """No tensor is made of a size only to be compared."""
    ran = check(
        f"""g (float[N, L] x) => (float[N, L] y) {{
          s = Shape (x)
          i = Constant <value = int64[1] {{1}}> ()
          zero = Constant <value = int64[1] {{0}}> ()
          one = Constant <value = int64[1] {{1}}> ()
          three = Constant <value = int64[1] {{3}}> ()
          n = Gather (s, i)
          first = Gather (s, zero)
          c = {rule}
          y = If (c) <
            then_branch = t () => (float[N, L] a) {{ a = Neg (x) }},
            else_branch = e () => (float[N, L] b) {{ b = Exp (x) }}
          >
        }}""",
        *({"x": np.ones(shape, F)} for shape in SIZES),
    )
    assert text in ran.forward and "torch.tensor" not in ran.forward


def test_conditions_of_sizes_are_joined() -> None:
    """Not, And, Or, casts and moves of truth values stay Python's, and so does the rank of what may have several."""
    graph = """g (float[N, L] x) => (float[N, L] y, bool z) {
      s = Shape (x)
      i = Constant <value = int64 {1}> ()
      two = Constant <value = int64 {2}> ()
      four = Constant <value = int64 {4}> ()
      n = Gather (s, i)
      long = Greater (n, four)
      short = Less (n, two)
      either = Or (long, short)
      not = Not (either)
      whole = Cast <to = 7> (not)
      back = Cast <to = 9> (whole)
      i1 = Constant <value = int64[1] {0}> ()
      back1 = Unsqueeze (back, i1)
      c = Squeeze (back1, i1)
      z = And (c, c)
      y = If (c) <
        then_branch = t () => (float[N, L] a) { a = Neg (x) },
        else_branch = e () => (float[N, L] b) { b = Exp (x) }
      >
    }"""
    ran = check(graph, *({"x": np.ones((2, n), F)} for n in (1, 2, 4, 5)))
    assert ran.forward.count("torch.tensor") == 1, "only the output is a tensor"


def test_what_a_size_chooses() -> None:
    """A Where of equal shapes, and a loop that need not begin."""
    graph = """g (float[N, L] x, float[N, L] x1) => (float[N, L] y) {
      s = Shape (x)
      i = Constant <value = int64 {1}> ()
      one = Constant <value = int64 {1}> ()
      n = Gather (s, i)
      long = Greater (n, one)
      w = Where (long, x, x1)
      m = Constant <value = int64 {2}> ()
      y = Loop (m, long, w) <body = b (int64 j, bool go, float[N, L] a) => (bool on, float[N, L] z) {
        on = Identity (go)
        z = Add (a, x1)
      }>
    }"""
    ran = check(graph, *({"x": np.zeros((2, n), F), "x1": np.ones((2, n), F)} for n in (1, 3)))
    assert " if " in ran.forward and "torch.where" not in ran.forward and "torch.tensor" not in ran.forward


def test_a_rank_is_pythons_too() -> None:
    graph = """g (bool c, float[2, 3] x) => (float[P, Q] z) {
      y = If (c) <
        then_branch = t () => (float[2] a) { a = ReduceMax <axes = [1], keepdims = 0> (x) },
        else_branch = e () => (float[2, 3] b) { b = Identity (x) }
      >
      s = Shape (y)
      rank = Size (s)
      two = Constant <value = int64 {2}> ()
      flat = Equal (rank, two)
      thin = Not (flat)
      i = Constant <value = int64[1] {0}> ()
      z = If (thin) <
        then_branch = t2 () => (float[P, Q] a2) { a2 = Unsqueeze (y, i) },
        else_branch = e2 () => (float[P, Q] b2) { b2 = Identity (y) }
      >
    }"""
    ran = check(graph, *({"c": np.array(c), "x": np.ones((2, 3), F)} for c in (True, False)), opset=17)
    assert "if x1.dim() != 2:" in ran.forward or ".dim() != 2:" in ran.forward


SQUEEZED = """g (float[N, C, L] x, float[1, N, 3] h, float[1, N, 3] c) => (float[A, B, D] y) {
  s = Shape (x)
  i = Constant <value = int64[1] {2}> ()
  n = Gather (s, i)
  one = Constant <value = int64[1] {1}> ()
  zero = Constant <value = int64[1] {0}> ()
  k = Equal (n, one)
  w = ConstantOfShape <value = float[1] {0.5}> (of_w)
  r = ConstantOfShape <value = float[1] {0.25}> (of_r)
  of_w = Constant <value = int64[3] {1, 12, 4}> ()
  of_r = Constant <value = int64[3] {1, 12, 3}> ()
  q = If (k) <
    then_branch = t () => (float[N, C] a) { a = Squeeze (x, i) },
    else_branch = e () => (float[N, C, L] b) { b = Identity (x) }
  >
  last
}"""


def squeezed(last: str) -> str:
    """A branch that drops an axis of size 1, `x.squeeze(2)`, and what follows."""
    lines = SQUEEZED.replace("  last\n", last).splitlines()
    made = [line for line in lines if line.startswith("  of_")]
    return "\n".join([lines[0], *made, *(line for line in lines[1:] if line not in made)])


def test_a_branch_is_taken_if_the_other_one_cannot_run() -> None:
    """Behind the other branch, the LSTM gets four axes, which onnxruntime refuses."""
    graph = squeezed("  u = Unsqueeze (q, zero)\n  y, yh, yc = LSTM <hidden_size = 3> (u, w, r, , , h, c)\n")
    graph = graph.replace("(float[A, B, D] y)", "(float[A, D, B, E] y)")
    feeds = [{"x": np.ones((n, 4, 1), F), "h": np.ones((1, n, 3), F), "c": np.ones((1, n, 3), F)} for n in (1, 2)]
    ran = check(graph, *feeds)
    assert "if " not in ran.forward and "squeeze" in ran.forward
    longer = {**feeds[0], "x": np.ones((1, 4, 2), F)}
    with pytest.raises(Exception, match="must have 3 dimensions"):
        run_onnxruntime(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{graph}'), longer)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        ran.model(*(torch.from_numpy(v) for v in longer.values()))


def test_a_branch_that_changes_nothing_is_taken_too() -> None:
    graph = squeezed("  y = Conv (q, w)\n").replace(", float[1, N, 3] h, float[1, N, 3] c", "")
    ran = check(graph.replace("int64[3] {1, 12, 4}", "int64[3] {2, 4, 1}"), {"x": np.ones((2, 4, 5), F)})
    assert "if " not in ran.forward and "squeeze" not in ran.forward


def test_a_branch_stays_if_both_can_run() -> None:
    graph = squeezed("  y = Exp (q)\n").replace(", float[1, N, 3] h, float[1, N, 3] c", "")
    graph = graph.replace("(float[A, B, D] y)", "(float y)")
    ran = check(graph, *({"x": np.ones((2, 4, n), F)} for n in (1, 2)))
    assert "if x.shape[2] == 1:" in ran.forward


def test_a_branch_of_an_input_stays() -> None:
    """It is an argument, though the network can only run with one value of it."""
    graph = squeezed("  u = Unsqueeze (q, zero)\n  y, yh, yc = LSTM <hidden_size = 3> (u, w, r, , , h, c)\n")
    graph = graph.replace("(float[A, B, D] y)", "(float[A, D, B, E] y)").replace("k = Equal (n, one)", "k = Not (no)")
    graph = graph.replace("g (float", "g (bool no, float")
    given = {"x": np.ones((2, 4, 1), F), "h": np.ones((1, 2, 3), F), "c": np.ones((1, 2, 3), F)}
    ran = check(graph, {"no": np.array(False), **given})
    assert "if ~no:" in ran.forward
