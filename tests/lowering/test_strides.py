"""The state of a recurrent layer is stored row by row, as cuDNN wants it; `.contiguous()` stands where it has to."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper
from torch import nn

from tests.ops.harness import generate, instantiate, run_onnxruntime

HIDDEN, BATCH = 4, 3
SHAPE = [2, BATCH, HIDDEN]


class Graph:
    """Steps from `x` to a state [2, BATCH, HIDDEN], and a GRU of two directions with it."""

    def __init__(self, shape: list[int]) -> None:
        self.given, self.shape = list(shape), list(shape)
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.value = "x"

    def ints(self, numbers: list[int]) -> str:
        self.stored.append(numpy_helper.from_array(np.array(numbers, np.int64), f"n{len(self.stored)}"))
        return str(self.stored[-1].name)

    def step(self, op: str, *inputs: str, shape: list[int], outputs: int = 1, **attributes: Any) -> None:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, [self.value, *inputs], names, **attributes))
        self.value, self.shape = names[-1], shape

    def model(self) -> ModelProto:
        rng = np.random.default_rng(0)
        for name, size in (("w", HIDDEN), ("r", HIDDEN)):
            self.stored.append(numpy_helper.from_array(rng.normal(size=(2, 3 * HIDDEN, size)).astype("f"), name))
        self.nodes.append(
            helper.make_node(
                "GRU",
                ["s", "w", "r", "", "", self.value],
                ["y"],
                hidden_size=HIDDEN,
                linear_before_reset=1,
                direction="bidirectional",
            )  # fmt: skip
        )
        inputs = [
            helper.make_tensor_value_info("s", TensorProto.FLOAT, [5, BATCH, HIDDEN]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, self.given),
        ]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 2, BATCH, HIDDEN])
        graph = helper.make_graph(self.nodes, "g", inputs, [output], self.stored)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def transposed(g: Graph, draw: random.Random) -> None:
    order = draw.sample(range(len(g.shape)), len(g.shape))
    g.step("Transpose", shape=[g.shape[i] for i in order], perm=order)


def sliced(g: Graph, draw: random.Random) -> None:
    axis = draw.randrange(len(g.shape))
    start, step = draw.randrange(g.shape[axis]), draw.choice([1, 1, 2])
    shape = [-(-(size - start) // step) if i == axis else size for i, size in enumerate(g.shape)]
    g.step("Slice", *map(g.ints, ([start], [2**31], [axis], [step])), shape=shape)


def split(g: Graph, draw: random.Random) -> None:
    axis = draw.choice([i for i, size in enumerate(g.shape) if size > 1] or [0])
    if g.shape[axis] > 1:
        shape = [1 if i == axis else size for i, size in enumerate(g.shape)]
        g.step("Split", shape=shape, outputs=g.shape[axis], axis=axis)


def gathered(g: Graph, draw: random.Random) -> None:
    axis = draw.randrange(len(g.shape))
    if len(g.shape) > 1:
        index = numpy_helper.from_array(np.array(draw.randrange(g.shape[axis]), np.int64), f"n{len(g.stored)}")
        g.stored.append(index)
        g.step("Gather", index.name, shape=[s for i, s in enumerate(g.shape) if i != axis], axis=axis)


def squared(g: Graph, draw: random.Random) -> None:
    g.step("Tanh", shape=g.shape)


def doubled(g: Graph, draw: random.Random) -> None:
    g.step("Add", g.value, shape=g.shape)


def widened(g: Graph, draw: random.Random) -> None:
    axis = draw.randrange(len(g.shape) + 1)
    g.step("Unsqueeze", g.ints([axis]), shape=[*g.shape[:axis], 1, *g.shape[axis:]])
    if draw.random() < 0.5:
        shape = [3 if i == axis else size for i, size in enumerate(g.shape)]
        g.step("Expand", g.ints(shape), shape=shape)


def reshaped(g: Graph, draw: random.Random) -> None:
    shape = [g.shape[0], -1] if draw.random() < 0.5 else [-1, g.shape[-1]]
    known = [size if size > 0 else int(np.prod(g.shape)) // max(*shape, 1) for size in shape]
    g.step("Reshape", g.ints(shape), shape=known)


STEPS = (transposed, sliced, split, gathered, squared, doubled, widened, reshaped)


def drawn(seed: int) -> Graph:
    """Some steps that nobody chose, and then what makes any shape that of a state, with no more copies than needed."""
    draw = random.Random(seed)
    g = Graph([draw.randint(2, 4) for _ in range(draw.randint(2, 4))])
    for _ in range(draw.randint(1, 5)):
        draw.choice(STEPS)(g, draw)
    while len(g.shape) < 3:
        g.step("Unsqueeze", g.ints([0]), shape=[1, *g.shape])
    while len(g.shape) > 3:
        index = numpy_helper.from_array(np.array(0, np.int64), f"n{len(g.stored)}")
        g.stored.append(index)
        g.step("Gather", index.name, shape=g.shape[:-1], axis=len(g.shape) - 1)
    for axis, (size, wanted) in enumerate(zip(g.shape, SHAPE)):
        if size > wanted:
            cut = [wanted if i == axis else s for i, s in enumerate(g.shape)]
            g.step("Slice", *map(g.ints, ([0], [wanted], [axis])), shape=cut)
        elif size < wanted:
            one = [1 if i == axis else s for i, s in enumerate(g.shape)]
            g.step("Slice", *map(g.ints, ([0], [1], [axis])), shape=one)
            g.step("Expand", g.ints([wanted if i == axis else s for i, s in enumerate(one)]), shape=one)
            g.shape[axis] = wanted
    return g


def states(module: nn.Module, feeds: dict[str, Any]) -> tuple[list[torch.Tensor], Any]:
    """The states that recurrent layers take, and what the module returns."""
    found: list[torch.Tensor] = []
    for layer in module.modules():
        if isinstance(layer, nn.GRU):
            layer.register_forward_pre_hook(lambda _, given: found.extend(given[1:]))
    return found, module(*[torch.from_numpy(x) for x in feeds.values()])


@pytest.mark.parametrize("seed", range(60))
def test_a_drawn_state_is_contiguous(seed: int) -> None:
    g = drawn(seed)
    model, rng = g.model(), np.random.default_rng(seed)
    feeds = {name: rng.normal(size=shape).astype("f") for name, shape in (("s", [5, BATCH, HIDDEN]), ("x", g.given))}
    found, made = states(instantiate(generate(model)), feeds)
    assert found and all(state.is_contiguous() for state in found)
    np.testing.assert_allclose(made.detach().numpy(), run_onnxruntime(model, feeds)[0], rtol=1e-4, atol=1e-5)


def test_a_state_that_is_stored_row_by_row_is_not_copied() -> None:
    """The graph's own input, a slice of its first axis, a new axis, and what is computed from these."""
    g = Graph([4, BATCH, HIDDEN])
    draw = random.Random(0)
    g.step("Slice", *map(g.ints, ([1], [3], [0])), shape=SHAPE)
    squared(g, draw)
    doubled(g, draw)
    assert "contiguous" not in generate(g.model()).source
    assert "contiguous" not in generate(Graph(SHAPE).model()).source


def test_a_strided_state_is_copied() -> None:
    g = Graph([2, BATCH, 2 * HIDDEN])
    g.step("Slice", *map(g.ints, ([0], [HIDDEN], [2])), shape=SHAPE)
    assert ".contiguous()" in generate(g.model()).source
