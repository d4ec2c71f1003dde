"""Drawn ONNX graphs with branches, loops, scans and local functions whose names repeat: names are scoped in ONNX.

Stored tensors of sibling graphs bear one name, of one shape or of others, and may hide one of a graph around them.
Dims have names that say nothing, and some graphs have hostile names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from tests.hunts.composite import REWRITING
from tests.hunts.judge import Case
from tests.hunts.sizes import Sizes
from tests.support.hostile import HOSTILE

WIDTH = 3
STORED = ("w", "b", "fc.weight", "fc.bias", "w_2", "w_scoped_2", "val_1")
DOMAIN, OPSET = "local", 18
Known = Mapping[str, tuple[int, ...]]  # stored tensors by the name that a graph sees them by


@dataclass
class Scope:
    """One graph while it is drawn.

    Attributes:
        names: what it may not call a value.
        sees_inputs: whether it has a value of the shape of x at hand, and sees the inputs of the file.
    """

    names: set[str]
    known: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    stored: list[TensorProto] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    sees_inputs: bool = False


class Drawer:
    def __init__(self, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.functions: list[onnx.FunctionProto] = []
        self.sizes = Sizes(self.rng)

    def value(self, scope: Scope) -> str:
        """A name that no value has that is seen here; those of a sibling may have it."""
        name = next(n for n in (f"t{k}" for k in range(1000)) if n not in scope.names and self.rng.random() < 0.7)
        scope.names.add(name)
        return name

    def tensor(self, scope: Scope, shape: tuple[int, ...]) -> str:
        """The name of a stored tensor of a shape: one that is there, or a new one, which may hide an outer one."""
        if (there := [n for n, s in scope.known.items() if s == shape]) and self.rng.random() < 0.3:
            return self.rng.choice(there)
        free = [n for n in STORED if n not in scope.own]
        name = self.rng.choice(free) if free else f"s{len(scope.own)}"
        scope.own.add(name)
        scope.known[name] = shape
        array = (self.numbers.standard_normal(shape) / 2).astype(np.float32)
        scope.stored.append(numpy_helper.from_array(array, name))
        return name

    def step(self, scope: Scope, x: str, depth: int) -> str:
        """Add a step that takes x; the name of its result."""
        kinds = ["product", "product", "sum", "tanh"] + (["if", "if", "loop", "scan", "call"] if depth else [])
        kinds += ["expansion", "expansion"] if scope.sees_inputs else []
        kind = self.rng.choice(kinds)
        if kind in ("if", "loop", "scan"):
            return getattr(self, kind)(scope, x, depth - 1)
        if kind == "expansion":
            nodes, y = self.sizes.expansion(x, scope.stored)
            scope.nodes += nodes
            return y
        y = ""
        if kind == "product":
            taken, op = [x, self.tensor(scope, (WIDTH, WIDTH))], "MatMul"
        elif kind == "sum":
            taken, op = [x, self.tensor(scope, (WIDTH,))], "Add"
        else:
            taken, op = [x], "Tanh" if kind == "tanh" else self.function(depth - 1)
        y = self.value(scope)
        scope.nodes.append(helper.make_node(op, taken, [y], domain=DOMAIN if kind == "call" else ""))
        return y

    def steps(self, scope: Scope, x: str, depth: int) -> str:
        for _ in range(self.rng.randint(1, 3)):
            x = self.step(scope, x, depth)
        return x

    def inner(
        self, outer: Scope, depth: int, given: int, x: str = "", is_row: bool = False
    ) -> tuple[onnx.GraphProto, list[str]]:
        """An inner graph with so many inputs, the last of which is x; its inputs and its result have no types."""
        is_like_x = outer.sees_inputs and not is_row
        scope = Scope({*outer.names}, dict(outer.known), sees_inputs=is_like_x)
        inputs = [self.value(scope) for _ in range(given)]
        y = self.steps(scope, inputs[-1] if given else x, depth)
        copy = self.value(scope)
        scope.nodes.append(helper.make_node("Identity", [y], [copy]))
        for name in scope.own & {*outer.names}:
            outer.names.add(name)
        graph = helper.make_graph(scope.nodes, "inner", [], [info(copy)], scope.stored)
        return graph, inputs

    def put(self, scope: Scope, op: str, taken: list[str], **graphs: object) -> str:
        y = self.value(scope)
        scope.nodes.append(helper.make_node(op, taken, [y], **graphs))
        return y

    def _if(self, scope: Scope, x: str, depth: int) -> str:
        then, other = (self.inner(scope, depth, 0, x)[0] for _ in range(2))
        return self.put(scope, "If", ["condition"], then_branch=then, else_branch=other)

    def loop(self, scope: Scope, x: str, depth: int) -> str:
        body, (count, go, carried) = self.inner(scope, depth, 3)
        body.input.extend([info(count, TensorProto.INT64, []), info(go, TensorProto.BOOL, []), info(carried)])
        on = f"{go}_on"
        body.node.append(helper.make_node("Identity", [go], [on]))
        body.output.insert(0, info(on, TensorProto.BOOL, []))
        return self.put(scope, "Loop", ["trips", "go", x], body=body)

    def scan(self, scope: Scope, x: str, depth: int) -> str:
        body, (row,) = self.inner(scope, depth, 1, is_row=True)
        body.input.append(info(row, shape=[WIDTH]))
        body.output[0].CopyFrom(info(body.output[0].name, shape=[WIDTH]))
        return self.put(scope, "Scan", [x], body=body, num_scan_inputs=1)

    def function(self, depth: int) -> str:
        """The name of a local function, new or called before. What it stores are Constant nodes."""
        if self.functions and self.rng.random() < 0.4:
            return self.rng.choice(self.functions).name
        scope = Scope({"a"})
        outside = {"condition": TensorProto.BOOL, "go": TensorProto.BOOL, "trips": TensorProto.INT64}
        y = self.steps(scope, "a", min(depth, 0))
        if self.rng.random() < 0.6:
            scope.nodes.append(helper.make_node("ReduceSum", [y], ["total"], keepdims=0))
            scope.nodes.append(helper.make_node("Cast", ["total"], ["condition"], to=outside["condition"]))
            y = self._if(scope, y, 0)
        stored = [helper.make_node("Constant", [], [t.name], value=t) for t in scope.stored]
        name = f"block{len(self.functions)}"
        imports = [helper.make_opsetid("", OPSET)]
        self.functions.append(helper.make_function(DOMAIN, name, ["a"], [y], [*stored, *scope.nodes], imports))
        return name


setattr(Drawer, "if", Drawer._if)


def info(name: str, dtype: int = TensorProto.FLOAT, shape: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def make(seed: int) -> Case:
    d = Drawer(seed)
    scope = Scope({"x", "condition", "trips", "go"}, sees_inputs=True)
    y = d.step(scope, d.steps(scope, "x", 3), 2)
    scope.stored += [numpy_helper.from_array(np.array(v), n) for n, v in (("trips", np.int64(2)), ("go", True))]
    inputs = [info("x", shape=[d.sizes.batch, WIDTH]), info("condition", TensorProto.BOOL, []), *d.sizes.inputs()]
    graph = helper.make_graph(scope.nodes, "names", inputs, [info(y)], scope.stored)
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9, functions=d.functions)
    feeds = [
        {"x": d.numbers.standard_normal((n, WIDTH)).astype(np.float32), "condition": np.array(flag)}
        | d.sizes.feed(d.numbers, n)
        for n, flag in ((2, True), (3, False), (2, False))
    ]
    if d.rng.random() < 0.3:
        names = renamed(model, d.rng)
        feeds = [{names.get(name, name): array for name, array in feed.items()} for feed in feeds]
    lied = frozenset(n for n in REWRITING if d.rng.random() < 0.5) if d.rng.random() < 0.2 else frozenset[str]()
    return Case(seed, model, feeds, lied=lied, doubts=d.rng.random() < 0.2)


def renamed(model: onnx.ModelProto, rng: random.Random) -> dict[str, str]:
    """Give names hostile spellings, in place: equal names stay equal, and others differ. The new ones, by the old."""
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        if name not in names:
            text = rng.choice([*HOSTILE.values(), name, name])
            names[name] = text if text not in names.values() else f"{text} {len(names)}"
        return names[name]

    def rename(nodes: Iterable[NodeProto]) -> None:
        for node in nodes:
            node.name = new(f"{node.op_type} {len(names)}")
            for part in (node.input, node.output):
                part[:] = [new(name) for name in part]
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    rename_graph(attribute.g)

    def rename_graph(graph: onnx.GraphProto) -> None:
        rename(graph.node)
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = new(value.name)

    rename_graph(model.graph)
    for function in model.functions:
        rename(function.node)
        for part in (function.input, function.output):
            part[:] = [new(name) for name in part]
    return names
