"""Recurrent layers with all their attributes, and control flow: gradients go back through every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.gradients.cases import Case
from tests.gradients.made.nodes import between, floats, fused, graph, node

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HIDDEN, INPUT, BATCH, LENGTH = 2, 2, 2, 3


def cases() -> Iterator[Case]:
    for kind in GATES:
        more: dict[str, Any] = {"clip": 1.1}
        yield _layer(kind)
        yield _layer(kind, stored=[1, 2, 3])
        yield _layer(kind, direction="bidirectional", lengths=[3, 2])
        yield _layer(kind, direction="reverse", layout=1, **more)
        if kind == "GRU":
            yield _layer(kind, linear_before_reset=1)
            yield _layer(kind, linear_before_reset=1, stored=[1, 2, 3])
            yield _layer(kind, activations=["HardSigmoid", "Softsign"], activation_alpha=[0.3], activation_beta=[0.4])
        if kind == "RNN":
            for activation in ("Relu", "LeakyRelu", "ThresholdedRelu", "Affine", "ScaledTanh", "Elu", "Softplus"):
                yield _layer(kind, activations=[activation], activation_alpha=[0.6], activation_beta=[0.7])
        if kind == "LSTM":
            yield _layer(kind, peepholes=True, input_forget=1, clip=1.1)
            yield _layer(kind, peepholes=True, direction="bidirectional", stored=[1, 2, 3, 7])
    yield from _with_memory()
    yield from _control()


def _with_memory() -> Iterator[Case]:
    """Two of three steps of the second memory count; what is seen of it is mixed, or not."""
    steps, depth, size = 3, 2, 3
    lengths, counts = (np.array(v, np.int32) for v in ([3, 2], [3, 2]))
    for seen, d in ((2, 1), (0, 2)):
        width = INPUT + (seen or depth)
        inputs = [
            floats(LENGTH, BATCH, INPUT), floats(d, 4 * HIDDEN, width), floats(d, 4 * HIDDEN, HIDDEN),
            floats(d, 8 * HIDDEN), lengths, *(floats(d, BATCH, HIDDEN, seed=s) for s in (1, 2)), floats(d, 3 * HIDDEN),
            floats(d, HIDDEN, size), floats(d, depth, size), floats(d, size), floats(BATCH, steps, depth), counts,
            floats(d, HIDDEN + depth, seen) if seen else None,
        ]  # fmt: skip
        direction = "bidirectional" if d == 2 else "reverse"
        for stored in ([], [1, 2, 3, 7, 8, 9, 10, *([13] if seen else [])]):
            yield fused("AttnLSTM", *inputs, hidden_size=HIDDEN, direction=direction, outputs=3, stored=stored)


def _layer(
    kind: str,
    direction: str = "forward",
    lengths: list[int] | None = None,
    peepholes: bool = False,
    stored: list[int] | None = None,
    layout: int = 0,
    **attrs: Any,
) -> Case:
    gates, d = GATES[kind], 2 if direction == "bidirectional" else 1

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return between(-1, 1, *shape, seed=len(kind))

    x, h = (LENGTH, BATCH, INPUT), (d, BATCH, HIDDEN)
    if layout:
        x, h = (BATCH, LENGTH, INPUT), (BATCH, d, HIDDEN)
        attrs["layout"] = layout
    inputs: list[Any] = [
        draw(*x),
        draw(d, gates * HIDDEN, INPUT),
        draw(d, gates * HIDDEN, HIDDEN),
        draw(d, 2 * gates * HIDDEN),
    ]
    inputs += [None if lengths is None else np.array(lengths, np.int32), draw(*h)]
    if kind == "LSTM":
        inputs += [draw(*h) * 0.5, draw(d, 3 * HIDDEN) if peepholes else None]
    count = 3 if kind == "LSTM" else 2
    return node(kind, *inputs, outputs=count, stored=stored or (), hidden_size=HIDDEN, direction=direction, **attrs)


def _control() -> Iterator[Case]:
    x, w = floats(2), floats(2, seed=1)
    branches = """
    g (bool a, float[2] x, float[2] w) => (float[2] y) {
      big = Exp (x)
      y = If (a) <
        then_branch = t () => (float[2] ty) { ty = Mul (big, w) },
        else_branch = e () => (float[2] ey) {
          positive = Less (x, w)
          low = ReduceMin <keepdims = 0> (x)
          zero = Constant <value = float {0.0}> ()
          nested = Less (low, zero)
          ey = If (nested) <
            then_branch = et () => (float[2] ety) { ety = Sin (w) },
            else_branch = ee () => (float[2] eey) { eey = Mul (x, x) }
          >
        }
      >
    }"""
    for a in (True, False):
        yield graph(branches, a=np.array(a), x=x, w=w)
    yield graph(branches, a=np.array(False), x=np.abs(x) + 1, w=w)
    for grown in (True, False):
        yield graph(_loop(grown), n=np.array(3), x=x, w=w)
    yield graph(
        """
        g (float[2] h, float[3, 2] x, float[2] w) => (float[2] y, float[3, 2] ys) {
          y, ys = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], body = b (
            float[2] before, float[2] now
          ) => (float[2] after, float[2] out) {
            both = Mul (before, w)
            sum = Add (both, now)
            after = Tanh (sum)
            out = Mul (after, now)
          }> (h, x)
        }""",
        h=x,
        x=floats(3, 2),
        w=w,
    )


def _loop(grown: bool) -> str:
    """A value that is carried, one that is captured, and a result of each step; or a condition on the value."""
    less = """
        most = ReduceMax <keepdims = 0> (after)
        ten = Constant <value = float {10.0}> ()
        more = Less (most, ten)"""
    more = "more = Identity (c)"
    return f"""
    g (int64 n, float[2] x, float[2] w) => (float[2] y, float[N, 2] ys) {{
      go = Constant <value = bool {{1}}> ()
      y, ys = Loop (n, go, x) <body = b (
        int64 i, bool c, float[2] before
      ) => (bool more, float[2] after, float[2] out) {{
        scaled = Mul (before, w)
        after = Add (scaled, x)
        out = Mul (after, after)
        {less if grown else more}
      }}>
    }}"""
