"""The steps that random graphs are made of: each adds a few nodes, or nothing where no value fits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.support.graphs import TYPES, Dim, Maker, Shape, Value

ONE: Dim = (1, 1, 1)
Step = Callable[[Maker], None]


def fixed(*sizes: int) -> Shape:
    return tuple((s, s, s) for s in sizes)


def times(*dims: Dim) -> Dim:
    return tuple(int(np.prod([d[k] for d in dims])) for k in range(3))


def plus(*dims: Dim) -> Dim:
    return tuple(sum(d[k] for d in dims) for k in range(3))


def broadcast(a: Shape, b: Shape) -> Shape | None:
    """The broadcast shape, if it exists at every size."""
    n = max(len(a), len(b))
    left, right = (ONE,) * (n - len(a)) + a, (ONE,) * (n - len(b)) + b
    made = []
    for p, q in zip(left, right):
        if any(x != y and 1 not in (x, y) for x, y in zip(p, q)):
            return None
        made.append(tuple(y if x == 1 else x for x, y in zip(p, q)))
    return tuple(made)


# one value in, one of its shape out


def unary(m: Maker) -> None:
    x = m.some("f" if m.chance(0.8) else "fd")
    if x is None:
        return
    ops = ["Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Identity", "LeakyRelu", "Elu", "Softplus", "Sin", "Softsign"]
    ops = [op for op in ops if x.kind == "f" or op in ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Identity", "Sin")]
    ops += ["Erf"] if m.opset >= 9 and x.kind == "f" else []
    ops += ["HardSwish", "Floor"] if m.opset >= 14 and x.exact and x.kind == "f" else []
    ops += ["Gelu", "Mish"] if m.opset >= 20 and x.kind == "f" else []
    op = m.pick(ops)
    m.add(Value(m.emit(op, [x])[0], x.kind, x.shape, x.exact and op in ("Identity", "Neg", "Abs", "Relu", "Floor")))


def clip(m: Maker) -> None:
    x = m.some("f")
    if x is None:
        return
    if m.opset < 11:
        made = m.emit("Clip", [x], min=-0.5, max=0.75)
    else:
        low, high = (m.parameter("f", (), np.array(v)) for v in (-0.5, 0.75))
        made = m.emit("Clip", [x, *m.pick(((low, high), (low,), ("", high)))])
    m.add(Value(made[0], "f", x.shape))


def cast(m: Maker) -> None:
    x = m.some("fdeqi?")
    if x is None:
        return
    kinds = "fdeqi?" if x.exact or x.kind in "qi?" else "fde"
    kind = m.pick(kinds)
    if x.kind in "fde" and kind in "qi?" and not x.exact:
        return
    m.add(Value(m.emit("Cast", [x], to=TYPES[kind])[0], kind, x.shape, x.exact and "e" not in (x.kind, kind)))
    if kind == "e" and m.chance(0.7):  # few operators compute in half precision
        m.add(Value(m.emit("Cast", [m.values[-1]], to=TYPES["f"])[0], "f", x.shape))


# two values in


def operand(m: Maker, x: Value, own: bool = False) -> Value | None:
    """A second operand that broadcasts with x: another value, or a stored one of less, equal or more rank.

    `own`: a stored one is used nowhere else.
    """
    if m.chance(0.45):
        fit = [v for v in m.values if v.kind == x.kind and broadcast(x.shape, v.shape) is not None and v.elements < 999]
        return m.pick(fit) if fit else None
    shape: list[int] = []
    for dim in reversed(x.shape):
        shape.insert(0, dim[0] if len(set(dim)) == 1 and dim[0] > 0 and m.chance(0.6) else 1)
    shape = shape[m.between(0, len(shape)) :]
    if m.chance(0.2):
        shape = [1] * m.between(1, 2) + shape
    return m.parameter(x.kind, tuple(shape), own=own)


def binary(m: Maker) -> None:
    x = m.some("f" if m.chance(0.7) else "fdqi")
    y = operand(m, x) if x is not None else None
    if x is None or y is None:
        return
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    if m.chance(0.3):
        x, y = y, x
    ops = ["Add", "Add", "Sub", "Mul", "Mul"]
    ops += ["Max", "Min"] if x.kind in "fd" and m.opset >= 8 or m.opset >= 12 else []
    op = m.pick(ops)
    m.add(Value(m.emit(op, [x, y])[0], x.kind, shape, x.kind in "qi"))


def divide(m: Maker) -> None:
    x = m.some("fqi")
    if x is None:
        return
    y = m.parameter(x.kind, m.pick(((), (1,), (1, 1))), np.array(m.pick((2, 3, 8))))
    ops = ["Div"] + (["Mod"] if m.opset >= 10 and x.kind in "qi" else [])
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    m.add(Value(m.emit(m.pick(ops), [x, y])[0], x.kind, shape, x.kind in "qi"))


def compare(m: Maker) -> None:
    fit = [v for v in m.values if v.exact and v.kind in ("f" if m.opset < 9 else "fqi")]
    x = m.pick(fit) if fit else None
    y = operand(m, x, own=True) if x is not None else None
    if x is None or y is None or not y.exact:
        return
    ops = ["Greater", "Less"] + (["Equal"] if x.kind in "qi" or m.opset >= 11 else [])
    ops += ["GreaterOrEqual", "LessOrEqual"] if m.opset >= 16 else []
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    m.add(Value(m.emit(m.pick(ops), [x, y])[0], "?", shape, True))


def logic(m: Maker) -> None:
    x = m.some("?")
    y = operand(m, x) if x is not None else None
    if x is None or y is None:
        return
    if m.chance(0.3):
        m.add(Value(m.emit("Not", [x])[0], "?", x.shape, True))
        return
    shape = broadcast(x.shape, y.shape)
    assert shape is not None
    m.add(Value(m.emit(m.pick(("And", "Or", "Xor")), [x, y])[0], "?", shape, True))


def where(m: Maker) -> None:
    c, x = m.some("?", near=0.4), m.some("fq")
    if c is None or x is None or m.opset < 9:
        return
    y = operand(m, x)
    shape = broadcast(x.shape, y.shape) if y is not None else None
    shape = broadcast(shape, c.shape) if shape is not None else None
    if y is None or shape is None:
        return
    x, y = (x, y) if m.chance(0.5) else (y, x)
    m.add(Value(m.emit("Where", [c, x, y])[0], x.kind, shape, x.exact and y.exact))


def variadic(m: Maker) -> None:
    x = m.some("f")
    if x is None or m.opset < 8:
        return
    others = [v for v in m.values if v.kind == "f" and v.shape == x.shape]
    chosen = [x, *(m.pick(others) for _ in range(m.between(0, 2)))]
    m.add(Value(m.emit(m.pick(("Sum", "Mean", "Max")), chosen)[0], "f", x.shape))


# layout


def transpose(m: Maker) -> None:
    x = m.some("fdeqi?")
    if x is None or (x.rank == 0 and m.opset < 9):
        return
    perm = m.random.sample(range(x.rank), x.rank)
    attributes = {"perm": perm} if x.rank and m.chance(0.8) else {}
    perm = perm if attributes else list(range(x.rank))[::-1]
    m.add(Value(m.emit("Transpose", [x], **attributes)[0], x.kind, tuple(x.shape[p] for p in perm), x.exact))


def flatten(m: Maker) -> None:
    x = m.some("f" if m.opset < 9 else "fqi?", range(1, 9))
    if x is None:
        return
    axis = m.between(0, x.rank)
    shape = (times(*x.shape[:axis]), times(*x.shape[axis:]))
    axis = axis - x.rank if m.opset >= 11 and axis < x.rank and m.chance(0.3) else axis
    m.add(Value(m.emit("Flatten", [x], axis=axis)[0], x.kind, shape, x.exact))


def axes_op(m: Maker, op: str, x: Value, axes: list[int]) -> list[str]:
    return m.emit(op, [x, m.ints(*axes)]) if m.opset >= 13 else m.emit(op, [x], axes=axes)


def unsqueeze(m: Maker) -> None:
    x = m.some("fdeqi?", range(5))
    if x is None:
        return
    count = m.between(1, 2)
    axes = sorted(m.random.sample(range(x.rank + count), count))
    shape = list(x.shape)
    for axis in axes:
        shape.insert(axis, ONE)
    given = [a - x.rank - count if m.opset >= 11 and m.chance(0.3) else a for a in axes]
    m.add(Value(axes_op(m, "Unsqueeze", x, given)[0], x.kind, tuple(shape), x.exact))


def squeeze(m: Maker) -> None:
    x = m.some("fdeqi?")
    ones = [i for i, d in enumerate(x.shape) if d == ONE] if x is not None else []
    if x is None or not ones:
        return
    if m.chance(0.2) and x.static is not None:
        m.add(Value(m.emit("Squeeze", [x])[0], x.kind, tuple(d for d in x.shape if d != ONE), x.exact))
        return
    axes = m.random.sample(ones, m.between(1, len(ones)))
    shape = tuple(d for i, d in enumerate(x.shape) if i not in axes)
    given = [a - x.rank if m.opset >= 11 and m.chance(0.3) else a for a in sorted(axes)]
    m.add(Value(axes_op(m, "Squeeze", x, given)[0], x.kind, shape, x.exact))


def alike(x: Value, y: Value, axis: int) -> bool:
    """Whether two values can be concatenated."""
    return (
        x.kind == y.kind
        and x.rank == y.rank
        and all(p == q or i == axis for i, (p, q) in enumerate(zip(x.shape, y.shape)))
    )


def concat(m: Maker) -> None:
    x = m.some("fqi?", range(1, 9))
    if x is None:
        return
    axis = m.between(0, x.rank - 1)
    fit = [v for v in m.values if alike(x, v, axis)]
    chosen = [m.pick(fit) for _ in range(m.between(0, 2))]
    sizes = [d[0] for d in x.shape]
    if x.static is not None and 0 not in sizes and m.chance(0.4):
        chosen.append(m.parameter(x.kind, tuple(m.between(1, 3) if i == axis else d for i, d in enumerate(sizes))))
    chosen.insert(m.between(0, len(chosen)), x)
    shape = x.shape[:axis] + (plus(*(c.shape[axis] for c in chosen)),) + x.shape[axis + 1 :]
    axis = axis - x.rank if m.opset >= 11 and m.chance(0.4) else axis
    m.add(Value(m.emit("Concat", chosen, axis=axis)[0], x.kind, shape, all(c.exact for c in chosen)))


def split(m: Maker) -> None:
    x = m.some("fq", range(1, 9))
    if x is None:
        return
    axis = m.between(0, x.rank - 1)
    size = x.shape[axis]
    if len(set(size)) > 1 or size[0] < 2:
        return
    first = m.between(1, size[0] - 1)
    parts = m.pick(([first, size[0] - first], [1] * size[0]))
    equal = len(set(parts)) == 1 and m.chance(0.5)
    given = axis - x.rank if m.opset >= 11 and m.chance(0.3) else axis
    if m.opset >= 13 and not equal:
        made = m.emit("Split", [x, m.ints(*parts)], len(parts), axis=given)
    else:
        extra: dict[str, object] = {} if equal else {"split": parts}
        extra |= {"num_outputs": len(parts)} if equal and m.opset >= 18 else {}
        made = m.emit("Split", [x], len(parts), axis=given, **extra)
    for name, part in zip(made, parts):
        m.add(Value(name, x.kind, x.shape[:axis] + ((part,) * 3,) + x.shape[axis + 1 :], x.exact))
    m.random.shuffle(m.values)


def slice_(m: Maker) -> None:
    x = m.some("fqi", range(1, 9))
    if x is None:
        return
    axis = m.between(0, x.rank - 1)
    start, end = m.pick(((0, 2), (1, 1 << 60), (-2, 1 << 60), (0, -1), (1, -1), (1, 3), (0, 1), (-1, 1 << 60)))
    step = m.pick((1, 1, 1, 2)) if m.opset >= 10 else 1
    size = tuple(len(range(d)[start:end:step]) for d in x.shape[axis])
    if m.opset < 10:
        made = m.emit("Slice", [x], axes=[axis], starts=[start], ends=[end])
    else:
        if m.chance(0.15) and min(x.shape[axis]) > 0:
            start, end, step, size = -1, -(1 << 60), -1, x.shape[axis]
        given = [m.ints(start), m.ints(end), m.ints(axis - x.rank if m.chance(0.3) else axis)]
        made = m.emit("Slice", [x, *given, *([m.ints(step)] if step != 1 or m.chance(0.5) else [])])
    m.add(Value(made[0], x.kind, x.shape[:axis] + (size,) + x.shape[axis + 1 :], x.exact))


def gather(m: Maker) -> None:
    x = m.some("fdqi?", range(1, 9))
    if x is None:
        return
    axis = m.between(0, x.rank - 1)
    low = min(x.shape[axis])
    if low < 1:
        return
    shape = m.pick(((), (), (1,), (2,), (2, 2)))
    lowest = -low if m.opset >= 11 else 0
    index = m.parameter(m.pick("qi"), shape, np.array(m.numbers.integers(lowest, low, shape)))
    made = m.emit("Gather", [x, index], axis=axis)[0]
    m.add(Value(made, x.kind, x.shape[:axis] + index.shape + x.shape[axis + 1 :], x.exact))


def embedding(m: Maker) -> None:
    fit = [v for v in m.values if v.kind in "qi" and v.name in m.feeds[0]]
    fit = [v for v in fit if all(((f[v.name] >= 0) & (f[v.name] < 4)).all() for f in m.feeds)]
    if not fit:
        return
    index, table = m.pick(fit), m.parameter("f", (4, m.between(1, 6)))
    m.add(Value(m.emit("Gather", [table, index])[0], "f", index.shape + table.shape[1:]))


def pad(m: Maker) -> None:
    x = m.some("f", range(1, 5))
    if x is None or 0 in (d for dim in x.shape for d in dim):
        return
    pads = [m.between(0, 1) for _ in range(2 * x.rank)]
    mode = m.pick(("constant", "constant", "edge", "reflect"))
    if mode == "reflect":
        pads = [p if min(x.shape[i % x.rank]) > 1 else 0 for i, p in enumerate(pads)]
    shape = tuple(plus(d, (pads[i] + pads[i + x.rank],) * 3) for i, d in enumerate(x.shape))
    if m.opset < 11:
        made = m.emit("Pad", [x], pads=pads, mode=mode)
    else:
        value = [m.parameter("f", (), np.array(0.5))] if m.chance(0.3) else []
        made = m.emit("Pad", [x, m.ints(*pads), *value], mode=mode)
    m.add(Value(made[0], "f", shape))


def expand(m: Maker) -> None:
    x = m.some("fqi?", range(4))
    if x is None or m.opset < 8:
        return
    shape = [m.between(2, 3) if d == ONE and m.chance(0.5) else 1 for d in x.shape]
    made = fixed(*[m.between(1, 2)] * m.between(0, 1), *shape)
    out = broadcast(x.shape, made)
    assert out is not None
    m.add(Value(m.emit("Expand", [x, m.ints(*(d[0] for d in made))])[0], x.kind, out, x.exact))


def tile(m: Maker) -> None:
    x = m.some("fqi", range(1, 4))
    if x is None:
        return
    repeats = [m.between(1, 2) for _ in x.shape]
    shape = tuple(times(d, (r,) * 3) for d, r in zip(x.shape, repeats))
    m.add(Value(m.emit("Tile", [x, m.ints(*repeats)])[0], x.kind, shape, x.exact))


def reduce(m: Maker) -> None:
    x = m.some("f", range(1, 9))
    if x is None or any(0 in d for d in x.shape):
        return
    op = m.pick(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2"))
    axes = sorted(m.random.sample(range(x.rank), m.between(1, x.rank)))
    keep = m.between(0, 1)
    whole = m.chance(0.2)
    gone = range(x.rank) if whole else axes
    shape = tuple(ONE if i in gone else d for i, d in enumerate(x.shape) if keep or i not in gone)
    given = [a - x.rank if m.opset >= 11 and m.chance(0.4) else a for a in axes]
    if whole:
        made = m.emit(op, [x], keepdims=keep)
    elif m.opset >= (13 if op == "ReduceSum" else 18):
        made = m.emit(op, [x, m.ints(*given)], keepdims=keep)
    else:
        made = m.emit(op, [x], axes=given, keepdims=keep)
    m.add(Value(made[0], "f", shape))


def arg_max(m: Maker) -> None:
    fit = [v for v in m.values if v.exact and v.kind == "f" and v.rank and all(0 not in d for d in v.shape)]
    if not fit:
        return
    x, keep = m.pick(fit), m.between(0, 1)
    axis = m.between(0, x.rank - 1)
    shape = tuple(ONE if i == axis else d for i, d in enumerate(x.shape) if keep or i != axis)
    m.add(Value(m.emit("ArgMax", [x], axis=axis, keepdims=keep)[0], "q", shape, True))
