"""The operators that an exported program executes, in one list."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

from onnxgen.canonical.places import Place, place_of
from onnxgen.diff import answer
from onnxgen.diff.aligning import Alignment, Operand, Step, aligned, by_need
from onnxgen.errors import counted

SILENT = frozenset(
    {"alias", "detach", "contiguous", "clone", "lift_fresh_copy", "_to_copy", "dropout", "feature_dropout"}
)
FOLDABLE = ("conv1d", "conv2d", "conv3d", "linear")


def aligned_programs(
    programs: Sequence[Any], digests: Sequence[Mapping[str, str]], states: Sequence[Mapping[str, Tensor]]
) -> Alignment:
    """Align two networks: in the order of their programs, or in that in which outputs need the operators.

    The first says nothing about files whose independent nodes are in another order, the second about operators whose
    operands are. If one has fewer norms, they are also folded into the layers before them. The cheapest alignment is
    taken.
    """
    found: list[Alignment] = []
    for folds in (False, True):
        sides = [
            [Steps(p, d, s, in_need, folds) for in_need in (False, True)]
            for p, d, s in zip(programs, digests, states, strict=True)
        ]
        found.append(aligned((one.read(), other.read()) for one, other in zip(*sides, strict=True)))
        found[-1].folded = (sides[0][0].folded, sides[1][0].folded)
        norms = [sum(step.name == "batch_norm" for step in side) for side in (found[-1].ones, found[-1].others)]
        if norms[0] == norms[1]:
            break
    return min(found, key=lambda alignment: alignment.cost)


class Steps:
    """Reads the steps of an exported program that its outputs need."""

    def __init__(
        self, program: Any, digests: Mapping[str, str], state: Mapping[str, Tensor], in_need: bool, folds: bool
    ) -> None:
        """`in_need`: the order in which outputs need them; else that of the program. `folds`: norms are folded into the
        layers before them."""
        self.program, self.digests, self.state, self.in_need, self.folds = program, digests, state, in_need, folds
        self.folded: dict[str, Tensor] = {}
        self.leaf: dict[Node, str] = {}
        self.number: dict[Node, Operand] = {}
        self.steps: list[Step] = []

    def read(self) -> list[Step]:
        graph, inputs = self.program.graph, 0
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        for spec, node in zip(self.program.graph_signature.input_specs, nodes, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                self.number[node] = ("input", inputs)
                inputs += 1
            else:
                self.leaf[node] = spec.target or node.name
        (output,) = (node for node in graph.nodes if node.op == "output")
        needed = list(by_need(_nodes(output.args), lambda node: node.all_input_nodes))
        there = {*needed}
        for node in needed if self.in_need else [n for n in graph.nodes if n in there]:
            self._step(node)
        operands = [self.number[n] for n in _nodes(output.args) if n in self.number]
        self.steps.append(Step("output", (), {}, (), operands, None, ""))
        return self.steps

    def _step(self, node: Node) -> None:
        if node.op != "call_function" or node in self.leaf:
            return
        value = node.meta.get("val")
        if value is not None and not isinstance(value, (Tensor, tuple, list)):
            return  # a size
        taken = [n for n in node.all_input_nodes if n in self.number or n in self.leaf]
        name = _name(node)
        if taken and all(n in self.leaf for n in taken):  # made of weights alone
            self.leaf[node] = self.leaf[taken[0]]
        elif self.folds and name == "batch_norm" and (layer := self._folding(node)) is not None:
            self.number[node] = layer
        elif (node.target is operator.getitem or name in SILENT) and taken:
            self.number[node] = self.number[taken[0]]
        else:
            self.number[node] = len(self.steps)
            self.steps.append(self._made(node, name))

    def _folding(self, node: Node) -> int | None:
        """Fold a norm into the layer before it, and return the number of that, or None if there is none."""
        before = node.args[0]
        number = self.number.get(before) if isinstance(before, Node) and len(before.users) == 1 else None
        step = self.steps[number] if isinstance(number, int) else None
        if step is None or step.name not in FOLDABLE or "weight" not in step.leaves:
            return None
        norm = self._made(node, "batch_norm").leaves
        path = step.leaves["weight"][0]
        weight = self._tensor(path)
        mean, var = (self._tensor(norm[name][0]) for name in ("running_mean", "running_var"))
        scale = (var + float(node.args[7])).rsqrt()
        scale = scale * self._tensor(norm["weight"][0]) if "weight" in norm else scale
        bias = step.leaves.get("bias") or norm.get("bias")
        if bias is None or weight.shape[0] != scale.shape[0]:
            return None
        shift = (self._tensor(bias[0]) if "bias" in step.leaves else 0) - mean
        beta = self._tensor(norm["bias"][0]) if "bias" in norm else 0
        self.folded[path] = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        self.folded[bias[0]] = shift * scale + beta
        step.leaves["bias"] = bias
        step.given = tuple((name, "*" if name == "bias" else text) for name, text in step.given)
        step.digests = ("", "")
        step.sketch = self._sketch(step.leaves)
        return number

    def _sketch(self, leaves: Mapping[str, tuple[str, Any]]) -> tuple[float, ...]:
        """Return a few numbers that tell tensors apart: of each its norm, its sum, and some elements."""
        found: list[float] = []
        for path, _ in leaves.values():
            flat = self._tensor(path).reshape(-1) if path in self.state else torch.zeros(0)
            places = [0, flat.numel() // 2, flat.numel() - 1] if flat.numel() else []
            found += [float(flat.norm()), float(flat.sum()), *(float(flat[place]) for place in places)]
        return tuple(found)

    def _tensor(self, path: str) -> Tensor:
        return (self.folded[path] if path in self.folded else self.state[path]).detach().double()

    def _made(self, node: Node, name: str) -> Step:
        given, leaves, operands = [], {}, []
        schema = getattr(node.target, "_schema", None)
        names = [a.name for a in schema.arguments] if schema is not None else []
        known = dict(zip(names, node.args)) if names else dict(enumerate(node.args))
        defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()} if schema else {}
        every = {**defaults, **known, **node.kwargs}
        for argument, value in ((name, every[name]) for name in (names or every) if name in every):
            nodes = _nodes(value)
            operands += [self.number[n] for n in nodes if n in self.number]
            for place, leaf in enumerate(n for n in nodes if n in self.leaf):
                shape = leaf.meta.get("val")
                key = str(argument) if not place else f"{argument}[{place}]"
                sizes = tuple(int(s) if isinstance(s, int) else -1 for s in shape.shape) if shape is not None else ()
                leaves[key] = (self.leaf[leaf], sizes)
            given.append((str(argument), _text(value)))
        modules: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
        path = list(modules.values())[-1][0] if modules else ""
        return Step(
            name,
            tuple(given),
            leaves,
            tuple(self.digests.get(leaf, "") for leaf, _ in leaves.values()),
            operands,
            node,
            path,
            self._sketch(leaves),
        )


def _name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(getattr(node.target, "__name__", node.target))
    return str(schema.name.split("::")[1]).removesuffix("_")


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _nodes(v)]
    return []


def _text(value: Any) -> str:
    """Return an argument as text. Values of the network are only marked; a size that is free is "free"."""
    if isinstance(value, Node):
        made = value.meta.get("val")
        return "*" if isinstance(made, (Tensor, tuple, list)) or made is None else "free"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)


class Traced:
    """Says where steps of an exported program are in the source."""

    def __init__(
        self, file: str, nodes: Mapping[int, list[str]], kinds: Mapping[str, str], module: nn.Module, steps: list[Step]
    ) -> None:
        """
        Args:
            file: the name of the source in tracebacks.
            nodes: of the ONNX file, by line.
            kinds: the operator of each node of the ONNX file, in its order.
            steps: all of the program.
        """
        self.file, self.nodes, self.kinds, self.steps = file, nodes, kinds, steps
        self.classes = {path: type(part).__name__ for path, part in module.named_modules()}

    def class_of(self, path: str) -> str:
        return self.classes.get(path, "module")

    def place(self, step: Step) -> answer.Side:
        place = self._line(step)
        if place is None:
            return answer.Side(step.path)
        return answer.Side(step.path, place.line, place.code, self._nodes(step, place.line))

    def _line(self, step: Step) -> Place | None:
        side = "generated" if self.file.startswith("<") else "edited"
        return None if step.node is None else place_of(step.node, side, self.file)

    def _nodes(self, step: Step, line: int) -> tuple[str, ...]:
        """Return the nodes of a step: those of its line, and of these the one that it is, if it can be told.

        A line of a class that is used several times has the nodes of all uses, in the order in which they run.
        """
        nodes = tuple(self.nodes.get(line, ()))
        alike = [name for name, kind in self.kinds.items() if is_called(step.name, kind)]
        runs = [s for s in self.steps if s.name == step.name]
        if len(alike) != len(runs):
            alike = [name for name in alike if name in nodes]
            runs = [s for s in runs if (at := self._line(s)) is not None and at.line == line]
        if len(alike) != len(runs):
            return nodes
        found = alike[[id(s) for s in runs].index(id(step))]
        return (found,) if found in nodes else nodes


CALLED = {"cat": "concat", "linear": "gemm matmul", "permute": "transpose", "view": "reshape", "mm": "matmul gemm"}


def is_called(name: str, kind: str) -> bool:
    """Return True if an operator of torch may be that of an ONNX node, by their names."""
    mine, theirs = ("".join(c for c in word.lower() if c.isalpha()) for word in (re.sub(r"\d+d$", "", name), kind))
    words = CALLED.get(name, mine).split()
    return bool(theirs) and any(theirs.startswith(word) or word.startswith(theirs) for word in words)


def blocks(one: nn.Module, other: nn.Module) -> Iterator[str]:
    """Say which lists of modules have another length."""
    lengths = [
        {p: len(list(m.children())) for p, m in side.named_modules() if isinstance(m, (nn.Sequential, nn.ModuleList))}
        for side in (one, other)
    ]
    for path, length in lengths[0].items():
        if path and lengths[1].get(path, length) != length:
            yield f"{path}: {counted(length, 'block')} -> {lengths[1][path]}"
