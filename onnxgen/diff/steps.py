"""The operators that an exported program executes, in one list."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind
from torch.fx import Node

SILENT = frozenset(
    {"alias", "detach", "contiguous", "clone", "lift_fresh_copy", "_to_copy", "dropout", "feature_dropout"}
)
FOLDABLE = ("conv1d", "conv2d", "conv3d", "linear")

Operand = Any  # the number of a step, or ("input", its number)


@dataclass
class Step:
    """An operator that is executed.

    Attributes:
        name: of the operator.
        given: its arguments, without tensors, by name.
        leaves: the parameters and buffers that it takes, each with its shape, by argument.
        digests: names for their elements.
        operands: the values that it takes.
        node: of the graph.
        path: the module that called it.
        sketch: a few numbers of its tensors, which are near for tensors that were rounded otherwise.
    """

    name: str
    given: tuple[tuple[str, str], ...]
    leaves: dict[str, tuple[str, tuple[int, ...]]]
    digests: tuple[str, ...]
    operands: list[Operand]
    node: Node | None
    path: str
    sketch: tuple[float, ...] = ()

    @property
    def shapes(self) -> tuple[Any, ...]:
        return tuple((name, shape) for name, (_, shape) in self.leaves.items())

    @property
    def token(self) -> Any:
        return self.name, self.given, self.shapes, len(self.operands)

    @property
    def label(self) -> str:
        return self.name.strip("_")


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
        needed = list(self._in_need(output))
        there = {*needed}
        for node in needed if self.in_need else [n for n in graph.nodes if n in there]:
            self._step(node)
        operands = [self.number[n] for n in _nodes(output.args) if n in self.number]
        self.steps.append(Step("output", (), {}, (), operands, None, ""))
        return self.steps

    def _in_need(self, output: Node) -> Iterator[Node]:
        """Yield the nodes that a node needs, operands first."""
        done: set[Node] = set()
        todo = [(node, False) for node in reversed(_nodes(output.args))]
        while todo:
            node, ready = todo.pop()
            if node in done:
                continue
            if ready:
                done.add(node)
                yield node
            else:
                todo.append((node, True))
                todo += [(n, False) for n in reversed(node.all_input_nodes) if n not in done]

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
