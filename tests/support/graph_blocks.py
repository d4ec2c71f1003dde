"""Steps of random graphs that look like modules: the same few layers again, with other numbers, and with odd wiring."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.graph_steps import fixed
from tests.support.graphs import Maker, Value

HOMES = ("blocks", "a.layers", "net", "layers", "a.0", "stage1.blocks", "seq")


def linear(m: Maker, x: Value, n: int, bias: bool) -> Value:
    w = m.parameter("f", (x.shape[-1][0], n))
    made = Value(m.emit("MatMul", [x, w])[0], "f", x.shape[:-1] + fixed(n))
    if bias:
        made = Value(m.emit("Add", [m.parameter("f", (n,)), made])[0], "f", made.shape)
    return made


def block(m: Maker) -> None:
    """The same few layers under numbered paths, one after the other or side by side; sometimes one twice."""
    x = m.some("f", range(2, 4))
    if x is None or len(set(x.shape[-1])) > 1 or x.shape[-1][0] < 1 or m.depth:
        return
    home, outer = m.pick(HOMES), m.scope
    start, count, n = m.pick((0, 0, 0, 1)), m.between(1, 4), x.shape[-1][0]
    bias, residual, shared = m.chance(0.7), m.chance(0.4), m.chance(0.3)
    chained = m.chance(0.8)
    one = m.chance(0.15)
    made: list[Value] = []
    y = x
    first = len(m.parameters)
    for i in range(count):
        m.scope = f"{home}.{start if one else start + i * m.pick((1, 1, 1, 2))}"
        here = m.scope
        source = y if chained else x
        if m.chance(0.5):
            m.scope = f"{here}.fc"
        y = linear(m, source, n, bias)
        m.scope = here
        y = Value(m.emit("Relu", [y])[0], "f", y.shape)
        if residual:
            y = Value(m.emit("Add", [y, source])[0], "f", y.shape)
        if shared:
            y = Value(m.emit("Mul", [y, x])[0], "f", y.shape)
        made.append(y)
        if not one and m.chance(0.7):
            m.parameters[first:] = []  # not tied to the next one's
    m.scope = outer
    for value in made if m.chance(0.3) else [y]:
        m.add(value)


def leaky(m: Maker, x: Value) -> Value:
    return Value(m.emit("LeakyRelu", [x], alpha=m.pick((0.1, 0.2, 0.25)))[0], "f", x.shape)


def dense(m: Maker, x: Value) -> Value:
    return linear(m, x, m.pick((x.shape[-1][0], 2, 3)), m.chance(0.8))


def scaled(m: Maker, x: Value) -> Value:
    """Times a number that is each instance's own, or a stored one."""
    by = m.parameter("f", m.pick(((), (1,))), np.array(m.pick((0.5, 2.0, 3.0))))
    return Value(m.emit(m.pick(("Mul", "Mul", "Add")), [x, by])[0], "f", x.shape)


def rolled(m: Maker, x: Value) -> Value:
    """The last axis cut in two at a place of its own, and put together the other way round."""
    n = x.shape[-1][0]
    if n < 2:
        return leaky(m, x)
    cut = m.between(1, n - 1)
    last = x.rank - 1
    if m.opset >= 13:
        first, second = m.emit("Split", [x, m.ints(cut, n - cut)], 2, axis=last)
    else:
        first, second = m.emit("Split", [x], 2, axis=last, split=[cut, n - cut])
    return Value(m.emit("Concat", [second, first], axis=last)[0], "f", x.shape)


def padded(m: Maker, x: Value) -> Value:
    """The length of the last axis changes, by a number of its own."""
    n, more = x.shape[-1][0], m.between(0, 2)
    pads = [0] * (x.rank - 1) + [more] + [0] * x.rank
    made = m.emit("Pad", [x, m.ints(*pads)]) if m.opset >= 11 else m.emit("Pad", [x], pads=pads)
    return Value(made[0], "f", x.shape[:-1] + fixed(n + more))


def normed(m: Maker, x: Value) -> Value:
    n = x.shape[-1][0]
    if m.opset < 17 or min(min(d) for d in x.shape) < 1:
        return leaky(m, x)
    given = [m.parameter("f", (n,)) for _ in range(2)]
    made = m.emit("LayerNormalization", [x, *given], axis=-1, epsilon=m.pick((1e-5, 1e-6, 1e-3)))
    return Value(made[0], "f", x.shape)


Part = Callable[[Maker, Value], Value]
PARTS: tuple[Part, ...] = (leaky, dense, dense, scaled, rolled, padded, normed)


def family(m: Maker) -> None:
    """Instances of one class that differ in numbers only, nested, with values that leave in between."""
    x = m.some("f", range(2, 4))
    if x is None or len(set(x.shape[-1])) > 1 or x.shape[-1][0] < 1 or m.depth:
        return
    outer, home = m.scope, m.pick(HOMES)
    recipe = [(m.pick(PARTS), m.chance(0.4)) for _ in range(m.between(1, 4))]
    names = [m.pick(("conv1", "fc", "act", "0", "1", "norm", "b")) for _ in recipe]
    nested, taps, reversed_ = m.chance(0.3), m.chance(0.3), m.chance(0.1)
    y = x
    made: list[Value] = []
    order = list(range(m.between(2, 4)))
    for i in reversed(order) if reversed_ else order:
        here = f"{home}.{i // 2}.{i % 2}" if nested else f"{home}.{i}"
        before = y
        for (part, inside), name in zip(recipe, names):
            m.scope = f"{here}.{name}" if inside else here
            y = part(m, y)
            if taps and m.chance(0.5):
                made.append(y)
        if y.shape == before.shape and m.chance(0.3):
            m.scope = here
            y = Value(m.emit("Add", [y, before])[0], "f", y.shape)
        if m.chance(0.8):
            m.parameters.clear()
    m.scope = outer
    for value in [*made, y]:
        m.add(value)
