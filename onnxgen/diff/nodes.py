"""The nodes of an ONNX file, in the form in which operators are aligned, and where they are in the source.

Two files of one exporter that differ in a few nodes are compared by these: no network has to be followed for it.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxgen.common.names import printable
from onnxgen.diff import answer
from onnxgen.diff.aligning import Alignment, Operand, Step, aligned, by_need
from onnxgen.diff.weights import Array
from onnxgen.passes.rewrite import names_of
from onnxgen.record.way_back import WayBack, parts
from onnxgen.view.page import MAX_NAME_CHARACTERS

if TYPE_CHECKING:
    from onnxgen.diff.side import Side

SILENT = ("Identity", "Dropout")  # in evaluation mode
FEW, FEW_OF = 3, 0.02  # changes: so many, or as a share of all nodes
MAX_SHOWN = 8  # elements of a constant that are shown
ARGUMENTS = {
    "B": "bias",
    "W": "weight",
    "dilations": "dilation",
    "epsilon": "eps",
    "group": "groups",
    "input_mean": "running_mean",
    "input_var": "running_var",
    "kernel_shape": "kernel_size",
    "pads": "padding",
    "scale": "weight",
    "strides": "stride",
}
GEMM = {"B": "weight", "C": "bias"}


class Nodes:
    """The nodes of a file that its outputs need, and its stored tensors."""

    def __init__(self, side: Side) -> None:
        assert side.model is not None
        self.side, self.graph, self.versions = side, side.model.graph, side.model.opset_imports
        self.keys = self._keys(WayBack.from_metadata(side.metadata).tensors)
        self.leaf: dict[ir.Value, Array] = {}
        self.number: dict[ir.Value, Operand] = {}
        self.steps: list[Step] = []
        for value in self.graph.initializers.values():
            if value.const_value is not None:
                self.leaf[value] = value.const_value.numpy()
        for number, value in enumerate(v for v in self.graph.inputs if v not in self.leaf):
            self.number[value] = ("input", number)

    @staticmethod
    def _keys(tensors: Mapping[str, Any]) -> dict[str, str]:
        """Return the key of each tensor that is in the state dict, whole or in parts: then the key of the first."""
        found = {}
        for name, entry in tensors.items():
            first = next((part["key"] for part in parts(entry) if "key" in part), None)
            if first is not None:
                found[name] = first
        return found

    # ---- steps -------------------------------------------------------------------------------------------------------

    def read(self, in_need: bool) -> list[Step]:
        """Return the steps in the order of the file, or in that in which outputs need them."""
        needed = list(by_need(_producers(self.graph.outputs), lambda node: _producers(_taken(node))))
        there = {*needed}
        for node in needed if in_need else [n for n in self.graph if n in there]:
            self._step(node)
        operands = [self.number[v] for v in self.graph.outputs if v in self.number]
        self.steps.append(Step("output", (), {}, (), operands, None, ""))
        return self.steps

    def _step(self, node: ir.Node) -> None:
        if node.op_type == "Constant":
            value = next(iter(node.attributes.values())).value
            self.leaf[node.outputs[0]] = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        elif _is_silent(node) and node.inputs[0] in self.number:
            self.number[node.outputs[0]] = self.number[node.inputs[0]]
        else:
            for value in node.outputs:
                self.number[value] = len(self.steps)
            self.steps.append(self._made(node))

    def _made(self, node: ir.Node) -> Step:
        leaves: dict[str, tuple[str, tuple[int, ...]]] = {}
        arrays: list[Array] = []
        operands: list[Operand] = []
        given = [*self._attributes(node)]
        names = self._input_names(node)
        for place, value in enumerate(_taken(node)):
            if value is None:
                continue
            name = names[place] if place < len(names) else f"input {place}"
            key = self.keys.get(value.name or "") if value in self.leaf else None
            if key is not None:
                leaves[name] = (key, tuple(self.leaf[value].shape))
                arrays.append(self.leaf[value])
            elif value in self.leaf:
                given.append((name, _text(self.leaf[value])))
            else:
                operands.append(self.number[value])
                given.append((name, f"*{value.index() or ''}"))
        digests = tuple(hashlib.blake2b(np.ascontiguousarray(a).tobytes(), digest_size=9).hexdigest() for a in arrays)
        path = min((key.rpartition(".")[0] for key, _ in leaves.values()), default="", key=len)
        sketch = tuple(number for array in arrays for number in _sketch(array))
        return Step(_name(node, arrays), tuple(given), leaves, digests, operands, node, path, sketch)

    def _attributes(self, node: ir.Node) -> Iterator[tuple[str, str]]:
        given = {name: _attribute(a.value) for name, a in node.attributes.items()}
        for name, text in sorted({**self._defaults(node), **given}.items()):
            yield ARGUMENTS.get(name, name), text

    def _schema(self, node: ir.Node) -> Any:
        version = node.version or self.versions.get(node.domain or "", 1)
        try:
            return onnx.defs.get_schema(node.op_type, version, node.domain or "")
        except onnx.defs.SchemaError:
            return None

    def _defaults(self, node: ir.Node) -> dict[str, str]:
        schema = self._schema(node)
        known = {} if schema is None else schema.attributes
        stated = {name: a.default_value for name, a in known.items() if a.default_value.type}
        return {name: _attribute(onnx.helper.get_attribute_value(value)) for name, value in stated.items()}

    def _input_names(self, node: ir.Node) -> list[str]:
        schema = self._schema(node)
        known = GEMM if node.op_type == "Gemm" else ARGUMENTS
        return [known.get(i.name, i.name) for i in schema.inputs] if schema is not None else []

    # ---- places ------------------------------------------------------------------------------------------------------

    def class_of(self, path: str) -> str:
        return next((name for step, name in self._classes.items() if name and self._paths.get(step) == path), "module")

    def place(self, step: Step) -> answer.Side:
        name = printable(names_of(step.node)[0], MAX_NAME_CHARACTERS)
        line = self._lines.get(name, 0)
        code = self.side.lines[line - 1].strip() if line else ""
        return answer.Side(self._paths.get(id(step), step.path), line, code, (name,))

    @cached_property
    def _lines(self) -> dict[str, int]:
        """Return the line of each node: of several that with the fewest nodes, and of these the last."""
        best: dict[str, tuple[float, int]] = {}
        for line, names in self.side.nodes.items():
            for name in names:
                best[name] = min(best.get(name, (math.inf, 0)), (len(names), -line))
        return {name: -line for name, (_, line) in best.items()}

    @cached_property
    def _spans(self) -> list[tuple[int, int, str]]:
        tree = ast.parse(self.side.text)
        return [(n.lineno, n.end_lineno or n.lineno, n.name) for n in tree.body if isinstance(n, ast.ClassDef)]

    @cached_property
    def _classes(self) -> dict[int, str]:
        """Return the class in which each step is a line, by the step's id."""
        lines = {id(s): self._line(s) for s in self.steps if s.node is not None}
        return {
            step: next((name for start, stop, name in self._spans if start <= line <= stop), "")
            for step, line in lines.items()
        }

    def _line(self, step: Step) -> int:
        return self._lines.get(printable(names_of(step.node)[0], MAX_NAME_CHARACTERS), 0)

    @cached_property
    def _paths(self) -> dict[int, str]:
        """Return the module of each step, by its id: that whose source has its line.

        The keys of tensors say it. A step without any is in the module of the nearest one of the same class.
        """
        known: list[tuple[int, int, str]] = []
        steps = [s for s in self.steps if s.node is not None]
        for number, step in enumerate(steps):
            line = self._line(step)
            attributes = {*re.findall(r"self\.(\w+)", self.side.lines[line - 1])} if line else set()
            names = next(iter(step.leaves.values()), ("",))[0].split(".")
            places = [i for i, name in enumerate(names) if name in attributes]
            if places:
                known.append((number, id(step), ".".join(names[: places[-1]])))
        found = {}
        for number, step in enumerate(steps):
            alike = [(abs(n - number), n > number, path) for n, s, path in known if self._is_of_class(s, id(step))]
            found[id(step)] = step.path or min(alike, default=(0, False, ""))[2]
        return found

    def _is_of_class(self, one: int, other: int) -> bool:
        return bool(self._classes[one]) and self._classes[one] == self._classes[other]


def aligned_nodes(sides: Sequence[Side]) -> tuple[Alignment, list[Nodes]]:
    """Align the nodes of two files: in the order of the files, or in that in which outputs need them."""
    read: list[list[Nodes]] = []

    def ways() -> Iterator[tuple[list[Step], list[Step]]]:
        for in_need in (False, True):
            read.append([Nodes(side) for side in sides])
            yield read[-1][0].read(in_need), read[-1][1].read(in_need)

    found = aligned(ways())
    return found, next(both for both in read if both[0].steps is found.ones)


def _is_silent(node: ir.Node) -> bool:
    """Return True if a node returns what it takes. A Dropout may be told to drop something."""
    if node.op_type == "Dropout" and (any(v.uses() for v in node.outputs[1:]) or len(node.inputs) > 2):
        return False
    return node.op_type in SILENT and not node.domain


def has_few_changes(alignment: Alignment, count: int) -> bool:
    """Return True if nearly all nodes stand for each other, and no graph in a node is another one."""
    pairs = [(alignment.ones[a], alignment.others[b]) for a, b in alignment.pairs if a is not None and b is not None]
    inner = any(_graphs_in(a) != _graphs_in(b) for a, b in pairs)
    return not inner and 0 < count <= max(FEW, FEW_OF * len(alignment.others))


def _graphs_in(step: Step) -> list[str]:
    return [text for _, text in step.given if text.startswith("graph ")]


def _producers(values: Iterable[ir.Value | None]) -> list[ir.Node]:
    producers = [value.producer() for value in values if value is not None]
    return [node for node in producers if node is not None]


def _taken(node: ir.Node) -> list[ir.Value | None]:
    """Return what a node takes, with what the graphs in it take from outside."""
    inner = [v for a in node.attributes.values() for graph in _graphs(a.value) for v in _free(graph)]
    return [*node.inputs, *dict.fromkeys(inner)]


def _graphs(value: Any) -> list[ir.Graph]:
    return [g for g in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(g, ir.Graph)]


def _free(graph: ir.Graph) -> Iterator[ir.Value]:
    own = {*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)}
    for value in (*(v for node in graph for v in _taken(node)), *graph.outputs):
        if value is not None and value not in own:
            yield value


def _attribute(value: Any) -> str:
    if hasattr(value, "numpy"):
        return _text(value.numpy())
    if graphs := _graphs(value):
        return " ".join(_graph(graph) for graph in graphs)
    if isinstance(value, bytes):
        return printable(value, MAX_NAME_CHARACTERS)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_attribute, value))}]"
    return str(np.float32(value)) if isinstance(value, float) else printable(str(value), MAX_NAME_CHARACTERS)


def _graph(graph: ir.Graph) -> str:
    """Return a name for a graph in a node: files with other names in it have other ones."""
    text = ir.to_proto(graph).SerializeToString(deterministic=True)
    return f"graph {hashlib.blake2b(text, digest_size=4).hexdigest()}"


def _text(array: Array) -> str:
    """Return a constant: its elements, or how many there are and a name for them."""
    if array.size <= MAX_SHOWN and array.dtype.kind in "biuf":
        return str(array.tolist() if array.dtype.kind != "f" else _attribute(array.tolist()))
    data = repr(array.tolist()).encode() if array.dtype.kind in "OUST" else np.ascontiguousarray(array).tobytes()
    return f"{array.dtype}{list(array.shape)} {hashlib.blake2b(data, digest_size=4).hexdigest()}"


def _name(node: ir.Node, arrays: Sequence[Array]) -> str:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", node.op_type).lower()
    if node.op_type in ("Conv", "ConvTranspose") and arrays:
        name += f"{arrays[0].ndim - 2}d"
    return "linear" if node.op_type in ("MatMul", "Gemm") and arrays else printable(name)


def _sketch(array: Array) -> Iterator[float]:
    """Yield a few numbers that tell tensors apart: the norm, the sum, and some elements."""
    if array.dtype.kind not in "fiub" or not array.size:
        return
    flat = array.reshape(-1).astype(np.float64)
    yield from (float(np.linalg.norm(flat)), float(flat.sum()), *(float(flat[n]) for n in (0, len(flat) // 2, -1)))
