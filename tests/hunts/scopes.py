"""Drawn ONNX graphs whose names carry scopes, as exporters write them: blocks of which one is odd, lists with gaps,
modules called twice, names that mislead. Structure recovery makes classes and loops of these.

Between two instructions every value has the graph's shape, so that any change of a program is a valid graph, and
something wrong has the right shape.
"""

from __future__ import annotations

import random

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.hunts.emitting import DTYPES, Emitter
from tests.hunts.instructions import usable
from tests.hunts.judge import Case, Feed
from tests.hunts.programs import Drawer, Program, emit

SIZES = (2, 1, 3)  # of the dim N, where it has a name
DIMS = (2, 2, 3, 4, 4, 1)
MOST = 90  # nodes of a graph
NUMPY = {"f": np.float32, "d": np.float64, "q": np.int64, "i": np.int32}


def make(seed: int) -> Case:
    """The graph of a seed, and what it is run with."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    while True:
        case = _drawn(seed, rng, numbers)
        if 0 < len(case.model.graph.node) <= MOST:
            return case


def _drawn(seed: int, rng: random.Random, numbers: np.random.Generator) -> Case:
    dtype = rng.choice("ffffffdqi")
    rank = rng.choice((0, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5))
    inner = [rng.choice(DIMS)] * rank if rng.random() < 0.6 else [rng.choice(DIMS) for _ in range(rank)]
    shape = tuple([2, *inner[1:]][:rank])
    named = rank > 0 and rng.random() < 0.6
    empty = named and rng.random() < 0.1
    e = Emitter(rng, numbers, shape, dtype)
    drawer = Drawer(rng, usable(rank, dtype))
    given = ["x", "y"][: rng.choice((1, 1, 2))]
    e.taken |= {*given, "condition"}
    e.condition = "condition"
    program, pool = Program(len(given), [], -1), list(given)
    for _ in range(rng.randint(1, 3)):
        program.steps += drawer.element(len(given) + len(program.steps), 1).steps
    last = emit(e, program, given, pool)
    nodes = _reordered(e.nodes, rng) if rng.random() < 0.15 else e.nodes
    model = _model(e, nodes, _outputs(e, rng, last, pool[len(given) :]), given, named)
    # onnxruntime 1.31 reduces an empty tensor to its own shape, with keepdims too
    empty = empty and not any(n.op_type == "ReduceMean" for n in nodes)
    sizes = [*SIZES, 0] if empty else SIZES if named else (2, 2)
    feeds = [_feed(given, shape, n, e, numbers, flag) for n, flag in zip(sizes, (True, False, True, False))]
    return Case(seed, model, feeds)


def _outputs(e: Emitter, rng: random.Random, last: str, made: list[str]) -> list[str]:
    """The last value; now and then others, too, and an initializer."""
    outputs = [last] if last in made else made[-1:]
    if rng.random() < 0.25:
        outputs += rng.sample(made, min(len(made), rng.randint(1, 2)))
    typed = [t.name for t in e.stored if t.data_type == DTYPES[e.dtype]]
    if typed and rng.random() < 0.05:
        outputs.append(rng.choice(typed))
    return list(dict.fromkeys(outputs))


def _model(
    e: Emitter, nodes: list[onnx.NodeProto], outputs: list[str], given: list[str], named: bool
) -> onnx.ModelProto:
    dims = ["N" if named and k == 0 else d for k, d in enumerate(e.shape)]
    inputs = [helper.make_tensor_value_info(n, DTYPES[e.dtype], dims) for n in given]
    inputs.append(helper.make_tensor_value_info(e.condition, TensorProto.BOOL, []))
    graph = helper.make_graph(nodes, "drawn", inputs, [e.info(o) for o in outputs], e.stored)
    opset = helper.make_opsetid("", e.opset)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9, producer_name="pytorch")


def _feed(
    given: list[str], shape: tuple[int, ...], n: int, e: Emitter, numbers: np.random.Generator, flag: bool
) -> Feed:
    dims = (n, *shape[1:]) if shape else ()
    draw = numbers.standard_normal if e.dtype in "fd" else lambda s: numbers.integers(-3, 4, s)
    feed: Feed = {name: np.asarray(draw(dims)).astype(NUMPY[e.dtype]) for name in given}
    return {**feed, e.condition: np.array(flag)}


def _reordered(nodes: list[onnx.NodeProto], rng: random.Random) -> list[onnx.NodeProto]:
    """The nodes in another order in which each comes after what it takes: scopes interleave."""
    made = {o: k for k, node in enumerate(nodes) for o in node.output}
    waits = [{made[i] for i in _taken(node) if i in made} for node in nodes]
    done: set[int] = set()
    order: list[int] = []
    while len(order) < len(nodes):
        ready = [k for k in range(len(nodes)) if k not in done and waits[k] <= done]
        k = rng.choice(ready)
        done.add(k)
        order.append(k)
    return [nodes[k] for k in order]


def _taken(node: onnx.NodeProto) -> list[str]:
    taken = list(node.input)
    for a in node.attribute:
        if a.HasField("g"):
            taken += [i for n in a.g.node for i in _taken(n)] + [o.name for o in a.g.output]
    return taken
