"""What drawn programs do: each instruction takes values of the graph's shape and makes one of that shape."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.hunts.emitting import DTYPES, Emitter

Attrs = dict[str, Any]
Body = Callable[..., str]

ELEMENTWISE = {
    "f": ("Relu", "Sigmoid", "Tanh", "Softplus", "Abs", "Neg", "Sin", "Identity"),
    "q": ("Abs", "Neg", "Sign"),
}
BINARY = {"f": ("Add", "Mul", "Sub", "Div", "Max", "Min"), "q": ("Add", "Mul", "Sub", "Max", "Min")}


def _floats(e: Emitter) -> str:
    return "f" if e.dtype in "fd" else "q"


def unary(e: Emitter, a: Attrs, x: str) -> str:
    names = ELEMENTWISE[_floats(e)]
    return str(e(names[a["pick"] % len(names)], x))


def binary(e: Emitter, a: Attrs, x: str, y: str) -> str:
    names = BINARY[_floats(e)]
    op = names[a["pick"] % len(names)]
    if op == "Div":
        y = e("Add", e("Abs", y), e.constant(1.0))
    return str(e(op, x, y))


def scalar(e: Emitter, a: Attrs, x: str) -> str:
    """A number before or after an operator."""
    op, c = ("Add", "Mul", "Sub")[a["pick"] % 3], e.constant((0.5, 2.0, 1.0, -1.0)[a["number"] % 4])
    return str(e(op, *((x, c) if a["flip"] else (c, x))))


def activation(e: Emitter, a: Attrs, x: str) -> str:
    """One with attributes, or one that is spelled out."""
    kind = a["pick"] % 6
    if kind == 0:
        return str(e("LeakyRelu", x, alpha=(0.01, 0.1, 0.3)[a["number"] % 3]))
    if kind == 1:
        return str(e("Elu", x, alpha=(1.0, 0.5)[a["number"] % 2]))
    if kind == 2:
        return str(e("Clip", x, e.constant(-0.5), e.constant((0.5, 1.0)[a["number"] % 2])))
    if kind == 3:
        return str(e("Mul", x, e("Sigmoid", x)))
    if kind == 4:
        inner = e("Add", e("Erf", e("Div", x, e.constant(2.0**0.5))), e.constant(1.0))
        return str(e("Mul", e("Mul", x, inner), e.constant(0.5)))
    return str(e("Softmax" if a["flip"] else "LogSoftmax", x, axis=-1 - a["axis"] % (len(e.shape) - 1)))


def linear(e: Emitter, a: Attrs, x: str) -> str:
    d = e.shape[-1]
    made = e("MatMul", x, e.parameter("weight", (d, d)))
    if a["number"] % 3 == 0:
        return str(made)
    bias = e.parameter("bias", (d,))
    return str(e("Add", *((bias, made) if a["flip"] else (made, bias))))


def scale(e: Emitter, a: Attrs, x: str) -> str:
    """A parameter that is a vector or has the whole shape, before or after."""
    shape = e.shape[1 + a["axis"] % max(len(e.shape) - 1, 1) :]
    given = e.parameter(("gamma", "weight", "scale")[a["number"] % 3], shape)
    return str(e(("Mul", "Add", "Sub")[a["pick"] % 3], *((x, given) if a["flip"] else (given, x))))


def layer_norm(e: Emitter, a: Attrs, x: str) -> str:
    d = (e.shape[-1],)
    if e.opset >= 17 and a["flip"]:
        given = [e.parameter("weight", d), e.parameter("bias", d)][: 1 + a["number"] % 2]
        return str(e("LayerNormalization", x, *given, axis=-1, epsilon=(1e-5, 1e-3)[a["pick"] % 2]))
    centred = e("Sub", x, mean(e, {"axis": 0, "flip": False}, x))
    squares = mean(e, {"axis": 0, "flip": False}, e("Mul", centred, centred))
    made = e("Div", centred, e("Sqrt", e("Add", squares, e.constant(1e-3))))
    return str(e("Mul", e.parameter("weight", d), made))


def batch_norm(e: Emitter, a: Attrs, x: str) -> str:
    c = (e.shape[1],)
    given = [e.parameter(n, c) for n in ("weight", "bias", "running_mean")]
    return str(e("BatchNormalization", x, *given, e.parameter("running_var", c, 0.5, 1.5)))


def mean(e: Emitter, a: Attrs, x: str) -> str:
    """The mean of an axis that stays, with 1; over all of the shape again if `flip`."""
    axis = -1 - a["axis"] % (len(e.shape) - 1)
    made = e("ReduceMean", x, e.ints(axis)) if e.opset >= 18 else e("ReduceMean", x, axes=[axis])
    return str(e("Add", x, made)) if a["flip"] else str(made)


def conv(e: Emitter, a: Attrs, x: str) -> str:
    """A convolution along all but batch and channels; pads may differ at the two ends."""
    c, n = e.shape[1], len(e.shape) - 2
    size = (1, 3, 2)[a["number"] % 3]
    before = (0, 1, a["pick"] % 2)[a["number"] % 3]
    pads = [before] * n + [size - 1 - before] * n
    group = c if a["axis"] % 3 == 0 else 1
    given = [e.parameter("weight", (c, c // group, *[size] * n))]
    given += [e.parameter("bias", (c,))] if a["flip"] else []
    return str(e("Conv", x, *given, kernel_shape=[size] * n, pads=pads, group=group))


def pool(e: Emitter, a: Attrs, x: str) -> str:
    n = len(e.shape) - 2
    op = ("MaxPool", "AveragePool")[a["pick"] % 2]
    extra = {"count_include_pad": a["number"] % 2} if op == "AveragePool" else {}
    return str(e(op, x, kernel_shape=[3] * n, pads=[1] * 2 * n, strides=[1] * n, **extra))


def turned(e: Emitter, a: Attrs, x: str) -> str:
    """Two axes of one size change places: what is wrong here has the right shape."""
    r = len(e.shape)
    pairs = [(i, j) for i in range(1, r) for j in range(i + 1, r) if e.shape[i] == e.shape[j]]
    perm = list(range(r))
    if pairs:
        i, j = pairs[a["pick"] % len(pairs)]
        perm[i], perm[j] = j, i
    return str(e("Transpose", x, perm=perm))


def attended(e: Emitter, a: Attrs, x: str, y: str) -> str:
    """softmax(x y') y, with a product that need not commute."""
    r = len(e.shape)
    if r < 3:
        return binary(e, {**a, "pick": 2}, x, y)
    turned_ = e("Transpose", y, perm=[*range(r - 2), r - 1, r - 2])
    scores = e("Mul", e("MatMul", x, turned_), e.constant(0.5))
    return str(e("MatMul", e("Softmax", scores, axis=-1), x if a["flip"] else y))


def halves(e: Emitter, a: Attrs, x: str) -> str:
    """Cut in two and joined again, the other way round or not."""
    axis = 1 + a["axis"] % (len(e.shape) - 1)
    d = e.shape[axis]
    if d < 2:
        return str(e("Identity", x))
    parts = e("Split", x, e.ints(d // 2, d - d // 2), outputs=2, axis=axis - (len(e.shape) if a["pick"] % 2 else 0))
    return str(e("Concat", *(parts[::-1] if a["flip"] else parts), axis=axis))


def gated(e: Emitter, a: Attrs, x: str, y: str) -> str:
    """Joined with another value, and one part of it taken by slicing."""
    axis = 1 + a["axis"] % (len(e.shape) - 1)
    d, start = e.shape[axis], a["number"] % 2 * e.shape[axis]
    if a["pick"] % 3 == 0:
        start = d // 2
    joined = e("Concat", *((y, x) if a["flip"] else (x, y)), axis=axis)
    return str(e("Slice", joined, e.ints(start), e.ints(start + d), e.ints(axis)))


def reshaped(e: Emitter, a: Attrs, x: str) -> str:
    """To another shape, something done there, and back: by numbers or by the Shape of the value."""
    r, dims = len(e.shape), e.shape[1:]
    flat = e("Reshape", x, e.ints(-1, int(np.prod(dims))) if a["flip"] else e.ints(0, -1))
    flat = e(("Relu", "Tanh", "Sigmoid")[a["number"] % 3], flat) if _floats(e) == "f" else e("Neg", flat)
    if a["pick"] % 2:
        return str(e("Reshape", flat, e("Shape", x)))
    first = e("Unsqueeze", e("Gather", e("Shape", x), e.constant(0, "q"), axis=0), e.ints(0)) if r > 1 else e.ints(-1)
    return str(e("Reshape", flat, e("Concat", first, e.ints(*dims), axis=0)))


def chosen(e: Emitter, a: Attrs, x: str, y: str) -> str:
    condition = e(("Less", "Greater")[a["pick"] % 2], x, e.constant(0.0) if a["flip"] else y)
    return str(e("Where", condition, x, y) if a["number"] % 2 else e("Where", condition, y, x))


def cast(e: Emitter, a: Attrs, x: str) -> str:
    there = TensorProto.DOUBLE if e.dtype == "f" else TensorProto.FLOAT
    if e.dtype not in "fd":
        return str(e("Cast", e("Neg", e("Cast", x, to=there)), to=DTYPES[e.dtype]))
    return str(e("Cast", e("Tanh", e("Cast", x, to=there)), to=DTYPES[e.dtype]))


def rolled(e: Emitter, a: Attrs, x: str) -> str:
    axis = 1 + a["axis"] % (len(e.shape) - 1)
    cut = a["number"] % 2 + 1
    left = e("Slice", x, e.ints(0), e.ints(cut), e.ints(axis))
    right = e("Slice", x, e.ints(cut), e.ints(2**31), e.ints(axis))
    return str(e("Concat", *((left, right) if a["flip"] else (right, left)), axis=axis))


def branched(e: Emitter, a: Attrs, x: str, y: str) -> str:
    """An If whose branches take values from outside."""
    graphs = []
    for branch in (0, 1):
        nodes: list[Any] = []
        with e.subgraph(nodes):
            made = binary(e, {**a, "pick": a["pick"] + branch}, *((x, y) if a["flip"] or branch else (y, x)))
            if a["number"] % 2:
                made = scale(e, a, made)
            made = e("Identity", made)
        graphs.append(helper.make_graph(nodes, f"branch{branch}", [], [e.info(made)]))
    return str(e("If", e.condition, then_branch=graphs[0], else_branch=graphs[1]))


def looped(e: Emitter, a: Attrs, x: str, y: str) -> str:
    """A Loop that carries one value and takes another from outside."""
    nodes: list[Any] = []
    turn, go, carried = e.fresh("turn"), e.fresh("go"), e.fresh("carried")
    with e.subgraph(nodes):
        made = binary(e, {**a, "pick": a["pick"] % 3}, *((carried, y) if a["flip"] else (y, carried)))
        made = e("Identity", e("Tanh", made) if _floats(e) == "f" else e("Sign", made))
        again = e("Identity", go)
    inputs = [
        helper.make_tensor_value_info(turn, TensorProto.INT64, []),
        helper.make_tensor_value_info(go, TensorProto.BOOL, []), e.info(carried),
    ]  # fmt: skip
    said = helper.make_tensor_value_info(again, TensorProto.BOOL, [])
    body = helper.make_graph(nodes, "body", inputs, [said, e.info(made)])
    return str(e("Loop", e.constant(a["number"] % 3, "q"), e.condition if a["pick"] % 2 else "", x, body=body))


ONE: dict[str, Body] = {
    "unary": unary, "scalar": scalar, "activation": activation, "linear": linear, "fc": linear, "scale": scale,
    "norm": layer_norm, "bn": batch_norm, "mean": mean, "conv": conv, "pool": pool, "turned": turned, "halves": halves,
    "reshaped": reshaped, "cast": cast, "rolled": rolled,
}  # fmt: skip
TWO: dict[str, Body] = {
    "binary": binary, "add": binary, "attended": attended, "gated": gated, "chosen": chosen, "branched": branched,
    "looped": looped,
}  # fmt: skip
IMAGES = ("conv", "pool", "bn")
WHOLE = ("unary", "scalar", "scale", "turned", "halves", "reshaped", "cast", "rolled", *TWO)
FLAT = ("unary", "scalar", "scale", "binary", "add", "chosen", "branched", "looped", "cast")
RARE = ("branched", "looped", "cast", "gated")


def usable(rank: int, dtype: str) -> list[str]:
    """The instructions that graphs of that rank and type can have."""
    names = [*ONE, *TWO]
    if dtype not in "fd":
        names = [n for n in WHOLE if n != "attended"]
    if rank < 2:
        return [n for n in names if n in FLAT]
    if rank < 3:
        names = [n for n in names if n not in IMAGES]
    return names


def attributes(rng: random.Random) -> Attrs:
    return {
        "pick": rng.randrange(12), "number": rng.randrange(12), "axis": rng.randrange(12), "flip": rng.random() < 0.5
    }  # fmt: skip
