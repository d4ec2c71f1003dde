"""Writes the ONNX nodes of drawn programs (`programs.py`) under the names that exporters give them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DTYPES = {"f": TensorProto.FLOAT, "d": TensorProto.DOUBLE, "q": TensorProto.INT64, "i": TensorProto.INT32}
STYLES = ("torch", "torch", "torch", "bare", "slash", "dynamo")
ELSEWHERE = ("", "layers.0", "layers.1", "layers.1.fc", "net", "net.2", "head", "a.b.c", "forward", "layers", "x")


class Emitter:
    """One graph while nodes are added to it.

    Attributes:
        shape: what every value has between two instructions; its first dim is called N, and is run in several sizes.
        scope: the path of the module that nodes are written in.
        lies: how often a node says another scope than that.
    """

    def __init__(self, rng: random.Random, numbers: np.random.Generator, shape: tuple[int, ...], dtype: str) -> None:
        self.rng, self.numbers, self.shape, self.dtype = rng, numbers, shape, dtype
        self.opset = rng.choice((13, 14, 17, 18, 20, 21))
        self.style = rng.choice(STYLES)
        self.lies = rng.choice((0.0, 0.0, 0.0, 0.1, 0.5))
        self.unnamed = rng.choice((0.0, 0.0, 0.0, 0.3, 1.0))  # how often a parameter has no name of its own
        self.scope: tuple[str, ...] = ()
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.owned: dict[Any, str] = {}
        self.taken: set[str] = set()
        self.condition = ""

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        before = self.scope
        self.scope = (*before, *name.split(".")) if name else before
        yield
        self.scope = before

    @contextmanager
    def subgraph(self, nodes: list[onnx.NodeProto]) -> Iterator[None]:
        before, self.nodes = self.nodes, nodes
        yield
        self.nodes = before

    def fresh(self, wanted: str) -> str:
        name, n = wanted, 0
        while name in self.taken or not name:
            n += 1
            name = f"{wanted}_{n}"
        self.taken.add(name)
        return name

    def said(self) -> tuple[str, ...]:
        if self.lies and self.rng.random() < self.lies:
            return tuple(self.rng.choice(ELSEWHERE).split("."))
        return self.scope

    def __call__(self, op: str, *inputs: str, outputs: int = 0, **attributes: Any) -> Any:
        """Append a node; the name of its output, or a list of them if it is asked how many."""
        scope = [s for s in self.said() if s]
        name = self.node_name(scope, op)
        made = [self.fresh(f"{name or op}_output_{k}") for k in range(outputs or 1)]
        node = helper.make_node(op, inputs, made, name=name, **attributes)
        if self.style == "dynamo":
            scopes = [".".join(scope[:n]) for n in range(len(scope) + 1)] + [name]
            for key, value in (("name_scopes", scopes), ("class_hierarchy", ["m.Net"] * (len(scopes) - 1) + ["aten"])):
                entry = node.metadata_props.add()
                entry.key, entry.value = f"pkg.torch.onnx.{key}", repr(value)
        self.nodes.append(node)
        return made if outputs else made[0]

    def node_name(self, scope: Sequence[str], op: str) -> str:
        if self.style == "bare":
            return ""
        if self.style == "dynamo":
            return self.fresh(f"node_{op}")
        if self.style == "slash":
            return self.fresh("/".join([*scope, op]))
        parts: list[str] = []
        for part in scope:
            if part.isdigit() and parts:
                parts.append(f"{parts[-1]}.{part}")  # "/layers/layers.0/fc", as the TorchScript exporter has it
            else:
                parts.append(part)
        return self.fresh("/" + "/".join([*parts, op]))

    def parameter(self, leaf: str, shape: tuple[int, ...], low: float = -0.7, high: float = 0.7) -> str:
        """A stored tensor of the module at hand; the same one where it is called again."""
        key = (self.scope, leaf, shape)
        if key not in self.owned:
            array = self.numbers.uniform(low, high, shape) if self.dtype in "fd" else self.numbers.integers(1, 4, shape)
            named = ".".join([*self.said(), leaf]) if self.rng.random() >= self.unnamed else f"onnx::{leaf}"
            self.owned[key] = self.store(named, np.asarray(array))
        return self.owned[key]

    def constant(self, value: Any, dtype: str = "") -> str:
        """A small constant: an initializer, shared now and then, or a Constant node."""
        key = (repr(value), dtype)
        if key in self.owned and self.rng.random() < 0.5:
            return self.owned[key]
        array = np.asarray(value).astype(dtype or self.dtype)
        if self.rng.random() < 0.5:
            self.owned[key] = self.store("onnx::c", array, dtype)
            return self.owned[key]
        return str(self("Constant", value=numpy_helper.from_array(array)))

    def ints(self, *values: int) -> str:
        return self.constant(list(values), "q")

    def store(self, name: str, array: Any, dtype: str = "") -> str:
        name = self.fresh(name)
        self.stored.append(numpy_helper.from_array(np.array(array, dtype or self.dtype, order="C"), name))
        return name

    def info(self, name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, DTYPES[self.dtype], None)
