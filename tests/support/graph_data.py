"""Steps of random graphs whose sizes, positions or indices come from an input, and the less common operators."""

from __future__ import annotations

import numpy as np

from tests.support.graph_steps import ONE, axes_op, broadcast, fixed, times
from tests.support.graphs import Dim, Maker, Value


def vector(m: Maker, *elements: Dim) -> Value:
    """An int64 input that holds these sizes: of the k-th run the k-th of each."""
    value = m.input("q", fixed(len(elements)))
    for i, feed in enumerate(m.feeds):
        feed[value.name] = np.array([e[i] for e in elements], np.int64)
    return value


def scalar(m: Maker, size: Dim) -> Value:
    value = m.input("q", ())
    for i, feed in enumerate(m.feeds):
        feed[value.name] = np.array(size[i], np.int64)
    return value


def reshape_to_input(m: Maker) -> None:
    x = m.some("fq", range(1, 5))
    if x is None or m.depth or any(0 in d for d in x.shape):
        return
    shape = m.pick((x.shape, (times(*x.shape),), (ONE, *x.shape), (times(*x.shape[:-1]), x.shape[-1])))
    m.add(Value(m.emit("Reshape", [x, vector(m, *shape)])[0], x.kind, shape, x.exact))


def slice_by_input(m: Maker) -> None:
    x = m.some("fq", range(1, 5))
    if x is None or m.depth or m.opset < 10:
        return
    axis = m.between(0, x.rank - 1)
    start, end = m.pick(((0, 2), (1, 5), (-2, 9), (0, -1), (-1, -9)))
    size = tuple(len(range(d)[start:end]) for d in x.shape[axis])
    given = [vector(m, (start,) * 3) if m.chance(0.6) else m.ints(start), vector(m, (end,) * 3), m.ints(axis)]
    m.add(Value(m.emit("Slice", [x, *given])[0], x.kind, x.shape[:axis] + (size,) + x.shape[axis + 1 :], x.exact))


def sizes_by_input(m: Maker) -> None:
    """Expand, Tile, Range, ConstantOfShape and TopK with a size that is an input."""
    x = m.some("f", range(1, 4))
    if x is None or m.depth or m.opset < 11 or any(0 in d for d in x.shape):
        return
    kind = m.pick(("Expand", "Tile", "Range", "ConstantOfShape", "TopK"))
    if kind == "Expand":
        asked = tuple(d if m.chance(0.5) else ONE for d in x.shape)
        asked = (ONE, *asked) if m.chance(0.3) else asked
        shape = broadcast(x.shape, asked)
        assert shape is not None
        m.add(Value(m.emit("Expand", [x, vector(m, *asked)])[0], "f", shape))
    elif kind == "Tile":
        repeats = [tuple(m.between(1, 2) for _ in range(3)) for _ in x.shape]
        m.add(Value(m.emit("Tile", [x, vector(m, *repeats)])[0], "f", tuple(map(times, x.shape, repeats))))
    elif kind == "Range":
        start, step = m.parameter("q", (), np.array(0)), m.parameter("q", (), np.array(1))
        begin, by = (int(m.constants[p.name]) for p in (start, step))
        made = m.emit("Range", [start, scalar(m, x.shape[0]), step])[0]
        m.add(Value(made, "q", (tuple(len(range(begin, d, by)) for d in x.shape[0]),), True))
    elif kind == "ConstantOfShape":
        made = m.emit("ConstantOfShape", [vector(m, *x.shape)])[0]
        m.add(Value(made, "f", x.shape, True))
    elif x.exact:
        axis = m.between(0, x.rank - 1)
        values, indices = m.emit("TopK", [x, vector(m, ONE)], 2, axis=axis)
        shape = x.shape[:axis] + (ONE,) + x.shape[axis + 1 :]
        m.add(Value(values, "f", shape, True))
        m.add(Value(indices, "q", shape, True))


def positive(m: Maker) -> None:
    """Roots, powers and the like of what is never negative."""
    x = m.some("f")
    if x is None:
        return
    y = m.emit("Abs", [x])[0]
    y = m.emit("Add", [y, m.parameter("f", m.pick(((), (1,))), np.array(0.5))])[0]
    op = m.pick(("Sqrt", "Log", "Reciprocal", "Pow", "Pow"))
    if op == "Pow":
        exponent = m.parameter("f", m.pick(((), (1,), (1, 1))), np.array(m.pick((2.0, 0.5, 3.0, -1.0, 1.5))))
        shape = broadcast(x.shape, exponent.shape)
        assert shape is not None
        m.add(Value(m.emit("Pow", [y, exponent])[0], "f", shape))
        return
    m.add(Value(m.emit(op, [y])[0], "f", x.shape))


def rare(m: Maker) -> None:
    x = m.some("f", range(1, 5))
    if x is None or any(0 in d for d in x.shape):
        return
    op = m.pick(("CumSum", "Trilu", "DepthToSpace", "Size", "OneHot", "LpNormalization", "Dropout", "GatherElements"))
    axis = m.between(0, x.rank - 1)
    if op == "CumSum" and m.opset >= 11:
        flags = {"exclusive": m.between(0, 1), "reverse": m.between(0, 1)}
        m.add(Value(m.emit(op, [x, m.parameter("q", (), np.array(axis))], **flags)[0], "f", x.shape))
    elif op == "Trilu" and m.opset >= 14 and x.rank >= 2:
        k = [m.parameter("q", (), np.array(m.between(-1, 1)))] if m.chance(0.5) else []
        m.add(Value(m.emit(op, [x, *k], upper=m.between(0, 1))[0], "f", x.shape))
    elif op == "DepthToSpace" and x.rank == 4 and len(set(x.shape[1])) == 1 and x.shape[1][0] % 4 == 0:
        two = (2, 2, 2)
        shape = (x.shape[0], (x.shape[1][0] // 4,) * 3, times(x.shape[2], two), times(x.shape[3], two))
        m.add(Value(m.emit(op, [x], blocksize=2)[0], "f", shape))
    elif op == "Size":
        m.add(Value(m.emit("Size", [x])[0], "q", (), True))
    elif op == "LpNormalization":
        m.add(Value(m.emit(op, [x], axis=axis, p=m.between(1, 2))[0], "f", x.shape))
    elif op == "Dropout" and m.opset < 12:
        m.add(Value(m.emit(op, [x], ratio=0.5)[0], "f", x.shape))
    elif op == "OneHot" and m.opset >= 9:
        fit = [v for v in m.values if v.kind == "q" and v.name in m.feeds[0] and v.rank < 3]
        if fit:
            index = m.pick(fit)
            depth, values = m.parameter("q", (), np.array(4)), m.parameter("f", (2,), np.array([0.0, 1.0]))
            m.add(Value(m.emit(op, [index, depth, values])[0], "f", (*index.shape, (4, 4, 4))))
    elif op == "GatherElements" and m.opset >= 11 and x.static is not None:
        sizes = [d if i != axis else m.between(1, 3) for i, d in enumerate(x.static)]
        index = m.parameter("q", tuple(sizes), m.numbers.integers(0, x.static[axis], sizes))
        m.add(Value(m.emit(op, [x, index], axis=axis)[0], "f", index.shape))


def gather_by_input(m: Maker) -> None:
    x = m.some("f", range(1, 5))
    if x is None or m.depth or min(x.shape[0]) < 1:
        return
    index = vector(m, *[tuple(m.between(0, d - 1) for d in x.shape[0]) for _ in range(m.between(1, 2))])
    m.add(Value(m.emit("Gather", [x, index])[0], "f", index.shape + x.shape[1:], x.exact))


def conv_transpose(m: Maker) -> None:
    x = m.some("f", (3, 4))
    if x is None or len(set(x.shape[1])) > 1 or any(0 in d for d in x.shape):
        return
    n, out = x.rank - 2, m.between(1, 3)
    w = m.parameter("f", (x.shape[1][0], out, *[2] * n))
    b = [m.parameter("f", (out,))] if m.chance(0.5) else []
    stride = m.between(1, 2)
    shape = (x.shape[0], (out,) * 3, *(tuple((s - 1) * stride + 2 for s in d) for d in x.shape[2:]))
    made = m.emit("ConvTranspose", [x, w, *b], strides=[stride] * n, kernel_shape=[2] * n)[0]
    m.add(Value(made, "f", shape))


def inner_sizes(m: Maker) -> None:
    """Sizes as data: added, divided, compared, and made floats again."""
    x = m.some("f", range(1, 5))
    if x is None:
        return
    shape = Value(m.emit("Shape", [x])[0], "q", fixed(x.rank), True)
    two = m.parameter("q", m.pick(((), (1,))), np.array(m.between(1, 3)))
    made = m.emit(m.pick(("Add", "Sub", "Mul", "Div")), [shape, two])[0]
    if m.chance(0.5):
        made = m.emit("Gather", [made, m.parameter("q", (), np.array(m.between(0, x.rank - 1)))])[0]
        m.add(Value(made, "q", (), True))
        made = axes_op(m, "Unsqueeze", Value(made, "q", ()), [0])[0] if m.chance(0.5) else made
    else:
        m.add(Value(made, "q", fixed(x.rank), True))
