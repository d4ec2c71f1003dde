"""Random valid ONNX graphs, the same for the same seed: what no exporter writes, but the format allows.

A graph is made of steps (`graph_steps`), each a few nodes that take values made so far. Dims are known for several
sizes of the symbolic ones at once, so a step only asks for what is valid at all of them. Node names and parameter names
are drawn apart from what the nodes compute: scopes interleave, repeat and contradict the parameters' names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

T = TypeVar("T")
Dim = tuple[int, ...]  # one size for each of the sizes that a graph is run at
Shape = tuple[Dim, ...]
SYMBOLS = {"N": (2, 1, 3), "L": (3, 5, 4)}
EMPTY = {"N": (2, 0, 1), "L": (3, 2, 0)}
TYPES = {
    "f": TensorProto.FLOAT,
    "d": TensorProto.DOUBLE,
    "e": TensorProto.FLOAT16,
    "q": TensorProto.INT64,
    "i": TensorProto.INT32,
    "?": TensorProto.BOOL,
}
PATHS = (
    "",
    "a",
    "a.b",
    "a.b.c",
    "a.0",
    "a.0.b",
    "layers.0",
    "layers.1",
    "layers.3",
    "layers.1.0",
    "layers.1.1",
    "net.class",
    "forward",
    "x",
    "torch",
    "self",
    "weight",
    "a.weight",
    "F",
    "training",
    "1a",
    "a-b",
    "parameters.0",
    "conv",
    "norm1",
)
LEAVES = "weight weight weight bias bias scale 0 1 in_proj_weight running_mean w gamma".split()
BARE = """
    weight bias W 123 onnx::MatMul_7 val_3 x y self torch F nn Model forward training state_dict a conv tokens.0
    tokens.1 a/b/kernel:0 __class__ \u00e9 t-1 /Constant_output_0 constants.x
    """.split()


@dataclass(frozen=True)
class Value:
    """What is known of a value: its dims at every size; `exact`: not rounded, so that it may be compared.

    `sizes`: the elements, where they are dims.
    """

    name: str
    kind: str
    shape: Shape
    exact: bool = False
    sizes: tuple[Dim, ...] | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> tuple[int, ...] | None:
        """The dims as numbers, if they are the same at every size."""
        return tuple(d[0] for d in self.shape) if all(len(set(d)) == 1 for d in self.shape) else None

    @property
    def elements(self) -> int:
        return max(int(np.prod([d[k] for d in self.shape])) for k in range(3))


@dataclass
class Case:
    """One graph, and what it is run with: a dictionary of inputs for each size."""

    seed: int
    model: onnx.ModelProto
    feeds: list[dict[str, np.ndarray[Any, Any]]] = field(default_factory=list)


class Maker:
    """The state of one graph while steps are added to it.

    Attributes:
        opset: the opset in use, 7 to 24.
        values: what later steps may take; of a subgraph also what is outside it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.seed = seed
        self.opset = self.pick((7, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24))
        self.symbols = EMPTY if self.chance(0.07) else SYMBOLS
        self.values: list[Value] = []
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.parameters: list[Value] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: list[dict[str, np.ndarray[Any, Any]]] = [{}, {}, {}]
        self.taken: set[str] = set()
        self.scope = ""
        self.style = self.pick(("torch", "torch", "torch", "slash", "none", "dynamo"))
        self.wild = self.chance(0.3)
        self.depth = 0

    # choices

    def pick(self, among: Sequence[T]) -> T:
        return among[self.random.randrange(len(among))]

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def between(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    # names

    def fresh(self, wanted: str) -> str:
        name, n = wanted, 0
        while name in self.taken:
            n += 1
            name = f"{wanted}_{n}"
        self.taken.add(name)
        return name

    def parameter_name(self) -> str:
        path = self.scope if self.chance(0.8) else self.pick(PATHS)
        leaf = self.pick(LEAVES)
        if self.style == "none" or self.chance(0.15):
            return self.fresh(self.pick(BARE))
        return self.fresh(f"{path}.{leaf}" if path else leaf)

    def node_name(self, op: str) -> str:
        if self.style == "none" or self.style == "dynamo":
            return self.fresh(f"node_{op}") if self.chance(0.7) else ""
        path = self.scope.split(".") if self.scope else []
        if self.style == "slash":
            return self.fresh("/".join([*path, op]))
        parts: list[str] = []
        for part in path:
            if part.isdigit() and parts:
                parts[-1] += f".{part}"
            else:
                parts.append(part)
        return self.fresh("/" + "/".join([*parts, op]))

    # making

    def emit(self, op: str, inputs: Sequence[str | Value], outputs: int = 1, /, **attributes: Any) -> list[str]:
        """Append a node; returns the names of its outputs."""
        name = self.node_name(op)
        made = [self.fresh(f"{name or op}_output_{i}") for i in range(outputs)]
        names = [i.name if isinstance(i, Value) else i for i in inputs]
        node = helper.make_node(op, names, made, name=name, **attributes)
        if self.style == "dynamo":
            parts = self.scope.split(".") if self.scope else []
            scopes = [".".join(parts[:n]) for n in range(len(parts) + 1)] + [name]
            for key, value in (("name_scopes", scopes), ("class_hierarchy", ["m.Net"] * (len(scopes) - 1) + ["aten"])):
                entry = node.metadata_props.add()
                entry.key, entry.value = f"pkg.torch.onnx.{key}", repr(value)
        self.nodes.append(node)
        return made

    def add(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def input(self, kind: str, shape: Shape) -> Value:
        """A graph input; its dims are declared by name, by number, or not at all."""
        name = self.fresh(self.pick(("x", "input", "input.1", "0", "x:0", "self", "mask", "torch", "a.b", "size")))
        hidden = self.chance(0.1)
        declared: list[Any] = []
        for dim in shape:
            symbol = next((s for s, sizes in self.symbols.items() if sizes == dim), None)
            declared.append(dim[0] if len(set(dim)) == 1 else None if hidden or symbol is None else symbol)
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[kind], declared))
        for i, feed in enumerate(self.feeds):
            feed[name] = self.array(kind, tuple(d[i] for d in shape))
        return self.add(Value(name, kind, shape, True))

    def array(self, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        if kind == "?":
            return self.numbers.integers(0, 2, shape).astype(bool)
        if kind in "qi":
            return self.numbers.integers(0, 4, shape).astype(kind)
        return self.numbers.standard_normal(shape).astype(kind)

    def parameter(
        self, kind: str, shape: tuple[int, ...], array: np.ndarray[Any, Any] | None = None, own: bool = False
    ) -> Value:
        """A stored tensor: an earlier one of this form now and then, else a new initializer or Constant."""
        dims = tuple((d,) * 3 for d in shape)
        same = [p for p in self.parameters if p.kind == kind and p.shape == dims]
        if array is None and same and not own and self.chance(0.3):
            return self.pick(same)
        if array is None:
            array = self.special(kind, shape) if self.wild and self.chance(0.2) else self.array(kind, shape)
            array = array * 0.5 if kind in "fde" and not self.wild else array
        value = Value(self.parameter_name(), kind, dims, True)
        array = self.constants[value.name] = np.ascontiguousarray(array.astype(kind)).reshape(shape)
        tensor = numpy_helper.from_array(array, value.name)
        if self.chance(0.15):
            self.nodes.append(helper.make_node("Constant", [], [value.name], value=tensor))
        else:
            self.stored.append(tensor)
        if not self.depth and not own:
            self.parameters.append(value)
        return value

    def special(self, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Values that are more likely a mask, positions or a norm's fresh scale than trained weights."""
        made = self.pick((np.zeros(shape), np.ones(shape), np.arange(int(np.prod(shape))).reshape(shape)))
        return made.astype(kind)

    def ints(self, *values: int) -> str:
        """A stored int64 vector."""
        name = self.fresh(self.pick(("shape", "axes", "onnx::Concat_1", "c", "/Constant")))
        tensor = numpy_helper.from_array(np.array(values, np.int64).reshape(len(values)), name)
        if self.chance(0.5):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.stored.append(tensor)
        return name

    def some(self, kinds: str, rank: Sequence[int] = range(9), near: float = 0.6) -> Value | None:
        """A value of these types and ranks, most often a recent one."""
        fit = [v for v in self.values if v.kind in kinds and v.rank in rank and v.elements <= 4000]
        if not fit:
            return None
        return fit[-1] if self.chance(near) else self.pick(fit)
