"""Inputs whose dims have names that say nothing, and steps of drawn graphs that expand to a size."""

from __future__ import annotations

import random

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

# What tools write for a size that they do not know.
SAID = ("?", "None", "unk", "-1", "unk__12", "unk__13", "", "unknown_dim")
WIDTH = 3
BESIDE = ("u", "v")  # inputs of sizes of their own
TARGET = "target"  # an input that x is expanded to


class Sizes:
    """The inputs beside x of one graph.

    Attributes:
        said: the names of the dims of each, of which equal ones are of other sizes.
        batch: that of the first dim of x.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        few = rng.sample(SAID, rng.randint(1, 3))
        self.said = {name: [rng.choice(few), rng.choice(few)] for name in BESIDE}
        self.batch = rng.choice((*few, "N", "N"))
        self.steps = 0

    def inputs(self) -> list[ValueInfoProto]:
        beside = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in self.said.items()]
        return [*beside, helper.make_tensor_value_info(TARGET, TensorProto.INT64, [2])]

    def feed(self, numbers: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
        """Of four sizes that differ."""
        free = [int(n) for n in numbers.permutation([1, 2, 4, 5])]
        feed = {
            name: numbers.standard_normal((free[2 * k], free[2 * k + 1])).astype(np.float32)
            for k, name in enumerate(BESIDE)
        }
        target = np.array([rows if numbers.random() < 0.5 else 1, WIDTH if numbers.random() < 0.5 else 1])
        return {**feed, TARGET: target}

    def expansion(self, x: str, stored: list[object]) -> tuple[list[object], str]:
        """Nodes that expand something and come back to the shape of x, and the name of what they make.

        Args:
            x: [N, WIDTH].
            stored: the constants of the graph, to which some are added.
        """
        self.steps += 1
        made: list[object] = []
        p = f"e{self.steps}"

        def put(op: str, *taken: str, **attributes: object) -> str:
            name = f"{p}_{len(made)}"
            made.append(helper.make_node(op, taken, [name], **attributes))
            return name

        def ints(*values: int) -> str:
            name = f"{p}_k{len(stored)}"
            stored.append(numpy_helper.from_array(np.array(values, np.int64), name))
            return name

        beside = self.rng.choice(BESIDE)
        kind = self.rng.choice(("shape", "constant", "rows", "joined", "target", "columns", "equal"))
        if kind == "shape":
            one = put("ReduceMean", beside, ints(0, 1))
            return made, put("Add", x, put("Expand", one, put("Shape", x)))
        if kind == "constant":
            sizes = self.rng.choice(((2, 1, 1), (1, 1), (1,), (3, 1, WIDTH)))
            y = put("Expand", x, ints(*sizes))
            return made, put("ReduceSum", y, ints(0), keepdims=0) if len(sizes) == 3 else y
        if kind == "rows":  # as many copies as the other input has rows
            rows = put("Slice", put("Shape", beside), ints(0), ints(1))
            y = put("Expand", x, put("Concat", rows, ints(1, 1), axis=0))
            return made, put("ReduceMax", y, ints(0), keepdims=0)
        if kind == "columns":
            columns = put("Gather", put("Shape", beside), ints(self.rng.choice((1, -1))))
            y = put("Expand", put("Unsqueeze", x, ints(2)), put("Concat", ints(1, 1), columns, axis=0))
            return made, put("ReduceMean", y, ints(2), keepdims=0)
        if kind == "joined":
            y = put("Expand", put("Unsqueeze", x, ints(0)), put("Concat", ints(2), put("Shape", x), axis=0))
            return made, put("ReduceMean", y, ints(0), keepdims=0)
        if kind == "target":
            return made, put("Add", x, put("Expand", put("ReduceMean", beside, ints(0, 1)), TARGET))
        own, other = (put("Shape", name) for name in BESIDE)  # both inputs have sizes of their own
        same = put("Cast", put("Equal", own, other), to=TensorProto.FLOAT)
        return made, put("Add", x, put("ReduceSum", same, ints(0), keepdims=1))


__all__ = ["BESIDE", "TARGET", "Sizes"]
