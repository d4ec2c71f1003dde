"""The steps of random graphs that have graphs of their own: branches and loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import helper

from tests.support.graph_steps import broadcast
from tests.support.graphs import PATHS, TYPES, Dim, Maker, Value


def if_(m: Maker) -> None:
    """A branch of a few steps on values from outside, decided by an input, a constant or a size."""
    x = m.some("f")
    flags = [v for v in m.values if v.kind == "?" and v.static is not None and v.elements == 1 and v.rank == 0]
    if x is None or m.depth > 1:
        return
    if not flags or m.chance(0.3):
        flags = [m.parameter("?", (), np.array(m.chance(0.5)))] if m.chance(0.2) else [m.input("?", ())]
    flag = m.pick(flags)
    graphs = []
    names = [m.fresh("branch") for _ in range(2)]
    for name in names:
        graphs.append(subgraph(m, name, [], lambda: [same_shape(m, x)]))
    made = m.emit("If", [flag], then_branch=graphs[0], else_branch=graphs[1])
    m.add(Value(made[0], "f", x.shape))


def same_shape(m: Maker, x: Value) -> Value:
    """A few nodes from x to a value of its shape."""
    name = x.name
    for _ in range(m.between(1, 3)):
        if m.chance(0.2):
            m.scope = m.pick(PATHS)
        last = x.shape[-1] if x.rank > 1 else (0, 0, 0)
        if m.chance(0.15) and len(set(last)) == 1 and last[0] > 0:
            name = m.emit("MatMul", [name, m.parameter("f", (last[0], last[0]))])[0]
        if m.chance(0.5):
            name = m.emit(m.pick(("Tanh", "Relu", "Sigmoid", "Identity", "Neg")), [name])[0]
            continue
        fit = [v for v in m.values if v.kind == "f" and broadcast(x.shape, v.shape) == x.shape]
        y = m.pick(fit) if fit and m.chance(0.5) else m.parameter("f", m.pick(((), (1,) * x.rank)))
        name = m.emit(m.pick(("Add", "Mul", "Sub")), [name, y])[0]
    return Value(name, x.kind, x.shape)


def subgraph(m: Maker, name: str, inputs: list[Value], body: Callable[[], list[Value]]) -> object:
    """A graph attribute: what `body` makes, on top of everything made so far."""
    outer = m.nodes, m.stored, list(m.values)
    m.nodes, m.stored = [], []
    m.depth += 1
    try:
        outputs = body()
        passed = {v.name for v in inputs} | {o for n in m.nodes for o in n.output}
        for i, value in enumerate(outputs):
            if value.name not in passed or value.name in [o.name for o in outputs[:i]]:
                outputs[i] = Value(m.emit("Identity", [value])[0], value.kind, value.shape)
        infos = [
            [helper.make_tensor_value_info(v.name, TYPES[v.kind], [None] * v.rank) for v in side]
            for side in (inputs, outputs)
        ]
        return helper.make_graph(m.nodes, name, infos[0], infos[1], m.stored)
    finally:
        m.nodes, m.stored, values = outer
        m.values[:] = values
        m.depth -= 1


def loop(m: Maker) -> None:
    """A loop that carries one value and collects another, over a number of turns that may come from anywhere."""
    x = m.some("f", range(4))
    if x is None or m.depth or m.opset < 11 or x.elements > 200:
        return
    collects = m.chance(0.6)
    low = int(collects)  # of no turn onnxruntime knows no more than the rank of what it would collect
    turns: Dim = (m.between(low, 3),) * 3
    if m.chance(0.4):
        count = m.input("q", ())
        turns = tuple(m.between(low, 3) for _ in m.feeds)
        for feed, turn_count in zip(m.feeds, turns):
            feed[count.name] = np.array(turn_count)
    else:
        count = m.parameter("q", (), np.array(turns[0]))
    turn, go, carried = (Value(m.fresh(n), k, s) for n, k, s in (("i", "q", ()), ("go", "?", ()), ("v", "f", x.shape)))

    def body() -> list[Value]:
        m.values.append(carried)
        after = same_shape(m, carried)
        step = Value(m.emit("Cast", [turn], to=TYPES["f"])[0], "f", ())
        seen = Value(m.emit("Add", [m.pick((carried, after)), step])[0], "f", x.shape)
        return [go, after, seen]

    graph = subgraph(m, m.fresh("body"), [turn, go, carried], body)
    if not collects:
        del graph.output[2]  # type: ignore[attr-defined]
    going = m.parameter("?", (), np.array(True)) if m.chance(0.8) else ""
    made = m.emit("Loop", [count, going, x], 1 + collects, body=graph)
    m.add(Value(made[0], "f", x.shape))
    if collects:
        m.add(Value(made[1], "f", (turns, *x.shape)))
