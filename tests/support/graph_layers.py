"""Steps with weights, sizes computed at run time, modules, and the whole graph: what `graph_steps` has no room for."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.support import graph_blocks as blocks
from tests.support import graph_data as data
from tests.support import graph_steps as steps
from tests.support.graph_control import if_, loop
from tests.support.graph_steps import Step, broadcast, fixed, times
from tests.support.graphs import PATHS, TYPES, Case, Dim, Maker, Value

# layers


def matmul(m: Maker) -> None:
    x = m.some("f", range(2, 5))
    if x is None:
        return
    last, before = x.shape[-1], x.shape[-2]
    if len(set(last)) == 1 and last[0] > 0 and m.chance(0.85):
        n = m.between(1, 4)
        shape = m.pick(((last[0], n), (last[0], n), (last[0],)))
        w = m.parameter("f", shape)
        if m.chance(0.2) and len(shape) == 2:
            stored = m.parameter("f", shape[::-1])
            w = Value(m.emit("Transpose", [stored], perm=[1, 0])[0], "f", fixed(*shape))
        made = Value(m.emit("MatMul", [x, w])[0], "f", x.shape[:-1] + fixed(*shape[1:]))
        if m.chance(0.6) and len(shape) == 2:
            bias = m.parameter("f", m.pick(((n,), (n,), (1, n), (1,), ())))
            pair = [made, bias] if m.chance(0.5) else [bias, made]
            made = Value(m.emit("Add", pair)[0], "f", made.shape)
        m.add(made)
    elif len(set(before)) == 1 and before[0] > 0:
        w = m.parameter("f", (m.between(1, 3), before[0]))
        m.add(Value(m.emit("MatMul", [w, x])[0], "f", x.shape[:-2] + (w.shape[0], last)))


def gemm(m: Maker) -> None:
    x = m.some("f", (2,))
    if x is None:
        return
    across = m.chance(0.15)
    inner, rows = (x.shape[0], x.shape[1]) if across else (x.shape[1], x.shape[0])
    if len(set(inner)) > 1 or inner[0] == 0:
        return
    n, flip = m.between(1, 4), m.between(0, 1)
    w = m.parameter("f", (n, inner[0]) if flip else (inner[0], n))
    extra = {"alpha": 0.5} if m.chance(0.2) else {}
    extra |= {"beta": 2.0} if m.chance(0.2) else {}
    c = m.parameter("f", m.pick(((n,), (n,), (1, n), (1,), ()))) if m.opset < 11 or m.chance(0.7) else None
    made = m.emit("Gemm", [x, w, *([c] if c is not None else [])], transA=int(across), transB=flip, **extra)
    m.add(Value(made[0], "f", (rows, (n,) * 3)))


def conv(m: Maker) -> None:
    x = m.some("f", (3, 4))
    if x is None or len(set(x.shape[1])) > 1 or min(min(d) for d in x.shape) < 1:
        return
    channels, n = x.shape[1][0], x.rank - 2
    kernel = [m.between(1, 2) for _ in range(n)]
    group = channels if m.chance(0.2) else 1
    out = group * m.between(1, 3) if group < 5 else group
    w = m.parameter("f", (out, channels // group, *kernel))
    b = m.parameter("f", (out,)) if m.chance(0.6) else None
    strides = [m.between(1, 2) for _ in range(n)] if m.chance(0.3) else [1] * n
    pads = [m.between(0, 1) for _ in range(2 * n)] if m.chance(0.4) else [0] * 2 * n
    sizes = []
    for i, d in enumerate(x.shape[2:]):
        total = [s + pads[i] + pads[i + n] - kernel[i] for s in d]
        if min(total) < 0:
            return
        sizes.append(tuple(t // strides[i] + 1 for t in total))
    inputs = [x, w] + ([b] if b is not None else [])
    made = m.emit("Conv", inputs, kernel_shape=kernel, strides=strides, pads=pads, group=group)[0]
    m.add(Value(made, "f", (x.shape[0], (out,) * 3, *sizes)))


def norm(m: Maker) -> None:
    x = m.some("f", range(2, 5))
    if x is None or min(min(d) for d in x.shape) < 1:
        return
    size = x.shape[1]
    kind = m.pick(("batch", "batch", "layer", "instance"))
    few = any(d < 2 for d in times(*x.shape[2:])) and x.static is None  # torch refuses a single element
    if kind == "layer" and m.opset >= 17 and len(set(x.shape[-1])) == 1:
        given = [m.parameter("f", (x.shape[-1][0],)) for _ in range(m.between(1, 2))]
        m.add(Value(m.emit("LayerNormalization", [x, *given], axis=-1)[0], "f", x.shape))
    elif len(set(size)) == 1 and kind == "batch":
        given = [m.parameter("f", (size[0],)) for _ in range(3)]
        variance = m.parameter("f", (size[0],), np.abs(m.array("f", (size[0],))) + 0.5)
        m.add(Value(m.emit("BatchNormalization", [x, *given, variance])[0], "f", x.shape))
    elif len(set(size)) == 1 and kind == "instance" and x.rank > 2 and not few:
        given = [m.parameter("f", (size[0],)) for _ in range(2)]
        m.add(Value(m.emit("InstanceNormalization", [x, *given], epsilon=0.01)[0], "f", x.shape))


def softmax(m: Maker) -> None:
    x = m.some("f", range(1, 9))
    if x is None or min(min(d) for d in x.shape) < 1:
        return
    axis = m.between(0, x.rank - 1)
    axis = axis - x.rank if m.opset >= 11 and m.chance(0.5) else axis
    m.add(Value(m.emit(m.pick(("Softmax", "LogSoftmax")), [x], axis=axis)[0], "f", x.shape))


def pool(m: Maker) -> None:
    x = m.some("f", (3, 4))
    if x is None or min(min(d) for d in x.shape) < 1:
        return
    op = m.pick(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        m.add(Value(m.emit(op, [x])[0], "f", x.shape[:2] + fixed(*[1] * (x.rank - 2))))
        return
    n = x.rank - 2
    if min(min(d) for d in x.shape[2:]) < 2:
        return
    strides = [m.between(1, 2) for _ in range(n)]
    sizes = [tuple((s - 2) // t + 1 for s in d) for d, t in zip(x.shape[2:], strides)]
    m.add(Value(m.emit(op, [x], kernel_shape=[2] * n, strides=strides)[0], "f", (*x.shape[:2], *sizes)))


def prelu(m: Maker) -> None:
    x = m.some("f", range(2, 5))
    if x is None or len(set(x.shape[1])) > 1 or x.shape[1][0] < 1:
        return
    each, ones = x.shape[1][0], [1] * (x.rank - 2)
    slope = m.parameter("f", m.pick(((each, *ones), (1, each, *ones), (1,), (1, 1), (1, 1, *ones), ())))
    shape = broadcast(x.shape, slope.shape)
    if shape == x.shape:
        m.add(Value(m.emit("PRelu", [x, slope])[0], "f", x.shape))


# sizes computed at run time


def size_of(m: Maker, x: Value, axis: int, rank: int) -> str:
    """One dim of x, as a vector of one element (`rank` 1) or a scalar."""
    shape = m.emit("Shape", [x])[0]
    if rank == 1 and m.opset >= 10 and m.chance(0.3):
        return m.emit("Slice", [shape, m.ints(axis), m.ints(axis + 1)])[0]
    index = m.parameter("q", (), np.array(axis))
    made = m.emit("Gather", [shape, index], axis=0)[0]
    return made if rank == 0 else steps.axes_op(m, "Unsqueeze", Value(made, "q", ()), [0])[0]


def product_of(m: Maker, parts: list[tuple[Value, int]]) -> str:
    """The product of dims, as a vector of one element."""
    made = size_of(m, *parts[0], 0)
    for part in parts[1:]:
        made = m.emit("Mul", [made, size_of(m, *part, 0)])[0]
    return steps.axes_op(m, "Unsqueeze", Value(made, "q", ()), [0])[0]


def reshape(m: Maker) -> None:
    """Axes merged, split, or moved to rank 0; the sizes are constants, zeros, a -1, or computed."""
    x = m.some("fdqi?")
    if x is None:
        return
    if m.chance(0.15) and x.elements == 1 and x.static is not None and 0 not in x.static:
        ones = m.pick(((), (1,), (1, 1)))
        m.add(Value(m.emit("Reshape", [x, m.ints(*ones)])[0], x.kind, fixed(*ones), x.exact))
        return
    groups: list[list[int]] = []
    for axis in range(x.rank):
        if groups and m.chance(0.5):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    out: list[Dim] = [times(*(x.shape[a] for a in g)) for g in groups]
    empty = any(0 in d for d in x.shape)
    free = m.between(0, len(groups) - 1) if groups and not empty and m.chance(0.6) else -1
    parts: list[str] = []
    shape: list[Dim] = []
    for i, (group, dim) in enumerate(zip(groups, out)):
        shape.append(dim)
        if i == free:
            parts.append(m.ints(-1))
        elif len(set(dim)) == 1 and m.chance(0.7) and dim[0] != 0:
            if dim[0] % 2 == 0 and m.chance(0.3):
                shape[-1:] = list(fixed(2, dim[0] // 2))
                parts.append(m.ints(2, dim[0] // 2))
            else:
                parts.append(m.ints(dim[0]))
        elif group == [i] and len(shape) - 1 == i and m.chance(0.5):
            parts.append(m.ints(0))
        else:
            parts.append(product_of(m, [(x, a) for a in group]))
    if not parts:
        return
    target = parts[0] if len(parts) == 1 else m.emit("Concat", parts, axis=0)[0]
    m.add(Value(m.emit("Reshape", [x, target])[0], x.kind, tuple(shape), x.exact))


def reshape_like(m: Maker) -> None:
    x = m.some("f")
    fit = [v for v in m.values if x is not None and v.shape != x.shape and times(*v.shape) == times(*x.shape)]
    if x is None or not fit or any(0 in d for d in x.shape):
        return
    y = m.pick(fit)
    m.add(Value(m.emit("Reshape", [x, m.emit("Shape", [y])[0]])[0], "f", y.shape))


def fill(m: Maker) -> None:
    """A constant, or positions, as long as another value is."""
    x = m.some("f", range(1, 5))
    if x is None or m.opset < 11:
        return
    if m.chance(0.5):
        tensor = helper.make_tensor("value", TYPES["f"], [1], [0.5])
        made = m.emit("ConstantOfShape", [m.emit("Shape", [x])[0]], value=tensor)[0]
        m.add(Value(made, "f", x.shape))
        return
    axis = m.between(0, x.rank - 1)
    start, step = (m.parameter("q", (), np.array(v)) for v in (m.between(0, 1), m.between(1, 2)))
    end = size_of(m, x, axis, 0)
    made = m.emit("Range", [start, end, step])[0]
    begin, by = (int(m.constants[p.name]) for p in (start, step))
    m.add(Value(made, "q", (tuple(len(range(begin, d, by)) for d in x.shape[axis]),), True))
    if m.chance(0.7):
        m.add(Value(m.emit("Cast", [m.values[-1]], to=TYPES["f"])[0], "f", m.values[-1].shape, True))


def half_of(m: Maker) -> None:
    """A slice up to half of a size, or the size as a number in the computation."""
    x = m.some("f", range(1, 5))
    if x is None or m.opset < 10:
        return
    axis = m.between(0, x.rank - 1)
    size = size_of(m, x, axis, m.between(0, 1))
    if m.chance(0.5):
        made = m.emit("Cast", [size], to=TYPES["f"])[0]
        m.add(Value(m.emit("Mul", [x, made])[0], "f", x.shape))
        return
    size = size_of(m, x, axis, 1)
    two = m.parameter("q", (1,), np.array([2]))
    end = m.emit("Div", [size, two])[0]
    if m.chance(0.5):
        inputs, dims = [m.ints(0), end], tuple(d // 2 for d in x.shape[axis])
    else:
        inputs, dims = [end, m.ints(1 << 60)], tuple(d - d // 2 for d in x.shape[axis])
    made = m.emit("Slice", [x, *inputs, m.ints(axis)])[0]
    m.add(Value(made, "f", x.shape[:axis] + (dims,) + x.shape[axis + 1 :]))


def shape_as_data(m: Maker) -> None:
    x = m.some("fqi?")
    if x is not None:
        m.add(Value(m.emit("Shape", [x])[0], "q", fixed(x.rank), True))


STEPS: tuple[tuple[int, Step], ...] = (
    (6, steps.unary), (1, steps.clip), (3, steps.cast), (8, steps.binary), (2, steps.divide), (2, steps.compare),
    (2, steps.logic), (3, steps.where), (1, steps.variadic), (3, steps.transpose), (2, steps.flatten),
    (2, steps.unsqueeze), (2, steps.squeeze), (3, steps.concat), (2, steps.split), (3, steps.slice_),
    (3, steps.gather), (2, steps.embedding), (2, steps.pad), (1, steps.expand), (1, steps.tile), (2, steps.reduce),
    (1, steps.arg_max), (2, if_), (2, loop), (6, matmul), (3, gemm), (4, conv), (3, norm), (2, softmax),
    (2, pool), (1, prelu), (5, reshape), (2, reshape_like), (2, fill), (2, half_of), (1, shape_as_data),
    (4, blocks.block), (5, blocks.family),
    (1, data.reshape_to_input), (1, data.slice_by_input), (2, data.sizes_by_input), (2, data.positive), (3, data.rare),
    (1, data.gather_by_input), (1, data.conv_transpose), (2, data.inner_sizes),
)  # fmt: skip


def run_step(m: Maker, step: Step) -> None:
    """One step; now and then in another scope, or once more with the parameters of before."""
    if m.chance(0.5):
        m.scope = m.pick(PATHS)
    step(m)


def outputs(m: Maker, made: list[Value]) -> list[Value]:
    """The last values, some others, and what no exporter returns: inputs, stored tensors, a value twice."""
    chosen = [made[-1], *(m.pick(made) for _ in range(m.between(0, 3)))]
    if m.chance(0.1):
        chosen += [v for v in m.values if v.name in m.feeds[0]][:1]
    if m.chance(0.1) and m.parameters:
        chosen.append(m.pick(m.parameters))
    names: dict[str, Value] = {}
    for value in chosen:
        names.setdefault(value.name, value)
    return list(names.values())


def make(seed: int, count: int | None = None) -> Case:
    """The graph of a seed, of `count` steps (default: drawn)."""
    m = Maker(seed)
    d, kinds = (
        m.between(1, 6),
        m.pick((("f",), ("f", "f"), ("f", "q"), ("f", "?", "f"), ("f", "i"), ("d", "f"), ("f", "e"))),
    )
    for kind in kinds:
        symbols = (m.symbols["N"], m.symbols["L"])
        shape = m.pick(
            ((symbols[0], (d,) * 3), (symbols[0], symbols[1], (d,) * 3), (symbols[0], (d,) * 3, (4,) * 3, symbols[1]),
             fixed(2, d), (symbols[0],), fixed(2, 3, d), ((1,) * 3, (d,) * 3, symbols[1]), ())
        )  # fmt: skip
        m.input(kind, shape)
    steps_made = [s for weight, s in STEPS for _ in range(weight)]
    before = len(m.values)
    for _ in range(count if count is not None else m.pick((2, 4, 8, 12, 20))):
        run_step(m, m.pick(steps_made))
    first = m.values[0]
    made = m.values[before:] or [m.add(Value(m.emit("Identity", [first])[0], first.kind, first.shape))]
    chosen = outputs(m, made)
    infos = []
    for value in chosen:
        info = helper.make_tensor_value_info(value.name, TYPES[value.kind], [None] * value.rank)
        if m.chance(0.3):
            info.type.tensor_type.ClearField("shape")
        infos.append(info)
    if len(infos) > 1 and m.chance(0.1):
        infos.append(infos[0])
    graph = helper.make_graph(m.nodes, m.fresh("graph"), m.inputs, infos, m.stored)
    opsets = [helper.make_opsetid("", m.opset)]
    version = 8 if m.opset < 19 else 10
    return Case(seed, helper.make_model(graph, opset_imports=opsets, ir_version=version), m.feeds)
