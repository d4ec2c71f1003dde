"""Draws files of a few KB that ask for far more than they hold: each from its number alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as oh
from onnx.numpy_helper import from_array

HUGE = (2**20, 2**31, 2**40, 2**62)
Draw = random.Random


class Graph:
    """A graph in the making; `result` names what it returns."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.sparse: list[onnx.SparseTensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.outputs: list[str] = []
        self.dims: list[str | int] = ["n", "m"]
        self._names = (f"v{i}" for i in itertools.count())

    def numbers(self, *values: int, kind: type = np.int64) -> str:
        self.stored.append(from_array(np.array(values, kind), next(self._names)))
        return self.stored[-1].name

    def scalar(self, number: float, kind: type = np.int64) -> str:
        self.stored.append(from_array(np.array(number, kind), next(self._names)))
        return self.stored[-1].name

    def weight(self, *shape: int) -> str:
        self.stored.append(from_array(np.ones(shape, np.float32), next(self._names)))
        return self.stored[-1].name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [next(self._names) for _ in range(outputs)]
        self.nodes.append(oh.make_node(op, list(inputs), names, name=f"n{len(self.nodes)}", **attributes))
        self.outputs = names
        return names[0]

    def model(self) -> onnx.ModelProto:
        x = oh.make_tensor_value_info("x", TensorProto.FLOAT, self.dims)
        c = oh.make_tensor_value_info("c", TensorProto.BOOL, [])
        results = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = oh.make_graph(self.nodes, "g", [x, c], results, self.stored, sparse_initializer=self.sparse)
        opsets = [oh.make_opsetid("", 18), oh.make_opsetid("f", 1)]
        return oh.make_model(graph, opset_imports=opsets, functions=self.functions, ir_version=9)


def _huge(draw: Draw) -> int:
    return draw.choice(HUGE)


def concat(g: Graph, draw: Draw) -> None:
    value = g.weight(draw.choice([1, 4]), 4)
    for _ in range(draw.randint(10, 60)):
        value = g.node("Concat", *[value] * draw.randint(2, 4), axis=draw.randint(0, 1))
    g.node("MatMul", "x", value)


def tile(g: Graph, draw: Draw) -> None:
    value = g.weight(2, 2)
    for _ in range(draw.randint(1, 30)):
        value = g.node("Tile", value, g.numbers(draw.choice([2, _huge(draw)]), 2))
    g.node("Add", "x", value)


def expand(g: Graph, draw: Draw) -> None:
    value = g.numbers(1) if draw.random() < 0.5 else g.weight(1, 1)
    for _ in range(draw.randint(1, 10)):
        value = g.node("Expand", value, g.numbers(_huge(draw), draw.randint(1, 4096), 1))
    g.node("Cast", value, to=1)


def pad(g: Graph, draw: Draw) -> None:
    value = g.weight(2, 2)
    for _ in range(draw.randint(1, 20)):
        value = g.node("Pad", value, g.numbers(*(draw.choice([0, 1000, _huge(draw)]) for _ in range(4))))
    g.node("Add", "x", value)


def resize(g: Graph, draw: Draw) -> None:
    value = g.weight(1, 1, 2, 2)
    for _ in range(draw.randint(1, 20)):
        value = g.node("Resize", value, "", "", g.numbers(1, 1, 2, draw.choice([64, _huge(draw)])), mode="nearest")


def filled(g: Graph, draw: Draw) -> None:
    size = draw.choice([65_536, 60_000, _huge(draw)])
    made = [g.node("ConstantOfShape", g.numbers(size), value=from_array(np.array([i]))) for i in range(60)]
    g.node("Sum", *(g.node("Cast", name, to=1) for name in made))
    g.outputs += made if draw.random() < 0.5 else []


def one_hot(g: Graph, draw: Draw) -> None:
    value = g.numbers(*range(draw.randint(1, 50)))
    for _ in range(draw.randint(1, 5)):
        value = g.node("OneHot", value, g.scalar(draw.choice([1000, _huge(draw)])), g.numbers(0, 1))


def ranges(g: Graph, draw: Draw) -> None:
    made = [
        g.node("Range", g.scalar(i), g.scalar(draw.choice([65_000, _huge(draw)])), g.scalar(draw.choice([1, 2])))
        for i in range(draw.randint(1, 40))
    ]
    g.outputs = [g.node("Mul", a, b) for a, b in itertools.product(made[:8], made)][-200:]


def einsum(g: Graph, draw: Draw) -> None:
    value, letters = g.weight(8, 8), "abcdefghijklmnopqrst"
    for _ in range(draw.randint(1, 20)):
        value = g.node("Einsum", value, value, equation="ij,jk->ik")
    count = draw.randint(2, 10)
    terms = [letters[2 * i : 2 * i + 2] for i in range(count)]
    g.node("Einsum", *[value] * count, equation=f"{','.join(terms)}->{''.join(terms)}")


def where(g: Graph, draw: Draw) -> None:
    value = g.numbers(*range(64))
    for axis in range(draw.randint(1, 20)):
        value = g.node("Unsqueeze", value, g.numbers(axis + 1))
        condition = g.node("Cast", value, to=TensorProto.BOOL)
        value = g.node("Where", condition, value, g.node("Transpose", value))


def gather(g: Graph, draw: Draw) -> None:
    index = g.numbers(*[0] * draw.randint(2, 60))
    value = index
    for _ in range(draw.randint(1, 20)):
        value = g.node("Gather", value, draw.choice([index, value]), axis=0)


def doubling(g: Graph, draw: Draw) -> None:
    opsets = [oh.make_opsetid("", 18), oh.make_opsetid("f", 1)]
    depth = draw.randint(5, 60)
    inner = "Neg"
    for i in range(depth):
        domain = "f" if i else ""
        times = draw.randint(2, 4)
        calls = [
            oh.make_node(inner, [f"t{k}" if k else "a"], [f"t{k + 1}" if k < times - 1 else "b"], domain=domain)
            for k in range(times)
        ]
        g.functions.append(oh.make_function("f", f"F{i}", ["a"], ["b"], calls, opsets))
        inner = f"F{i}"
    g.node(inner, "x", domain="f")


def branches(g: Graph, draw: Draw) -> None:
    def body(depth: int, width: int) -> onnx.GraphProto:
        name = f"b{next(numbers)}"
        if not depth:
            nodes = [oh.make_node("Neg", ["x"], [name])]
        else:
            parts = body(depth - 1, width), body(depth - 1 if width > 1 else 0, width)
            nodes = [oh.make_node("If", ["c"], [name], then_branch=parts[0], else_branch=parts[1])]
        return oh.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=name)])

    numbers = itertools.count()
    width = draw.randint(1, 2)
    depth = draw.randint(2, 30) if width == 1 else 5
    g.node("If", "c", then_branch=body(depth, width), else_branch=body(0, 1))


def loop(g: Graph, draw: Draw) -> None:
    op = draw.choice(["Neg", "Concat", "Add", "Mul"])
    inputs = ["h"] if op == "Neg" else ["h", "h"]
    attributes = {"axis": 0} if op == "Concat" else {}
    nodes = [oh.make_node(op, inputs, ["h2"], **attributes), oh.make_node("Identity", ["go"], ["go2"])]
    given = [
        oh.make_tensor_value_info("i", TensorProto.INT64, []),
        oh.make_tensor_value_info("go", TensorProto.BOOL, []),
        onnx.ValueInfoProto(name="h"),
    ]
    ends = [oh.make_tensor_value_info("go2", TensorProto.BOOL, []), onnx.ValueInfoProto(name="h2")]
    body = oh.make_graph(nodes, "body", given, ends)
    start = g.numbers(1, 2, 3)
    for _ in range(draw.randint(1, 8)):
        start = g.node("Loop", g.scalar(_huge(draw)), "", start, body=body)


def scan(g: Graph, draw: Draw) -> None:
    nodes = [oh.make_node("Concat", ["s", "s"], ["s2"], axis=0), oh.make_node("Neg", ["e"], ["r"])]
    given = [onnx.ValueInfoProto(name=name) for name in ("s", "e")]
    ends = [onnx.ValueInfoProto(name=name) for name in ("s2", "r")]
    body = oh.make_graph(nodes, "body", given, ends)
    items = g.node("Expand", g.weight(1, 1), g.numbers(_huge(draw), 1))
    g.node("Scan", g.numbers(1), items, outputs=2, num_scan_inputs=1, body=body)


def sparse(g: Graph, draw: Draw) -> None:
    for i in range(draw.randint(1, 20)):
        dims = [draw.choice([3000, 4000, _huge(draw)]) for _ in range(draw.randint(1, 3))]
        g.sparse.append(
            oh.make_sparse_tensor(
                from_array(np.ones(1, np.float32), f"s{i}"), from_array(np.zeros(1, np.int64), f"si{i}"), dims
            )
        )
    g.node("Sum", "x", *(s.values.name for s in g.sparse))


def outputs(g: Graph, draw: Draw) -> None:
    value = g.weight(500)
    op = draw.choice(["Identity", "Neg", "Transpose"])
    g.outputs = [g.node(op, draw.choice([value, "x"])) for _ in range(draw.randint(50, 200))]


def shapes(g: Graph, draw: Draw) -> None:
    value = g.node("Shape", "x")
    for _ in range(draw.randint(5, 80)):
        op = draw.choice(["Mul", "Add", "Sub", "Div", "Mod", "Max"])
        value = g.node(op, value, draw.choice([value, g.numbers(_huge(draw)), g.numbers(draw.randint(1, 9))]))
    g.node("ConstantOfShape", value) if draw.random() < 0.5 else g.node("Reshape", "x", value)


def powers(g: Graph, draw: Draw) -> None:
    g.dims = [f"{letter}{i}" for i, letter in enumerate("abcdefgh")]
    value = g.node("Shape", "x")
    for _ in range(draw.randint(2, 12)):
        value = g.node(draw.choice(["Mul", "Add"]), value, g.node("ReduceSum", value, keepdims=1))
    g.node("ConstantOfShape", value)


def names(g: Graph, draw: Draw) -> None:
    for i in range(4):
        g.node("Relu", g.outputs[0] if g.outputs else "x")
        g.nodes[-1].name = "/" + draw.choice(["a" * 2000, "a/" * 1000, "a.b" * 700, "0" * 2000]) + str(i)


def attributes(g: Graph, draw: Draw) -> None:
    if draw.random() < 0.5:
        g.node("Constant", value_ints=[_huge(draw)] * draw.randint(500, 900))
        return
    for _ in range(20):
        g.node("Conv", "x", g.weight(1, 1, 1, 1), strides=[_huge(draw)] * 2, pads=[_huge(draw)] * 4, group=2**40)


def outer(g: Graph, draw: Draw) -> None:
    """Products of a column and a row: the square of what there is."""
    value = g.numbers(*range(draw.randint(2, 200)))
    for _ in range(draw.randint(1, 10)):
        column = g.node("Reshape", value, g.numbers(-1, 1))
        value = g.node("Reshape", g.node("Mul", column, g.node("Transpose", column)), g.numbers(-1))


def views(g: Graph, draw: Draw) -> None:
    """A weight that is cut, turned and joined again, so that it lies in ever smaller pieces."""
    value = g.weight(8, 8)
    for _ in range(draw.randint(5, 40)):
        turned = g.node("Transpose", value, perm=[1, 0])
        joined = g.node("Concat", value, turned, axis=draw.randint(0, 1))
        value = g.node("Slice", joined, g.numbers(0, 0), g.numbers(8, draw.choice([8, 100])))
        value = g.node("Reshape", value, g.numbers(8, -1)) if draw.random() < 0.5 else value
    g.node("MatMul", "x", value)


BOMBS: tuple[Callable[[Graph, Draw], None], ...] = (
    concat, tile, expand, pad, resize, filled, one_hot, ranges, einsum, where, gather, doubling, branches, loop, scan,
    sparse, outputs, shapes, powers, names, attributes, outer, views,
)  # fmt: skip
LARGEST = 10_240  # bytes


def drawn(number: int) -> tuple[str, bytes]:
    """The kind and the bytes of a file, by its number."""
    for attempt in itertools.count():
        draw = Draw(f"{number} {attempt}")
        bomb, graph = BOMBS[number % len(BOMBS)], Graph()
        bomb(graph, draw)
        data: bytes = graph.model().SerializeToString()
        if len(data) <= LARGEST:
            return bomb.__name__, data
    raise AssertionError
